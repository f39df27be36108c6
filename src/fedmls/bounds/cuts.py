"""Cuts below parts of a loss, and what f has besides it: the objects that FedMLS-B's server works with."""

from typing import Any, NamedTuple

import numpy as np

from fedmls.types import Array

ALL = -1  # in place of a part: a cut of all of them together
IDLE = 1e-9  # weights below it are zero
EARLY = 64  # cuts that are never dropped: taken far from the minimum, they tell which columns are collinear


class Terms(NamedTuple):
    """What f has besides its loss, in the first ``penalised`` coordinates; no part of the loss is below ``floor``, and
    its values are differences of sums as large as ``summed``, whatever x is.
    """

    l2: float
    l1: float
    penalised: int
    floor: float
    dimension: int
    summed: float = 0.0

    @property
    def ridge(self) -> Array:
        """The l2 term's factor in each coordinate."""
        return np.where(np.arange(self.dimension) < self.penalised, self.l2, 0.0)

    @property
    def held(self) -> int:
        """How many coordinates, the first ones, have a term of their own, which grows in all directions."""
        return self.penalised if self.l2 > 0 or self.l1 > 0 else 0

    def quadratic(self, x: Array) -> float:
        return self.l2 / 2 * float(x[: self.penalised] @ x[: self.penalised])


class Cuts(NamedTuple):
    """Cuts, oldest first. ``part``: of the loss, or ALL.  ``used``: the last round in which a cut had weight.

    blur: how far a slope may be off, in units of a profile that all have in common; 0 where slopes are exact.  point:
    where a cut is exact all the same. Points have no coordinates where no slope is ever off.
    """

    g: Array
    e: Array
    part: Any
    used: Any
    blur: Array
    point: Array

    @classmethod
    def exact(cls, g: Array, e: Array, part: Any, used: Any) -> "Cuts":
        return cls(g, e, part, used, np.zeros(len(e)), np.empty((len(e), 0)))

    @classmethod
    def none(cls, d: int) -> "Cuts":
        return cls.exact(np.empty((0, d)), np.empty(0), np.empty(0, np.int64), np.empty(0, np.int64))

    @property
    def parts(self) -> int:
        """How many there are; the loss is their sum."""
        return int(self.part.max()) + 1

    def and_more(self, g: Array, e: Array, part: Any, k: int, blur: float = 0.0, point: Array | None = None) -> "Cuts":
        """These and others of round k. point: one for each of the others; need not be given where no slope is off."""
        used = np.full(len(e), k, np.int64)
        there = np.zeros((len(e), self.point.shape[1])) if point is None else point[:, : self.point.shape[1]]
        more = (g, e, part, used, np.full(len(e), blur), there)
        return Cuts(*(np.concatenate(two) for two in zip(self, more, strict=True)))

    def some(self, wanted: Any) -> "Cuts":
        """Those that are wanted; these themselves if all are."""
        return self if wanted.all() else Cuts(*(field[wanted] for field in self))

    def at(self, x: Array) -> Array:
        """The height of each at x."""
        return np.asarray(self.e + self.g @ x)

    def heights(self, c: Array, parts: int, total: float) -> Array:
        """Heights of the parts at c with this sum, none of them below a cut: of a model of their sum only that
        matters."""
        at, highest = self.at(c), np.full(parts, -np.inf)
        np.maximum.at(highest, self.part[self.part != ALL], at[self.part != ALL])
        highest = np.where(np.isfinite(highest), highest, 0.0)
        return np.asarray(highest + (total - highest.sum()) / parts)

    def marked(self, weights: Array, k: int) -> "Cuts":
        """Those with weight were used in round k."""
        return self._replace(used=np.where(weights > IDLE, k, self.used))

    def pruned(self, most: int, weights: Array, k: int, profile: Array | None = None, rest: Any = 0.0) -> "Cuts":
        """Keep the first cuts, and at most so many others: those used last, the newest of them. One of each part, mixed
        by the weights, replaces the rest.

        profile: that of the blur, if there is any.  rest: what slopes are off besides.
        """
        if len(self.e) <= EARLY + most:
            return self
        by_use = np.argsort(self.used[EARLY:], kind="stable")  # the newest of those used last are at the end
        kept = np.concatenate([np.arange(EARLY), EARLY + np.sort(by_use[-most:])])
        mixed = [(weights * (self.part == b)) for b in np.unique(self.part)]
        mixed = [each / each.sum() for each in mixed if each.sum() > IDLE]
        parts = [self.part[np.argmax(each)] for each in mixed]
        chosen = Cuts(*(field[kept] for field in self))
        if not mixed:
            return chosen
        mix = np.array(mixed)
        e, point, blur = mix @ self.e, mix @ self.point, mix @ self.blur
        if profile is not None:  # a mixture is exact at no point: it is lowered by what its cuts may be off there
            off = self.blur[:, None] * profile + rest
            lost = [(off * np.abs(self.point - there)).sum(axis=1) for there in point]
            e = e - (mix * np.array(lost)).sum(axis=1)
        more = chosen.and_more(mix @ self.g, e, np.array(parts, np.int64), k, 0.0, point)
        return more._replace(blur=np.concatenate([chosen.blur, blur]))


def largest(g: Array) -> Array:
    """The largest absolute value in each column, without a copy of the cuts' slopes; 0 without any."""
    return np.asarray(np.maximum(g.max(axis=0, initial=0.0), -g.min(axis=0, initial=0.0)))
