"""From the state after a round to a row of the history: the model, its objective, the gaps, what has been spent."""

import math
import warnings
from typing import Any

import numpy as np

from fedmls.bounds import certificate as certificates
from fedmls.checks import positive
from fedmls.problem import OracleProblem, Problem
from fedmls.simulation.config import Metrics
from fedmls.simulation.cost import NOTHING, Counters
from fedmls.types import Algorithm, Array

RESERVED = (*Counters._fields, "passes", "objective", "gap", "relative_gap", "lower_bound", "certified_gap", "seconds")


class Recorder:
    """Makes the rows of one run. Keeps nothing but the best lower bound so far."""

    def __init__(
        self,
        algorithm: Algorithm,
        problem: Any,  # or what the server of a federation knows of it
        server: Any,
        x0: Array,
        best: float | None,
        metrics: Metrics,
        certificate: float | bool | None,
        more: tuple[str, ...] = (),  # columns that the caller fills
    ) -> None:
        self.algorithm, self.problem, self.x0, self.more = algorithm, problem, x0, more
        self.best, self.metrics = best, metrics
        taken = sorted({*RESERVED} & {*metrics})
        if taken:
            raise ValueError(f"metrics holds {taken[0]!r}, which is a column already; give it another name")
        self.radius = certificate_radius(algorithm, problem, certificate)
        self.lower_bound, self.refuted = -math.inf, False
        models = algorithm.model(server)
        self.asked = self._asked(len(models) if isinstance(models, tuple) else 1)

    @property
    def columns(self) -> list[str]:
        proved = [] if self.radius is None else ["lower_bound", "certified_gap"]
        return [*Counters._fields, *self.more, "objective", "gap", "relative_gap", *proved, "seconds", *self.metrics]

    def answer(self, server: Any) -> tuple[Array, float]:
        """Return the model and its objective; of several candidates the best."""
        models = self.algorithm.model(server)
        if not isinstance(models, tuple):
            return models, self.problem.value(models)
        objectives = [self.problem.value(x) for x in models]
        chosen = int(np.argmin(objectives))
        return models[chosen], objectives[chosen]

    def _asked(self, candidates: int) -> Counters:
        """Return what it costs to ask for a model, and for its certificate, beyond the round itself.

        Fields sent on demand; for several candidates, or for a certificate, an exchange in which clients report their
        objective at each; for a certificate a_i and p_i. An algorithm that proves knows all that.
        """
        if self.algorithm.traits.proves:
            return NOTHING
        n, vector = self.problem.n, 8 * self.problem.dimension
        up = len(self.algorithm.traits.on_demand) + (self.radius is not None)
        reported = candidates if candidates > 1 or self.radius is not None else 0
        numbers = reported + (self.radius is not None)
        return Counters(
            exchanges=1 if reported else 0,
            vectors_up=n * up,
            vectors_down=n * reported,
            bytes_up=n * (up * vector + 8 * numbers),
            bytes_down=n * reported * vector,
        )

    def resume(self, rows: list[dict[str, float]]) -> None:
        """Go on after these rows."""
        if self.radius is not None and rows:
            self.lower_bound = rows[-1]["lower_bound"]
            self.refuted = self.lower_bound == -math.inf

    def _consistent(self, bound: float, objective: float, k: int) -> float:
        """Return the bound, unless the run refutes it: then the minimum is outside the ball, and nothing is proved."""
        if self.refuted or bound > objective + 1e-9 * max(1.0, abs(objective)):
            if not self.refuted:
                warnings.warn(
                    f"the certificate is void: in round {k} the objective {objective:.6g} is below the bound "
                    f"{bound:.6g}, so the minimum is farther than {self.radius:g} from x0; give a larger radius",
                    stacklevel=2,
                )
            self.refuted = True
            return -math.inf
        return bound

    def row(self, spent: Counters, x: Array, objective: float, slopes: Array, server: Any) -> dict[str, float]:
        """Return the row of a model; its counts include asking for it."""
        counters = spent if self.asked == NOTHING else spent.plus(self.asked)
        if self.radius is None or not isinstance(self.problem, Problem):
            return self.row_of(counters, x, objective)
        if self.algorithm.traits.proves:
            return self.row_of(counters, x, objective, *self.known(server))
        return self.row_of(counters, x, objective, certificates.lower_bound(self.problem, slopes, self.radius, self.x0))

    def known(self, server: Any) -> tuple[float, bool]:
        """Return the bound of an algorithm that proves (-inf without certificate), and if it knows its objective."""
        known = not math.isnan(self.algorithm.objective(server))
        if self.radius is None:
            return -math.inf, known
        return self.algorithm.lower_bound(server, self.radius, self.x0), known

    def row_of(
        self, counters: Counters, x: Array, objective: float, bound: float = -math.inf, known: bool = True
    ) -> dict[str, float]:
        """Return the row of a model with these counts and, for a certificate, the bound that goes with it.

        known: whether the server knows the objective; if it does not, it cannot tell how close it is (NaN).
        """
        gap = np.nan if self.best is None else objective - self.best
        row = {
            **counters._asdict(),
            "objective": objective,
            "gap": gap,
            "relative_gap": gap / gap_scale(self.best),
            "seconds": 0.0,
        }
        if self.radius is not None:
            self.lower_bound = self._consistent(max(self.lower_bound, bound), objective, counters.round)
            row["lower_bound"] = self.lower_bound
            row["certified_gap"] = objective - self.lower_bound if known else math.nan
        row.update({name: float(metric(x)) for name, metric in self.metrics.items()})
        return row


def gap_scale(best: float | None) -> float:
    """Return what a relative gap is relative to: |f*|, or 1 where f* is 0 or not known."""
    return abs(best) if best and abs(best) > 1e-9 else 1.0


def certificate_radius(algorithm: Algorithm, problem: Any, certificate: float | bool | None) -> float | None:
    """Return the radius of the ball that holds x*: infinite where none is needed, None without a certificate."""
    if certificate is None or certificate is False:
        return None
    if not (algorithm.traits.certifies or algorithm.traits.proves):
        raise ValueError(
            f"{algorithm.name} makes no certificate; fedmlsb, fedmls, fedmlse and fedmlsd do: leave out certificate="
        )
    if isinstance(problem, OracleProblem):
        raise ValueError("a problem made of functions has no rows to prove anything by; leave out certificate=")
    if certificate is True and algorithm.traits.proves:
        return math.inf
    if certificate is True:
        if problem.l2 == 0 or problem.intercept:
            why = "the intercept is not in the l2 term" if problem.l2 else "there is no l2 term"
            raise ValueError(
                f"certificate=True proves nothing here ({why}); give a radius that x* is within, from x0, or take "
                "fedmls.FedMLSB(), which needs none"
            )
        return math.inf
    return positive("certificate", certificate)
