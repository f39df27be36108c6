"""The settings of one run, in one place: :class:`RunConfig`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from fedmls.checks import check_batch, real, unknown, whole
from fedmls.problem import OracleProblem, Problem
from fedmls.rounds import start_point
from fedmls.types import Algorithm, Array, Optimum

AnyProblem = Problem | OracleProblem
Metrics = Mapping[str, Callable[[Array], float]]


@dataclass(frozen=True, eq=False)
class RunConfig:
    """How an algorithm runs on a problem; :func:`fedmls.simulate` explains each setting."""

    rounds: int
    batch: float = 1.0
    seed: int = 0
    x0: Any = None
    optimum: float | Optimum | str | None = "auto"
    metrics: Metrics | None = None
    every: int = 1
    target: float | None = None
    certificate: float | bool | None = None
    until: float | None = None

    @property
    def best(self) -> float | None:
        """f*, in resolved settings; None where it is not known."""
        return real(self.optimum)

    def resolved(self, problem: AnyProblem) -> "RunConfig":
        """Return the settings for this problem, checked: x0 is an array, optimum a number or None, metrics a dict."""
        return replace(
            self,
            rounds=whole("rounds", self.rounds),
            every=whole("every", self.every),
            seed=whole("seed", self.seed, least=0, most=2**63 - 1),
            batch=check_batch(self.batch),
            x0=start_point(problem, self.x0),
            optimum=known_optimum(problem, self.optimum),
            metrics=check_metrics(self.metrics),
        )

    def identity(self, algorithm: Algorithm, problem: AnyProblem) -> dict[str, Any]:
        """Return what tells this run from others, in plain values, but for where it stops: a run that is resumed may go
        further. Only resolved settings have an identity."""
        return {
            "algorithm": repr(algorithm),
            "problem": name_of(problem),
            "start": [float(value) for value in self.x0],
            "batch": self.batch,
            "seed": self.seed,
            "every": self.every,
            "optimum": self.best,
            "metrics": sorted(self.metrics or ()),
            "certificate": None if self.certificate is None else float(self.certificate),
        }

    def stops(self) -> list[Any]:
        """Return where the run stops, in plain values: with the identity, equal values mean equal histories."""
        stops: list[Any] = [self.rounds] if self.target is None else [self.rounds, self.target]
        if self.until is not None:
            stops.append({"until": self.until})
        if self.certificate is True:  # which the identity writes as the radius 1
            stops.append("without a radius")
        return stops


class PlannedRun(NamedTuple):
    """One run to be done: all that :class:`fedmls.simulation.run.Simulation` takes."""

    algorithm: Algorithm
    problem: AnyProblem
    config: RunConfig


def check_problem(problem: Any) -> None:
    if not isinstance(problem, Problem | OracleProblem):
        raise ValueError(f"{type(problem).__name__} is no problem; give a fedmls.Problem or a fedmls.OracleProblem")


def check_metrics(metrics: Any) -> dict[str, Any]:
    if not isinstance(metrics or {}, Mapping) or not all(callable(metric) for metric in (metrics or {}).values()):
        raise ValueError(f"metrics is {metrics!r}; give functions by name: {{'norm': lambda x: ...}}")
    return dict(metrics or {})


def known_optimum(problem: AnyProblem, optimum: float | Optimum | str | None) -> float | None:
    """Return f*, for "auto" by solving the problem; None where it is not known."""
    if isinstance(optimum, str):
        if optimum != "auto":
            raise ValueError(unknown("optimum", optimum, ("auto",)) + ", or give a number or None")
        return problem.optimum.value if isinstance(problem, Problem) else None
    if isinstance(optimum, Optimum):
        return float(optimum.value)
    if optimum is not None and real(optimum) is None:
        raise ValueError(f"optimum is {optimum!r}; give a number, what fedmls.optimum returns, 'auto' or None")
    return real(optimum)


def name_of(problem: AnyProblem) -> str:
    """Return the problem's fingerprint or, for one made of functions, its size."""
    if not isinstance(problem, Problem):
        return f"{problem.n} functions of {problem.dimension} numbers"
    return problem.fingerprint if problem.device == "cpu" else f"{problem.fingerprint} on {problem.device}"


def on_device(problem: AnyProblem, device: str) -> AnyProblem:
    """Return the problem with its rows on the device."""
    if isinstance(problem, Problem):
        return problem.on(device)
    if device != "cpu":
        raise ValueError(f"device is {device!r}, but a problem made of functions has no rows; leave it out")
    return problem
