"""Differential privacy: clients clip what they upload and add Gaussian noise, before it leaves them.

What a client sends in a round, less what the server had sent it, is one vector (all its fields together). It is cut to
length at most ``clip``, and to every coordinate is added normal noise of deviation ``noise`` times ``clip``.

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
import secrets
from collections.abc import Iterable
from typing import Any

import numpy as np

from fedmls.checks import hyperparameters, positive, real
from fedmls.types import Array

# What each field of an upload is compared with: a field of what was sent down, or nothing where it is a difference
# already. Privacy does not depend on the choice: all of it is known to the server.
REFERENCES: dict[str, dict[str, str | None]] = {
    "fedmls": {"y": "y", "numbers": None},
    "fedmlse": {"y": "y", "x": "y", "numbers": None},
    "fedmlsp": {"du_tilde": None, "du": None},
    "fedavg": {"u": "x"},
    "scaffold": {"dy": None, "dc": None},
    "scaffnew": {"x_hat": "x"},
    "gradskip": {"shifted": "x"},
    "fedprox": {"u": "x"},
    "feddyn": {"u": "x"},
    "fedsplit": {"z": "x"},
    "subgradient": {"u": "x"},
    "dcs": {"x_tilde": "x_tilde", "average": "x_tilde"},
}


@hyperparameters
class Privacy:
    """clip: the length that uploads are cut to.  noise: its deviation, in units of clip.  delta: δ, to tell ε for."""

    clip: float
    noise: float
    delta: float = 1e-5

    def __post_init__(self) -> None:
        positive("clip", self.clip)
        positive("noise", self.noise)
        delta = real(self.delta)
        if delta is None or not 0 < delta < 1:
            raise ValueError(f"delta is {self.delta!r}; take it between 0 and 1, e.g. 1e-5")

    def epsilon(self, rounds: int) -> float:
        """ε of a run of so many rounds."""
        return epsilon([(self.noise, rounds)], self.delta)


def epsilon(runs: Iterable[tuple[float, int]], delta: float) -> float:
    """ε of several runs of one client together, given the noise and the rounds of each."""
    try:
        from dp_accounting import get_epsilon_gaussian
    except ImportError:
        raise ValueError("privacy needs an accountant; install it with pip install 'fedmls[privacy]'") from None
    precision = sum(rounds * (2 / noise) ** 2 for noise, rounds in runs)
    return float(get_epsilon_gaussian(1 / math.sqrt(precision), delta)) if precision else 0.0


def check_private(job: Any) -> None:
    """Whether all that a client would tell in this job is covered by the noise."""
    algorithm = job.algorithm
    if algorithm.name not in REFERENCES:
        raise ValueError(f"{algorithm.name} does not go with privacy; take one of {', '.join(REFERENCES)}")
    if isinstance(getattr(algorithm, "lam0", None), str):
        raise ValueError(f"lam0 is {algorithm.lam0!r}, for which clients send more than privacy covers; give a number")
    told = [name for name in ("report_objective", "impute", "standardise") if getattr(job, name)]
    if told or job.certificate is not None:
        which = f"{told[0]} = false" if told else "no certificate"
        raise ValueError(f"with privacy clients tell nothing but their uploads: set {which}")


def noisy(privacy: Privacy, name: str, up: dict[str, Array], down: dict[str, Any]) -> dict[str, Array]:
    """An upload of the algorithm of this name, clipped and with noise that nobody else can know."""
    references = REFERENCES[name]
    known = {field: 0.0 if (of := references[field]) is None else down[of] for field in up}
    difference = np.concatenate([up[field] - known[field] for field in up])
    with np.errstate(over="ignore", invalid="ignore"):
        length = float(np.linalg.norm(difference))
    if not math.isfinite(length):  # that it overflowed must not be told either
        difference, length = np.zeros_like(difference), 0.0
    sent = difference * min(1.0, privacy.clip / length if length else 1.0) + _normal(difference.shape, privacy)
    parts = np.split(sent, np.cumsum([len(vector) for vector in up.values()])[:-1])
    return {field: np.asarray(known[field] + part) for field, part in zip(up, parts, strict=True)}


def _normal(shape: tuple[int, ...], privacy: Privacy) -> Array:
    generator = np.random.default_rng(secrets.randbits(256))  # not the run's seed, which the server knows
    return generator.normal(scale=privacy.noise * privacy.clip, size=shape)
