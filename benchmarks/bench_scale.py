"""How memory and time grow with clients, rows and columns: ``make bench-scale``; ``--write`` puts the table into docs.

Each line is a process of its own. Rows are made at random; columns beyond 10³ are sparse, with 20 numbers in a row.
A cell has the seconds of computing of an exchange, the mean of four after the first, and the most memory that the
process took, over the size of the problem's rows: beyond what it had taken when everything was imported, without the
array that the rows came in. What takes over a hundred seconds in all, or more than a third of the memory that is free,
is ended.
"""

import argparse
import json
import resource
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

METHODS = ("fedmls", "fedmlsb", "fedavg")
BATCH, EXCHANGES, NUMBERS_PER_ROW = 0.1, 4, 20
LONGEST = 100  # seconds for a line
PAGE = Path(__file__).parents[1] / "docs" / "speed.md"
BEGIN, END = "<!-- scale -->", "<!-- end of scale -->"


class Size(NamedTuple):
    """One line of the table."""

    clients: int
    rows: int
    columns: int

    @property
    def is_sparse(self) -> bool:
        return self.columns > 1000

    @property
    def bytes(self) -> int:
        """How much memory the rows of the problem take."""
        return self.rows * (16 * (NUMBERS_PER_ROW + 1) if self.is_sparse else 8 * (self.columns + 1))


CLIENTS = [Size(n, 1_000_000, 10) for n in (100, 1_000, 10_000, 100_000, 1_000_000)]
ROWS = [Size(100, m, 10) for m in (10_000, 100_000, 1_000_000, 10_000_000)]
COLUMNS = [Size(10, 100_000, d) for d in (10, 100, 1_000, 10_000, 100_000, 1_000_000)]


def measure(size: Size, method: str) -> dict[str, float]:
    """Return what a run takes, in this process."""
    import time

    import numpy as np
    from scipy.sparse import csr_array

    import fedmls

    def peak() -> float:
        return 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    algorithm: Any = {
        "fedmls": fedmls.FedMLS(lam0=1e-3),
        "fedmlsb": fedmls.FedMLSB(),
        "fedavg": fedmls.FedAvg(eta0=1e-6, participants=10),
    }[method]
    small = fedmls.datasets.svm(2000, 5, 100, density=0.5 if size.is_sparse else 1.0)
    fedmls.simulate(algorithm, small, rounds=3, batch=BATCH, optimum=None, progress=False)  # loads compiled code
    rng, before = np.random.default_rng(0), peak()
    shape = (size.rows, size.columns)
    clients = rng.permutation(np.resize(np.arange(size.clients), size.rows))
    y = rng.choice([-1.0, 1.0], size.rows)
    X: Any
    if size.is_sparse:
        columns = rng.integers(size.columns, size=size.rows * NUMBERS_PER_ROW)
        ends = np.arange(0, len(columns) + 1, NUMBERS_PER_ROW)
        X = csr_array((rng.normal(size=len(columns)), columns, ends), shape=shape)
        X.sum_duplicates()
        given = X.data.nbytes + X.indices.nbytes + X.indptr.nbytes
    else:
        X = rng.standard_normal(shape)
        given = X.nbytes
    began = time.process_time()
    problem = fedmls.Problem(X, y, clients=clients, reduction="mean")
    made = time.process_time() - began
    del X

    def took(exchanges: int) -> float:
        """Return the least seconds of so many exchanges, with one look at the objective, in up to three attempts."""
        seconds: list[float] = []
        while len(seconds) < 3 and sum(seconds) < 2:
            began = time.process_time()
            fedmls.simulate(
                algorithm, problem, rounds=exchanges, batch=BATCH, optimum=None, every=exchanges, progress=False
            )
            seconds.append(time.process_time() - began)
        return min(seconds)

    one, more = took(1), took(1 + EXCHANGES)
    return {"made": made, "peak": peak() - before - given, "exchange": (more - one) / EXCHANGES}


@cache
def measured(size: Size, method: str) -> dict[str, float] | str:
    """Return what a run takes, in a process of its own; a word where it was not run."""
    import psutil

    most = psutil.virtual_memory().available // 3
    command = [sys.executable, __file__, "--one", method, *map(str, size)]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=LONGEST,
            check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (most, most)),
        )
    except subprocess.TimeoutExpired:
        return f"over {LONGEST} s"
    if done.returncode != 0:
        return f"over {most / 1e9:.1f} GB" if "MemoryError" in done.stderr else "failed"
    return dict(json.loads(done.stdout.splitlines()[-1]))


def line(size: Size, results: list[dict[str, float] | str]) -> str:
    """Return a line of the table."""
    layout = "CSR" if size.is_sparse else "dense"
    cells = [f"{size.clients:,}", f"{size.rows:,}", f"{size.columns:,} ({layout})", f"{size.bytes / 1e6:,.0f}"]
    made = [one["made"] for one in results if not isinstance(one, str)]
    cells.append(f"{min(made):.2f}" if made else "–")
    for one in results:
        cells.append(one if isinstance(one, str) else f"{one['exchange']:.3g} s, {one['peak'] / size.bytes:.1f}×")
    return "| " + " | ".join(cells) + " |"


def table(lists: list[list[Size]]) -> list[str]:
    """Return the lines of the table, printed as they come."""
    head = ["clients", "rows", "columns", "rows in MB", "made in s", *METHODS]
    lines = ["| " + " | ".join(head) + " |", "|" + "--:|" * len(head)]
    print(*lines, sep="\n", flush=True)
    for size in (size for sizes in lists for size in sizes):
        lines.append(line(size, [measured(size, method) for method in METHODS]))
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.name}")
    parser.add_argument("--one", nargs=4, metavar=("METHOD", "CLIENTS", "ROWS", "COLUMNS"), help="one line, as JSON")
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(Size(*map(int, given.one[1:])), given.one[0])))
        return
    lines = table([CLIENTS, ROWS, COLUMNS])
    if given.write:
        before, rest = PAGE.read_text("utf-8").split(BEGIN)
        _, after = rest.split(END)
        PAGE.write_text(before + "\n".join([BEGIN, "", *lines, "", END]) + after, "utf-8")


if __name__ == "__main__":
    main()
