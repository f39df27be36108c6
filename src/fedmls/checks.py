"""Checks of what a user passes in. Each error names the value and says what to do."""

import difflib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")


def unknown(kind: str, name: object, known: Iterable[str]) -> str:
    """One line for a name that does not exist, with the nearest one that does."""
    options = list(known)
    near = difflib.get_close_matches(str(name), options, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"unknown {kind} {name!r}: {hint}choose from {', '.join(options)}"


def positive(name: str, value: object) -> float:
    if not isinstance(value, int | float) or not (0 < value < math.inf):
        raise ValueError(f"{name} is {value!r}; it must be a positive number")
    return float(value)


def at_least(name: str, value: object, least: float) -> float:
    if not isinstance(value, int | float) or not (least <= value < math.inf):
        raise ValueError(f"{name} is {value!r}; it must be a number of at least {least:g}")
    return float(value)


def one_of(name: str, value: object, options: Iterable[str]) -> None:
    if value not in tuple(options):
        raise ValueError(unknown(name, value, options))


def whole(name: str, value: object, least: int = 1) -> int:
    number = getattr(value, "__index__", lambda: None)()
    if number is None or isinstance(value, bool) or number < least:
        raise ValueError(f"{name} is {value!r}; it must be a whole number of at least {least}")
    return int(number)


def check_batch(batch: float) -> float:
    if not isinstance(batch, int | float) or not (0 < batch <= 1):
        raise ValueError(
            f"batch is {batch!r}; it is the fraction of rows used in a step: take it in (0, 1], 1 for all rows"
        )
    return float(batch)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def hyperparameters(cls: type[T]) -> type[T]:
    """A frozen keyword-only dataclass whose constructor names the nearest parameter on a typo."""
    made = dataclass(frozen=True, kw_only=True)(cls)
    original: Callable[..., None] = made.__init__
    known = [field.name for field in fields(made)]  # type: ignore[arg-type]

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if args:
            raise TypeError(f"{cls.__name__} takes its parameters by name: {', '.join(known)}")
        for key in kwargs:
            if key not in known:
                raise TypeError(unknown(f"parameter of {cls.__name__}", key, known))
        original(self, **kwargs)

    init.__doc__ = original.__doc__
    init.__wrapped__ = original  # type: ignore[attr-defined]
    made.__init__ = init  # type: ignore[method-assign]
    return made
