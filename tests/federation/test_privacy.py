"""Noise on the uploads: what ε it gives, that everything sent is covered, and that nobody can ask for more."""

import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import fedmls
from fedmls.federation import InProcess, Job, Node, NodeConfig, Stopped, drive
from fedmls.federation import privacy as privacies
from fedmls.federation.messages import Envelope, pack_envelope, unpack_envelope
from fedmls.federation.privacy import Privacy, epsilon, noisy
from tests.support.algorithms import SMALL_STEPS
from tests.support.federations import Recording, federate, parts
from tests.support.problems import svm

accountant = pytest.importorskip("dp_accounting")
pytest.importorskip("opendp")

PRIVATE = {"report_objective": False, "impute": False}
FINITE = st.floats(-1e100, 1e100)


@pytest.mark.parametrize(("noise", "rounds"), [(20.0, 100), (5.0, 4), (2.0, 1)])
def test_epsilon_is_that_of_a_general_accountant(noise, rounds):
    """Composed round by round from privacy loss distributions, for vectors at most 2 clip apart."""
    one = accountant.GaussianDpEvent(noise / 2)
    slow = accountant.pld.PLDAccountant().compose(accountant.SelfComposedDpEvent(one, rounds)).get_epsilon(1e-5)
    assert Privacy(clip=3.0, noise=noise).epsilon(rounds) == pytest.approx(slow, rel=1e-3)


def test_epsilon_of_one_round_keeps_its_promise():
    """δ = Φ(s/2 - ε/s) - e^ε Φ(-s/2 - ε/s) with s = 2/noise (Balle, Wang 2018), the exact trade-off."""

    def normal(t):
        return 0.5 * math.erfc(-t / math.sqrt(2))

    for noise in (0.5, 2.0, 10.0):
        found, s = epsilon([(noise, 1)], 1e-6), 2 / noise
        delta = normal(s / 2 - found / s) - math.exp(found) * normal(-s / 2 - found / s)
        assert delta == pytest.approx(1e-6, rel=1e-3)


def test_runs_add_up():
    assert epsilon([(8.0, 10), (8.0, 30)], 1e-5) == pytest.approx(epsilon([(8.0, 40)], 1e-5))
    assert epsilon([(8.0, 10), (4.0, 10)], 1e-5) > epsilon([(8.0, 20)], 1e-5)
    assert epsilon([], 1e-5) == 0.0


@given(
    up=npst.arrays(float, 6, elements=FINITE),
    down=npst.arrays(float, 6, elements=st.floats(-10, 10)),
    clip=st.floats(1e-3, 1e3),
)
def test_what_is_sent_is_at_most_clip_from_what_was_known(up, down, clip):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(privacies, "_with_noise", lambda whole, privacy: whole)
        sent = noisy(Privacy(clip=clip, noise=1.0), fedmls.Scaffold.references, {"dy": up[:3], "dc": up[3:]}, {})
        assert np.linalg.norm(np.concatenate([sent["dy"], sent["dc"]])) <= clip * (1 + 1e-12)
        sent = noisy(Privacy(clip=clip, noise=1.0), fedmls.FedMLS.references, {"y": up}, {"y": down})["y"]
        assert np.linalg.norm(sent - down) <= clip * (1 + 1e-9)
        if np.linalg.norm(up - down) <= clip:
            np.testing.assert_allclose(sent, up, rtol=1e-12, atol=1e-12 * clip)


@given(vector=npst.arrays(float, 6, elements=FINITE), clip=st.floats(1e-99, 1e99), noise=st.floats(1e-4, 1e6))
def test_the_length_is_exact_in_steps_of_the_grid(vector, clip, noise):
    privacy = Privacy(clip=clip, noise=noise)
    whole = privacies.clipped(vector, privacy)
    assert sum(step**2 for step in whole.tolist()) * Fraction(privacy.grid) ** 2 <= Fraction(clip) ** 2
    length = np.linalg.norm(vector)
    wanted = vector * min(1.0, clip / length) if 0 < length < math.inf else 0 * vector
    np.testing.assert_allclose(privacy.grid * whole, wanted, rtol=1e-9, atol=2 * privacy.grid)


@pytest.mark.parametrize("deviation", [1.0, 1.3, 1.9])
def test_the_noise_is_a_discrete_gaussian(deviation, monkeypatch):
    """Where a step of the grid is nearly a deviation, the frequencies are those of exp(-k²/2σ²)."""
    monkeypatch.setattr(privacies, "STEPS", 0)
    privacy = Privacy(clip=1.0, noise=deviation)
    assert privacy.grid == 1.0
    drawn, k = privacies._with_noise(np.zeros(40_000, dtype=np.int64), privacy), np.arange(-12, 13)
    expected = np.exp(-(k**2) / (2 * deviation**2))
    expected *= len(drawn) / expected.sum()
    found = np.array([(drawn == value).sum() for value in k])
    assert found.sum() == len(drawn)
    often = expected > 5
    statistic = ((found - expected)[often] ** 2 / expected[often]).sum()
    assert statistic < often.sum() + 6 * math.sqrt(2 * often.sum())


def test_noise_is_in_whole_steps_and_of_as_many_bits_as_the_grid_has():
    privacy = Privacy(clip=3.0, noise=2.0)
    sent = noisy(privacy, fedmls.Scaffold.references, {"dy": np.zeros(500), "dc": np.zeros(500)}, {})
    steps = np.concatenate([sent["dy"], sent["dc"]]) / privacy.grid
    assert np.array_equal(steps, np.round(steps))
    assert len({*(steps.astype(np.int64) % 1024).tolist()}) > 500
    assert len({*steps.tolist()}) == 1000


def test_opendp_reckons_with_the_same_sensitivity():
    """ρ of one round, by OpenDP's own proof: that of a normal distribution, (2 clip)²/(2 deviation²)."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    privacy = Privacy(clip=3.0, noise=7.0)
    deviation = privacy.noise * privacy.clip / privacy.grid
    assert 2.0**44 <= deviation < 2.0**45
    numbers = dp.vector_domain(dp.atom_domain(T="i64"))
    measurement = dp.m.make_gaussian(numbers, dp.l2_distance(T="f64"), scale=deviation)
    assert measurement.map(2 * privacy.clip / privacy.grid) == pytest.approx(2 / privacy.noise**2, rel=1e-12)


def test_without_a_source_of_noise_a_node_refuses(tmp_path, monkeypatch):
    monkeypatch.setattr(privacies, "find_spec", lambda name: None)
    with pytest.raises(Stopped, match="node site-1 refuses: privacy needs OpenDP for its noise"):
        federate(
            svm(n=2, m=40),
            tmp_path,
            algorithm=fedmls.FedMLS(),
            rounds=2,
            privacy=Privacy(clip=1.0, noise=5.0),
            **PRIVATE,
        )


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_an_overflow_is_not_told(value):
    sent = noisy(Privacy(clip=1.0, noise=1.0), fedmls.FedAvg.references, {"u": np.full(4, value)}, {"x": np.zeros(4)})[
        "u"
    ]
    assert np.isfinite(sent).all()


def test_the_noise_has_the_deviation_it_should_have():
    down = {"y": np.arange(20_000.0)}
    sent = noisy(Privacy(clip=3.0, noise=2.0), fedmls.FedMLS.references, {"y": down["y"]}, down)["y"] - down["y"]
    assert abs(sent.std() / 6.0 - 1) < 5 / math.sqrt(2 * 20_000)
    assert abs(sent.mean()) < 5 * 6.0 / math.sqrt(20_000)
    again = noisy(Privacy(clip=3.0, noise=2.0), fedmls.FedMLS.references, {"y": down["y"]}, down)["y"] - down["y"]
    assert abs(np.corrcoef(sent, again)[0, 1]) < 5 / math.sqrt(20_000)


@pytest.mark.parametrize("name", [name for name, cls in fedmls.ALGORITHMS.items() if cls.references])
def test_without_noise_and_clipping_it_is_the_same_run(name, tmp_path, monkeypatch):
    monkeypatch.setattr(privacies, "_with_noise", lambda whole, privacy: whole)
    problem, algorithm = svm(n=4, m=50), fedmls.make(name, **SMALL_STEPS[name])
    settings = {"rounds": 6, "batch": 0.3, "seed": 9}
    result = federate(
        problem, tmp_path, algorithm=algorithm, privacy=Privacy(clip=1e3, noise=1e-4), **settings, **PRIVATE
    )
    run = fedmls.simulate(algorithm, problem, optimum=None, **settings)
    np.testing.assert_allclose(result.x, run.x, rtol=1e-9, atol=1e-12)


def test_a_run_with_noise_tells_epsilon_and_nothing_else_of_the_rows(tmp_path):
    problem = svm(n=4, m=50)
    configs = parts(problem, tmp_path / "parts")
    Job(algorithm=fedmls.FedMLS(), rounds=5, privacy=Privacy(clip=0.5, noise=10.0), **PRIVATE).write(tmp_path)
    transport = Recording(configs)
    result = drive(tmp_path, transport)
    assert result.epsilon == epsilon([(10.0, 5)], 1e-5)
    setup = json.loads((tmp_path / "setup.json").read_text())
    assert setup["epsilon"] == result.epsilon
    first = json.loads((tmp_path / "events.jsonl").read_text().splitlines()[0])
    assert (first["event"], first["epsilon"], first["delta"]) == ("privacy", result.epsilon, 1e-5)
    clean = fedmls.simulate(fedmls.FedMLS(), problem, rounds=5, optimum=None)
    assert np.linalg.norm(result.x - clean.x) > 0.1
    for _, _, reply in transport.carried:
        message = unpack_envelope(reply)
        if message.kind == "surveyed":
            assert all(message.body[name] is None for name in ("counts", "sums", "squares"))
        if message.kind == "begun":
            assert message.body == {"lipschitz": math.inf}
        if message.kind == "done":
            assert message.body["values"] == []
            assert all(upload["cut"] is None for upload in message.body["rounds"])


def test_a_message_delivered_twice_has_the_same_noise_and_another_one_costs(tmp_path):
    """The server cannot average the noise away, nor ask for more rounds than ε was told for."""
    configs = parts(svm(n=2, m=40), tmp_path / "parts")
    Job(algorithm=fedmls.FedMLS(), rounds=3, privacy=Privacy(clip=1.0, noise=5.0), **PRIVATE).write(tmp_path)
    transport = Recording(configs)
    drive(tmp_path, transport)
    name, message, reply = transport.carried[-1]
    node = Node(next(config for config in configs if config.name == name))
    assert node.answer(message) == reply
    last = unpack_envelope(message)
    for exchange, why in (
        (last.exchange, "it was asked for other work before"),
        (last.exchange + 1, "it has answered 3 rounds of the run"),  # as if the reply had never arrived
    ):
        asked = last._replace(
            exchange=exchange, body=last.body | {"rounds": [last.body["rounds"][0] | {"asked": False}]}
        )
        told = unpack_envelope(node.answer(pack_envelope(asked)))
        assert told.kind == "refused"
        assert why in told.body["why"]
    point = {"k": 1, "candidate": 0, "x": np.zeros(5)}
    asked = last._replace(body=last.body | {"rounds": [], "points": [point]})
    assert "does not tell its objective" in unpack_envelope(node.answer(pack_envelope(asked))).body["why"]


def test_a_node_has_a_limit_of_its_own_over_all_runs(tmp_path):
    limit = epsilon([(5.0, 7)], 1e-5)
    configs = parts(svm(n=2, m=40), tmp_path / "parts", max_epsilon=limit)
    job = {"algorithm": fedmls.FedMLS(), "rounds": 3}
    Job(**job).write(tmp_path)
    with pytest.raises(Stopped, match="node site-1 refuses: it takes part only in runs with privacy"):
        drive(tmp_path, InProcess(configs))
    Job(**job, privacy=Privacy(clip=1.0, noise=5.0), **PRIVATE).write(tmp_path)
    for _ in range(2):
        drive(tmp_path, InProcess(configs), resume=False)
    with pytest.raises(Stopped, match=r"with this run its ε would be .*, and at most .* is allowed \(max_epsilon\)"):
        drive(tmp_path, InProcess(configs), resume=False)
    assert len((configs[0].state / "privacy.jsonl").read_text().splitlines()) == 2


def test_a_servers_own_delta_does_not_fool_a_node(tmp_path):
    configs = parts(svm(n=2, m=40), tmp_path / "parts", max_epsilon=1.0)
    generous = Privacy(clip=1.0, noise=5.0, delta=0.999)
    assert generous.epsilon(3) == 0.0
    Job(algorithm=fedmls.FedMLS(), rounds=3, privacy=generous, **PRIVATE).write(tmp_path)
    with pytest.raises(Stopped, match="its ε would be"):
        drive(tmp_path, InProcess(configs))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"report_objective": True}, "set report_objective = false"),
        ({"impute": True}, "set impute = false"),
        ({"standardise": True}, "set standardise = false"),
        ({"certificate": 1.0}, "set no certificate"),
        ({"algorithm": fedmls.Bundle()}, "bundle does not go with privacy"),
        ({"algorithm": fedmls.ADMM()}, "admm does not go with privacy"),
        ({"algorithm": fedmls.FedMLS(lam0="auto")}, "lam0 is 'auto'"),
        ({"algorithm": fedmls.Compressed(algorithm=fedmls.FedMLS())}, "compressed does not go with privacy"),
    ],
)
def test_jobs_that_would_tell_more(change, message):
    good = {"algorithm": fedmls.FedMLS(), "rounds": 3, "privacy": Privacy(clip=1.0, noise=1.0), **PRIVATE}
    with pytest.raises(ValueError, match=message):
        Job(**good | change)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Privacy(clip=0.0, noise=1.0), "clip is 0.0"),
        (lambda: Privacy(clip=5e-324, noise=1.0), "clip is 5e-324; take it between 1e-100 and 1e\\+100"),
        (lambda: Privacy(clip=1e308, noise=1e9), "clip is 1e\\+308"),
        (lambda: Privacy(clip=1.0, noise=5e-324), "noise is 5e-324; take it between 0.0001 and 1e\\+09"),
        (lambda: Privacy(clip=1.0, noise=-1.0), "noise is -1.0"),
        (lambda: Privacy(clip=1.0, noise=1.0, delta=1.0), "delta is 1.0"),
        (lambda: NodeConfig(name="a", data="a.csv", state="s", max_epsilon=0), "max_epsilon is 0"),
        (lambda: NodeConfig(name="a", data="a.csv", state="s", delta=2.0), "delta is 2.0"),
    ],
)
def test_mistakes(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_private_job_goes_to_a_file_and_back(tmp_path):
    job = Job(algorithm=fedmls.FedMLS(), rounds=3, privacy=Privacy(clip=0.5, noise=2.0, delta=1e-7), **PRIVATE)
    job.write(tmp_path)
    assert Job.read(tmp_path) == job
    text = (tmp_path / "job.toml").read_text().replace("clip", "clipp")
    (tmp_path / "job.toml").write_text(text)
    with pytest.raises(ValueError, match="privacy: unknown parameter of Privacy 'clipp': did you mean 'clip'"):
        Job.read(tmp_path)


def test_nodes_refuse_jobs_that_would_tell_more(tmp_path):
    """The check is made where the data are, whatever the server says."""
    configs = parts(svm(n=2, m=40), tmp_path / "parts")
    job = Job(algorithm=fedmls.FedMLS(), rounds=3, privacy=Privacy(clip=1.0, noise=1.0), **PRIVATE).to_dict()
    asked = Envelope("survey", "r-1", 1, 0, {"job": job | {"impute": True}})
    reply = unpack_envelope(Node(configs[0]).answer(pack_envelope(asked)))
    assert reply.kind == "refused"
    assert "set impute = false" in reply.body["why"]
