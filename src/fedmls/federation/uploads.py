"""What the uploads of an algorithm look like, and the check of one: by the server before it is used, and by a node
whose uploads the server cannot read.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from fedmls.federation.codec import MessageError, fields
from fedmls.federation.messages import Task, Upload, array
from fedmls.problem import Problem
from fedmls.types import Algorithm, Array

OVERHEAD = 4096  # bytes of names and numbers around the vectors of one round


class Shapes(NamedTuple):
    """What a round's upload looks like: the shape of each field, how long it may be, and which are sent on demand."""

    algorithm: Algorithm
    dimension: int
    n: int
    first: dict[str, tuple[int, ...]]  # of round 1
    cut: bool
    max_norm: float

    @property
    def packed(self) -> bool:
        """Whether arrays may be written shorter than they are."""
        return self.algorithm.traits.packed is not None or self.algorithm.traits.short

    def up(self, task: Task) -> dict[str, tuple[int, ...]]:
        """Return the shape of each field in the round that is asked for."""
        if not self.algorithm.traits.varying:
            return self.first
        return _shapes(self.algorithm, task.k, self.algorithm.Down(**task.down), self.dimension, self.n)

    def units(self, task: Task) -> dict[str, Any]:
        """Return what the numbers of a field are multiples of in that round, where they are whole ones."""
        return self.algorithm.units(self.algorithm.Down(**task.down))

    def longest(self, name: str) -> float:
        """Return how long a field may be. Numbers may be squared lengths, and slopes of a loss products with rows."""
        traits = self.algorithm.traits
        return self.max_norm**2 if name in traits.numbers or traits.proves else self.max_norm

    def limit(self, rounds: list[Task], points: int, width: int = 8) -> int:
        """Return how many bytes a good reply has at most. width: of a number."""
        sizes = [sum(math.prod(shape) for shape in self.up(each).values()) for each in rounds]
        return OVERHEAD + sum(width * (size + self.dimension * self.cut) + OVERHEAD for size in sizes) + 128 * points

    def sent(self, task: Task) -> dict[str, tuple[int, ...]]:
        """Return the fields of an upload, some of them only when the model is asked for."""
        on_demand = () if task.asked else self.algorithm.traits.on_demand
        return {name: shape for name, shape in self.up(task).items() if name not in on_demand}

    def parts(self, rounds: list[Task]) -> list[tuple[str, tuple[int, ...]]]:
        """Return all that a client uploads in these rounds, in order: the fields, and with a certificate its cut."""
        found: list[tuple[str, tuple[int, ...]]] = []
        for each in rounds:
            found += list(self.sent(each).items())
            found += [("cut.p", (self.dimension,)), ("cut.a", ())] if each.asked and self.cut else []
        return found


def upload_shapes(algorithm: Algorithm, dimension: int, n: int, cut: bool, max_norm: float) -> Shapes:
    """Return the shapes of an algorithm's uploads."""
    server, _ = algorithm.init(np.zeros(dimension), n)
    _, down = algorithm.broadcast(1, server, np.random.default_rng(0))
    return Shapes(algorithm, dimension, n, _shapes(algorithm, 1, down, dimension, n), cut, max_norm)


def _shapes(algorithm: Algorithm, k: int, down: Any, dimension: int, n: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of an upload, found by a round of a client that has one row of ones."""
    ones = Problem(np.ones((1, dimension)), np.ones(1), loss="absolute", intercept=False, l2=1.0)
    _, client = algorithm.init(np.zeros(dimension), n)
    local = ones.local_as(0, n, 1 / n)
    local.begin(k)
    with np.errstate(all="ignore"):
        _, up = algorithm.client_round(k, client, down, local)
    assert isinstance(up, algorithm.Up)
    return {name: np.shape(value) for name, value in up._asdict().items()}


def check_upload(found: Upload, task: Task, shapes: Shapes) -> Upload:
    """Return the upload of one round, if it is what the task asks for."""
    check_same("an upload for round", found.k, task.k)
    sent = shapes.sent(task)
    fields("an upload", found.up, list(sent))
    up = {name: _as_float(found.up[name]) if shapes.algorithm.traits.short else found.up[name] for name in sent}
    units = shapes.units(task)
    for name, shape in sent.items():
        check_vector(name, up[name], shape, shapes.longest(name), units.get(name, 1.0))
    if task.asked and shapes.cut:
        if found.cut is None:
            raise MessageError("a cut is no map of fields")
        check_vector("p", found.cut.p, (shapes.dimension,), shapes.max_norm)
    elif found.cut is not None:
        raise MessageError("a cut that was not asked for")
    return found._replace(up=up)


def _as_float(value: Any) -> Any:
    """Return whole and short numbers as others."""
    return value.astype(float) if isinstance(value, np.ndarray) and value.dtype in (np.int64, np.float32) else value


def check_vector(name: str, value: Any, shape: tuple[int, ...], max_norm: float, unit: Array | float = 1.0) -> Array:
    """Return the value, if it is a finite array of this shape, and no longer in these units."""
    vector: Array = check_array(name, value, shape)
    with np.errstate(over="ignore"):
        norm = float(np.linalg.norm(vector * unit))
    if not norm <= max_norm:
        raise MessageError(f"{name} has norm {norm:.3g}; at most {max_norm:g} is allowed (max_norm)")
    return vector


def check_array(name: str, value: Any, shape: tuple[int, ...], dtype: str = "float64") -> Any:
    """Return the value, if it is a finite array of this shape."""
    array(name, value, dtype)
    if value.shape != shape:
        raise MessageError(f"{name} has shape {value.shape}, not {shape}")
    if not np.isfinite(value).all():
        raise MessageError(f"{name} holds values that are not finite")
    return value


def check_same(what: str, found: int, wanted: int) -> None:
    if found != wanted:
        raise MessageError(f"{what} {found!r:.20}, not {wanted}")
