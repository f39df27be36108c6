"""From the ``algorithms`` of an experiment's file to its curves: lists of parameters are grids."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, NamedTuple

from fedmls.algorithms import find, names
from fedmls.checks import unknown
from fedmls.compression import Compressed
from fedmls.hyperparameters import describe
from fedmls.schedules import Power
from fedmls.types import Algorithm

LETTERS = {"lam0": "λ₀", "lam": "λ", "eta0": "η₀", "eta": "η", "eta_g": "η_g", "T0": "T₀", "rho": "ρ", "alpha": "α"}
OPTIONS = ("intercept", "l2", "l1", "reduction", "weights")  # as in fedmls.Problem
TOP = (  # the keys of a file
    *("title", "out", "data", "partition", "loss", "loss_parameter", *OPTIONS, "algorithms", "variants", "rounds"),
    *("target", "certificate", "until", "batch", "every", "seeds", "optimum", "metrics"),
)
NAMES = ("title", "variant")  # keys of an algorithm that are no parameters


class PlannedCurve(NamedTuple):
    """A curve that an experiment is to make: an algorithm and its labels ("" for a variant or parameter it has not)."""

    method: str
    variant: str
    parameter: str
    algorithm: Algorithm


class GridPoint(NamedTuple):
    """An algorithm of a grid. shown: the parameters given as lists, or all that are given if none is."""

    method: str
    variant: str
    shown: list[str]
    algorithm: Algorithm


def curves(entries: Any, base: Path = Path()) -> tuple[PlannedCurve, ...]:
    """Return a curve for every algorithm of the list and every combination of its lists of parameters.

    base: the folder that the path of an algorithm's file is relative to.
    """
    if isinstance(entries, Mapping):
        raise ValueError("algorithms is one table; write [[algorithms]], with two brackets, above each")
    if not isinstance(entries, list) or not entries:
        raise ValueError(f"algorithms is {entries!r}; give at least one [[algorithms]] with its name")
    points = [point for i, entry in enumerate(entries) for point in _points(entry, f"algorithms.{i}", base)]
    return tuple(_labelled(points))


def check_keys(table: Any, known: Sequence[str], where: str = "") -> None:
    """Refuse a table with other keys; ``where`` says which table it is."""
    if not isinstance(table, Mapping):
        raise ValueError(f"{where} is {table!r}; it must be a table: write [{where}]")
    for key in table:
        if where and key in TOP and key not in known:
            raise ValueError(f"unknown key {key!r} of {where}: it stands by itself; put it above the first [table]")
        if key not in known:
            raise ValueError(unknown(f"key of {where}" if where else "key", key, known))


def word(key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{key} is {value!r}; it must be text, in quotation marks")
    return value


def _points(entry: Any, where: str, base: Path) -> list[GridPoint]:
    entry = {"name": entry} if isinstance(entry, str) else entry
    if not isinstance(entry, Mapping) or "name" not in entry:
        raise ValueError(f"{where} is {entry!r}; give a table with the algorithm's name")
    title, variant = (word(f"{where}.{key}", entry.get(key, "")) for key in NAMES)
    given = [key for key in entry if key not in ("name", *NAMES)]
    shown = [key for key in given if isinstance(entry[key], list)] or given
    return [GridPoint(title or method_name(made), variant, shown, made) for made in _grid(entry, where, base, NAMES)]


def _grid(entry: Mapping[str, Any], where: str, base: Path, more: tuple[str, ...] = ()) -> list[Algorithm]:
    """Return the algorithms of a table: one for each combination of its lists."""
    name = entry["name"]
    algorithm = _class_of(name, where, base)
    parameters = {field.name: field for field in fields(algorithm)}  # type: ignore[arg-type]
    check_keys(entry, ["name", *more, *parameters], f"{where} ({name})")
    for key, field in parameters.items():
        if field.default is MISSING and key not in entry:
            raise ValueError(f"{where} ({name}) needs {key!r}")
    given = {key: value for key, value in entry.items() if key not in ("name", *more)}
    choices = {key: _choices(value, f"{where}.{key}", base) for key, value in given.items()}
    made = []
    for values in itertools.product(*choices.values()):
        try:
            made.append(algorithm(**dict(zip(choices, values, strict=True))))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{where} ({name}): {error}") from None
    return made


def _class_of(name: Any, where: str, base: Path) -> type[Algorithm]:
    try:
        return Compressed if name == Compressed.name else find(name, base)
    except ValueError as error:
        known = [*names(), Compressed.name]
        if name in known or ":" in str(name):
            raise ValueError(f"{where}.name: {error}") from None
        raise ValueError(unknown(f"{where}.name", name, known)) from None


def _choices(value: Any, where: str, base: Path) -> list[Any]:
    """Return the values of a parameter: those of a list, each of which may be a list for the clients."""
    if isinstance(value, list):
        if not value:
            raise ValueError(f"{where} is []; give at least one value")
        each = [tuple(one) if isinstance(one, list) else one for one in value]
        return [choice for one in each for choice in _choices(one, where, base)]
    if not isinstance(value, Mapping):
        return [value]
    if "name" in value:
        return _grid(value, where, base)
    if set(value) != {"power"} or not isinstance(value["power"], list) or len(value["power"]) != 2:
        raise ValueError(f"{where} is {value!r}; a schedule is {{ power = [scale, exponent] }}")
    try:
        return [Power(*value["power"])]
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def method_name(algorithm: Algorithm) -> str:
    """Return what the algorithm is called in tables and figures, unless it has a title."""
    if isinstance(algorithm, Compressed):
        return f"{method_name(algorithm.algorithm)} {algorithm.method}"
    return algorithm.title


def _labelled(points: list[GridPoint]) -> Iterator[PlannedCurve]:
    """Yield the points as curves, those of one method and variant labelled by the parameters in which they differ."""
    seen = set()
    for point in points:
        alike = [other.algorithm for other in points if other[:2] == point[:2]]
        differ = [field.name for field in fields(point.algorithm) if _differ(field.name, alike)]  # type: ignore[arg-type]
        curve = PlannedCurve(
            point.method,
            point.variant,
            ", ".join(_parameter(name, point.algorithm) for name in differ or point.shown),
            point.algorithm,
        )
        if curve[:3] in seen:
            name = " ".join(filter(None, curve[:3]))
            raise ValueError(f"algorithms has {name!r} twice; leave one out, or give it a title or a variant")
        seen.add(curve[:3])
        yield curve


def _differ(name: str, algorithms: list[Algorithm]) -> bool:
    values = [getattr(algorithm, name, None) for algorithm in algorithms]
    return any(value != values[0] for value in values)


def _parameter(name: str, algorithm: Algorithm) -> str:
    value = getattr(algorithm, name)
    if isinstance(value, Power):
        text = f"{value.scale:g} k^{value.exponent:g}"
    elif isinstance(value, Algorithm):
        text = f"{value.name}({describe(value)})"
    elif isinstance(value, float):
        text = f"{value:g}" if float(f"{value:g}") == value else repr(value)
    else:
        text = str(value)
    return f"{LETTERS.get(name, name)} = {text}"
