"""Messages and files recorded before messages had classes of their own, and questions for scores and answers recorded
when they were new: they are read, and written the same.
"""

import contextlib
import copy
from pathlib import Path

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmls.federation import decode, encode
from fedmls.federation.codec import MessageError, seal, unseal
from fedmls.federation.messages import FIELDS, READERS
from fedmls.federation.server.folder import RunFolder
from tests.support.hostile import ANYTHING, packed, places, put

RECORDED = {
    name: (compact, data)
    for file in ("recorded.msgpack", "recorded_scores.msgpack")
    for name, compact, data in msgpack.unpackb((Path(__file__).parent / file).read_bytes())
}
FILES = [name for name in RECORDED if name.endswith(("checkpoint", "state"))]
MESSAGES = [name for name in RECORDED if name not in FILES and not name.endswith("job.toml")]


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_is_written_as_it_was(name):
    compact, data = RECORDED[name]
    assert encode(decode(data), compact=compact) == data


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_written_as_it_was(name):
    _, data = RECORDED[name]
    assert seal(encode(decode(unseal(data), own=True))) == data


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith("checkpoint")])
def test_a_run_goes_on_from_a_checkpoint_as_it_was(name, tmp_path):
    _, data = RECORDED[name]
    (tmp_path / "job.toml").write_bytes(RECORDED[name.replace("checkpoint", "job.toml")][1])
    (tmp_path / "checkpoint").write_bytes(data)
    folder = RunFolder(tmp_path)
    run, survey, snapshot, job = folder.load()
    assert job == folder.job
    folder.save(run, survey, snapshot)
    assert (tmp_path / "checkpoint").read_bytes() == data


@given(data=st.data())
@settings(max_examples=600)
def test_no_part_of_any_kind_breaks_the_decoder(data):
    """Questions, answers and files with anything at all in the place of one or two of their parts."""
    name = data.draw(st.sampled_from([*MESSAGES, *FILES]))
    whole = msgpack.unpackb(RECORDED[name][1] if name in MESSAGES else unseal(RECORDED[name][1]))
    for _ in range(data.draw(st.integers(1, 2))):
        path = data.draw(st.sampled_from(list(places(whole))))
        whole = put(whole, path, copy.deepcopy(data.draw(ANYTHING)))
    with contextlib.suppress(MessageError):
        decode(packed(whole), own=name in FILES)


def test_every_kind_was_recorded():
    bodies = [
        data if name in MESSAGES else unseal(data) for name in (*MESSAGES, *FILES) for _, data in [RECORDED[name]]
    ]
    recorded = {decode(data).kind for data in bodies}
    assert recorded == {*FIELDS} - {"refused", "forgotten"}
    assert {*READERS} == {*FIELDS}
