"""What watches a run sees every row once, may stop it, and changes nothing."""

import numpy as np
import pytest

import fedmls
from fedmls.simulation.config import RunConfig
from fedmls.simulation.run import Simulation
from tests.support.problems import svm


class Watch:
    """Keeps all views; stops the run after so many rounds."""

    def __init__(self, last=1000):
        self.last, self.views = last, []

    def on_rows(self, view):
        self.views.append(view)
        return view.round >= self.last

    @property
    def rows(self):
        return [row for view in self.views for row in view.rows]


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("algorithm", [fedmls.FedAvg(), fedmls.FedMLS(paired=True)], ids=["single", "paired"])
def test_an_observer_sees_every_row_with_its_own_model(algorithm, every):
    problem, watch = svm(), Watch()
    simulation = Simulation(algorithm, problem, RunConfig(8, every=every))
    end = simulation.run([watch])
    assert watch.rows == simulation.rows
    assert len(watch.views) == end.spent.exchanges
    for view in watch.views:
        assert [problem.value(x) for x in view.models] == [row["objective"] for row in view.rows]
    assert (end.round, end.last) == (8, simulation.rows[-1])


def test_an_observer_stops_the_run():
    simulation = Simulation(fedmls.FedAvg(), svm(), RunConfig(50))
    others = Watch()
    end = simulation.run([Watch(last=4), others])
    assert end.round == 4
    assert len(others.views) == 4  # all are told, whoever stops
    whole = fedmls.simulate(fedmls.FedAvg(), svm(), rounds=4)
    assert np.array_equal(simulation.result().x, whole.x)


def test_the_rows_of_a_checkpoint_come_first(tmp_path):
    file, config = tmp_path / "run.npz", RunConfig(9)
    fedmls.simulate(fedmls.FedMLS(), svm(), rounds=5, checkpoint=file)
    simulation, watch = Simulation(fedmls.FedMLS(), svm(), config), Watch()
    simulation.resume(file)
    simulation.run([watch])
    assert [len(view.rows) for view in watch.views] == [5, 1, 1, 1, 1]
    assert watch.rows == simulation.rows


def test_a_proved_run_is_not_taken_further_by_its_checkpoint(tmp_path):
    settings = {"rounds": 60, "certificate": True, "until": 0.5, "checkpoint": tmp_path / "run.npz"}
    first, again = (fedmls.simulate(fedmls.FedMLSB(), svm(), **settings) for _ in range(2))
    assert first.history["certified_gap"].iloc[-1] <= 0.5
    assert len(first.history) < 60
    assert again.history.equals(first.history)


def test_settings_are_checked_for_the_problem():
    config = RunConfig(np.int64(3), x0=[0, 0, 0, 0, 1]).resolved(svm())
    assert type(config.rounds) is int
    assert config.x0.dtype == float
    assert config.best == svm().optimum.value
    with pytest.raises(ValueError, match="x0 has shape"):
        RunConfig(3, x0=[1.0]).resolved(svm())
