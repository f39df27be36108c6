"""Whether a federation and a simulation agree."""

import numpy as np

WEIGHTS = [0.1, 0.2, 0.3, 0.4]


SAME = ("round", "local_steps", "subgradients", "objective", "lower_bound", "certified_gap")


def named(weights):
    return {f"site-{i + 1}": weight for i, weight in enumerate(weights)}


def check_same(result, run, columns=SAME):
    np.testing.assert_allclose(result.x, run.x, rtol=0, atol=1e-12)
    for column in columns:
        if column in run.history:
            np.testing.assert_allclose(result.history[column], run.history[column], rtol=1e-12, atol=1e-12)
    assert list(result.history.columns) == [name for name in run.history if name != "passes"]  # nobody tells those
