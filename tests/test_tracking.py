"""Callbacks: what they are told and when, and TensorBoard and MLflow read back by their own libraries."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

import fedmls
from fedmls import tracking
from fedmls.results import live as live_results
from fedmls.results.live import LiveFolder
from fedmls.results.model import read_description, read_model
from fedmls.simulation import run as simulation_run
from fedmls.simulation.config import RunConfig
from fedmls.simulation.run import Simulation
from fedmls.simulation.sweeps import PlannedRun, run_all, store_key
from tests.support.algorithms import NEEDS, SMALL_STEPS
from tests.support.federations import federate
from tests.support.live import CURVES, SETUP, half_done
from tests.support.problems import lad, svm


class Diary:
    """A callback that writes down all it is told."""

    def __init__(self, fail_at=None):
        self.told, self.rows, self.fail_at = [], [], fail_at

    def begin(self, about):
        self.told.append(("begin", about))

    def __call__(self, row):
        self.told.append(("row", row["round"]))
        self.rows.append(row)
        if row["round"] == self.fail_at:
            raise RuntimeError("disk full")

    def end(self, run, error):
        self.told.append(("end", run, error))

    @property
    def order(self):
        return [entry[0] for entry in self.told]


def same_rows(rows, history):
    return rows == history.to_dict("records")


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("name", fedmls.ALGORITHMS)
def test_a_callback_sees_the_history_and_changes_nothing(name, every):
    algorithm, problem = fedmls.make(name, **SMALL_STEPS[name]), svm(**NEEDS.get(name, {}))
    diary, plain = Diary(), []
    run = fedmls.simulate(algorithm, problem, rounds=10, every=every, callback=[diary, plain.append])
    alone = fedmls.simulate(algorithm, problem, rounds=10, every=every)
    assert np.array_equal(run.x, alone.x)
    assert same_rows(diary.rows, run.history)
    assert plain == diary.rows
    assert diary.order == ["begin", *["row"] * len(run.history), "end"]
    about = diary.told[0][1]
    assert about["name"] == f"{name} {fedmls.algorithms.describe(algorithm)}, seed=0"
    assert (about["algorithm"], about["seed"], about["batch"], about["rounds"]) == (name, 0, 1.0, 10)
    assert about["parameters"] == fedmls.algorithms.to_dict(algorithm)["parameters"]
    assert about["optimum"] == problem.optimum.value
    assert about["problem"] == repr(problem)
    assert diary.told[-1][2] is None
    assert np.array_equal(diary.told[-1][1].x, run.x)


def test_rows_come_while_the_run_goes_on_and_their_time_is_not_counted(monkeypatch):
    class Clock:
        """Shows the rounds done so far, and ten more for every row that was told."""

        told = done = 0

        def monotonic(self):
            return self.done + 10 * self.told

    clock, exchange = Clock(), Simulation._exchange

    def counted(self):
        clock.done += 1
        return exchange(self)

    def slow(row):
        clock.told += 1
        assert clock.told == clock.done == row["round"]

    monkeypatch.setattr(simulation_run, "time", clock)
    monkeypatch.setattr(Simulation, "_exchange", counted)
    run = fedmls.simulate(fedmls.FedMLS(), svm(), rounds=5, callback=slow)
    assert run.history["seconds"].tolist() == [1, 2, 3, 4, 5]


def test_a_callback_that_changes_its_row_changes_nothing_else():
    run = fedmls.simulate(fedmls.FedMLS(), svm(), rounds=3, callback=[dict.clear, lambda row: row["round"]])
    assert run.history["round"].tolist() == [1, 2, 3]


def test_a_resumed_run_begins_with_the_rows_of_its_checkpoint(tmp_path):
    first, second, file = Diary(), Diary(), tmp_path / "run.npz"
    fedmls.simulate(fedmls.FedMLS(), svm(), rounds=4, checkpoint=file, callback=first)
    run = fedmls.simulate(fedmls.FedMLS(), svm(), rounds=7, checkpoint=file, callback=second)
    assert [row["round"] for row in second.rows] == [1, 2, 3, 4, 5, 6, 7]
    assert second.rows[:4] == first.rows
    assert same_rows(second.rows, run.history)


@pytest.mark.parametrize("paired", [False, True])
def test_an_exception_in_a_callback_ends_the_run_and_loses_nothing(paired, tmp_path):
    algorithm, file = fedmls.FedMLS(paired=paired), tmp_path / "run.npz"
    broken, beside = Diary(fail_at=5), Diary()
    with pytest.raises(RuntimeError, match="disk full") as caught:
        fedmls.simulate(algorithm, svm(), rounds=12, checkpoint=file, callback=[beside, broken])
    for diary in (broken, beside):  # both are told, once, and of the error
        assert diary.order.count("end") == 1
        assert diary.told[-1][2] is caught.value
        assert diary.told[-1][1].history["round"].iloc[-1] == 5 + paired
    resumed = fedmls.simulate(algorithm, svm(), rounds=12, checkpoint=file)
    assert np.array_equal(resumed.x, fedmls.simulate(algorithm, svm(), rounds=12).x)


def test_an_exception_at_the_beginning_or_the_end_reaches_the_others():
    class Late(Diary):
        def end(self, run, error):
            super().end(run, error)
            raise RuntimeError("too late")

    class Early(Diary):
        def begin(self, about):
            raise RuntimeError("too early")

    beside, late = Diary(), Late()
    with pytest.raises(RuntimeError, match="too late"):
        fedmls.simulate(fedmls.FedMLS(), svm(), rounds=2, callback=[beside, late])
    assert beside.order == ["begin", "row", "row", "end"]
    beside = Diary()
    with pytest.raises(RuntimeError, match="too early"):
        fedmls.simulate(fedmls.FedMLS(), svm(), rounds=2, callback=[beside, Early()])
    assert beside.order == ["begin", "end"]


def test_ctrl_c_is_told_with_the_run_so_far():
    def press(row):
        if row["round"] == 3:
            signal.raise_signal(signal.SIGINT)

    diary = Diary()
    with pytest.raises(fedmls.Interrupted, match="stopped after round 3"):
        fedmls.simulate(fedmls.FedMLS(), svm(), rounds=9, callback=[press, diary])
    assert isinstance(diary.told[-1][2], KeyboardInterrupt)
    assert diary.told[-1][1].history["round"].tolist() == [1, 2, 3]


def diverging(callback, **options):
    """A quadratic, and too long a step."""
    problem = lad(loss="huber")
    problem.loss = fedmls.huber(1e300)
    return fedmls.simulate(fedmls.FedAvg(eta=10.0, T=3), problem, rounds=500, optimum=1.0, callback=callback, **options)


def test_a_diverged_run_is_told_as_one():
    diary = Diary()
    run = diverging(diary, every=7)
    assert run.diverged
    assert 1 < len(run.history) < 70
    assert diary.told[-1][1].diverged
    assert same_rows(diary.rows, run.history)


@pytest.mark.parametrize("callback", [3, "print", tracking.TensorBoard, [print, None]])
def test_what_is_no_callback_is_refused(callback):
    with pytest.raises(ValueError, match="give a function of a row of the history, such as print"):
        fedmls.simulate(fedmls.FedMLS(), svm(), rounds=1, callback=callback)


def test_functions_as_a_problem_have_a_name_too():
    problem = fedmls.OracleProblem([(lambda x: abs(x[0]), lambda x, rng: np.sign(x))] * 2, 1)
    diary = Diary()
    fedmls.simulate(fedmls.FedMLS(), problem, rounds=2, callback=diary)
    assert diary.told[0][1]["problem"] == "2 functions of 1 numbers"
    assert diary.told[0][1]["optimum"] is None


# TensorBoard


def events(folder):
    read = EventAccumulator(str(folder))
    read.Reload()
    return read


def assert_holds(folder, history):
    read = events(folder)
    assert set(read.Tags()["scalars"]) == set(history) - {"round"}
    for column in set(history) - {"round"}:
        points = read.Scalars(column)
        assert [point.step for point in points] == history["round"].tolist()
        assert np.array_equal(np.array([p.value for p in points], np.float32), history[column].to_numpy(np.float32))
    times = np.array([point.wall_time for point in read.Scalars("objective")])
    assert times - times[0] == pytest.approx(history["seconds"] - history["seconds"].iloc[0], abs=1e-4)


def hparams(folder):
    content = events(folder).SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    found = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    return {name: getattr(value, value.WhichOneof("kind")) for name, value in found.items()}


def test_tensorboard(tmp_path):
    metrics = {"norm": lambda x: float(np.linalg.norm(x))}
    board = tracking.TensorBoard(tmp_path / "logs")
    run = fedmls.simulate(fedmls.FedMLS(lam0=2.0), svm(), rounds=30, seed=4, metrics=metrics, callback=board)
    (folder,) = (tmp_path / "logs").iterdir()
    assert folder.name == "fedmls-lam0=2-seed=4"
    assert_holds(folder, run.history)
    known = hparams(folder)
    assert (known["algorithm"], known["lam0"], known["paired"], known["seed"]) == ("fedmls", 2.0, False, 4)


def test_tensorboard_keeps_equal_runs_apart_and_leaves_out_what_is_unknown(tmp_path):
    board = tracking.TensorBoard(tmp_path)
    algorithm = fedmls.Compressed(algorithm=fedmls.FedMLS(T=fedmls.Power(10, 0.5)), method="top_k", level=0.5)
    runs = [fedmls.simulate(algorithm, svm(), rounds=3, optimum=None, callback=board) for _ in range(3)]
    folders = sorted(tmp_path.iterdir())
    assert [folder.name.rsplit("seed=0")[1] for folder in folders] == ["", "-2", "-3"]
    for folder, run in zip(folders, runs, strict=True):
        assert_holds(folder, run.history.drop(columns=["gap", "relative_gap"]))
    assert hparams(folders[0])["algorithm.name"] == "fedmls"
    assert hparams(folders[0])["algorithm.T.power"] == "[10.0, 0.5]"


def test_tensorboard_can_be_read_while_the_run_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(tracking, "FLUSH_SECONDS", 0.01)
    found = []

    def look(row):
        if row["round"] == 20:
            deadline = time.monotonic() + 20
            (folder,) = tmp_path.iterdir()
            while "objective" not in events(folder).Tags()["scalars"] and time.monotonic() < deadline:
                time.sleep(0.05)
            found.extend(point.step for point in events(folder).Scalars("objective"))

    fedmls.simulate(fedmls.FedMLS(), svm(), rounds=40, callback=[tracking.TensorBoard(tmp_path), look])
    assert found[:5] == [1, 2, 3, 4, 5]
    assert len(found) <= 20


# MLflow


@pytest.fixture(scope="module")
def mlflow_uri(tmp_path_factory):
    """A database in a file; the folder that is worked in stays empty."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.chdir(tmp_path_factory.mktemp("here"))
        yield f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/runs.db"


def read_back(uri, experiment):
    """(run, {metric: history}) of each run of an experiment, the first one first."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    found = client.search_runs([client.get_experiment_by_name(experiment).experiment_id], order_by=["start_time ASC"])
    return [
        (run, {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}) for run in found
    ]


def assert_logged(metrics, history):
    assert set(metrics) == set(history) - {"round"}
    for column, unordered in metrics.items():
        points = sorted(unordered, key=lambda point: point.step)
        assert [point.step for point in points] == history["round"].tolist()
        assert [point.value for point in points] == history[column].tolist()


def test_mlflow(mlflow_uri):
    tracker = tracking.MLflow("one", mlflow_uri)
    run = fedmls.simulate(fedmls.FedMLS(lam0=2.0), svm(), rounds=150, seed=4, callback=tracker)  # several batches
    ((stored, metrics),) = read_back(mlflow_uri, "one")
    assert_logged(metrics, run.history)
    assert stored.info.run_name == "fedmls lam0=2, seed=4"
    assert stored.info.status == "FINISHED"
    assert stored.data.tags["diverged"] == "False"
    about = stored.data.params
    assert (about["algorithm"], about["lam0"], about["seed"], about["rounds"]) == ("fedmls", "2.0", "4", "150")
    assert about["problem"] == repr(svm())
    assert list(Path.cwd().iterdir()) == []


def test_mlflow_says_how_a_run_ended(mlflow_uri):
    tracker = tracking.MLflow("ends", mlflow_uri)

    def stop(row):
        raise KeyboardInterrupt

    with pytest.raises(fedmls.Interrupted):
        fedmls.simulate(fedmls.FedMLS(), svm(), rounds=5, callback=[tracker, stop])
    with pytest.raises(RuntimeError, match="disk full"):
        fedmls.simulate(fedmls.FedMLS(), svm(), rounds=5, callback=[tracker, Diary(fail_at=2)])
    diverged = diverging(tracker)
    ends = [
        (run.info.status, len(m["objective"]), run.data.tags["diverged"]) for run, m in read_back(mlflow_uri, "ends")
    ]
    assert ends == [("KILLED", 1, "False"), ("FAILED", 2, "False"), ("FINISHED", len(diverged.history), "True")]


def test_mlflow_with_an_experiment_that_was_deleted(mlflow_uri):
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=mlflow_uri)
    client.delete_experiment(tracking.MLflow("gone", mlflow_uri).experiment)
    with pytest.raises(ValueError, match="experiment 'gone' has been deleted in MLflow; restore it or"):
        tracking.MLflow("gone", mlflow_uri)


def test_mlflow_where_it_does_not_open_its_store(mlflow_uri, tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    with pytest.raises(ValueError, match=r"MLflow does not open file:.*MLFLOW_ALLOW_FILE_STORE=true"):
        tracking.MLflow(uri=f"file://{tmp_path}/runs")


def test_mlflow_in_a_folder_of_files(mlflow_uri, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = f"file://{tmp_path}/runs"
    run = fedmls.simulate(fedmls.FedMLS(), svm(), rounds=3, callback=tracking.MLflow(uri=uri))
    assert_logged(read_back(uri, "fedmls")[0][1], run.history)


# afterwards


def test_runs_of_a_sweep_can_be_logged_afterwards(mlflow_uri, tmp_path):
    algorithms = [fedmls.FedMLS(lam0=v) for v in (0.1, 1.0)]
    runs = fedmls.sweep(algorithms, svm(), rounds=4, seeds=range(2), jobs=1)
    tracking.log(runs, tracking.TensorBoard(tmp_path))
    tracking.log(runs, tracking.MLflow("sweep", mlflow_uri), problem="made up")
    seen = []
    tracking.log(runs, seen.append)
    assert len(seen) == 16
    for run in runs:
        assert_holds(tmp_path / f"fedmls-lam0={run.algorithm.lam0:g}-seed={run.seed}", run.history)
    stored = {(run.data.params["lam0"], run.data.params["seed"]): (run, m) for run, m in read_back(mlflow_uri, "sweep")}
    assert len(stored) == 4
    for run in runs:
        known, metrics = stored[str(run.algorithm.lam0), str(run.seed)]
        assert_logged(metrics, run.history)
        assert known.data.params["problem"] == "made up"


def test_runs_of_a_results_folder_can_be_logged(tmp_path):
    results = tmp_path / "results"
    runs = fedmls.sweep([fedmls.FedMLS()], svm(), rounds=4, seeds=range(2), jobs=1, store=results / "runs")
    (results / "setup.json").write_text('{"problem": {"data": "made up", "rows": 60}}')
    tracking.log(results, tracking.TensorBoard(tmp_path / "logs"))
    for run in runs:
        assert_holds(tmp_path / "logs" / f"fedmls-lam0=1-seed={run.seed}", run.history)
    known = hparams(tmp_path / "logs" / "fedmls-lam0=1-seed=0")
    assert (known["problem.data"], known["problem.rows"]) == ("made up", 60)


def test_folders_that_hold_no_runs(tmp_path):
    with pytest.raises(ValueError, match="keeps no runs"):
        tracking.log(tmp_path, print)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "a.parquet").write_bytes(b"no")
    with pytest.raises(ValueError, match=r"a.parquet cannot be read; delete it and run again"):
        tracking.log(str(tmp_path), print)


@pytest.mark.parametrize(("make", "extra"), [(tracking.TensorBoard, "tensorboard"), (tracking.MLflow, "mlflow")])
def test_a_missing_extra_is_named(make, extra, monkeypatch):
    for module in [name for name in sys.modules if name.split(".")[0] == extra]:
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, extra, None)
    with pytest.raises(ValueError, match=rf"{extra} cannot be loaded .*; run pip install 'fedmls\[{extra}\]'"):
        make("logs")


def test_a_database_without_its_libraries_is_named(mlflow_uri, monkeypatch):
    import mlflow.tracking

    def no_library(**_):
        raise ModuleNotFoundError("No module named 'sqlalchemy'")

    monkeypatch.setattr(mlflow.tracking, "MlflowClient", no_library)
    with pytest.raises(ValueError, match=r"No module named 'sqlalchemy'.*run pip install 'fedmls\[mlflow\]'"):
        tracking.MLflow(uri="sqlite:///x.db")


# Runs of a results folder as they go


def followed(folder, work, tracker):
    with tracking.Follower(folder, tracker) as follower:
        work()
    return follower


def test_a_follower_logs_runs_as_they_go_and_all_their_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(tracking, "FOLLOW_SECONDS", 0.001)
    diaries, runs = [], []

    def work():
        with LiveFolder(tmp_path, CURVES, [0, 1], SETUP | {"rounds": 300}) as live:
            options = {"jobs": 1, "backend": "threads", "store": tmp_path / "runs", "follower": live}
            with tracking.Follower(tmp_path, lambda: diaries.append(Diary()) or diaries[-1]):
                runs.extend(run_all(list(CURVES.values()), svm(), RunConfig(300), [0, 1], **options))

    monkeypatch.setattr(live_results, "WRITE_SECONDS", -1.0)
    work()
    assert len(diaries) == 4
    names = {diary.told[0][1]["name"]: diary for diary in diaries}
    for run in runs:
        diary = names[f"{run.algorithm.name} {fedmls.algorithms.describe(run.algorithm)}, seed={run.seed}"]
        assert diary.order == ["begin", *["row"] * 300, "end"]
        assert [row["objective"] for row in diary.rows] == run.history["objective"].tolist()
        assert diary.told[-1][2] is None


def test_a_follower_tells_those_that_were_stopped_and_leaves_out_those_that_were_there(tmp_path):
    diaries = []
    half_done(tmp_path)  # one run is finished, one was under way

    keys = [store_key(PlannedRun(a, svm(), RunConfig(4, seed=seed))) for a in CURVES.values() for seed in (0, 1)]

    def again():
        follower = tracking.Follower(tmp_path, lambda: diaries.append(Diary()) or diaries[-1])
        with LiveFolder(tmp_path, CURVES, (0, 1), SETUP) as live, follower:
            live.begin(keys)
            (tmp_path / "live" / f"{keys[1]}.csv").write_text("round,objective\n1,2.5\n")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        again()
    (diary,) = diaries
    assert diary.order == ["begin", "row", "end"]
    assert isinstance(diary.told[-1][2], KeyboardInterrupt)


def test_a_tracker_that_fails_does_not_stop_the_runs(tmp_path):
    def work():
        federate(svm(n=3), tmp_path, algorithm=fedmls.FedMLS(), rounds=3)

    with pytest.warns(UserWarning, match="not all was logged: disk full"):
        followed(tmp_path / "job", work, lambda: Diary(fail_at=2))
    assert (tmp_path / "job" / "model.npz").exists()


def test_a_federation_in_tensorboard(tmp_path):
    def work():
        federate(svm(n=3), tmp_path, algorithm=fedmls.FedMLSB(), rounds=4, certificate=True)

    followed(tmp_path / "job", work, lambda: tracking.TensorBoard(tmp_path / "logs"))
    (run,) = (tmp_path / "logs").iterdir()
    assert run.name == "fedmlsb-lanes=3-seed=0"
    read = EventAccumulator(str(run)).Reload()
    assert [event.step for event in read.Scalars("objective")] == [1, 2, 3, 4]
    for file in run.iterdir():
        assert b"\x1b[" not in file.read_bytes()


def test_the_model_of_a_federation_in_mlflow_predicts_as_scikit_learn_does(mlflow_uri, tmp_path, monkeypatch):
    from mlflow.tracking import MlflowClient

    monkeypatch.chdir(tmp_path)  # where MLflow puts its files
    problem = svm(n=3)

    def work():
        federate(problem, tmp_path, algorithm=fedmls.FedMLSB(), rounds=4, certificate=True, standardise=True)

    followed(tmp_path / "job", work, lambda: tracking.MLflow("clinics", uri=mlflow_uri))
    client = MlflowClient(tracking_uri=mlflow_uri)
    (run,) = client.search_runs([client.get_experiment_by_name("clinics").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["algorithm"] == "fedmlsb"
    (logged,) = client.search_logged_models([run.info.experiment_id])
    with tracking._quiet_mlflow():
        import mlflow.sklearn

        mlflow.set_tracking_uri(mlflow_uri)
        pipeline = mlflow.sklearn.load_model(logged.model_uri)
    model = read_model(tmp_path / "job")
    X = pd.DataFrame(problem.matrix().toarray()[:, :4], columns=model.columns)
    expected = ((X.to_numpy() - model.means) / model.scales) @ model.x[:4] + model.x[4]
    assert pipeline.decision_function(X) == pytest.approx(expected)
    assert {*pipeline.predict(X)} == {-1, 1}  # numbers in the files, numbers here


@pytest.mark.processes
def test_an_experiment_is_tracked_from_the_command_line(tmp_path):
    (tmp_path / "small.toml").write_text(
        'rounds = 5\nseeds = 2\nalgorithms = ["fedavg"]\ndata = {name = "svm", rows = 60}\n'
    )
    command = [sys.executable, "-m", "fedmls", "run", "small.toml", "--jobs", "1", "--track"]
    done = subprocess.run([*command, "tensorboard"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    folders = sorted(folder.name for folder in (tmp_path / "results" / "small" / "tensorboard").iterdir())
    assert [name[-6:] for name in folders] == ["seed=0", "seed=1"]
    refused = subprocess.run([*command, "wandb"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "tensorboard, mlflow" in refused.stderr


def test_the_model_that_an_experiment_keeps_is_logged_with_its_run(mlflow_uri, tmp_path, monkeypatch):
    from mlflow.tracking import MlflowClient

    from fedmls.experiments import spec
    from fedmls.experiments.run import Experiment

    monkeypatch.chdir(tmp_path)
    file = tmp_path / "small.toml"
    file.write_text('rounds = 5\nseeds = 2\nalgorithms = ["fedavg", "fedmls"]\ndata = {name = "svm", rows = 60}\n')
    follower = tracking.Follower(tmp_path / "out", lambda: tracking.MLflow("kept", uri=mlflow_uri))
    Experiment(spec.read(str(file))).run(tmp_path / "out", jobs=1, progress=False, followers=[follower])
    client = MlflowClient(tracking_uri=mlflow_uri)
    experiment = client.get_experiment_by_name("kept").experiment_id
    (logged,) = client.search_logged_models([experiment])
    trained = read_description(tmp_path / "out").trained
    of = client.get_run(logged.source_run_id)
    assert (of.data.params["algorithm"], of.data.params["seed"]) == (trained["algorithm"]["name"], str(trained["seed"]))
    assert {run.info.status for run in client.search_runs([experiment])} == {"FINISHED"}
