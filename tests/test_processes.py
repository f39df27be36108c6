"""The processes of a deployment: started, found with all they started, ended."""

import os
import signal
import socket
import sys
import time

import pytest

pytest.importorskip("fcntl", reason="deployments on one machine take Linux")

from fedmls.federation.processes import MARK, Processes, exit_on_signals, free_port, marked

# A participant that starts another process in a session of its own, as NVFlare does for a job.
PARENT = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"], start_new_session=True)
time.sleep(100)
"""


def wait_until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def start(processes, name):
    processes.start(name, [sys.executable, "-c", PARENT], os.environ, processes.folder)
    wait_until(lambda: len(marked(f"{processes.folder}|{name}", whole=True)) == 2)


@pytest.fixture
def processes(tmp_path):
    made = Processes(tmp_path / "deployment")
    yield made
    made.close()


def test_a_participant_is_ended_with_what_it_started(processes):
    start(processes, "site-1")
    start(processes, "site-10")
    processes.end("site-1")
    assert not processes.is_running("site-1")
    assert processes.started["site-1"].returncode == -signal.SIGKILL
    assert len(marked(str(processes.folder))) == 2  # those of site-10
    processes.end(patience=5.0)
    assert processes.started["site-10"].returncode == -signal.SIGTERM
    assert not marked(str(processes.folder))


def test_what_an_earlier_deployment_left_behind_is_ended(processes):
    start(processes, "site-1")
    processes.started.clear()
    processes.lock.close()  # as if the deployment had been killed
    after = Processes(processes.folder)
    assert not marked(str(processes.folder))
    after.close()


def test_one_deployment_at_a_time_in_a_folder(processes):
    start(processes, "site-1")
    with pytest.raises(ValueError, match="in use by another deployment"):
        Processes(processes.folder)
    assert processes.is_running("site-1")


def test_output_and_errors_are_in_the_log(processes):
    program = "import sys; print('out', flush=True); print('error', file=sys.stderr)"
    processes.start("site-1", [sys.executable, "-c", program], os.environ, processes.folder).wait()
    assert processes.log("site-1").read_text().split() == ["out", "error"]


def test_the_one_who_asks_is_not_among_the_marked(processes):
    program = f"from fedmls.federation.processes import marked; print(marked({str(processes.folder)!r}))"
    processes.start("asks", [sys.executable, "-c", program], os.environ, processes.folder).wait()
    assert processes.log("asks").read_text() == "[]\n"
    assert MARK not in os.environ


@pytest.mark.parametrize(
    ("kind", "leaves"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit), (signal.SIGHUP, SystemExit)]
)
def test_signals_leave_once(kind, leaves):
    """The second one, of any kind, does not break off what the first one began."""
    kinds = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(each) for each in kinds]
    restore = exit_on_signals()
    with pytest.raises(leaves) as left:
        signal.raise_signal(kind)
    if leaves is SystemExit:
        assert left.value.code == 128 + kind
    for each in kinds:
        signal.raise_signal(each)
    restore()
    assert [signal.getsignal(each) for each in kinds] == before


def test_a_signal_that_is_ignored_stays_so():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    restore = exit_on_signals()
    signal.raise_signal(signal.SIGHUP)
    restore()
    assert signal.signal(signal.SIGHUP, before) == signal.SIG_IGN


def test_a_free_port_is_free():
    with socket.socket() as one:
        one.bind(("127.0.0.1", free_port()))
