"""The processes of a deployment: started, found with all they started, ended."""

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

pytest.importorskip("fcntl", reason="deployments on one machine take Linux")

from fedmls.federation import Stopped
from fedmls.federation.deploy.processes import (
    MARK,
    Processes,
    absolute_paths,
    end_left_behind,
    exit_on_signals,
    free_port,
    left_behind,
    marked,
)
from fedmls.federation.deploy.restarts import MOST, Restarts
from fedmls.federation.server.outcome import ROOM, attempt, has_ended
from tests.support.federations import wait_until

# A participant that starts another process in a session of its own, as NVFlare does for a job.
PARENT = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"], start_new_session=True)
time.sleep(100)
"""


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


def test_logs_are_without_escape_codes_in_the_end(tmp_path):
    coloured = "import sys; print('\\x1b[92mINFO \\x1b[0m: at work'); sys.exit(3)"
    processes = Processes(tmp_path / "deployment")
    processes.start("site-1", [sys.executable, "-c", coloured], os.environ, tmp_path)
    processes.started["site-1"].wait(60)
    assert "its last word was: INFO : at work (in" in processes.how_it_ended("site-1")
    processes.close()
    assert processes.log("site-1").read_text() == "INFO : at work\n"


def test_output_and_errors_are_in_the_log(processes):
    program = "import sys; print('out', flush=True); print('error', file=sys.stderr)"
    processes.start("site-1", [sys.executable, "-c", program], os.environ, processes.folder).wait()
    assert processes.log("site-1").read_text().split() == ["out", "error"]


def test_the_one_who_asks_is_not_among_the_marked(processes):
    program = f"from fedmls.federation.deploy.processes import marked; print(marked({str(processes.folder)!r}))"
    processes.start("asks", [sys.executable, "-c", program], os.environ, processes.folder).wait()
    assert processes.log("asks").read_text() == "[]\n"
    assert MARK not in os.environ


# An owner of a deployment, to be killed: keys, and a participant.
OWNER = """
import os, sys, time
from pathlib import Path
from fedmls.federation.deploy.processes import Processes
processes = Processes(Path(sys.argv[1]))
(processes.private() / "ca.key").touch()
processes.start("site-1", [sys.executable, "-c", "import time; time.sleep(100)"], os.environ, processes.folder)
time.sleep(100)
"""


@pytest.mark.processes
def test_a_guard_ends_the_deployment_of_an_owner_that_was_killed(tmp_path):
    key = tmp_path / "private" / "ca.key"
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)])
    wait_until(lambda: owner.poll() is not None or len(marked(f"{tmp_path}|")) == 2)  # the guard, the participant
    assert key.exists()
    assert key.parent.stat().st_mode & 0o777 == 0o700
    owner.kill()
    owner.wait()
    wait_until(lambda: not marked(f"{tmp_path}|"))
    assert not key.parent.exists()


@pytest.mark.processes
def test_what_a_killed_owner_and_its_guard_left_behind_is_named_and_ended_by_the_next_trial(tmp_path):
    from fedmls import doctor

    results, elsewhere = tmp_path / "results", tmp_path / "elsewhere" / "federation-1" / "deployment"
    folder = results / "federation-1" / "deployment"
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(folder)])
    wait_until(lambda: owner.poll() is not None or len(marked(f"{folder}|")) == 2)
    assert folder not in left_behind()  # its owner is there
    [guard], [left] = (marked(f"{folder}|{name}") for name in ("guard", "site-1"))
    os.kill(guard, signal.SIGKILL)
    owner.kill()
    owner.wait()
    wait_until(lambda: left_behind().get(folder) == [left])
    told = "\n".join(doctor.lines(doctor.examine(results)))
    assert (
        f"1 processes of a trial in {folder.parent} that was killed; the next one beside it ends them ({left})" in told
    )
    assert (folder / "private" / "ca.key").exists()
    assert end_left_behind(elsewhere.parent.parent) == []
    assert end_left_behind(results) == [f"ended 1 processes that an earlier trial had left behind in {folder.parent}"]
    assert not marked(f"{folder}|")
    assert not (folder / "private").exists()
    assert folder not in left_behind()


def test_a_thousand_timers_wait_in_one_thread():
    from fedmls.federation.transports.shared_timer import SharedTimer

    called, before = [], threading.active_count()
    kept = [SharedTimer(0.6 - i / 1000, called.append, (i,)) for i in range(500)]
    given_up = [SharedTimer(3600.0, called.append, ("never",)) for _ in range(500)]
    failing = SharedTimer(0.05, lambda: 1 / 0)  # the others go on
    for timer in (*given_up, *kept, failing):
        timer.daemon = True
        timer.start()
    assert threading.active_count() <= before + 1
    wait_until(lambda: len(called) == 500)
    assert sorted(called) == list(range(500))
    given_up[0].cancel()
    given_up[0].interval = 0.0
    given_up[0].start()
    SharedTimer(0.0, called.append, args=("last",), kwargs=None).start()
    wait_until(lambda: called[-1] == "last")
    assert "never" not in called  # it was due before the last one, and cancelled
    SharedTimer._waiting.clear()


def test_keys_that_a_power_failure_left_are_replaced(tmp_path):
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "ca.key").touch()
    made = Processes(tmp_path)
    assert list(made.private().iterdir()) == []
    made.close()
    assert {entry.name for entry in tmp_path.iterdir()} == {"lock", "logs"}


def test_the_folder_of_a_kit_keeps_what_is_called_private(tmp_path):
    (tmp_path / "private").mkdir()
    Processes(tmp_path).close()
    assert (tmp_path / "private").exists()


def test_who_has_died_is_named_and_not_too_often(processes, tmp_path):
    said, restarts = [], Restarts(tmp_path)
    for count in range(1, MOST):
        processes.start("site-1", [sys.executable, "-c", "exit('no disk')"], os.environ, tmp_path).wait()
        assert processes.collect_dead(["site-1"], restarts, said.append) == ["site-1"]
        assert said == count * ["site-1 has died; starting it again"]
    assert processes.how_it_ended("site-1").startswith(
        "site-1 ended with exit status 1; its last word was: no disk (in /"
    )
    (tmp_path / "checkpoint").touch()  # it has come further
    for _ in range(1, MOST):
        processes.collect_dead(["site-1"], restarts, said.append)
    with pytest.raises(Stopped, match="tried 5 times, came no further: site-1 ended with exit status 1"):
        processes.collect_dead(["site-1"], restarts, said.append)


def test_how_an_attempt_ended_is_known_by_its_name(tmp_path):
    with attempt(tmp_path, "first"):
        assert not has_ended(tmp_path, "first")
    assert has_ended(tmp_path, "first")
    assert not has_ended(tmp_path, "second")
    with pytest.raises(KeyError), attempt(tmp_path, "second"):
        raise KeyError("x")
    with pytest.raises(Stopped, match="'x'"):
        has_ended(tmp_path, "second")
    for error, given_up in ((SystemExit(), False), (KeyError(), True)):  # a signal, an engine's own
        with pytest.raises(type(error)), attempt(tmp_path, "third", lambda given_up=given_up: given_up):
            raise error
        assert not has_ended(tmp_path, "third")


def test_how_an_attempt_ended_is_known_although_the_disk_is_full(tmp_path, monkeypatch):
    """There is room for it since the attempt began."""
    why = "[Errno 28] No space left on device: ü" + 10_000 * "\x00"

    def full(file):
        raise OSError(why)

    def try_it():
        with attempt(tmp_path, "first"):
            monkeypatch.setattr("fedmls.federation.server.outcome.whole_file", full)
            raise OSError(why)

    with pytest.raises(OSError, match="No space"):
        try_it()
    assert [file.stat().st_size for file in tmp_path.iterdir()] == [ROOM]
    with pytest.raises(Stopped, match=r"No space left on device: ü"):
        has_ended(tmp_path, "first")


@pytest.mark.parametrize(
    ("kind", "leaves"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit), (signal.SIGHUP, SystemExit)]
)
def test_signals_leave_once(kind, leaves):
    """The second one, of any kind, does not break off what the first one began."""
    kinds = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    hangup = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under nohup
    before = [signal.getsignal(each) for each in kinds]
    restore = exit_on_signals()
    try:
        with pytest.raises(leaves) as left:
            signal.raise_signal(kind)
        if leaves is SystemExit:
            assert left.value.code == 128 + kind
        for each in kinds:
            signal.raise_signal(each)
    finally:
        restore()
        after = [signal.getsignal(each) for each in kinds]
        signal.signal(signal.SIGHUP, hangup)
    assert after == before


def test_a_signal_that_is_ignored_stays_so():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    restore = exit_on_signals()
    signal.raise_signal(signal.SIGHUP)
    restore()
    assert signal.signal(signal.SIGHUP, before) == signal.SIG_IGN


def test_a_free_port_is_free_and_not_one_that_the_kernel_gives_to_connections():
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(20):
        port = free_port()
        assert port < first
        with socket.socket() as one:
            one.bind(("127.0.0.1", port))


def test_a_relative_path_to_modules_means_the_same_everywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    here = absolute_paths({"PYTHONPATH": os.pathsep.join(["mine", "", "/usr/lib"]), "A": "b"})
    assert here == {"PYTHONPATH": os.pathsep.join([f"{tmp_path}/mine", "/usr/lib"]), "A": "b"}
    assert absolute_paths({"A": "b"}) == {"A": "b"}
