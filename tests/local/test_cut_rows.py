"""Cuts of parts of the rows, beside plain NumPy: few rows, many blocks of them, and none of a part."""

import numpy as np
import pytest
from scipy.sparse import csr_array

import fedmls
from fedmls.bounds.rounding import ROUNDING
from fedmls.local.cut_rows import BLOCK
from fedmls.losses import LOSSES

PARTS = 8
SIZES = [3, BLOCK * PARTS, 3 * BLOCK * PARTS + 5]  # rows of the clients: less than one for each part, one block, four


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_cuts_are_sums_over_the_rows_of_a_part(loss, sparse):
    rng, m = np.random.default_rng(0), sum(SIZES)
    X = rng.normal(size=(m, 7)) * (rng.random((m, 7)) < 0.3)
    y = rng.choice([-1.0, 1.0], m) if LOSSES[loss].is_classification else rng.normal(size=m)
    clients = np.repeat(np.arange(len(SIZES)), SIZES)
    problem = fedmls.Problem(csr_array(X) if sparse else X, y, clients, loss, sample_weight=rng.random(m))
    points = rng.normal(size=(2, problem.dimension))
    f, g = problem.loops.cuts(points, PARTS)
    A = problem.matrix().toarray()
    for i, first in enumerate(problem.offsets[:-1]):
        for part in range(PARTS):
            rows = np.arange(first + part, problem.offsets[i + 1], PARTS)
            for r, x in enumerate(points):
                p, c = A[rows] @ x, problem.row_weights[rows]
                height = float(c @ problem.loss.value(p, problem.y[rows]))
                assert f[i, r, part] == pytest.approx(height, rel=1e-12)
                assert np.allclose(g[i, r, part], (c * problem.loss.slope(p, problem.y[rows])) @ A[rows], atol=1e-12)


def test_sums_of_equal_rows_are_rounded_by_little():
    """A tenth, added up a hundred thousand times one by one, is wrong in the twelfth digit."""
    problem = fedmls.Problem(csr_array(np.full((100_000, 1), 0.1)), np.ones(100_000), loss="absolute", intercept=False)
    _, g = problem.loops.cuts(np.zeros((1, 1)), 1)
    assert g[0, 0, 0, 0] == pytest.approx(-10_000, rel=ROUNDING)
