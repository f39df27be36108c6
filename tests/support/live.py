"""Small experiments that are not finished, for the tests of those who follow them."""

import math

import pytest

import fedmls
from fedmls.results import layout, live
from fedmls.results.live import LiveFolder
from fedmls.simulation import stacked_sweeps
from fedmls.simulation.config import RunConfig
from fedmls.simulation.run import Simulation
from fedmls.simulation.sweeps import run_all
from tests.support.problems import svm

CURVES = {("FedMLS", "", "λ₀ = 1"): fedmls.FedMLS(), ("FedAvg", "", ""): fedmls.FedAvg(eta0=0.01)}
SETUP = {"title": "Two", "rounds": 4, "batch": 1.0, "problem": {"rows": 60}, "command": "fedmls run two.toml"}


def swept(folder, rounds=4, seeds=(0, 1), together=False, **options):
    """Run the curves in the folder, in this thread, as an experiment does; rows are written at once.

    together: whether the runs of a curve are one simulation, as they are where nothing prevents it.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live, "WRITE_SECONDS", -1.0)
        patch.setattr(stacked_sweeps, "SHOW_SECONDS", -1.0)
        patch.setattr(stacked_sweeps, "SHOW_SHARE", math.inf)
        if not together:
            patch.setattr(stacked_sweeps, "stacks", lambda runs: [])
        with LiveFolder(folder, CURVES, seeds, SETUP | {"rounds": rounds}) as follower:
            return run_all(
                list(CURVES.values()),
                svm(),
                RunConfig(rounds),
                seeds,
                jobs=1,
                backend="threads",
                store=folder / layout.RUNS,
                follower=follower,
                **options,
            )


def half_done(folder):
    """An experiment of four runs of four rounds, stopped by Ctrl-C after the second round of its second run."""
    left, play = 6, Simulation.play

    def stopping(simulation, stop=None):
        nonlocal left
        for view in play(simulation, stop):
            left -= 1
            yield view
            if not left:
                raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Simulation, "play", stopping)
        with pytest.raises(KeyboardInterrupt):
            swept(folder)
    return folder
