"""What an exchange over Flower costs on this machine: ``python benchmarks/bench_flower.py --nodes 3``.

The same job runs with Flower's own commands, with these and resident nodes, and as a trial runs it (flower_warm): the
median of its exchanges in seconds, and the computing of all processes together, which other work on the machine changes
less.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Any

import numpy as np
import psutil
import tomli_w

import fedmls
from fedmls.federation import Job
from fedmls.federation.deploy.base import SERVER
from fedmls.federation.deploy.flower import FlowerDeployment
from fedmls.federation.deploy.processes import free_port

WARM_UP = 3  # exchanges that are not counted


class Stock(FlowerDeployment):
    """Flower's own commands, as between machines."""

    def _start(self, name: str) -> None:
        bin = Path(sys.executable).parent
        if name == SERVER:
            command = [str(bin / "flower-superlink"), "--port", str(self.port), "--enable-supernode-auth"]
            command += ["--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.crt", "--ssl-keyfile", "server.key"]
            command += ["--database", "superlink.db", "--disable-runtime-dependency-installation"]
        else:
            command = [str(bin / "flower-supernode"), "--superlink", f"127.0.0.1:{self.port}"]
            command += ["--port", str(free_port()), "--root-certificates", "ca.crt"]
            command += ["--auth-supernode-private-key", f"nodes/{name}", "--node-config", f"nodes/{name}.toml"]
        self.begin[name] = 0
        self.processes.start(name, [*command, "--host", "127.0.0.1"], self._environment(name), self.private)

    def _environment(self, name: str) -> dict[str, str]:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        return super()._environment(name) | {"PATH": path, "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2"}

    def _flwr(self, commands: Iterable[list[str]]) -> list[dict[str, Any]]:
        answers = []
        for arguments in commands:
            done = subprocess.run(
                [str(Path(sys.executable).parent / "flwr"), *arguments, "--format", "json"],
                env=self._environment(SERVER),
                cwd=self.private,
                capture_output=True,
                text=True,
                check=True,
            )
            answers.append(json.loads(done.stdout[done.stdout.find("{") : done.stdout.rfind("}") + 1]))
        return answers


class Resident(Stock):
    """The same, each node with a resident process."""

    def _prepare(self) -> None:
        super()._prepare()
        for name, file in self.nodes.items():
            socket = self.private / f"{name}.socket"
            config = {"node": str(file), "resident": str(socket)}
            (self.private / "nodes" / f"{name}.toml").write_text(tomli_w.dumps(config), encoding="utf-8")
            command = [sys.executable, "-m", "fedmls.federation.node.resident", str(file), str(socket)]
            self.processes.start(f"{name}-resident", command, dict(os.environ), self.private)


def computing() -> float:
    """Return the seconds of computing of all processes under this one, those that have ended included."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.Error:
            continue
    return total


def rounds_done(folder: Path) -> list[float]:
    """Return when each round of the job was done."""
    file = folder / "events.jsonl"
    events = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [event["time"] for event in events if event.get("kind") == "round"]


def measure(kind: type[FlowerDeployment], nodes: int, rounds: int, folder: Path) -> tuple[list[float], float]:
    """Return the seconds of each exchange of a job, and what it takes of computing."""
    rng = np.random.default_rng(0)
    files = {}
    for name in (f"site-{i}" for i in range(nodes)):
        np.savez(folder / f"{name}.npz", X=rng.normal(size=(40, 4)), y=rng.choice([-1, 1], 40))
        files[name] = folder / f"{name}.toml"
        files[name].write_text(tomli_w.dumps({"name": name, "data": f"{name}.npz", "state": f"state-{name}"}))
    job = folder / "job"
    Job(algorithm=fedmls.FedAvg(eta0=0.01), rounds=rounds + WARM_UP, nodes=tuple(files)).write(job)
    with kind(folder / "deployment", files) as deployment:
        run = Thread(target=deployment.run, args=(job,))
        run.start()
        samples: dict[int, float] = {}
        while run.is_alive():
            samples.setdefault(len(rounds_done(job)), computing())
            time.sleep(0.1)
        run.join()
    done = rounds_done(job)
    counted = [count for count in samples if WARM_UP <= count < len(done)]
    spent = samples[counted[-1]] - samples[counted[0]]
    return np.diff(done[WARM_UP - 1 :]).tolist(), spent / (counted[-1] - counted[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=8)
    given = parser.parse_args()
    kinds = {"Flower's own commands": Stock, "the same, nodes resident": Resident, "as in a trial": FlowerDeployment}
    print(f"{given.nodes} nodes, {os.cpu_count()} cores, {given.rounds} exchanges: median (least to most)")
    for title, kind in kinds.items():
        with tempfile.TemporaryDirectory() as folder:
            seconds, spent = measure(kind, given.nodes, given.rounds, Path(folder))
        spread = f"{median(seconds):.1f} s ({min(seconds):.1f} to {max(seconds):.1f})"
        print(f"{title:<26}{spread:<24}{spent:.1f} s of computing", flush=True)


if __name__ == "__main__":
    main()
