"""How fast clients compute on a GPU: ``make bench-gpu``. Times are absolute here; the best of several repetitions.

Small chains: the paper's clients, 360 runs side by side. Large rows: gigabytes of dense rows, which a step
or an exchange reads once, beside a plain copy on the same GPU and, where it is installed, the same step in plain JAX.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import fedmls
from fedmls.local.cuda import cupy
from fedmls.local.stacked import StackedLocal
from fedmls.schedules import prox_average, prox_steps


def best(call: Callable[[], Any], repeats: int = 5) -> float:
    """The shortest time of the call, in seconds, until the GPU has ended."""
    call()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        cupy().cuda.Device().synchronize()
        times.append(time.perf_counter() - began)
    return min(times)


def small(table: Table, runs: int, T: int) -> None:
    X, y = fedmls.datasets.breast_cancer_wisconsin()
    seeds = range(20)
    each = [fedmls.Problem(X, y, clients=fedmls.partition.kmeans(X, 10, seed=s)).on("cuda") for s in seeds]
    local = StackedLocal([each[i % len(seeds)] for i in range(runs)], [i % len(seeds) for i in range(runs)], 0.1, 1)
    local.begin(1)
    u = np.zeros(local.shape)
    took = best(
        lambda: local.descend(u, prox_steps(T), scale=0.01, pull=1.0, center=u, average=prox_average(T)), repeats=3
    )
    steps = runs * 10 * T
    table.add_row(
        f"local steps, {runs} runs of 10 clients",
        f"{took / steps * 1e9:.2f} ns a client-step",
        f"{took / T * 1e6:.2f} µs a step of all",
    )


def large(table: Table, gigabytes: float, d: int) -> None:
    m = int(gigabytes * 1e9 / 8 / d)
    rng = np.random.default_rng(0)
    X = rng.random((m, d))
    y = np.where(rng.random(m) < 0.5, -1.0, 1.0)
    problem = fedmls.Problem(X, y, loss="hinge", intercept=False).on("cuda")
    del X
    loops: Any = problem.loops
    size = m * d * 8
    rows = loops.device.data
    copy = copy_bandwidth(rows)
    what = f"{size / 1e9:.1f} GB, {m:,} × {d}"
    table.add_row(f"copy of the rows, {what}", f"{copy / 1e12:.2f} TB/s", "read and written")
    for points in (1, 8):
        x = rng.normal(size=(points, d)) / d
        took = best(partial(loops.cuts, x, 1))
        share = size / took / copy
        table.add_row(
            f"an exchange of FedMLS-B at {points} points",
            f"{size / took / 1e12:.2f} TB/s, one read",
            f"{took * 1e3:.2f} ms; {share:.0%} of the copy",
        )
    local, count = problem.local(), 20
    steps, u = np.full(count, 1e-9), np.zeros((1, d))
    took = best(lambda: local.descend(u, steps), repeats=3) / count
    table.add_row(
        "a full-batch step",
        f"{size / took / 1e12:.2f} TB/s, one read",
        f"{took * 1e3:.2f} ms; {size / took / copy:.0%} of the copy",
    )
    in_jax(table, rows, y, size, copy)


def copy_bandwidth(rows: Any) -> float:
    """Bytes a second, read and written, of a copy on the GPU."""
    to = cupy().empty_like(rows)
    return float(2 * rows.nbytes / best(lambda: cupy().copyto(to, rows)))


def in_jax(table: Table, rows: Any, y: Any, size: int, copy: float) -> None:
    try:
        import jax
    except ImportError:
        table.add_row("the same step in plain JAX", "JAX is not installed", "")
        return
    jax.config.update("jax_enable_x64", True)
    A, b = jax.dlpack.from_dlpack(rows), jax.numpy.asarray(y)
    step = jax.jit(lambda A, b, u: u - 1e-9 * ((-b * (b * (A @ u) < 1)) @ A))
    u = jax.numpy.zeros(rows.shape[1])
    took = best(lambda: step(A, b, u).block_until_ready())
    table.add_row(
        "the same step in plain JAX",
        f"{size / took / 1e12:.2f} TB/s, counted as one read",
        f"{took * 1e3:.2f} ms; {size / took / copy:.0%} of the copy",
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--gigabytes", type=float, default=8.0)
    options.add_argument("--columns", type=int, default=50)
    asked = options.parse_args()
    name = cupy().cuda.runtime.getDeviceProperties(0)["name"].decode()
    table = Table(title=f"{name}, float64", title_justify="left")
    for column in ("what", "speed", "more"):
        table.add_column(column)
    for runs, T in ((1, 20_000), (20, 20_000), (360, 20_000)):
        small(table, runs, T)
    large(table, asked.gigabytes, asked.columns)
    console = Console()
    (console if console.is_terminal else Console(width=110)).print(table)


if __name__ == "__main__":
    main()
