"""Hyper-parameters: the fields of frozen dataclasses, their plain values, and their description in a few words."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from inspect import get_annotations
from typing import Any, TypeVar, dataclass_transform

import numpy as np

from fedmls.checks import real, unknown
from fedmls.schedules import Power
from fedmls.types import Algorithm

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def hyperparameters(cls: type[T]) -> type[T]:
    """A frozen keyword-only dataclass whose constructor names the nearest parameter on a typo."""
    for name in get_annotations(cls):
        if name not in cls.__dict__ and hasattr(cls, name):
            setattr(cls, name, field())  # what the base class says is no default of a parameter
    made = dataclass(frozen=True, kw_only=True)(cls)
    original: Callable[..., None] = made.__init__
    types = {field.name: str(field.type) for field in fields(made)}  # type: ignore[arg-type]
    known = list(types)

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if args:
            raise TypeError(f"{cls.__name__} takes its parameters by name: {', '.join(known)}")
        for key in kwargs:
            if key not in known:
                raise TypeError(unknown(f"parameter of {cls.__name__}", key, known))
        original(self, **{key: _plain_number(value, types[key]) for key, value in kwargs.items()})

    init.__doc__ = original.__doc__
    init.__wrapped__ = original  # type: ignore[attr-defined]
    made.__init__ = init  # type: ignore[method-assign]
    return made


def _plain_number(value: Any, wanted: str) -> Any:
    """NumPy's numbers as Python's, and whole numbers as floats where floats are wanted: equal values, equal objects."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, int) and not isinstance(value, bool) and "float" in wanted and real(value) is not None:
        return float(value)
    return value


def parameters(algorithm: Algorithm) -> dict[str, Any]:
    """Return the algorithm's parameters by name, as they are."""
    return {field.name: getattr(algorithm, field.name) for field in fields(algorithm)}  # type: ignore[arg-type]


def to_dict(algorithm: Algorithm) -> dict[str, Any]:
    """Return the algorithm as plain values, for JSON: the name by which it is found again, and its parameters."""
    plain = {name: _plain(value) for name, value in parameters(algorithm).items()}
    return {"name": algorithm.address(), "parameters": plain}


def _plain(value: Any) -> Any:
    if isinstance(value, Power):
        return {"power": [value.scale, value.exponent]}
    return to_dict(value) if isinstance(value, Algorithm) else value


def describe(algorithm: Algorithm) -> str:
    """The parameters that differ from their defaults, or the first one: "lam0=10, paired=True"."""
    values = parameters(algorithm)
    defaults = {field.name: field.default for field in fields(algorithm)}  # type: ignore[arg-type]
    changed = [name for name, value in values.items() if value != defaults[name]]
    shown = []
    for name in changed or list(values)[:1]:
        value = values[name]
        text = f"{value.name}({describe(value)})" if isinstance(value, Algorithm) else value
        shown.append(f"{name}={value:g}" if isinstance(value, float) else f"{name}={text}")
    return ", ".join(shown)
