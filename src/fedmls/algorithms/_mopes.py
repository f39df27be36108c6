"""MOPES: minimise a non-smooth convex function over a set whose projection is costly, with few projections.

Thekumparampil, Jain, Netrapalli, Oh, "Projection Efficient Subgradient Method and Optimal Nonsmooth
Frank-Wolfe Method" (NeurIPS 2020). O(1/ε) projections and O(1/ε²) subgradients. Useful for nuclear-norm balls,
the PSD cone, polytopes, ...; FedMLS is MOPES where the projection is communication.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedmls.checks import positive, whole
from fedmls.local import descent
from fedmls.schedules import Power, check_schedule, prox_average, prox_steps, schedule, steps_in_round
from fedmls.types import Array


class Mopes(NamedTuple):
    """x lies in the set; ``relaxed`` is its partner, which saw the subgradients and is near the set.

    ``diverged``: the iterates overflowed, and this is where they were before.
    """

    x: Array
    relaxed: Array
    projections: int
    subgradients: int
    diverged: bool = False


def mopes(
    subgradient: Callable[[Array], Any],
    project: Callable[[Array], Any],
    x0: Any,
    *,
    rounds: int,
    lam0: float = 1.0,
    T0: float = 1.0,
    lam: float | Power | None = None,
    T: float | Power | None = None,
    project_simple: Callable[[Array], Any] | None = None,
    callback: Callable[[int, Mopes], object] | None = None,
) -> Mopes:
    """Minimise f over a convex set, calling its projection once per round.

    subgradient: x -> a subgradient of f at x (or an unbiased estimate), the shape of x.
    project: the costly projection onto the set.  project_simple: a cheap one, onto a larger set, for every step.
    lam0, T0: λ_k = lam0/k and T_k = ⌈T0 k⌉ steps in round k; constant ``lam`` and ``T`` replace them.
    callback: called after every round with k and the result so far.
    """
    whole("rounds", rounds)
    positive("lam0", lam0)
    positive("T0", T0)
    check_schedule("lam", lam)
    check_schedule("T", T)
    lam_k, T_k = schedule(lam, lam0, -1), schedule(T, T0, 1)
    x = z = np.asarray(x0, dtype=float)
    x_, z_ = x, z  # the relaxed partner's: X', Z'
    done, taken = Mopes(x, x_, 0, 0), 0
    for k in range(1, rounds + 1):
        gamma, beta_lam, steps = 2 / (k + 1), 4 / k, steps_in_round(T_k, k)
        y, y_ = (1 - gamma) * x + gamma * z, (1 - gamma) * x_ + gamma * z_
        z = np.asarray(project(z - (y - y_) / beta_lam))
        z_, u_tilde = descent.descend(
            lambda u: np.asarray(subgradient(u)),
            z_,
            prox_steps(steps),
            scale=lam_k(k) / beta_lam,
            pull=1.0,
            center=z_ - (y_ - y) / beta_lam,
            average=prox_average(steps),
            project=project_simple,
        )
        x, x_ = (1 - gamma) * x + gamma * z, (1 - gamma) * x_ + gamma * u_tilde
        taken += steps
        if not (np.isfinite(x).all() and np.isfinite(x_).all()):
            return done._replace(diverged=True)
        done = Mopes(x, x_, k, taken)
        if callback is not None:
            callback(k, done)
    return done
