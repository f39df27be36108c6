"""One file per algorithm, in the letters of its paper. To add one: one file, one line here."""

from dataclasses import fields
from typing import Any

from fedmls.algorithms.fedavg import FedAvg
from fedmls.algorithms.fedmls import FedMLS
from fedmls.algorithms.gradskip import GradSkip
from fedmls.algorithms.scaffnew import Scaffnew
from fedmls.algorithms.scaffold import Scaffold
from fedmls.checks import unknown
from fedmls.schedules import Power
from fedmls.types import Algorithm

__all__ = [
    "ALGORITHMS",
    "FedAvg",
    "FedMLS",
    "GradSkip",
    "Scaffnew",
    "Scaffold",
    "describe",
    "from_dict",
    "make",
    "to_dict",
]

ALGORITHMS: dict[str, type[Any]] = {cls.name: cls for cls in (FedMLS, FedAvg, Scaffold, Scaffnew, GradSkip)}


def make(name: str, **parameters: Any) -> Algorithm:
    """The algorithm of that name with these parameters, e.g. ``make("fedmls", lam0=1.0)``."""
    if name not in ALGORITHMS:
        raise ValueError(unknown("algorithm", name, ALGORITHMS))
    made: Algorithm = ALGORITHMS[name](**parameters)
    return made


def to_dict(algorithm: Algorithm) -> dict[str, Any]:
    """The algorithm as plain values, for JSON."""
    parameters = {}
    for field in fields(algorithm):  # type: ignore[arg-type]
        value = getattr(algorithm, field.name)
        parameters[field.name] = {"power": [value.scale, value.exponent]} if isinstance(value, Power) else value
    return {"name": algorithm.name, "parameters": parameters}


def from_dict(values: dict[str, Any]) -> Algorithm:
    """The inverse of :func:`to_dict`."""
    parameters = {
        name: Power(*value["power"]) if isinstance(value, dict) else value
        for name, value in values["parameters"].items()
    }
    return make(values["name"], **parameters)


def describe(algorithm: Algorithm) -> str:
    """The parameters that differ from their defaults, and the first one in any case: "lam0=1, paired=True"."""
    shown = []
    for i, field in enumerate(fields(algorithm)):  # type: ignore[arg-type]
        value = getattr(algorithm, field.name)
        if i == 0 or value != field.default:
            shown.append(f"{field.name}={value:g}" if isinstance(value, float) else f"{field.name}={value}")
    return ", ".join(shown)
