"""The drill's own parts, without a deployment: moments, the proxy, changed files, the table."""

import importlib
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("fcntl", reason="deployments on one machine take Linux")
pytest.importorskip("nvflare", reason="NVFlare is not installed: pip install 'fedmls[nvflare]'")
pytest.importorskip("flwr", reason="Flower is not installed; it comes with fedmls[flower]")

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def drill(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("drill")


@pytest.fixture
def proxy(monkeypatch):
    """A proxy before a server that sends back whatever it gets."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    server = socket.create_server(("127.0.0.1", 0))

    def echo(connection):
        with connection:
            while data := connection.recv(1000):
                connection.sendall(data)

    def serve():
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=echo, args=(connection,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    made = importlib.import_module("drill_proxy").Proxy(server.getsockname()[1])
    yield made
    made.close()
    server.shutdown(socket.SHUT_RDWR)
    server.close()


def connected(proxy):
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=10)


def answer(connection):
    """What comes back; nothing if the connection is lost."""
    try:
        connection.sendall(b"hello")
        return connection.recv(1000)
    except ConnectionError:
        return b""


def test_a_proxy_cuts_and_heals(proxy):
    with connected(proxy) as old:
        assert answer(old) == b"hello"
        with proxy.cut():
            assert answer(old) == b""
            with connected(proxy) as refused:
                assert answer(refused) == b""
        assert answer(old) == b""
        with connected(proxy) as new:
            assert answer(new) == b"hello"


def test_moments_are_those_of_the_seed(drill):
    usual = drill.Usual(exchanges=40, pause=0.5)
    moments = [usual.moment(seed, "flower", "a node") for seed in range(200)]
    assert moments == [usual.moment(seed, "flower", "a node") for seed in range(200)]
    assert {moment.exchange for moment in moments} == set(range(4, 21))  # not in the last half
    assert all(0 <= moment.seconds <= 0.5 for moment in moments)
    assert len({usual.moment(1, engine, fault) for engine in ("nvflare", "flower") for fault in "abc"}) == 6
    assert drill.Usual(3, 0.1).moment(0, "flower", "a node").exchange == 4


def test_seconds_lost_are_those_beyond_the_runs_own_pace(drill):
    usual = drill.Usual(exchanges=11, pause=0.1)
    even = [2.0 * i for i in range(11)]  # twenty times as slow as usual, and nothing is lost
    assert usual.lost(even) == 0
    assert usual.lost([-50.0, *even[1:]]) == 0  # before the first round
    late = [time + (30.0 if i > 4 else 0.0) for i, time in enumerate(even)]
    assert usual.lost(late) == 30
    assert usual.lost(even[:4], [time + 10.0 for time in even]) == 10  # of a new start: the first part, and the wait


def test_the_table_fits_a_terminal(drill):
    titles = [fault.title for fault in drill.FAULTS] + [drill.COMMAND]
    rows = [drill.Row("nvflare", title, "123", drill.HOW[drill.NEW_START], "1234", "1e-15", "why") for title in titles]
    lines = drill.table(rows)
    assert len(lines) == len(rows) + 1
    assert max(map(len, lines)) <= 80
    for row, line in zip(rows, lines[1:], strict=True):
        assert " ".join(row[:6]).split() == line.split()  # nothing runs into its neighbour
    text = drill.markdown(rows, seed=7)
    assert "SEED=7" in text
    assert f"{drill.HOW[drill.NEW_START]}: why" in text
    assert len([line for line in text.splitlines() if line.startswith("| nvflare |")]) == len(rows)


def test_what_counts_as_good(drill):
    row = drill.Row("flower", "a node", "5", "survived", "3", "yes")
    assert row.good
    assert row._replace(outcome=drill.HOW[drill.NEW_START]).good
    assert row._replace(outcome=drill.NOT_TRIED, equal="–").good
    assert not row._replace(outcome=drill.FAILED).good
    assert not row._replace(equal="1e-16").good


def test_faults_have_names_of_their_own(drill):
    for engine in drill.DEPLOYMENTS:
        titles = [fault.title for fault in drill.FAULTS if fault.engine in ("", engine)]
        assert len(titles) == len({*titles}) >= 18
        assert titles[0] == drill.NOTHING
    for fault in drill.FAULTS:
        assert bool(fault.says) == (fault.then != drill.GOES_ON)  # who ends must say why


def test_damage_is_one_bit_however_often(drill, tmp_path):
    from fedmls.federation.codec import seal

    file, whole = tmp_path / "state", seal(bytes(100))
    file.write_bytes(whole)
    for _ in range(2):
        drill.faults.damage(file)
        assert sum((a ^ b).bit_count() for a, b in zip(file.read_bytes(), whole, strict=True)) == 1


@pytest.mark.processes
def test_processes_of_a_participant_are_found_and_halted(drill, tmp_path):
    """The one that was started comes first."""
    from fedmls.federation.deploy.processes import Processes

    deployments = importlib.import_module("drill_deployments")
    processes = Processes(tmp_path)
    try:
        program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(100)'])"
        own = processes.start("site-2", [sys.executable, "-c", program], os.environ, tmp_path).pid
        deployment = SimpleNamespace(folder=tmp_path, processes=processes)
        assert deployments.wait_until(lambda: len(deployments.family(deployment, "site-2")) == 2, 60)
        first, second = deployments.family(deployment, "site-2")
        assert first == own
        command = Path(f"/proc/{second}/cmdline")  # until it has one of its own its parent waits, and cannot be halted
        assert deployments.wait_until(lambda: b"subprocess" not in command.read_bytes(), 60)
        with deployments.halted(deployment, "site-2"):
            assert deployments.wait_until(lambda: {state(first), state(second)} == {"T"}, 60)
        assert deployments.wait_until(lambda: "T" not in (state(first), state(second)), 60)
        deployments.kill([second], signal.SIGKILL)
        assert deployments.wait_until(lambda: second not in deployments.family(deployment, "site-2"), 60)
    finally:
        processes.close()


def state(process):
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.processes
def test_the_command_says_what_it_takes():
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "drill.py", "--engine", "gloo"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "nvflare" in done.stderr
