"""Rows that are held out in a federation: they never train, and the last model is scored on them, once, in sums."""

import json
from importlib.util import find_spec

import numpy as np
import pytest
from sklearn import metrics
from sklearn.datasets import dump_svmlight_file

import fedmls
from fedmls.federation import InProcess, Job, Node, NodeConfig, drive
from fedmls.federation.messages import Message, Score, decode, encode
from fedmls.federation.node.site import Site
from fedmls.federation.scores import BINS
from fedmls.results.read import read_setup
from tests.support.crashes import Crash, Crashing
from tests.support.federations import Recording
from tests.support.problems import lad, svm

JOB = {"algorithm": fedmls.FedMLSB(), "rounds": 4, "seed": 3, "holdout": 0.25}
SECURE = pytest.param(True, marks=pytest.mark.skipif(find_spec("cryptography") is None, reason="takes fedmls[secure]"))


def nodes(problem, folder, marks=None, **options):
    """A node for each client, with its rows in an NPZ file; marks: of all rows, in the file's array ``test``."""
    X = problem.matrix().toarray()[:, : problem.penalised]
    configs = []
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(problem.n):
        rows, name = slice(problem.offsets[i], problem.offsets[i + 1]), f"site-{i + 1}"
        arrays = {} if marks is None else {"test": marks[rows]}
        np.savez(folder / f"{name}.npz", X=X[rows], y=problem.y[rows], **arrays)
        about = options if marks is None else {"holdout": "test", **options}
        configs.append(NodeConfig(name=name, data=folder / f"{name}.npz", state=folder / "state" / name, **about))
    return configs


def run(configs, folder, transport=InProcess, faults=None, **options):
    Job(**JOB | options).write(folder)
    return drive(folder, transport(configs, **(faults or {})))


def held_out(configs, result, job):
    """The labels of all held-out rows, and what the model predicts for them."""
    with np.load(result.folder / "model.npz") as model:
        means, scales, x = model["means"], model["scales"], model["x"]
    rows = [Site(config).divided(job).held_out for config in configs]
    X = (np.concatenate([one.X for one in rows]) - means) / scales
    return np.concatenate([one.y for one in rows]), X @ x[:-1] + x[-1]


def events(folder):
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def exchanges(result):
    return int(result.history["exchanges"].iloc[-1])


@pytest.mark.parametrize("secure", [False, SECURE])
@pytest.mark.parametrize("standardise", [False, True])
def test_scores_are_those_of_scikit_learn(secure, standardise, tmp_path):
    configs = nodes(svm(n=4, m=240), tmp_path / "parts")
    result = run(configs, tmp_path / "job", secure=secure, standardise=standardise)
    labels, predictions = held_out(configs, result, Job(**JOB))
    rows, scores = result.held_out.together
    predicted = np.sign(predictions)
    assert rows == len(labels) == 60
    assert scores["accuracy"] == pytest.approx(metrics.accuracy_score(labels, predicted), rel=1e-14)
    assert scores["balanced_accuracy"] == pytest.approx(metrics.balanced_accuracy_score(labels, predicted), rel=1e-14)
    auc = metrics.roc_auc_score(labels, predictions)
    assert abs(scores["auc"] - auc) <= scores["auc_error"] + 1e-12
    assert scores["auc"] == pytest.approx(auc, abs=0.01 if secure else 0.05)
    assert (
        (list(result.held_out.nodes) == []) if secure else (sum(s.rows for s in result.held_out.nodes.values()) == 60)
    )


@pytest.mark.parametrize("secure", [False, SECURE])
def test_scores_of_a_quantile(secure, tmp_path):
    configs = nodes(lad(n=3, m=150), tmp_path / "parts")
    loss = {"loss": "pinball", "loss_parameter": 0.8}
    result = run(configs, tmp_path / "job", secure=secure, **loss)
    labels, predictions = held_out(configs, result, Job(**JOB | loss))
    rows, scores = result.held_out.together
    assert rows == len(labels) == 30
    assert scores["coverage"] == pytest.approx((labels <= predictions).mean(), rel=1e-14)
    assert scores["mean_absolute_error"] == pytest.approx(metrics.mean_absolute_error(labels, predictions), rel=1e-12)
    assert scores["mean_squared_error"] == pytest.approx(metrics.mean_squared_error(labels, predictions), rel=1e-12)


@pytest.mark.parametrize("secure", [False, SECURE])
def test_held_out_rows_change_nothing_but_the_scores(secure, tmp_path):
    """Neither means and scales, nor G_i, steps, objectives or certificates: all is the same to the last bit."""
    problem, marks = svm(n=3, m=90), np.arange(90) % 5 == 0
    X = problem.matrix().toarray()[:, : problem.penalised]
    results = []
    for name, factor in (("one", 1.0), ("other", -100.0)):
        X[marks] *= factor
        changed = fedmls.Problem(X, problem.y, clients=np.repeat(np.arange(3), 30))
        options = {"secure": secure, "standardise": True, "certificate": True, "weights": "rows", "holdout": True}
        results.append(run(nodes(changed, tmp_path / name, marks), tmp_path / f"job-{name}", **options))
    one, other = results
    np.testing.assert_array_equal(one.x, other.x)
    np.testing.assert_array_equal(one.lipschitz, other.lipschitz)
    same = [name for name in one.history if not name.startswith(("seconds", "bytes"))]
    assert one.history[same].equals(other.history[same])
    with np.load(one.folder / "model.npz") as a, np.load(other.folder / "model.npz") as b:
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])
    assert one.held_out.together.rows == other.held_out.together.rows == marks.sum()
    assert one.held_out.together.values != other.held_out.together.values


def test_the_model_is_that_of_a_simulation_without_the_held_out_rows(tmp_path):
    problem, marks = svm(n=3, m=90), np.arange(90) % 5 == 0
    X = problem.matrix().toarray()[:, : problem.penalised]
    result = run(nodes(problem, tmp_path / "parts", marks), tmp_path / "job", holdout=True)
    kept = fedmls.Problem(X[~marks], problem.y[~marks], clients=np.repeat(np.arange(3), 30)[~marks])
    expected = fedmls.simulate(JOB["algorithm"], kept, rounds=4, seed=3, optimum=None)
    np.testing.assert_array_equal(result.x, expected.x)


def test_sparse_rows_and_a_node_that_holds_out_none(tmp_path):
    problem = svm(n=2, m=88)
    X = problem.matrix().toarray()[:, : problem.penalised] * (np.arange(4) > 0)
    configs = []
    for name, rows in (("a", slice(0, 80)), ("b", slice(80, 88))):
        dump_svmlight_file(X[rows], problem.y[rows], str(tmp_path / f"{name}.svm"), zero_based=False)
        about = {"data": tmp_path / f"{name}.svm", "state": tmp_path / name, "columns": 4}
        configs.append(NodeConfig(name=name, **about))
    result = run(configs, tmp_path / "job")
    held = Site(configs[0]).divided(Job(**JOB)).held_out
    predicted = np.where(held.X @ result.x[:-1] + result.x[-1] > 0, 1, -1)
    assert result.held_out.nodes["b"] == (0, {})
    assert result.held_out.nodes["a"] == result.held_out.together
    assert result.held_out.together.rows == 20
    assert result.held_out.together.values["accuracy"] == pytest.approx((predicted == held.y).mean(), rel=1e-14)


def test_a_nodes_own_rows_stay_out_of_jobs_that_ask_for_no_scores(tmp_path):
    problem, marks = svm(n=3, m=90), np.arange(90) % 5 == 0
    with_scores = run(nodes(problem, tmp_path / "a", marks), tmp_path / "job-a", holdout=True)
    without = run(nodes(problem, tmp_path / "b", marks), tmp_path / "job-b", holdout=None)
    np.testing.assert_array_equal(with_scores.x, without.x)
    assert without.held_out is None
    assert "held_out" not in read_setup(without.folder)


def test_scores_are_told_where_results_are(tmp_path):
    configs = nodes(svm(n=3, m=120), tmp_path / "parts")
    result = run(configs, tmp_path / "job")
    [event] = [one for one in events(result.folder) if one.get("kind") == "score"]
    assert event["held_out"] == read_setup(result.folder)["held_out"] == json.loads(json.dumps(result.held_out.plain()))
    assert event["failed"] == {}
    accuracy = f"{result.held_out.together.values['accuracy']:.3f}"
    text = (result.folder / "summary.md").read_text()
    assert f"| all | 30 | {accuracy} |" in text
    assert "| site-3 | 10 |" in text
    assert result.held_out.lines()[0].startswith(f"30 held-out rows: accuracy {accuracy}, balanced accuracy ")
    assert max(map(len, result.held_out.lines())) <= 80


def test_what_is_counted_is_what_was_sent(tmp_path):
    configs = nodes(svm(n=3, m=120), tmp_path / "parts")
    Job(**JOB).write(tmp_path / "job")
    transport = Recording(configs)
    last = drive(tmp_path / "job", transport).history.iloc[-1]
    assert last["exchanges"] == transport.calls
    assert last["bytes_down"] == sum(len(message) for _, message, _ in transport.carried)
    assert last["bytes_up"] == sum(len(reply) for _, _, reply in transport.carried)
    assert [decode(message).kind for _, message, _ in transport.carried[-3:]] == ["score"] * 3


def test_a_server_sees_no_scores_but_sums_if_they_are_secure(tmp_path):
    pytest.importorskip("cryptography")
    configs = nodes(svm(n=3, m=120), tmp_path / "parts", report_scores=False)
    Job(**JOB, secure=True).write(tmp_path / "job")
    transport = Recording(configs)
    result = drive(tmp_path / "job", transport)
    told = [decode(reply).body for _, message, reply in transport.carried if decode(message).kind == "score"]
    assert [type(body).__name__ for body in told] == ["Masked"] * 3
    for body in told:
        words = body.uploads.view(np.uint64)
        assert words.shape == (2, 4 + 2 * BINS + 1)
        assert len(np.unique(words)) == words.size  # counts would be zeros, most of them
    assert result.held_out.together.rows == 30
    assert result.held_out.nodes == {}


def test_a_model_that_predicts_one_class_for_everybody_is_said_to_do_so(tmp_path):
    rng = np.random.default_rng(0)
    problem = fedmls.Problem(np.zeros((120, 2)), np.where(rng.random(120) < 0.2, -1, 1), clients=np.arange(120) % 3)
    result = run(nodes(problem, tmp_path / "parts"), tmp_path / "job")
    assert result.held_out.notes == ["the model predicts '1' for every held-out row"]
    assert "- the model predicts '1' for every held-out row" in (result.folder / "summary.md").read_text()
    assert result.held_out.together.values["balanced_accuracy"] == 0.5


def test_who_does_not_tell_its_scores_is_left_out_and_named(tmp_path):
    configs = nodes(svm(n=3, m=120), tmp_path / "parts")
    silent = NodeConfig(**{**configs[1].__dict__, "report_scores": False})
    everybody = run(configs, tmp_path / "job-a")
    result = run([configs[0], silent, configs[2]], tmp_path / "job-b")
    why = "refuses: it tells scores in secure sums only (report_scores = false)"
    assert result.held_out.without == {"site-2": why}
    assert result.held_out.nodes == {name: everybody.held_out.nodes[name] for name in ("site-1", "site-3")}
    assert result.held_out.together.rows == 20
    np.testing.assert_array_equal(result.x, everybody.x)
    assert read_setup(result.folder)["status"] == "finished"
    assert f"- without site-2: {why}" in (result.folder / "summary.md").read_text()


class AtTheEnd(InProcess):
    """Faults of the exchange for scores: how often nodes are not reached, what becomes of their replies, what is done
    before.
    """

    def __init__(self, configs, gone=None, change=None, before=lambda: None):
        super().__init__(configs)
        self.gone, self.change, self.before = dict(gone or {}), change or {}, before

    def exchange(self, messages, timeout):
        if decode(next(iter(messages.values()))).kind != "score":
            return super().exchange(messages, timeout)
        self.before()
        lost = [name for name in messages if self.gone.get(name, 0)]
        self.gone |= {name: self.gone[name] - 1 for name in lost}
        reached = {name: message for name, message in messages.items() if name not in lost}
        replies, failures = super().exchange(reached, timeout)
        replies = {name: self.change.get(name, bytes)(reply) for name, reply in replies.items()}
        return replies, failures | dict.fromkeys(lost, "gone")


@pytest.mark.parametrize("on_missing", ["wait", "stop"])
def test_who_is_not_there_at_the_end_is_left_out_and_named(on_missing, tmp_path):
    configs = nodes(svm(n=3, m=120), tmp_path / "parts")
    result = run(configs, tmp_path / "job", AtTheEnd, {"gone": {"site-3": 2}}, on_missing=on_missing)
    assert result.held_out.without == {"site-3": "does not answer: gone"}
    assert result.held_out.together.rows == 20
    assert read_setup(result.folder)["status"] == "finished"


def test_who_answers_at_the_second_attempt_is_not_left_out(tmp_path):
    configs = nodes(svm(n=3, m=120), tmp_path / "parts")
    result = run(configs, tmp_path / "job", AtTheEnd, {"gone": {"site-3": 1}})
    assert result.held_out.without == {}
    assert result.held_out.together.rows == 30


def test_secure_sums_without_a_node_are_none(tmp_path):
    pytest.importorskip("cryptography")
    configs = nodes(svm(n=4, m=160), tmp_path / "parts")
    result = run(configs, tmp_path / "job", AtTheEnd, {"gone": {"site-3": 2}}, secure=True)
    assert result.held_out.together.rows == 0
    assert result.held_out.notes == ["a secure sum takes all nodes, and some have not answered"]
    assert result.held_out.lines()[0] == "held-out rows: no scores are known"
    assert read_setup(result.folder)["status"] == "finished"


def hostile(sums):
    """What becomes of a reply with these sums in it."""

    def change(reply):
        message = decode(reply)
        return encode(message._replace(body=message.body._replace(sums=sums(message.body.sums))))

    return change


@pytest.mark.parametrize(
    ("sums", "message"),
    [
        (lambda sums: sums[:-1], "sums has shape"),
        (lambda sums: sums + np.nan, "sums holds values that are not finite"),
        (lambda sums: sums - 1, "hold negative numbers"),
        (lambda sums: sums * 1e12, "of more than"),
        (lambda sums: sums * 0.5, "are of no rows"),
    ],
)
def test_hostile_sums_are_rejected_by_name(sums, message, tmp_path):
    configs = nodes(svm(n=3, m=120), tmp_path / "parts")
    result = run(configs, tmp_path / "job", AtTheEnd, {"change": {"site-2": hostile(sums)}})
    assert list(result.held_out.without) == ["site-2"]
    assert result.held_out.without["site-2"].startswith("sent what was rejected: ")
    assert message in result.held_out.without["site-2"]
    assert result.held_out.together.rows == 20


@pytest.mark.parametrize("secure", [False, SECURE])
@pytest.mark.parametrize("delivered", [False, True])
def test_a_server_that_dies_over_the_scores_goes_on_to_the_same(secure, delivered, tmp_path):
    configs = nodes(svm(n=3, m=120), tmp_path / "parts")
    whole = run(configs, tmp_path / "a", secure=secure)
    expected, calls = whole.held_out, exchanges(whole)
    Job(**JOB, secure=secure).write(tmp_path / "b")
    with pytest.raises(Crash):
        drive(tmp_path / "b", Crashing(configs, call=calls, delivered=delivered))
    assert "score" not in [one.get("kind") for one in events(tmp_path / "b")]
    assert drive(tmp_path / "b", InProcess(configs)).held_out == expected
    again = InProcess(configs)
    assert drive(tmp_path / "b", again).held_out == expected  # which its checkpoint holds
    assert again.calls == 0


@pytest.mark.parametrize("secure", [False, SECURE])
def test_a_run_that_goes_on_is_scored_anew(secure, tmp_path):
    configs = nodes(svm(n=3, m=120), tmp_path / "parts")
    first = run(configs, tmp_path / "a", secure=secure)
    further = run(configs, tmp_path / "a", secure=secure, rounds=8)
    at_once = run(configs, tmp_path / "b", secure=secure, rounds=8)
    assert first.history["round"].iloc[-1] == 4
    assert further.held_out == at_once.held_out
    np.testing.assert_array_equal(further.x, at_once.x)
    kinds = [one["kind"] for one in events(further.folder) if "kind" in one]
    assert exchanges(further) == len(kinds)
    assert kinds.count("score") == 2


def test_a_node_that_has_lost_a_state_in_which_nothing_was_is_told_again(tmp_path):
    configs = nodes(svm(n=3, m=120), tmp_path / "parts")

    lost = [file for file in [configs[0].state] if not file.exists()]

    def lose():
        if lost:
            [file] = lost.pop().glob("*.state")
            file.unlink()

    result = run(configs, tmp_path / "job", AtTheEnd, {"before": lose})
    assert not lost
    assert [one["nodes"] for one in events(result.folder) if one.get("event") == "began again"] == [["site-1"]]
    assert result.held_out.without == {}
    assert result.held_out == run(configs, tmp_path / "other").held_out


def asked_again(config, result, x, later=0):
    """The answer of a node to a question for scores, so many exchanges after the last one."""
    asked = Message(read_setup(result.folder)["run"], exchanges(result) + later, 4, Score(x))
    return decode(Node(config).answer(encode(asked))).body


@pytest.mark.parametrize("secure", [False, SECURE])
def test_no_question_for_scores_has_two_answers(secure, tmp_path):
    configs = nodes(svm(n=3, m=120), tmp_path / "parts")
    result = run(configs, tmp_path / "job", secure=secure)
    assert not hasattr(asked_again(configs[0], result, result.x), "why")
    other = asked_again(configs[0], result, 2 * result.x)
    assert "it was asked for other scores before" in other.why
    late = asked_again(configs[0], result, result.x, later=-1)
    assert "a message that comes too late is not answered" in late.why


@pytest.mark.parametrize(
    ("x", "message"),
    [(np.zeros(3), "x has shape (3,), not (5,)"), (np.full(5, np.inf), "x holds values that are not finite")],
)
def test_questions_that_cannot_be_are_refused(x, message, tmp_path):
    configs = nodes(svm(n=3, m=120), tmp_path / "parts")
    result = run(configs, tmp_path / "job")
    assert message in asked_again(configs[0], result, x, later=1).why


def test_scores_are_told_only_where_the_job_asks_for_them(tmp_path):
    configs = nodes(svm(n=3, m=90), tmp_path / "parts", np.arange(90) % 5 == 0)
    result = run(configs, tmp_path / "job", holdout=None)
    refusal = asked_again(configs[0], result, np.zeros(5), later=1)
    assert refusal.why == "it is asked for scores that the job has no need of"


@pytest.mark.parametrize("what", ["data", "held-out file", "configuration"])
def test_changed_rows_are_not_scored(what, tmp_path):
    """Under masks a second answer to one question would show the difference."""
    problem = svm(n=3, m=120)
    configs = nodes(problem, tmp_path / "parts")
    later = nodes(svm(n=3, m=60, seed=1), tmp_path / "later")
    if what == "held-out file":
        configs = [
            NodeConfig(**{**config.__dict__, "holdout": other.data})
            for config, other in zip(configs, later, strict=True)
        ]
    result = run(configs, tmp_path / "job")
    config, file = configs[0], configs[0].holdout if what == "held-out file" else configs[0].data
    if what == "configuration":
        config = NodeConfig(**{**config.__dict__, "holdout": 0.5})
    else:
        with np.load(file) as saved:
            arrays = dict(saved)
        np.savez(file, X=2 * arrays["X"], y=arrays["y"])
    refusal = asked_again(config, result, np.zeros(5), later=1)
    assert "its data have changed since the run began" in refusal.why


def test_a_label_that_nobody_else_has_is_refused_before_round_1(tmp_path):
    configs = nodes(svm(n=3, m=120), tmp_path / "parts")
    np.savez(tmp_path / "later.npz", X=np.zeros((10, 4)), y=np.full(10, 7))
    odd = NodeConfig(**{**configs[1].__dict__, "holdout": tmp_path / "later.npz"})
    with pytest.raises(fedmls.federation.Stopped, match="node site-2 refuses: its label column has 3 values"):
        run([configs[0], odd, configs[2]], tmp_path / "job")


def test_with_privacy_no_scores_are_told():
    with pytest.raises(ValueError, match="no scores: leave out holdout"):
        Job(
            algorithm=fedmls.FedAvg(),
            rounds=1,
            holdout=0.2,
            impute=False,
            report_objective=False,
            privacy=fedmls.federation.privacy.Privacy(clip=1.0, noise=1.0),
        )


def test_nodes_that_hold_out_nothing_are_said_to(tmp_path):
    result = run(nodes(svm(n=3, m=60), tmp_path / "parts"), tmp_path / "job", holdout=True)
    assert result.held_out.notes == ["no node holds out a row"]
    assert result.held_out.lines() == ["held-out rows: no scores are known", "no node holds out a row"]
