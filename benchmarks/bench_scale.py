"""How memory and time grow with clients, rows and columns: ``make bench-scale``; ``--write`` puts the table into docs.

Each line is a process of its own. Rows are made at random; columns beyond 10³ are sparse, with 20 numbers in a row.
A cell has the seconds of computing of an exchange, the mean of four after the first, and of FedMLS-B the first one's;
and the most memory that the process took, over the size of the problem's rows: beyond what it had taken when everything
was imported, without the array that the rows came in. What takes over five minutes in all, or more than half of the
memory that is free, is ended.

A second table, by the clock: what is read of rows on disk in a second, by reading the file directly and by an exchange
with full batches, after the system was told to forget the file.
"""

import argparse
import json
import mmap
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

METHODS = ("fedmls", "fedmlsb", "fedavg")
BATCH, EXCHANGES, NUMBERS_PER_ROW = 0.1, 4, 20
LONGEST = 300  # seconds for a line
ON_DISK = 4_000_000, 50  # rows and columns of the file: 1.6 GB
PAGE = Path(__file__).parents[1] / "docs" / "speed.md"
BEGIN, END = "<!-- scale -->", "<!-- end of scale -->"
DISK_BEGIN, DISK_END = "<!-- disk -->", "<!-- end of disk -->"


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


COMPILED = [Size(10, 2000, d) for d in (10, 1_000, 10_000)]  # first: compiling takes memory of its own
CLIENTS = [Size(n, 1_000_000, 10) for n in (100, 1_000, 10_000, 100_000, 1_000_000)]
ROWS = [Size(100, m, 10) for m in (10_000, 100_000, 1_000_000, 10_000_000)]
COLUMNS = [Size(10, 100_000, d) for d in (10, 100, 1_000, 10_000, 100_000, 1_000_000)]


def measure(size: Size, method: str) -> dict[str, float]:
    """Return what a run takes, in this process."""
    import numpy as np
    from scipy.sparse import csr_array

    import fedmls

    def peak() -> float:  # getrusage would count what the process that started this one took
        told = Path("/proc/self/status").read_text("ascii").partition("VmHWM:")[2]
        return 1024.0 * int(told.split()[0])

    algorithm: Any = {
        "fedmls": fedmls.FedMLS(lam0=1e-3),
        "fedmlsb": fedmls.FedMLSB(),
        "fedavg": fedmls.FedAvg(eta0=1e-6, participants=10),
    }[method]
    small = fedmls.datasets.svm(2000, min(size.columns, 300), 10, density=0.5 if size.is_sparse else 1.0)
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

    def took() -> list[float]:
        """Return the seconds of each exchange of a run."""
        clock = [time.process_time()]
        fedmls.simulate(
            algorithm,
            problem,
            rounds=1 + EXCHANGES,
            batch=BATCH,
            optimum=None,
            progress=False,
            callback=lambda row: clock.append(time.process_time()),
        )
        return np.diff(clock).tolist()

    runs = [took()]
    while len(runs) < 3 and sum(map(sum, runs)) < 2:
        runs.append(took())
    first, *others = np.min(runs, axis=0).tolist()
    return {"made": made, "peak": peak() - before - given, "first": first, "exchange": sum(others) / EXCHANGES}


@cache
def measured(size: Size, method: str) -> dict[str, float] | str:
    """Return what a run takes, in a process of its own; a word where it was not run."""
    import psutil

    most = psutil.virtual_memory().available // 2
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
    for method, one in zip(METHODS, results, strict=True):
        if isinstance(one, str):
            cells.append(one)
        else:
            first = f" (first {one['first']:.3g})" if method == "fedmlsb" else ""
            cells.append(f"{one['exchange']:.3g} s{first}, {one['peak'] / size.bytes:.1f}×")
    return "| " + " | ".join(cells) + " |"


def table(lists: list[list[Size]]) -> list[str]:
    """Return the lines of the table, printed as they come."""
    head = ["clients", "rows", "columns", "rows in MB", "made in s", *METHODS]
    lines = ["| " + " | ".join(head) + " |", "|" + "--:|" * len(head)]
    print(*lines, sep="\n", flush=True)
    for size in COMPILED:
        for method in METHODS:
            measured(size, method)
    for size in (size for sizes in lists for size in sizes):
        lines.append(line(size, [measured(size, method) for method in METHODS]))
        print(lines[-1], flush=True)
    return lines


def disk_table() -> list[str]:
    """Return a table of how fast rows are read from a disk, printed."""
    with tempfile.TemporaryDirectory() as folder:
        rates = disk_rates(Path(folder) / "X.npy")
    plain = rates[0][1]
    lines = ["| | GB/s | of the first |", "|---|--:|--:|"]
    lines += [f"| {name} | {rate:.2f} | {rate / plain:.2f} |" for name, rate in rates]
    print(*lines, "", sep="\n", flush=True)
    return lines


def disk_rates(file: Path) -> list[tuple[str, float]]:
    """Return what is read of a file in a second, in several ways: the best of five attempts, which take turns."""
    import numpy as np

    import fedmls

    rows, columns = ON_DISK
    fill(file, rows, columns)
    y, clients = np.where(np.arange(rows) % 2, 1.0, -1.0), np.arange(rows) * 10 // rows
    problem = fedmls.Problem(np.load(file, mmap_mode="r"), y, clients=clients, intercept=False)
    local, x, room = problem.local(), np.full(columns, 0.01), mmap.mmap(-1, 1 << 24)

    def read() -> None:
        stream = os.open(file, os.O_RDONLY | os.O_DIRECT)
        while os.readv(stream, [room]):
            pass
        os.close(stream)

    ways: dict[str, Callable[[], object]] = {
        "reading the file, past the system's memory of it": read,
        "subgradients of all clients, as in a step with full batches": lambda: local.subgradient(np.tile(x, (10, 1))),
        "cuts of FedMLS-B at three points": lambda: local.cuts(np.tile(x, 3), 4),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(5):
        for name, way in ways.items():
            forget(file, problem.X)
            began = time.monotonic()
            way()
            seconds[name].append(time.monotonic() - began)
    return [(name, file.stat().st_size / 1e9 / min(each)) for name, each in seconds.items()]


def fill(file: Path, rows: int, columns: int) -> None:
    """Write random rows, part by part."""
    import numpy as np

    X, rng = np.lib.format.open_memmap(file, "w+", float, (rows, columns)), np.random.default_rng(0)
    for first in range(0, rows, 100_000):
        X[first : first + 100_000] = rng.standard_normal((min(100_000, rows - first), columns))
    X.flush()


def forget(file: Path, mapped: Any) -> None:
    """Let the system forget what it has in memory of a file, and of the array that it is mapped to."""
    while not isinstance(mapped, mmap.mmap):
        mapped = mapped.base
    mapped.madvise(mmap.MADV_DONTNEED)
    with file.open("rb") as stream:
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.name}")
    parser.add_argument("--one", nargs=4, metavar=("METHOD", "CLIENTS", "ROWS", "COLUMNS"), help="one line, as JSON")
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(Size(*map(int, given.one[1:])), given.one[0])))
        return
    for lines, begin, end in (
        (table([CLIENTS, ROWS, COLUMNS]), BEGIN, END),
        (disk_table(), DISK_BEGIN, DISK_END),
    ):
        if given.write:
            before, rest = PAGE.read_text("utf-8").split(begin)
            _, after = rest.split(end)
            PAGE.write_text(before + "\n".join([begin, "", *lines, "", end]) + after, "utf-8")


if __name__ == "__main__":
    main()
