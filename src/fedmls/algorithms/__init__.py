"""One file per algorithm, in the letters of its paper. To add one: one file, one line here."""

from dataclasses import fields
from typing import Any

from fedmls.algorithms.admm import ADMM
from fedmls.algorithms.bundle import Bundle
from fedmls.algorithms.cocoa import CoCoA
from fedmls.algorithms.dcs import DCS
from fedmls.algorithms.fedavg import FedAvg
from fedmls.algorithms.fedcomloc import FedComLoc
from fedmls.algorithms.feddyn import FedDyn
from fedmls.algorithms.fedmls import FedMLS
from fedmls.algorithms.fedmlsb import FedMLSB
from fedmls.algorithms.fedmlsd import FedMLSD
from fedmls.algorithms.fedmlse import FedMLSE
from fedmls.algorithms.fedmlsp import FedMLSP
from fedmls.algorithms.fedprox import FedProx
from fedmls.algorithms.fedsplit import FedSplit
from fedmls.algorithms.gradskip import GradSkip
from fedmls.algorithms.locodl import LoCoDL
from fedmls.algorithms.scaffnew import Scaffnew
from fedmls.algorithms.scaffold import Scaffold
from fedmls.algorithms.subgradient import Subgradient
from fedmls.algorithms.tamuna import Tamuna
from fedmls.checks import unknown
from fedmls.compression import Compressed
from fedmls.schedules import Power
from fedmls.types import Algorithm

__all__ = [
    "ADMM",
    "ALGORITHMS",
    "DCS",
    "Bundle",
    "CoCoA",
    "Compressed",
    "FedAvg",
    "FedComLoc",
    "FedDyn",
    "FedMLS",
    "FedMLSB",
    "FedMLSD",
    "FedMLSE",
    "FedMLSP",
    "FedProx",
    "FedSplit",
    "GradSkip",
    "LoCoDL",
    "Scaffnew",
    "Scaffold",
    "Subgradient",
    "Tamuna",
    "describe",
    "from_dict",
    "make",
    "to_dict",
]

_IN_ORDER = (
    *(FedMLS, FedMLSB, FedMLSE, FedMLSP, FedMLSD),
    *(FedAvg, Scaffold, Scaffnew, GradSkip, Tamuna, LoCoDL, FedComLoc, FedProx, FedDyn, FedSplit),
    *(Subgradient, DCS, ADMM, CoCoA, Bundle),
)
ALGORITHMS: dict[str, type[Any]] = {cls.name: cls for cls in _IN_ORDER}


def make(name: str, **parameters: Any) -> Algorithm:
    """The algorithm of that name with these parameters, e.g. ``make("fedmls", lam0=1.0)``."""
    if not isinstance(name, str) or name not in ALGORITHMS:
        raise ValueError(unknown("algorithm", name, ALGORITHMS))
    made: Algorithm = ALGORITHMS[name](**parameters)
    return made


def to_dict(algorithm: Algorithm) -> dict[str, Any]:
    """The algorithm as plain values, for JSON."""
    parameters = {field.name: _plain(getattr(algorithm, field.name)) for field in fields(algorithm)}  # type: ignore[arg-type]
    return {"name": algorithm.name, "parameters": parameters}


def _plain(value: Any) -> Any:
    if isinstance(value, Power):
        return {"power": [value.scale, value.exponent]}
    return to_dict(value) if hasattr(value, "client_round") else value


def from_dict(values: dict[str, Any]) -> Algorithm:
    """The inverse of :func:`to_dict`."""
    parameters = {name: _from_plain(value) for name, value in values["parameters"].items()}
    if values["name"] == Compressed.name:
        return Compressed(**parameters)
    return make(values["name"], **parameters)


def _from_plain(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return Power(*value["power"]) if "power" in value else from_dict(value)


def describe(algorithm: Algorithm) -> str:
    """The parameters that differ from their defaults, or the first one: "lam0=10, paired=True"."""
    shown = []
    changed = [field.name for field in fields(algorithm) if getattr(algorithm, field.name) != field.default]  # type: ignore[arg-type]
    for field in fields(algorithm):  # type: ignore[arg-type]
        value = getattr(algorithm, field.name)
        if field.name in (changed or [fields(algorithm)[0].name]):  # type: ignore[arg-type]
            text = f"{value.name}({describe(value)})" if hasattr(value, "client_round") else value
            shown.append(f"{field.name}={value:g}" if isinstance(value, float) else f"{field.name}={text}")
    return ", ".join(shown)
