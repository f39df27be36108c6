"""Differential privacy: clients clip what they upload and add Gaussian noise, before it leaves them.

What a client sends in a round, less what the server had sent it, is one vector (all its fields together). It is cut to
length at most ``clip``, and to every coordinate is added normal noise of deviation ``noise`` times ``clip``.

The noise is that of OpenDP: bits of a cryptographic generator, on a grid. Normal numbers in floating point have gaps
that betray what they were added to (Mironov, "On significance of the least significant bits for differential privacy",
CCS 2012), and NumPy's generators are not made for secrets. So the vector is rounded towards zero to multiples of a
power of two, of which the deviation is 2^44 to 2^45, and a discrete Gaussian is added to these whole numbers, exactly
(Canonne, Kamath, Steinke, "The discrete Gaussian for differential privacy", NeurIPS 2020). A normal number that is
rounded to the grid is as private as before it was rounded, and the discrete Gaussian is at most 1/(48·2^88) < 2^-93
from it in total variation. So ε is computed for the normal distribution; over a billion coordinates the true δ is
larger by less than (1 + e^ε)·1e-18.

What is protected, and against whom: all the data of one client, in all rounds of a run together, against the server and
everybody who sees what it sees. Two clients that differ in all their rows send, in one round, vectors at most 2 clip
apart, so a round is a Gaussian mechanism of deviation noise/2 in units of its sensitivity. Rounds compose: k of them,
each of which may depend on what came before, are exactly as private as one with noise/√k (Dong, Roth, Su, "Gaussian
differential privacy", J. R. Stat. Soc. B 2022). From that dp-accounting computes ε for the δ that is given.

What is not protected: how many rows a client has, the names of its columns, its label values, that it takes part.
Nothing else is told: no objective, no certificate, no column sums, no G_i.

The guarantees of convergence are gone: they assume exact uploads. The noise is added by each client for itself and is
large; it averages out over many clients only.
"""

import math
from collections.abc import Iterable
from fractions import Fraction
from importlib.util import find_spec
from typing import Any

import numpy as np

from fedmls.algorithms import ALGORITHMS
from fedmls.checks import positive, real
from fedmls.hyperparameters import hyperparameters, parameters
from fedmls.types import Array, References

CLIP, NOISE = (1e-100, 1e100), (1e-4, 1e9)  # within these nothing is lost in rounding, neither numbers nor noise
STEPS = 44  # the deviation of the noise is 2^44 to 2^45 steps of the grid


@hyperparameters
class Privacy:
    """clip: the length that uploads are cut to.  noise: its deviation, in units of clip.  delta: δ, to tell ε for."""

    clip: float
    noise: float
    delta: float = 1e-5

    def __post_init__(self) -> None:
        for name, (least, most) in (("clip", CLIP), ("noise", NOISE)):
            if not least <= positive(name, getattr(self, name)) <= most:
                raise ValueError(f"{name} is {getattr(self, name)!r}; take it between {least:g} and {most:g}")
        delta = real(self.delta)
        if delta is None or not 0 < delta < 1:
            raise ValueError(f"delta is {self.delta!r}; take it between 0 and 1, e.g. 1e-5")

    @property
    def grid(self) -> float:
        """Return the step of the grid, a power of two."""
        return 2.0 ** (math.floor(math.log2(self.noise * self.clip)) - STEPS)

    def epsilon(self, rounds: int) -> float:
        """Return ε of a run of so many rounds."""
        return epsilon([(self.noise, rounds)], self.delta)


def epsilon(runs: Iterable[tuple[float, int]], delta: float) -> float:
    """Return ε of several runs of one client together, given the noise and the rounds of each."""
    try:
        from dp_accounting import get_epsilon_gaussian
    except ImportError:
        raise ValueError("privacy needs an accountant; install it with pip install 'fedmls[privacy]'") from None
    precision = sum(rounds * (2 / noise) ** 2 for noise, rounds in runs)
    return float(get_epsilon_gaussian(1 / math.sqrt(precision), delta)) if precision else 0.0


def check_private(job: Any) -> None:
    """Refuse a job in which a client would tell something that the noise does not cover."""
    algorithm = job.algorithm
    if not algorithm.references:
        fit = [name for name, cls in ALGORITHMS.items() if cls.references]
        raise ValueError(f"{algorithm.name} does not go with privacy; take one of {', '.join(fit)}")
    if algorithm.traits.reveals_objective:
        auto = [f"{name} is {value!r}" for name, value in parameters(algorithm).items() if value == "auto"]
        raise ValueError(
            f"{(*auto, algorithm.name)[0]}, for which clients send more than privacy covers; give a number"
        )
    if job.holdout is not None:
        raise ValueError("with privacy clients tell nothing but their uploads, and no scores: leave out holdout")
    told = [name for name in ("report_objective", "impute", "standardise") if getattr(job, name)]
    if told or job.certificate is not None or job.categorical is not None:
        which = f"{told[0]} = false" if told else "no certificate" if job.categorical is None else "no categorical"
        raise ValueError(f"with privacy clients tell nothing but their uploads: set {which}")


def check_installed() -> None:
    """Refuse to go on without a source of noise."""
    if find_spec("opendp") is None:
        raise ValueError("privacy needs OpenDP for its noise; install it with pip install 'fedmls[privacy]'")


def noisy(privacy: Privacy, references: References, up: dict[str, Array], down: dict[str, Any]) -> dict[str, Array]:
    """Return an upload, clipped and with noise that nobody else can know.

    references: what each of its fields is compared with (:class:`fedmls.types.Algorithm`). Privacy does not depend on
    the choice: all of it is known to the server.
    """
    known = {field: 0.0 if (of := references[field]) is None else down[of] for field in up}
    difference = np.concatenate([up[field] - known[field] for field in up])
    sent = privacy.grid * _with_noise(clipped(difference, privacy), privacy)
    parts = np.split(sent, np.cumsum([len(vector) for vector in up.values()])[:-1])
    return {field: np.asarray(known[field] + part) for field, part in zip(up, parts, strict=True)}


def clipped(vector: Array, privacy: Privacy) -> Any:
    """Return the vector in whole steps of the grid, its length at most clip, exactly."""
    with np.errstate(over="ignore", invalid="ignore"):
        length = float(np.linalg.norm(vector))
    if not math.isfinite(length):  # that it overflowed must not be told either
        return np.zeros(vector.shape, dtype=np.int64)
    scaled = vector * min(1.0, privacy.clip / length if length else 1.0) / privacy.grid
    most = int(Fraction(privacy.clip / privacy.grid) ** 2)  # a power of two divides without rounding
    whole = np.trunc(scaled).astype(np.int64)
    while sum(step * step for step in whole.tolist()) > most:  # by a last bit of the length
        scaled *= 1 - 2.0**-40
        whole = np.trunc(scaled).astype(np.int64)
    return whole


def _with_noise(whole: Any, privacy: Privacy) -> Any:
    """Return the whole numbers plus a discrete Gaussian of the deviation that privacy says, in steps of the grid."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    numbers = dp.vector_domain(dp.atom_domain(T="i64"))
    add_noise = dp.m.make_gaussian(numbers, dp.l2_distance(T="f64"), scale=privacy.noise * privacy.clip / privacy.grid)
    return np.array(add_noise(whole.tolist()), dtype=np.int64)
