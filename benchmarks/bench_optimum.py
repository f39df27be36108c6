"""How long the certified optimum of large sparse problems takes: ``python benchmarks/bench_optimum.py --help``.

Rows of ``--filled`` numbers at random places, columns with power-law frequencies, noisy labels of a linear model and an
intercept. Every case runs in a process of its own; memory is the most that process held, rows included.
"""

import argparse
import multiprocessing
import resource
import time

import numpy as np
from scipy import sparse

import fedmls
from fedmls.bounds.certificate import lower_bound
from fedmls.losses import LOSSES
from fedmls.optima import multipliers

FORMAT = "{:20} {:>8} {:>7} {:>7} {:>8} {:>8} {:>7} {:>6} {:>6} {:>7} {:>9} {:>6}"
HEADER = ("loss", "rows", "columns", "l2", "seconds", "CPU", "memory", "stages", "steps", "CG", "gap", "proved")


def sparse_problem(m: int, d: int, filled: int, loss: str, l2: float, power: float, counts: bool) -> fedmls.Problem:
    """Column k is drawn with a probability proportional to k^-power; numbers are normal, or 1 with ``counts``."""
    rng = np.random.default_rng(0)
    often = np.arange(1.0, d + 1) ** -power
    columns = rng.choice(d, size=m * filled, p=often / often.sum())
    numbers = np.ones(m * filled) if counts else rng.normal(size=m * filled)
    X = sparse.csr_array((numbers, (np.repeat(np.arange(m), filled), columns)), shape=(m, d))
    X.sum_duplicates()
    y = X @ rng.normal(size=d) * 2 / np.sqrt(filled) + rng.standard_t(3, size=m)
    return fedmls.Problem(X, np.where(y > 0.5, 1.0, -1.0) if LOSSES[loss].is_classification else y, loss=loss, l2=l2)


def dense_problem(m: int, d: int, loss: str, l2: float) -> fedmls.Problem:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(m, d))
    y = X @ rng.normal(size=d) / np.sqrt(d) + rng.standard_t(3, size=m)
    return fedmls.Problem(X, np.sign(y) if LOSSES[loss].is_classification else y, loss=loss, l2=l2)


def measure(options: argparse.Namespace, loss: str, l2: float) -> None:
    """Solve one case and print its line."""
    m, d = options.rows, options.columns
    if options.dense:
        problem = dense_problem(m, d, loss, l2)
    else:
        problem = sparse_problem(m, d, options.filled, loss, l2, options.power, options.counts)
    few = problem.X[:50] if options.dense else problem.matrix()[:50]
    multipliers.minimise(fedmls.Problem(few, problem.y[:50], loss=loss), 0.1)  # compiles
    wall, cpu = time.perf_counter(), time.process_time()
    found = multipliers.minimise(problem, options.tolerance)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    value = problem.value(found.x)
    gap = (value - lower_bound(problem, found.slopes, multipliers.search_radius(found.x))) / max(1.0, value)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    numbers = (f"{wall:.1f}", f"{cpu:.1f}", f"{memory:.1f} GB", found.stages, found.steps, found.iterations)
    proved = "yes" if gap <= options.tolerance else "no"
    print(FORMAT.format(loss, m, d, f"{l2:g}", *numbers, f"{gap:.1e}", proved), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--columns", type=int, default=20_000)
    parser.add_argument("--filled", type=int, default=30, help="numbers in a row")
    parser.add_argument("--power", type=float, default=1.0, help="column k has a frequency of k^-power")
    parser.add_argument("--counts", action="store_true", help="whole numbers instead of normal ones")
    parser.add_argument("--dense", action="store_true", help="rows without zeros")
    parser.add_argument("--losses", nargs="+", default=list(LOSSES), choices=list(LOSSES))
    parser.add_argument("--l2", nargs="+", type=float, default=[0.0, 1e-3, 1.0, 100.0])
    parser.add_argument("--tolerance", type=float, default=1e-6)
    options = parser.parse_args()
    print(FORMAT.format(*HEADER), flush=True)
    for loss in options.losses:
        for l2 in options.l2:
            case = multiprocessing.get_context("spawn").Process(target=measure, args=(options, loss, l2))
            case.start()
            case.join()


if __name__ == "__main__":
    main()
