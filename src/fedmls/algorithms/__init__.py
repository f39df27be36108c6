"""One file per algorithm, in the letters of its paper. To add one: one file, one line here."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from fedmls.algorithms._external import is_file, load, load_offered, offered
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
from fedmls.hyperparameters import describe, to_dict
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
    "Finder",
    "GradSkip",
    "LoCoDL",
    "Scaffnew",
    "Scaffold",
    "Subgradient",
    "Tamuna",
    "describe",
    "find",
    "find_installed",
    "from_dict",
    "is_file",
    "make",
    "names",
    "only_installed",
    "to_dict",
]

_IN_ORDER = (
    *(FedMLS, FedMLSB, FedMLSE, FedMLSP, FedMLSD),
    *(FedAvg, Scaffold, Scaffnew, GradSkip, Tamuna, LoCoDL, FedComLoc, FedProx, FedDyn, FedSplit),
    *(Subgradient, DCS, ADMM, CoCoA, Bundle),
)
ALGORITHMS: dict[str, type[Algorithm]] = {cls.name: cls for cls in _IN_ORDER}

Finder = Callable[[str], type[Algorithm]]


def find(name: Any, base: Path = Path()) -> type[Algorithm]:
    """Return the class of an algorithm by its name.

    name: that of an algorithm of this package, or of an entry point of the group "fedmls.algorithms"; "module:Class";
    or "path/to/file.py:Class", a path from ``base`` on.
    """
    if isinstance(name, str):
        if name in ALGORITHMS:
            return ALGORITHMS[name]
        if ":" in name:
            return load(name, base)
        if name in offered():
            return load_offered(name)
    raise ValueError(unknown("algorithm", name, names()))


def names() -> list[str]:
    """Return the names of all algorithms that are installed: those of this package, and entry points."""
    return [*ALGORITHMS, *(name for name in offered() if name not in ALGORITHMS)]


def find_installed(name: Any, allowed: Collection[str] = ()) -> type[Algorithm]:
    """Find an algorithm as :func:`find` does, among those of this package, of entry points, and those allowed: no other
    code is run.
    """
    entries = {point.value for point in offered().values()}
    if isinstance(name, str) and ":" in name and name not in entries | {*allowed}:
        if is_file(name):
            raise ValueError(only_installed(name))
        raise ValueError(
            f'algorithm {name!r} is not allowed here; add algorithms = ["{name}"] to the node\'s configuration'
        )
    return find(name)


def only_installed(address: str) -> str:
    """Return why an algorithm in a file cannot be federated, and what to do, in a sentence."""
    where, _, name = address.rpartition(":")
    return (
        f"algorithm {address!r} is a file, and nodes run only modules that they can import: set PYTHONPATH to its "
        f"folder, or install it as a package, and call it {Path(where).stem}:{name}"
    )


def make(name: str, **parameters: Any) -> Algorithm:
    """The algorithm of that name (see :func:`find`) with these parameters, e.g. ``make("fedmls", lam0=1.0)``."""
    return find(name)(**parameters)


def from_dict(values: dict[str, Any], finder: Finder = find) -> Algorithm:
    """The inverse of :func:`to_dict`."""
    parameters = {name: _from_plain(value, finder) for name, value in values["parameters"].items()}
    if values["name"] == Compressed.name:
        return Compressed(**parameters)
    return finder(values["name"])(**parameters)


def _from_plain(value: Any, finder: Finder) -> Any:
    if not isinstance(value, dict):
        return value
    return Power(*value["power"]) if "power" in value else from_dict(value, finder)
