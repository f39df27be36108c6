"""How fast the local loop is, as ratios within one run: ``make bench``.

Times are the best of several repetitions, taken in turns, so that a busy machine slows both sides of a ratio.
"""

import time
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy import sparse
from threadpoolctl import threadpool_limits

import fedmls
from fedmls.benchmark.suite import make
from fedmls.schedules import prox_average, prox_steps

CONSOLE = Console()
if not CONSOLE.is_terminal:
    CONSOLE = Console(width=110)


def best_times(*calls: Callable[[], Any], repeats: int = 15) -> list[float]:
    """The shortest time of each call, in seconds, the calls taking turns."""
    times = [np.inf] * len(calls)
    for call in calls:
        call()
    for _ in range(repeats):
        for i, call in enumerate(calls):
            began = time.perf_counter()
            call()
            times[i] = min(times[i], time.perf_counter() - began)
    return times


def paper_problem() -> fedmls.Problem:
    X, y = fedmls.datasets.breast_cancer_wisconsin()
    return fedmls.Problem(X, y, clients=fedmls.partition.kmeans(X, 10, seed=0))


def numpy_loop(problem: fedmls.Problem, T: int, rng: np.random.Generator) -> None:
    """FedMLS's local steps for all clients in plain NumPy, as one would write them."""
    for i in range(problem.n):
        part = slice(problem.offsets[i], problem.offsets[i + 1])
        A, b = problem.X[part], problem.y[part]
        m = len(b)
        size = int(np.ceil(0.1 * m))
        v = u = u_tilde = np.zeros(problem.dimension)
        for t in range(1, T + 1):
            batch = rng.choice(m, size, replace=False)
            rows, labels = A[batch], b[batch]
            g = -(m / size) * (labels * (labels * (rows @ u) < 1)) @ rows
            u = u - (g / 40 + u - v) / (1 + t / 2)
            theta = 2 * (t + 1) / (t * (t + 3))
            u_tilde = (1 - theta) * u_tilde + theta * u


def against_numpy(table: Table) -> None:
    problem, T = paper_problem(), 200
    local, zeros, rng = problem.local(batch=0.1), np.zeros((10, 10)), np.random.default_rng(0)

    def compiled() -> None:
        local.descend(zeros, prox_steps(T), scale=1 / 40, pull=1.0, center=zeros, average=prox_average(T))

    ours, theirs = (t / (T * problem.n) for t in best_times(compiled, lambda: numpy_loop(problem, T, rng)))
    table.add_row(
        "local step, paper's setting (10 clients, 10 columns, 10% batches)",
        f"{ours * 1e9:.0f} ns",
        f"{theirs * 1e6:.1f} µs (NumPy)",
        f"{theirs / ours:.0f}×",
        "≥ 100×",
    )


def full_batch(table: Table) -> None:
    rng = np.random.default_rng(0)
    for m, d in ((699, 10), (20_000, 50), (20_000, 500)):
        X, y = rng.normal(size=(m, d)), rng.normal(size=m)
        problem = fedmls.Problem(X, y, loss="absolute", intercept=False)
        A = problem.X
        count = max(5, 4_000_000 // (m * d))
        local, u, s, steps = problem.local(), np.zeros(d), np.sign(y), np.full(count, 1e-9)
        ours, once, twice = best_times(lambda: local.descend(u, steps), lambda: A @ u, lambda: (A @ u, s @ A))
        ours /= count
        table.add_row(
            f"full-batch step, {m:,} × {d}",
            f"{ours / m * 1e9:.1f} ns a row, {8 * m * d / ours / 1e9:.0f} GB/s",
            f"{once / m * 1e9:.1f} ns A@u; {twice / m * 1e9:.1f} ns A@u and s@A",
            f"{twice / ours:.2f}× ({once / ours:.2f}× A@u alone)",
            "≥ 1×",
        )


def two_jobs(table: Table) -> None:
    problem = paper_problem()
    grid = [fedmls.FedMLS(lam0=v) for v in (0.1, 1.0, 10.0)]

    def run(jobs: int, backend: str) -> Callable[[], Any]:
        return lambda: fedmls.sweep(
            grid, problem, rounds=600, batch=0.1, seeds=range(4), jobs=jobs, backend=backend, progress=False
        )

    for backend in ("processes", "threads"):
        one, two = best_times(run(1, backend), run(2, backend), repeats=3)
        table.add_row(
            f"sweep of 12 runs, {backend}",
            f"{two:.1f} s (2 jobs)",
            f"{one:.1f} s (1 job)",
            f"{one / two:.2f}×",
            "≥ 1.7×",
        )


def scaling() -> None:
    rng = np.random.default_rng(0)
    table = Table(
        title="Cost of a full-batch step: it should grow like the numbers in the first column", title_justify="left"
    )
    for name in ("entries", "layout", "µs a step", "ns an entry"):
        table.add_column(name, justify="right")

    def row(X: Any, layout: str) -> None:
        m, d = X.shape
        problem = fedmls.Problem(X, rng.normal(size=m), loss="absolute", intercept=False)
        count = max(5, 4_000_000 // (m * d))
        local, steps = problem.local(), np.full(count, 1e-9)
        (took,) = (t / count for t in best_times(lambda: local.descend(np.zeros(d), steps)))
        entries = X.nnz if sparse.issparse(X) else X.size
        table.add_row(f"{entries:,}", layout, f"{took * 1e6:.1f}", f"{took / entries * 1e9:.2f}")

    for m in (1_000, 4_000, 16_000):
        row(rng.normal(size=(m, 50)), f"dense, {m:,} rows × 50")
    for d in (50, 200, 800):
        row(rng.normal(size=(4_000, d)), f"dense, 4,000 rows × {d}")
    for density in (0.002, 0.008, 0.032):
        X = sparse.random_array((4_000, 5_000), density=density, rng=rng, format="csr")
        row(X, f"CSR, 4,000 rows × 5,000, {density:.1%} filled")
    CONSOLE.print(table)


class Timed(fedmls.FedMLSB):
    """With the time of the server for each exchange in which there is something to do, and how many cuts it had."""

    spent: ClassVar[list[tuple[float, int]]] = []

    def broadcast(self, k: int, server: Any, rng: np.random.Generator) -> Any:
        started = time.perf_counter()
        answer = super().broadcast(k, server, rng)
        self.spent.append((time.perf_counter() - started, len(server.e)))
        return answer

    def server_round(self, k: int, server: Any, up: Any) -> Any:
        started = time.perf_counter()
        answer = super().server_round(k, server, up)
        took, cuts = self.spent.pop()
        if answer is not server:  # it does nothing when all is proved
            self.spent.append((took + time.perf_counter() - started, cuts))
        return answer


def servers() -> None:
    square = np.ones((1000, 1000))
    (unit,) = best_times(lambda: square @ square)
    table = Table(
        title=f"FedMLS-B's server, ms an exchange; a product of two 1000 × 1000 matrices takes {unit * 1e3:.0f}",
        title_justify="left",
    )
    for name in ("problem", "columns", "300 cuts or more", "the slowest tenth", "fewer cuts"):
        table.add_column(name, justify="right")
    for name in ("paper-std", "breast-cancer-kmeans", "digits-3-kmeans", "houses-epsilon", "lad-sparse-d1000-n10"):
        Timed.spent.clear()
        problem = make(name)
        fedmls.simulate(Timed(), problem, rounds=40, batch=0.1, optimum=None)
        many, few = (np.array([1e3 * t for t, J in Timed.spent if (J >= 300) == full]) for full in (True, False))
        shown = ((many, 0.5), (many, 0.9), (few, 0.5))
        table.add_row(name, f"{problem.dimension}", *(f"{np.quantile(t, q):.0f}" if len(t) else "–" for t, q in shown))
    CONSOLE.print(table)


def main() -> None:
    table = Table(title="fedmls, one thread unless it says otherwise; best of several, in turns", title_justify="left")
    for name in ("what", "fedmls", "beside it", "ratio", "target"):
        table.add_column(name)
    with threadpool_limits(1):
        against_numpy(table)
        full_batch(table)
    two_jobs(table)
    CONSOLE.print(table)
    with threadpool_limits(1):
        servers()
        scaling()


if __name__ == "__main__":
    main()
