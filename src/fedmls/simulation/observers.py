"""What watches a run, and may stop it: the target, the proof, the user's callbacks, progress, an estimator's own rule.

:meth:`fedmls.simulation.run.Simulation.run` shows every observer a :class:`View` of the run after each exchange.
"""

from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple, Protocol

from fedmls.checks import positive
from fedmls.simulation.config import RunConfig
from fedmls.simulation.cost import Counters
from fedmls.types import Array

Row = dict[str, float]
Callback = Callable[[Row], Any]  # and begin(about), end(run, error), where it has them


class View(NamedTuple):
    """A run between two exchanges. Observers read it and change nothing."""

    rows: list[Row]  # that the last exchange recorded: one, two of a pair, or none
    models: list[Array]  # of these rows; of a checkpoint's there are none
    last: Row | None  # the last row of the history
    spent: Counters  # without asking for the model
    asked: Counters  # what asking for the model costs
    server: Any  # the algorithm's state
    slopes: Array  # that clients keep, one for each row (and lane)
    cut_slopes: Array  # those of them that make a certificate
    diverged: bool

    @property
    def round(self) -> int:
        """How many rounds are done."""
        return self.spent.round


class Observer(Protocol):
    """Anything that watches a run."""

    def on_rows(self, view: View) -> bool:
        """Look at the run after an exchange, with the rows that it recorded, if any; return True to stop the run.

        The rows of a checkpoint come first, all together.
        """


class StopAtTarget:
    """Stops a run as soon as one of its rows has a relative gap of at most the target."""

    def __init__(self, target: float) -> None:
        self.target = target

    def on_rows(self, view: View) -> bool:
        return any(row["relative_gap"] <= self.target for row in view.rows)


class StopWhenProved:
    """Stops a run when the gap of its last row is proved to be small enough."""

    def __init__(self, until: float) -> None:
        self.until = until

    def on_rows(self, view: View) -> bool:
        return any(row["certified_gap"] <= self.until for row in view.rows[-1:])


class CallbackRows:
    """Hands every row to the callbacks, as a dict of their own."""

    def __init__(self, callbacks: list[Callback]) -> None:
        self.callbacks = callbacks

    def on_rows(self, view: View) -> bool:
        for row, callback in product(view.rows, self.callbacks):
            callback(dict(row))
        return False


class Progress:
    """Shows how far a run is: calls ``show`` with the rounds done and a column of the last row."""

    def __init__(self, show: Callable[[int, float | None], Any], column: str) -> None:
        self.show, self.column = show, column

    def on_rows(self, view: View) -> bool:
        self.show(view.round, None if view.last is None else view.last[self.column])
        return False


def shown_gap(config: RunConfig) -> str:
    """Return the column that progress shows: the gap that the run is to close."""
    return "relative_gap" if config.until is None else "certified_gap"


def stopping_rules(config: RunConfig, has_certificate: bool) -> list[Observer]:
    """Return the observers that the settings ask for, with ``target`` and ``until``. Settings are resolved."""
    rules: list[Observer] = []
    if config.until is not None:
        if not has_certificate:
            raise ValueError(f"until is {config.until!r}, but there is no certificate to prove it by; add certificate=")
        rules.append(StopWhenProved(positive("until", config.until)))
    if config.target is not None:
        if config.best is None:
            raise ValueError(
                f"target is {config.target!r}, but there is no optimum to measure the gap by; give optimum="
            )
        rules.append(StopAtTarget(positive("target", config.target)))
    return rules


def check_callbacks(callback: Any) -> list[Callback]:
    """Return the callbacks, one or several or none, as a list."""
    callbacks = [] if callback is None else list(callback) if isinstance(callback, list | tuple) else [callback]
    for one in callbacks:
        if isinstance(one, type) or not callable(one):
            raise ValueError(f"callback is {one!r}; give a function of a row of the history, such as print")
    return callbacks
