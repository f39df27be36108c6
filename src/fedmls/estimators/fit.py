"""One fit of one linear model: rounds, and a look at the model every few of them, until it is good enough.

FedMLS-B knows its objective and what is proved after every round; the others are asked, one exchange for a look.
"""

from typing import Any, NamedTuple

import numpy as np

from fedmls.algorithms import FedMLSD
from fedmls.algorithms._bundle_server import MANY
from fedmls.bounds.mixtures import FREE, Proof
from fedmls.estimators.rows import Objective, TrainingRows, make_problem, with_penalty_rows
from fedmls.estimators.scaling import make_scaling
from fedmls.estimators.solvers import make_solver, works_on_slopes
from fedmls.problem import Problem
from fedmls.progress import Bar
from fedmls.simulation.config import RunConfig
from fedmls.simulation.cost import Counters
from fedmls.simulation.observers import Row, View
from fedmls.simulation.run import Simulation
from fedmls.types import Algorithm, Array

COLUMNS = [*Counters._fields, "objective", "lower_bound", "certified_gap", "seconds"]
FEWEST = 20  # rounds, before an objective that no longer falls ends a fit


class FitSettings(NamedTuple):
    """How the objective is minimised; see :class:`fedmls.estimators.base.FederatedLinearModel`."""

    solver: Any
    tol: float
    max_rounds: int
    check_every: int
    batch: float
    seed: int
    verbose: bool
    device: str


class Fit(NamedTuple):
    """The best model looked at, and the history, in the units of the estimator.

    lam0: what FedMLS-D ended with.  ended: "proved", "settled" (nothing is proved), "rounds" (no more) or "diverged".
    """

    x: Array
    history: Any
    objective: float
    certified_gap: float
    rounds: int
    exchanges: int
    lam0: float | None
    ended: str


def fit_model(
    rows: TrainingRows, objective: Objective, settings: FitSettings, x0: Array | None, lam0: float | None
) -> Fit:
    """Minimise the objective, from x0 and with FedMLS-D's λ_0 of an earlier fit where they are given."""
    scaling = make_scaling(rows, objective)
    rows, objective = scaling.rows(rows), scaling.objective(objective)
    x0 = _start(rows, objective) if x0 is None else scaling.scaled_model(x0)
    problem, data = make_problem(rows, objective), np.True_
    if objective.l1 and works_on_slopes(settings.solver):
        problem, data = with_penalty_rows(rows, objective)
    problem = problem.on(settings.device)
    algorithm = make_solver(settings.solver, problem, x0, lam0)
    simulation = Simulation(algorithm, problem, _config(algorithm, settings, x0))
    if algorithm.traits.certifies:
        simulation.keep_slopes()
    with Bar(algorithm.name, settings.max_rounds, "rounds", settings.verbose) as bar:
        observer = FitObserver(rows, objective, problem, data, algorithm, x0, settings.tol, bar)
        fit = observer.result(simulation.run([observer]))
    return fit._replace(x=scaling.original_model(fit.x))


def _config(algorithm: Algorithm, settings: FitSettings, x0: Array) -> RunConfig:
    """Return the settings of the run: an algorithm that proves is looked at after every round, which costs nothing."""
    proves = algorithm.traits.proves
    return RunConfig(
        settings.max_rounds,
        batch=settings.batch,
        seed=settings.seed,
        x0=x0,
        optimum=None,
        every=1 if proves else settings.check_every,
        certificate=True if proves else None,
    )


def _start(rows: TrainingRows, objective: Objective) -> Array:
    """Return 0, in regression with the mean of the clients' quantiles as intercept: y + 1000 is fitted like y."""
    x = np.zeros(rows.X.shape[1] + objective.intercept)
    if objective.intercept and not objective.loss.is_classification:
        x[-1] = rows.quantile(objective.loss.parameter)
    return x


class FitObserver:
    """Watches a run for a fit: the objective of its models, what is proved of them, what looking at them costs.

    It stops the run when the model is good enough. Objectives and bounds are those of f until :meth:`result`.
    """

    def __init__(
        self,
        rows: TrainingRows,
        objective: Objective,
        problem: Problem,
        data: Any,  # which rows are data, and not an l1 term
        algorithm: Algorithm,
        x0: Array,
        tol: float,
        bar: Bar,
    ) -> None:
        self.problem, self.data, self.algorithm, self.tol, self.bar = problem, data, algorithm, tol, bar
        self.proves, certifies = algorithm.traits.proves, algorithm.traits.certifies
        self.smooth, self.unit = not objective.loss.is_polyhedral, objective.unit * rows.n
        self.x, self.objective, self.bound = x0, problem.value(x0), -np.inf
        self.floor = tol * self.objective
        penalised = bool(objective.l2 or objective.l1)
        self.proof = None
        self.provable = penalised or problem.dimension <= (MANY if self.proves else FREE)
        if (certifies or self.smooth) and self.provable and not self.proves:
            self.proof = Proof(problem.dimension, rows.X.shape[1], objective.l2 / rows.n, objective.l1 / rows.n)
        self.spent = self._cost_of_start()
        self.history: list[Row] = []
        self.best: list[tuple[int, float]] = []  # a round, and the best objective so far
        self.ended = ""

    @property
    def relative_gap(self) -> float | None:
        if self.proof is None and not self.proves:
            return None
        return (self.objective - self.bound) / max(self.objective, self.floor, 1e-300)

    def on_rows(self, view: View) -> bool:
        """Look at the model of the last row, if there is a new one; stop when it is good enough."""
        if view.rows:
            self._look(view.rows[-1], view.models[-1], view)
        self.bar.update(view.round, self.relative_gap)
        return bool(self.ended)

    def _look(self, row: Row, x: Array, view: View) -> None:
        halves = 0
        if row["objective"] < self.objective:
            self.x, self.objective = x, row["objective"]
        if self.proves:
            self.bound = min(self.objective, row["lower_bound"])
        elif self.proof is not None:
            slopes = self._slopes(x, view)
            self.bound, halves = min(self.objective, self.proof.look(self.problem, slopes, x)), 2 * len(slopes)
        self._record(row, halves, view.asked)
        self.best.append((int(row["round"]), self.objective))
        wanted = self.tol * max(self.objective, self.floor)
        if self.objective - self.bound <= wanted and not (self.proves and np.isnan(row["certified_gap"])):
            self.ended = "proved"
        elif self.proof is None and not (self.proves and self.provable) and self._fell() <= wanted:
            self.ended = "settled"

    def _slopes(self, x: Array, view: View) -> Array:
        """Return a slope or more for each row: at the model for a smooth loss, else those that the algorithm keeps.

        Without an l2 term the slopes of all of FedMLS-D's lanes are worth their bytes: far fewer looks are needed.
        """
        if self.smooth:
            slopes = self.problem.loss.slope(self.problem.matrix() @ x, self.problem.y)
        else:
            slopes = view.cut_slopes if self.problem.l2 else view.slopes
        return np.where(self.data, np.atleast_2d(slopes), 0.0)

    def _fell(self) -> float:
        """Return how much the best objective fell in the second half of the rounds: the error, if that is like 1/k."""
        k, now = self.best[-1]
        then = next((value for j, value in reversed(self.best) if j <= k / 2), np.inf)
        return then - now if k >= FEWEST else np.inf

    def _cost_of_start(self) -> Counters:
        """Return the cost of the survey (sums and squares of the columns, a quantile and a weight) and of the objective
        at the start, which FedMLS-B learns in its first round."""
        n, d = self.problem.n, self.problem.dimension
        vectors, numbers = 2 * n, 8 * n
        return Counters(
            exchanges=1 if self.proves else 2,
            vectors_up=vectors,
            vectors_down=vectors,
            bytes_up=8 * d * vectors + 4 * numbers,
            bytes_down=8 * d * vectors + numbers,
        )

    def _record(self, row: Row, halves: int, asked: Counters) -> None:
        """Add a row to the history. It counts all looks so far."""
        self.spent = self.spent if self.proves else self.spent.plus(self._cost_of_look(halves))
        counters = Counters(*(int(row[name]) for name in Counters._fields)).plus(self.spent)
        self.spent = self.spent.plus(asked)  # rows count that once, and it was asked for again
        objective = row["objective"]
        proved = {"objective": objective, "lower_bound": self.bound, "certified_gap": objective - self.bound}
        self.history.append({**counters._asdict(), **proved, "seconds": row["seconds"]})

    def _cost_of_look(self, halves: int) -> Counters:
        """Return the cost of a look: the model goes down; its objective, and halves of cuts, come up."""
        n, d = self.problem.n, self.problem.dimension
        return Counters(
            exchanges=1,
            vectors_up=n * halves,
            vectors_down=n,
            bytes_up=8 * n * (halves * (d + 1) + 1),
            bytes_down=8 * n * d,
        )

    def result(self, end: View) -> Fit:
        """Return the best model, in the units of the estimator; ``end`` is the run at its end."""
        import pandas as pd

        history = pd.DataFrame(self.history, columns=pd.Index(COLUMNS))
        history[["objective", "lower_bound", "certified_gap"]] *= self.unit
        return Fit(
            self.x,
            history,
            self.objective * self.unit,
            (self.objective - self.bound) * self.unit,
            end.round,
            self.spent.exchanges + end.spent.exchanges,
            self._lam0(end.server),
            self.ended or ("diverged" if end.diverged else "rounds"),
        )

    def _lam0(self, server: Any) -> float | None:
        """Return what FedMLS-D ended with."""
        if not isinstance(self.algorithm, FedMLSD):
            return None
        return float(server.mu[server.best]) * self.problem.n or None
