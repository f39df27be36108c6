"""Messages and jobs: there and back exactly, and nothing that is not one."""

import contextlib
import pickle
import tomllib
import tracemalloc

import msgpack
import numpy as np
import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import fedmls
from fedmls.federation import Job, MessageError
from fedmls.federation.codec import DEEPEST, seal, unseal
from fedmls.federation.messages import HEADER, SCHEMA, Envelope, pack_envelope, unpack_envelope
from fedmls.federation.node.node import MEMORY

ARRAYS = st.one_of(
    npst.arrays(np.float64, npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=40)),
    npst.arrays(np.float64, st.integers(0, 300), elements=st.sampled_from([0.0, -0.0, 1.5, np.inf, np.nan])),
    npst.arrays(np.int64, npst.array_shapes(max_dims=2)),
)


def wire(**change):
    """The bytes of a message with something else in its place."""
    whole = {"schema": SCHEMA, "run": "r-1", "exchange": 3, "round": 1, "kind": "begun", "body": {"lipschitz": 1.0}}
    return msgpack.packb({**whole, **change})


def array(**change):
    about = {"dtype": "float64", "shape": [2], "raw": bytes(16)} | change
    return wire(body={"lipschitz": {key: value for key, value in about.items() if value is not None}})


@given(x=ARRAYS, number=st.floats(), whole=st.booleans(), compact=st.booleans())
def test_there_and_back_to_the_bit(x, number, whole, compact):
    body = {"after": 7, "rounds": [{"k": 2, "x": x, "t": number}], "points": [], "among": None}
    back = unpack_envelope(pack_envelope(Envelope("round", "a-1", 3, 2, body), whole, compact))
    assert back[:4] == ("round", "a-1", 3, 2)
    found = back.body["rounds"][0]
    assert found["x"].dtype == x.dtype
    assert found["x"].shape == x.shape
    assert found["x"].tobytes() == x.tobytes()
    assert np.array(found["t"]).tobytes() == np.array(number).tobytes()


@given(x=ARRAYS)
def test_compact_is_never_longer(x):
    body = Envelope("begun", "a", 0, 0, {"lipschitz": x})
    plain, compact = (len(pack_envelope(body, compact=c)) for c in (False, True))
    assert compact <= plain + 20  # the name of the encoding


@given(x=ARRAYS)
def test_a_node_has_room_for_whole_numbers_in_few_bits(x):
    """It believes no message that its arrays are more than so many times as large as the message."""
    message = pack_envelope(Envelope("begun", "a", 0, 0, {"lipschitz": x}), whole=True)
    assert np.array_equal(unpack_envelope(message, arrays=MEMORY * len(message)).body["lipschitz"], x, equal_nan=True)


@given(st.binary(max_size=300))
def test_no_bytes_break_the_decoder(data):
    with pytest.raises(MessageError):
        unpack_envelope(data)


SIZES = st.sampled_from([0, 1, 15, 16, 31, 32, 255, 256, 65_535, 65_536])  # where they are written otherwise
VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(width=32),
        *(st.builds(lambda n, one=one: n * one, SIZES) for one in ("x", b"x", [None])),
        st.builds(lambda n: {str(i): None for i in range(n)}, SIZES),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=2), inner, max_size=4)),
    max_leaves=6,
)


@given(value=VALUES, single=st.booleans())
def test_every_kind_of_part_is_counted(value, single):
    """What MessagePack can write is read, however long its parts are."""
    whole = {"schema": SCHEMA, "run": "a", "exchange": 1, "round": 0, "kind": "begun", "body": {"lipschitz": value}}
    found = unpack_envelope(msgpack.packb(whole, use_single_float=single)).body["lipschitz"]
    assert msgpack.packb(found) == msgpack.packb(value)  # NaN is not equal to itself


@pytest.mark.parametrize("depth", [DEEPEST - 4, DEEPEST, 990, 100_000])
def test_nothing_nests_deeper_than_a_message_does(depth):
    deep = wire(body={"lipschitz": None})[:-1] + b"\x91" * depth + b"\xc0"
    if depth < DEEPEST - 3:
        unpack_envelope(deep)
        return
    with pytest.raises(MessageError, match=f"no message: it nests deeper than {DEEPEST}"):
        unpack_envelope(deep)


@pytest.mark.parametrize("code", ["\xc7\x01", "\xc8\0\x01", "\xc9\0\0\0\x01", "\xd4", "\xd5", "\xd6", "\xd7", "\xd8"])
def test_extensions_are_walked_over_and_refused(code):
    inside = code.encode("latin1") + b"\x05" + bytes({"\xd5": 2, "\xd6": 4, "\xd7": 8, "\xd8": 16}.get(code, 1))
    data = wire(body={"lipschitz": [None]})[:-1] + inside
    assert msgpack.unpackb(data)["body"]["lipschitz"][0].code == 5
    with pytest.raises(MessageError, match="it holds an extension of kind 5"):
        unpack_envelope(data)


@given(st.data())
def test_no_damage_breaks_the_decoder(data):
    good = pack_envelope(Envelope("begun", "a", 1, 0, {"lipschitz": np.arange(4.0)}))
    at = data.draw(st.integers(0, len(good) - 1))
    bad = good[:at] + data.draw(st.binary(max_size=3)) + good[at + data.draw(st.integers(0, 3)) :]
    with contextlib.suppress(MessageError):
        unpack_envelope(bad)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no message"),
        (pickle.dumps({"schema": 1}), "no message"),
        (msgpack.packb([1, 2]), "the header is not that of a message"),
        (msgpack.packb({"schema": 1}), "the header is not that of a message"),
        (wire(more=1), "the header is not that of a message"),
        (wire(schema=2), "a message of schema 2, not 1: install the same fedmls everywhere"),
        (wire(kind="steal"), "unknown kind 'steal'"),
        (wire(kind=["begun"]), "unknown kind"),
        (wire(run="../../etc/passwd"), "no name of a run"),
        (wire(run=""), "no name of a run"),
        (wire(run=7), "no name of a run"),
        (wire(exchange=-1), "exchange -1"),
        (wire(round=1.5), "round 1.5"),
        (wire(round=True), "round True"),
        (wire(body=[1]), "without a body"),
        (wire(body={}), "without lipschitz"),
        (wire(body={"lipschitz": 1.0, "rows": 3}), "with the unknown rows"),
        (wire(body={"lipschitz": {1: 2}}), "no message"),
        (wire(body={"lipschitz": msgpack.ExtType(5, b"x")}), "an extension of kind 5"),
        (wire(body={"lipschitz": msgpack.Timestamp(1)}), "it holds a Timestamp"),
        (array(dtype="float16"), "only float64, int64, whole, short are sent"),
        (array(dtype="object"), "only float64, int64, whole, short are sent"),
        (array(dtype=None), "an array without dtype"),
        (array(raw=None), "an array without raw"),
        (array(shape=[3]), r"shape \[3\] with 2 numbers"),
        (array(shape=[-2]), "an array of shape"),
        (array(shape="2"), "an array of shape"),
        (array(shape=[1] * 9), "an array of shape"),
        (array(raw=bytes(15)), "not whole numbers of 8 bytes"),
        (array(raw="text"), "not whole numbers of 8 bytes"),
        (array(strange=1), "with the unknown strange"),
        (array(shape=[2**27]), "an array of 1,073,741,824 bytes; at most 268,435,456"),
        (array(places=b"", codes=b""), "with the unknown places"),
        (array(places=bytes(4)), "places do not fit"),
        (array(places=np.array([1, 1], "<u4").tobytes()), "places are not in order"),
        (array(places=np.array([0, 2], "<u4").tobytes()), "places are not in order"),
        (array(codes=b"\0"), "codes do not fit"),
        (array(codes=b"\0\2"), "a code that stands for nothing"),
        (b"\x82" + msgpack.packb("a") * 2 + msgpack.packb("a") * 2, "a key stands there twice"),
    ],
)
def test_what_is_no_message(data, message):
    with pytest.raises(MessageError, match=message):
        unpack_envelope(data)


def test_headers_are_as_documented():
    assert set(msgpack.unpackb(pack_envelope(Envelope("begun", "a", 1, 2, {"lipschitz": 1.0})))) == set(HEADER)


@pytest.mark.parametrize("encoding", ["raw", "places", "codes"])
def test_a_gigabyte_is_refused_before_it_is_made(encoding):
    more = {} if encoding == "raw" else {encoding: b""}
    data = array(shape=[2**27], raw=b"", **more)
    tracemalloc.start()
    try:
        with pytest.raises(MessageError, match="an array of 1,073,741,824 bytes; at most 10,000"):
            unpack_envelope(data, limit=10_000)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_long_messages_are_not_even_read():
    with pytest.raises(MessageError, match="a message of 2,000 bytes; at most 1,000"):
        unpack_envelope(bytes(2000), limit=1000)


@pytest.mark.parametrize("value", [object(), np.zeros(3, dtype=np.float16), np.array(["a"]), {1, 2}])
def test_nothing_else_is_sent(value):
    with pytest.raises(TypeError):
        pack_envelope(Envelope("begun", "a", 0, 0, {"lipschitz": value}))


@pytest.mark.parametrize("compact", [False, True])
def test_numbers_of_four_bytes_take_four_and_arrive_as_such(compact):
    x = np.random.default_rng(0).normal(size=1000)
    long, short = (
        pack_envelope(Envelope("begun", "a", 0, 0, {"lipschitz": v}), compact=compact)
        for v in (x, x.astype(np.float32))
    )
    assert len(short) < len(long) - 3900
    arrived = unpack_envelope(short).body["lipschitz"]
    assert arrived.dtype == np.float32
    assert np.array_equal(arrived, x.astype(np.float32))


def test_damage_of_a_file_is_noticed():
    data = seal(b"the state of a client")
    assert unseal(data) == b"the state of a client"
    for i in range(len(data)):
        with pytest.raises(MessageError, match="damaged"):
            unseal(data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :])


JOBS = [
    Job(algorithm=fedmls.FedMLS(), rounds=3),
    Job(
        algorithm=fedmls.FedMLS(T=(3, 4), lam=fedmls.Power(0.5, -0.5), paired=True, output="best"),
        rounds=10,
        name="trial.1",
        batch=0.25,
        seed=2**62,
        every=3,
        certificate=2.5,
        until=0.1,
        weights={"site 1": 0.25, 'the "other"': 0.75},
        nodes=("site 1", 'the "other"'),
        standardise=True,
        max_norm=1e300,
    ),
    Job(
        algorithm=fedmls.Compressed(algorithm=fedmls.GradSkip(q=(0.5, 1.0)), level=0.5),
        rounds=1,
        loss="pinball",
        loss_parameter=0.3,
        l2=1e-20,
        reduction="mean",
        certificate=True,
    ),
    Job(algorithm=fedmls.FedMLSP(participants=2), rounds=4, on_missing="without", on_bad="without", impute=False),
]


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("file", ["job.toml", "job.json"])
def test_a_job_goes_to_a_file_and_back(job, file, tmp_path):
    job.write(tmp_path / file)
    assert Job.read(tmp_path / file) == job == Job.read(tmp_path)
    assert Job.from_dict(msgpack.unpackb(msgpack.packb(job.to_dict()))) == job


@given(key=st.text(min_size=1), text=st.text())
def test_any_text_goes_into_a_jobs_file_and_back(key, text):
    values = {"plain": text, key: [text, key], "table": {key: {key: text}}}
    assert tomllib.loads(tomli_w.dumps(values)) == values


def test_characters_beyond_the_first_65536_and_a_write_that_is_broken_off(tmp_path, monkeypatch):
    names = ("clinic 🏥", "\x7f𝔸")
    job = Job(algorithm=fedmls.FedMLS(), rounds=3, nodes=names, weights=dict.fromkeys(names, 0.5))
    job.write(tmp_path)
    assert Job.read(tmp_path) == job
    monkeypatch.setattr("fedmls.files.os.fsync", lambda handle: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        Job(algorithm=fedmls.FedMLS(), rounds=4).write(tmp_path)
    assert Job.read(tmp_path) == job
    assert [file.name for file in tmp_path.iterdir()] == ["job.toml"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rounds = 3", "the job has no 'algorithm'"),
        ("rouds = 3", "unknown key of a job 'rouds': did you mean 'rounds'"),
        ("rounds = 3\n[algorithm]\nnames = 'fedmls'", "give its name, or a table with name and parameters"),
        ("rounds = 3\n[algorithm]\nname = 'fedmls'\nparameter = 1", "did you mean 'parameters'"),
        ("rounds = 3\n[algorithm]\nname = 'fedmsl'", "unknown algorithm 'fedmsl': did you mean 'fedmls'"),
        (
            "rounds = 3\n[algorithm]\nname = 'fedmls'\n[algorithm.parameters]\nlam = 0.0",
            "lam is 0.0; it must be a positive number",
        ),
        (
            "rounds = 3\n[algorithm]\nname = 'fedmls'\n[algorithm.parameters]\nlambda0 = 1",
            "unknown parameter of FedMLS 'lambda0': did you mean 'lam0'",
        ),
        ("rounds = 3\nrounds = 4", "no TOML: "),
        ("rounds = 0\n[algorithm]\nname = 'fedmls'", "rounds is 0; it must be a whole number"),
    ],
)
def test_job_files_with_mistakes(text, message, tmp_path):
    (tmp_path / "job.toml").write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        Job.read(tmp_path)
    assert str(error.value).startswith(str(tmp_path / "job.toml"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "a/b"}, "name is 'a/b'"),
        ({"until": 0.1}, "until is 0.1, which takes a proof; add certificate"),
        ({"until": 0.1, "certificate": 1.0, "report_objective": False}, "add report_objective = true"),
        ({"loss_parameter": 0.5}, "'hinge' takes none"),
        ({"loss": "hing"}, "did you mean 'hinge'"),
        ({"weights": "row"}, "did you mean 'rows'"),
        ({"weights": {"a": "b"}}, "give node names with their weights"),
        ({"on_missing": "ignore"}, "unknown on_missing 'ignore'"),
        ({"on_missing": "without"}, "fedmls as it is set needs every client in every round"),
        ({"on_bad": "without", "algorithm": fedmls.FedAvg()}, "fedavg as it is set needs every client"),
        ({"timeout": 0}, "timeout is 0"),
        ({"nodes": "a"}, "give a list of names"),
        ({"algorithm": fedmls.FedMLS}, "is no algorithm"),
        ({"start": ""}, "start is ''; give the path of an earlier run's folder"),
        ({"start": [0.0, 1.0]}, r"start is \[0.0, 1.0\]"),
    ],
)
def test_jobs_with_mistakes(change, message):
    with pytest.raises(ValueError, match=message):
        Job(**{"algorithm": fedmls.FedMLS(), "rounds": 3} | change)


def test_a_folder_has_one_job(tmp_path):
    with pytest.raises(ValueError, match=r"holds 0 of job.toml and job.json"):
        Job.read(tmp_path)
    for file in ("job.toml", "job.json"):
        JOBS[0].write(tmp_path / file)
    with pytest.raises(ValueError, match=r"holds 2 of job.toml and job.json"):
        Job.read(tmp_path)
