"""NVFlare for real: a server and three nodes as processes of this machine, mutual TLS, kills."""

import json
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest

import fedmls
from fedmls.federation import Job, Stopped
from fedmls.federation.deploy.processes import marked
from tests.support.federations import parts, wait_until
from tests.support.problems import svm

pytest.importorskip("nvflare", reason="NVFlare is not installed: pip install 'fedmls[nvflare]'")

from fedmls.federation.deploy.base import SERVER
from fedmls.federation.deploy.nvflare import NVFlareDeployment
from fedmls.federation.deploy.nvflare_kits import provision
from fedmls.federation.deploy.nvflare_kits import write_job as write_nvflare_job

pytestmark = pytest.mark.deployed
BATCH, SEED = 0.5, 3
PROBLEM = svm(n=3, m=120, columns=9)
DEPLOY = """
import sys
from pathlib import Path
from fedmls.federation.deploy.nvflare import NVFlareDeployment
folder, job, *nodes = map(Path, sys.argv[1:])
with NVFlareDeployment(folder, {node.stem: node for node in nodes}) as deployment:
    deployment.run(job)
"""


def node_files(folder):
    files = {}
    for config in parts(PROBLEM, folder):
        files[config.name] = folder / f"{config.name}.toml"
        files[config.name].write_text(
            f"name = {json.dumps(config.name)}\ndata = {json.dumps(str(config.data))}\n"
            f'label = "y"\nstate = {json.dumps(str(config.state))}\n'
        )
    return files


def write_job(folder, algorithm, rounds, **options):
    Job(algorithm=algorithm, rounds=rounds, batch=BATCH, seed=SEED, impute=False, **options).write(folder)
    return folder


def check_model(job, algorithm, rounds):
    """The model and the objectives are those of a simulation."""
    import pandas as pd

    run = fedmls.simulate(algorithm, PROBLEM, rounds=rounds, batch=BATCH, seed=SEED, optimum=None)
    with np.load(job / "model.npz") as model:
        np.testing.assert_allclose(model["x"], run.x, rtol=0, atol=1e-12)
    history = pd.read_parquet(job / "history.parquet")
    np.testing.assert_allclose(history["objective"], run.history["objective"], rtol=1e-12)


def check_exchanges(job, rounds):
    """None was done twice; one may have been done and not yet told when the server was killed."""
    numbers = exchanges(job)
    assert numbers == sorted(set(numbers))
    assert len(set(range(1, rounds + 4)) - set(numbers)) <= 1  # survey, begin, rounds, close


def exchanges(job):
    """The numbers of the exchanges in the events."""
    if not (job / "events.jsonl").exists():
        return []
    events = [json.loads(line) for line in (job / "events.jsonl").read_text().splitlines()]
    return [event["exchanges"] for event in events if "kind" in event]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nvflare")
    with NVFlareDeployment(folder / "deployment", node_files(folder / "nodes")) as running:
        yield running
    assert not marked(f"{folder}")
    assert sorted(entry.name for entry in (folder / "deployment").iterdir()) == ["lock", "logs"]
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", running.port))


def test_a_job_that_fails_says_why(deployment, tmp_path):
    job = write_job(tmp_path / "job", fedmls.FedMLS(), 5, nodes=["site-1", "nobody"], on_missing="stop")
    with pytest.raises(Stopped, match="node nobody does not answer: it is not in this job"):
        deployment.run(job)


def test_everything_listens_on_loopback_only(deployment):
    listening = [
        connection.laddr.ip
        for process in marked(str(deployment.folder))
        for connection in psutil.Process(process).net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert len(listening) >= 4  # the server's, its internal one, and one for each node's own processes
    assert set(listening) <= {"127.0.0.1", "::1"}


def spoken_to(deployment, kit):
    """The server's answer to a request over TLS, with the certificate of a kit or without one."""
    trust = ssl.create_default_context(cafile=deployment.kits["site-1"] / "startup" / "rootCA.pem")
    trust.maximum_version = ssl.TLSVersion.TLSv1_2  # where a refused certificate ends the handshake on both sides
    if kit is not None:
        trust.load_cert_chain(kit / "startup" / "client.crt", kit / "startup" / "client.key")
    with (
        socket.create_connection(("127.0.0.1", deployment.port), timeout=10) as plain,
        trust.wrap_socket(plain, server_hostname="localhost") as secure,
    ):
        secure.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return secure.recv(100)


def test_a_connection_takes_a_certificate_of_the_federation(deployment, tmp_path):
    foreign = provision(tmp_path, "localhost", ["site-1"], deployment.port, tmp_path)
    assert spoken_to(deployment, deployment.kits["site-1"]).startswith(b"HTTP/1.1 ")
    for kit in (None, foreign["site-1"]):
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            spoken_to(deployment, kit)


def test_strangers_are_not_let_in(deployment, tmp_path):
    """Neither a kit of another federation, nor a node under a name that its certificate does not prove."""
    foreign = provision(tmp_path / "foreign", "localhost", ["foreigner"], deployment.port, tmp_path)["foreigner"]
    stolen = shutil.copytree(deployment.kits["site-1"], tmp_path / "stolen")
    strangers = {"foreigner": foreign, "impostor": stolen}
    deployment.kits |= strangers
    deployment.nodes |= dict.fromkeys(strangers, deployment.nodes["site-1"])
    try:
        for name in strangers:
            deployment._start(name)
        processes = deployment.processes
        wait_until(lambda: "CERTIFICATE_VERIFY_FAILED" in processes.log("foreigner").read_text())
        refusal = "authenticated as 'site-1' but claimed endpoint 'impostor'"
        wait_until(lambda: refusal in processes.log(SERVER).read_text())
        assert deployment.console.ask("connected").keys() == {"site-1", "site-2", "site-3"}
    finally:
        for name in strangers:
            deployment.kill(name)
            for entries in (deployment.kits, deployment.nodes, deployment.since, deployment.processes.started):
                entries.pop(name, None)


def test_a_job_that_brings_code_is_refused(deployment):
    job = deployment.console.kit / "transfer" / "code"
    write_nvflare_job(job, deployment.folder, deployment.nodes)
    (job / "app" / "custom").mkdir()
    (job / "app" / "custom" / "code.py").write_text("")
    number, ended = deployment.console.ask("submit", str(job)), []

    def has_ended():
        ended[:] = [deployment.console.ask("status", number)]
        return ended[0].startswith("FINISHED")

    wait_until(has_ended)
    assert ended == ["FINISHED:FAILED_TO_RUN"]
    assert not (deployment.folder / "outcome.json").exists()


@pytest.mark.parametrize(
    ("name", "algorithm"), [("site-2", fedmls.FedMLSE(lam0=1.0)), (SERVER, fedmls.Scaffold(eta0=0.01))]
)
def test_who_is_killed_is_started_again(deployment, tmp_path, name, algorithm):
    rounds, failures, said = 100, [], []
    job = write_job(tmp_path / "job", algorithm, rounds)

    def run():
        try:
            deployment.run(job, said.append)
        except Exception as error:
            failures.append(error)

    runner = threading.Thread(target=run)
    runner.start()
    wait_until(lambda: failures or len(exchanges(job)) > 10)
    killed = deployment.processes.started[name]
    deployment.kill(name)
    done = len(exchanges(job))
    runner.join(300)
    assert not runner.is_alive()
    assert not failures
    assert done < rounds
    assert killed.returncode == -signal.SIGKILL
    assert deployment.processes.started[name].pid != killed.pid
    assert said == [
        f"{name} has died; starting it again",
        f"the job is lost with {name}; submitting the job again, which goes on from its last exchange",
    ]
    check_exchanges(job, rounds)
    check_model(job, algorithm, rounds)


def test_a_node_that_is_stopped_for_longer_than_the_console_waits(deployment, tmp_path, monkeypatch):
    """The server is only waiting for that node, as the job says; when it is back the job goes on."""
    rounds, failures, said = 60, [], []
    job = write_job(tmp_path / "job", fedmls.FedMLS(), rounds, timeout=5.0)
    monkeypatch.setattr(deployment.console, "patience", 10.0)

    def run():
        try:
            deployment.run(job, said.append)
        except Exception as error:
            failures.append(error)

    runner = threading.Thread(target=run)
    runner.start()
    wait_until(lambda: failures or len(exchanges(job)) > 10)
    stopped = [psutil.Process(process) for process in marked(f"{deployment.folder}|site-2")]
    assert len(stopped) >= 2  # the site's own process and that of the job
    try:
        for process in stopped:
            process.suspend()
        runner.join(60)
        assert runner.is_alive(), failures
    finally:
        for process in stopped:
            process.resume()
    runner.join(200)
    assert not runner.is_alive()
    assert not failures
    check_exchanges(job, rounds)
    check_model(job, fedmls.FedMLS(), rounds)
    assert not [line for line in said if "submitting" in line], said


def test_threads_do_not_grow_with_the_exchanges(deployment, tmp_path):
    """NVFlare starts one for every message, which stays for a minute."""
    most, done = {}, threading.Event()

    def watch():
        while not done.wait(0.5):
            for process in marked(str(deployment.folder)):
                with suppress(psutil.Error):
                    most[process] = max(most.get(process, 0), psutil.Process(process).num_threads())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        deployment.run(write_job(tmp_path / "job", fedmls.FedMLS(T=1), 250))
    finally:
        done.set()
        watcher.join()
    assert len(most) >= 8  # server and nodes, each with a process for the job
    assert max(most.values()) < 150, sorted(most.values())


def test_ctrl_c_takes_everything_down(tmp_path):
    nodes, folder = node_files(tmp_path / "nodes"), tmp_path / "deployment"
    job = write_job(tmp_path / "job", fedmls.FedMLS(), 10)
    process = subprocess.Popen([sys.executable, "-c", DEPLOY, folder, job, *nodes.values()])
    wait_until(lambda: process.poll() is not None or len(marked(str(folder))) >= 5)  # guard, server, three nodes
    assert (folder / "private").exists()
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == -signal.SIGINT
    assert not marked(str(folder))
    assert {entry.name for entry in folder.iterdir()} == {"lock", "logs"}


# Imported by every Python process of one site: the code that this site runs is not ours.
CURIOUS = """
import sys
if any("worker_process" in argument for argument in sys.orig_argv):
    import gc
    import json
    from nvflare.collab import collab
    from fedmls.federation.transports import nvflare as nvflare_app
    from fedmls.federation.messages import unpack_envelope

    honest, asked = nvflare_app.NodeApp.answer, set()

    def tell(**what):
        with open({file!r}, "a") as stream:
            stream.write(json.dumps(what) + "\\n")

    @collab.publish
    def answer(self, message):
        kind = unpack_envelope(message).kind
        if kind not in asked:
            asked.add(kind)
            results = collab.other_clients(blocking=True, timeout=20).answer(message)
            for name, reply in results:
                told = unpack_envelope(reply) if isinstance(reply, bytes) else None
                tell(kind=kind, node=name, reply=told and told.kind, why=str(told and told.body.get("why")))
            for name, error in results.failures.items():
                tell(kind=kind, node=name, reply=None, why=str(error.cause))
            if kind == "round":
                pose_as_server(message)
        return honest(self, message)

    def pose_as_server(message):
        [cell] = [each for each in gc.get_objects() if type(each).__name__ == "CoreCell"]
        own = cell.my_info.fqcn
        try:
            cell.my_info.fqcn = "server." + own.split(".")[-1]
            results = collab.other_clients(blocking=True, timeout=5).answer(message)
            tell(kind="posing", answered=[name for name, reply in results], failed=sorted(results.failures))
        finally:
            cell.my_info.fqcn = own

    nvflare_app.NodeApp.answer = answer
"""


class WithCuriousSite(NVFlareDeployment):
    """One of its sites puts the server's questions to the others."""

    def _start(self, name):
        with pytest.MonkeyPatch.context() as patch:
            if name == "site-2":
                patch.setenv("PYTHONPATH", str(self.folder.parent / "curious"))
            super()._start(name)


def test_a_site_cannot_question_another(tmp_path):
    """Over mutual TLS, within a job of both: it passes on what the server asks it, of every kind, and gets nothing;
    nor when it says that it is the server, which NVFlare does not let through."""
    (tmp_path / "curious").mkdir()
    (tmp_path / "curious" / "sitecustomize.py").write_text(CURIOUS.format(file=str(tmp_path / "told")))
    job = write_job(tmp_path / "job", fedmls.FedMLS(), 3, on_missing="stop")
    with WithCuriousSite(tmp_path / "deployment", node_files(tmp_path / "nodes")) as deployment:
        deployment.run(job)
        server, *logs = [deployment.processes.log(name).read_text() for name in (SERVER, "site-1", "site-3")]
    *told, posing = [json.loads(line) for line in (tmp_path / "told").read_text().splitlines()]
    assert {(one["kind"], one["node"]) for one in told} == {
        (kind, node) for kind in ("survey", "begin", "round") for node in ("site-1", "site-3")
    }
    assert {(one["reply"], one["why"]) for one in told} == {("refused", "it answers the server only")}
    assert all("site-2 asks this node a question, and only the server may" in log for log in logs)
    assert posing == {"kind": "posing", "answered": [], "failed": ["site-1", "site-3"]}
    assert "auth token for client site-2 is bound to origin site-2, not message origin server." in server
    check_model(job, fedmls.FedMLS(), 3)


def test_names_and_files_are_checked(tmp_path):
    with pytest.raises(ValueError, match="'server' is no name for a node"):
        NVFlareDeployment(tmp_path, {"server": Path(__file__)})
    with pytest.raises(ValueError, match="has no configuration file"):
        NVFlareDeployment(tmp_path, {"site-1": tmp_path / "missing.toml"})
    with pytest.raises(ValueError, match=r"NVFlare takes no spaces or quotes in a path, as in .*/a b; name another"):
        NVFlareDeployment(tmp_path / "a b", {"site-1": Path(__file__)})


def test_one_deployment_at_a_time_in_a_folder(deployment):
    with pytest.raises(ValueError, match="in use by another deployment"):
        NVFlareDeployment(deployment.folder, deployment.nodes).__enter__()
    assert deployment.console.ask("connected")  # and the first is still there


def test_no_site_is_called_server(tmp_path):
    """By that name nodes know whom to answer."""
    with pytest.raises(ValueError, match="'server' is no name for a node"):
        provision(tmp_path, "localhost", ["site-1", "server"], 8002, tmp_path)
