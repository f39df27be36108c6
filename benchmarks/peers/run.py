"""The peers, side by side: ``make bench-peers``; ``--write`` puts the table into docs/speed.md.

Each peer gets an environment of its own in build/peers and runs the same job (job.py) in a process of its own, on one
core. All must come to the same objective, within the noise of their mini-batches. What cannot be installed is said.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import fedmls

HERE = Path(__file__).parent
FOLDER = HERE.parents[1] / "build" / "peers"
PAGE = HERE.parents[1] / "docs" / "speed.md"
BEGIN, END = "<!-- peers -->", "<!-- end of peers -->"
NOISE = 0.01  # of the objective; its standard deviation over seeds is 0.2%
ENVIRONMENT = {  # one core, and nobody outside is told or asked anything
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"),
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    **{"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"},
}


class Peer(NamedTuple):
    """title: in the table.  needs: for pip; () is this environment.  dominates: what most of its time goes to."""

    title: str
    needs: tuple[str, ...]
    dominates: str


PEERS = {
    "fedmls": Peer("fedmls", (), "drawing the batch, and the arithmetic"),
    "jax": Peer("plain JAX loop", ("jax", "numpy"), "drawing the batch: a permutation of all rows is a sort"),
    "fedjax": Peer("FedJAX", ("fedjax",), "one compiled call, and one batch made in Python, for each step"),
    "numpy": Peer("plain NumPy loop", (), "Python: a dozen calls for each step"),
    "pytorch": Peer("plain PyTorch loop", ("torch", "numpy"), "autograd (a third) and the optimizer (a quarter)"),
    "fedlab": Peer("FedLab", ("fedlab", "numpy"), "the same"),
    "flower": Peer(
        "Flower's simulation",
        ("flwr[simulation]>=1.41,<1.42",),
        "Ray: a message to each client a round (by the wall clock)",
    ),
    "pfl": Peer("pfl-research", ("pfl[pytorch]",), "the same; a fifth is to put batches onto the device"),
    "decent-bench": Peer("decent-bench", ("decent-bench",), ""),
}


def interpreter(name: str, peer: Peer) -> Path | str:
    """Return the interpreter of a peer's environment, made if need be; or why there is none."""
    if not peer.needs:
        return Path(sys.executable)
    folder = FOLDER / name
    if not (folder / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *peer.needs]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return "cannot be installed: " + done.stderr.strip().splitlines()[-1]
        (folder / "ready").touch()
    return folder / "bin" / "python"


def run(name: str, peer: Peer, data: Path) -> dict[str, Any] | str:
    """Return what a peer measured, or why it did not."""
    script, python = HERE / f"{name}_peer.py", interpreter(name, peer)
    if isinstance(python, str):
        return python
    if not script.exists():
        return "has no script here yet"
    command = [str(python), str(script), str(data)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | ENVIRONMENT, check=False)
    if done.returncode != 0:
        return "fails: " + done.stderr.strip().splitlines()[-1]
    return dict(json.loads(done.stdout.splitlines()[-1]))


def write_job(file: Path) -> float:
    """Write the rows of the job; return the objective that FedAvg comes to with all rows in each step."""
    sys.path.insert(0, str(HERE))
    from job import ETA, ROUNDS, STEPS, WARM_UP

    X, y = fedmls.datasets.breast_cancer_wisconsin()
    problem = fedmls.Problem(X, y, clients=fedmls.partition.kmeans(X, 10, seed=0))
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(file, X=problem.X, y=problem.y, offsets=problem.offsets)
    run = fedmls.simulate(fedmls.FedAvg(eta=ETA, T=STEPS), problem, rounds=WARM_UP + ROUNDS, optimum=None)
    return float(run.history["objective"].iloc[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.name}")
    parser.add_argument("names", nargs="*", help=f"only these: {', '.join(PEERS)}")
    given = parser.parse_args()
    data = FOLDER / "job.npz"
    expected = write_job(data)
    lines = [
        "| | µs a client-step | over fedmls | objective | what dominates | versions |",
        "|---|--:|--:|--:|---|---|",
    ]
    print(*lines, sep="\n", flush=True)
    ours, wrong = None, []
    for name in given.names or PEERS:
        found = run(name, PEERS[name], data)
        if isinstance(found, str):
            lines.append(f"| {PEERS[name].title} | – | – | – | {found} | |")
        else:
            ours = ours or found["us"]
            versions = ", ".join(f"{package} {number}" for package, number in found["versions"].items())
            cells = (f"{found['us']:.1f}", f"{found['us'] / ours:.0f}×", f"{found['objective']:.2f}")
            lines.append(f"| {PEERS[name].title} | {' | '.join(cells)} | {PEERS[name].dominates} | {versions} |")
            wrong += [name] if abs(found["objective"] / expected - 1) > NOISE else []
        print(lines[-1], flush=True)
    if wrong:
        raise SystemExit(f"{', '.join(wrong)}: the objective is not {expected:.2f} within {NOISE:.0%}")
    if given.write:
        before, rest = PAGE.read_text("utf-8").split(BEGIN)
        PAGE.write_text(before + "\n".join([BEGIN, "", *lines, "", END]) + rest.split(END)[1], "utf-8")


if __name__ == "__main__":
    main()
