"""The command line: parses, calls, prints."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    help="Federated learning of convex models with few communication rounds.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from fedmls import __version__

        typer.echo(f"fedmls {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def told(command: Callable[..., None]) -> Callable[..., None]:
    """Errors are one line; Ctrl-C says what is kept."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except KeyboardInterrupt as stop:
            typer.echo(str(stop) or "stopped", err=True)
            raise typer.Exit(130) from None
        except (ValueError, OSError) as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(2) from None

    return wrapped


@app.command()
@told
def reproduce(
    rounds: Annotated[int | None, typer.Option(help="Rounds of every run; 1000 unless given.")] = None,
    seeds: Annotated[int, typer.Option(help="How many seeds: each has its own k-means clients and batches.")] = 20,
    full: Annotated[bool, typer.Option("--full", help="The released code's 10,000 rounds (hours).")] = False,
    holdout: Annotated[
        float, typer.Option(help="Keep this share of the rows for testing, anew for each seed (released code: 0.2).")
    ] = 0.0,
    out: Annotated[Path | None, typer.Option(help="Results folder; results/paper-… unless given.")] = None,
    jobs: Annotated[int, typer.Option(help="Runs at a time; -1 is one per core.")] = -1,
) -> None:
    """The experiment of the FedMLS paper: four methods on an SVM split over ten clients.

    Finished runs are kept in the results folder: after Ctrl-C, start again to go on.
    """
    from fedmls.checks import whole
    from fedmls.experiments import paper

    if full and rounds is not None:
        raise ValueError("--full is 10,000 rounds; leave out --rounds or --full")
    rounds = whole("rounds", 10_000 if full else 1000 if rounds is None else rounds)
    whole("seeds", seeds)
    name = f"paper-{rounds}-rounds" + (f"-holdout-{holdout:g}" if holdout else "")
    folder = out or Path("results") / name
    runs = len(paper.series()) * seeds
    _say(f"{runs} runs of {rounds} rounds ({len(paper.series())} curves, {seeds} seeds) into {folder}")
    done = paper.reproduce(folder, rounds, seeds, holdout, jobs)
    _print_table(done.summary, f"Relative gap to the certified optimum after {rounds} rounds, mean ± spread over seeds")
    _say(*paper.reading(done))
    _say("Files:", *(f"  {file}" for file in sorted(folder.iterdir()) if file.is_file()))


@app.command()
@told
def compare(
    problems: Annotated[list[str] | None, typer.Argument(help="Problems of the suite; the first unless given.")] = None,
    suite: Annotated[bool, typer.Option("--suite", help="All problems of the suite.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="Show the problems and the methods, run nothing.")] = False,
    algorithms: Annotated[str | None, typer.Option(help="Only these methods, with commas between.")] = None,
    rounds: Annotated[int, typer.Option(help="Rounds of a run at most; expensive problems have less.")] = 500,
    seeds: Annotated[int, typer.Option(help="Runs of every grid point, with other mini-batches.")] = 1,
    grid: Annotated[int, typer.Option(help="Grid points for every method.")] = 15,
    batch: Annotated[float, typer.Option(help="Share of a client's rows in a local step.")] = 0.1,
    profile_by: Annotated[
        str, typer.Option(help="What the figure compares: exchanges, rounds, subgradients or bytes.")
    ] = "exchanges",
    out: Annotated[Path, typer.Option(help="Results folder.")] = Path("results/compare"),
    markdown: Annotated[Path | None, typer.Option(help="Write the page here too, and the figure beside it.")] = None,
    jobs: Annotated[int, typer.Option(help="Runs at a time; -1 is one per core.")] = -1,
) -> None:
    """Every method on one or many problems: exchanges, rounds, subgradients and bytes to a relative gap.

    Each method is tuned by the same number of grid points. Finished runs are kept in the results folder: after Ctrl-C,
    start again to go on.
    """
    from fedmls.checks import one_of
    from fedmls.experiments import compare as comparing
    from fedmls.experiments import tables
    from fedmls.experiments.methods import METHODS
    from fedmls.experiments.suite import SUITE, entries

    if list_:
        _say("Problems:", *(f"  {name:26}{entry.about}" for name, entry in SUITE.items()))
        _say("Methods:", *(f"  {name:26}{method.title}: {method.tuned}" for name, method in METHODS.items()))
        return
    if suite and problems:
        raise ValueError("--suite is all problems; leave out --suite or the names")
    chosen = entries(list(SUITE) if suite else problems or list(SUITE)[:1])
    one_of("profile-by", profile_by, comparing.COSTS)
    names = None if algorithms is None else [name.strip() for name in algorithms.split(",")]
    settings = comparing.Settings(rounds, seeds, grid, batch)
    done = comparing.compare(chosen, out, settings, names, jobs=jobs, tell=_say)
    tables.write(done, profile_by, markdown)
    if len(chosen) <= 3:
        for name, target in ((name, target) for name in chosen for target in comparing.TARGETS):
            _print_cells(tables.costs_of(done, name, target), f"{name} to a relative gap of {target:g}", names=1)
    else:
        _print_cells(tables.scores(done), "Problems on which a method is first or within 10% in exchanges", names=1)
    _say(*tables.sentences(done))
    _say("Files:", *(f"  {file}" for file in sorted(out.iterdir()) if file.is_file()))


@app.command()
@told
def plan(
    eps: Annotated[float, typer.Option(help="The wanted gap: f(x) - f* at the end.")],
    G: Annotated[float, typer.Option("--G", help="No subgradient of any client is longer.")],
    distance: Annotated[float, typer.Option(help="‖x0 - x*‖, from the start to a minimiser, or an upper bound.")],
    n: Annotated[int, typer.Option("--n", help="How many clients.")],
    sigma: Annotated[float, typer.Option(help="Standard deviation of the mini-batch subgradients.")] = 0.0,
    dimension: Annotated[int | None, typer.Option(help="Coordinates of the model, to count bytes.")] = None,
) -> None:
    """The rounds and local steps that the theory of FedMLS asks for, by the paper's rule and by a sharper one.

    Train with FedMLS(lam=lambda, T=T) over K rounds.
    """
    from fedmls import theory

    plans = [
        theory.plan(eps=eps, G=G, distance=distance, n=n, sigma=sigma, dimension=dimension, rule=rule)
        for rule in theory.RULES
    ]
    _print_cells(theory.side_by_side(plans), theory.describe(plans[0]), names=1)


@app.command("list")
def list_() -> None:
    """Algorithms, losses and data sets that are there."""
    from fedmls import ALGORITHMS, LOSSES
    from fedmls.datasets import DATASETS

    for title, entries in (("Algorithms", ALGORITHMS), ("Losses", LOSSES), ("Data sets", DATASETS)):
        _say(f"{title}: {', '.join(entries)}")


@app.command()
@told
def split(
    file: Annotated[Path, typer.Argument(help="CSV, Parquet, svmlight or NPZ.", metavar="FILE")],
    out: Annotated[Path, typer.Option(help="The folder for the parts; it must be empty.")],
    by: Annotated[
        str, typer.Option(help="kmeans, iid, dirichlet, or a column whose values are the clients.")
    ] = "kmeans",
    clients: Annotated[int, typer.Option(help="How many parts; a column has its own.")] = 10,
    label: Annotated[str | None, typer.Option(help="The label column; the last one unless given.")] = None,
    ignore: Annotated[list[str] | None, typer.Option(help="A column that is not to be used; may be repeated.")] = None,
    alpha: Annotated[float, typer.Option(help="Of dirichlet: the smaller, the more unlike the clients.")] = 0.5,
    seed: Annotated[int, typer.Option(help="Of kmeans, iid and dirichlet.")] = 0,
) -> None:
    """Cut a file into the parts of a federation, for a trial: data and configuration of one node each."""
    from fedmls.federation import NodeConfig
    from fedmls.federation.split import split as cut

    written = cut(file, out, by=by, clients=clients, label=label, ignore=ignore or (), alpha=alpha, seed=seed)
    configs = [NodeConfig.read(config) for config in written]
    _say(f"{len(written)} nodes in {out}, label {configs[0].label!r}:")
    for (file_written, rows), config in zip(written.items(), configs, strict=True):
        few = f"  too few: it answers for at least {config.min_rows} (min_rows)" if rows < config.min_rows else ""
        _say(f"  {file_written.name:<14}{rows:>8} rows{few}")


@app.command()
@told
def federate(
    engine: Annotated[str | None, typer.Option(help="nvflare or flower; nvflare unless given.")] = None,
    nodes: Annotated[int | None, typer.Option(help="How many; 3 unless given.")] = None,
    rounds: Annotated[int | None, typer.Option(help="10 unless given.")] = None,
    algorithm: Annotated[
        str | None, typer.Option(help="fedmls unless given, with lam0=1 and paired rounds; fedmls list shows all.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="A parameter of the algorithm, name=value; may be repeated.")
    ] = None,
    job: Annotated[
        Path | None, typer.Option(help="A job's file, with all that can be set; the options above and below win.")
    ] = None,
    batch: Annotated[
        float | None, typer.Option(help="Share of a node's rows in a local step; 0.1 unless given.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of the mini-batches and of the cut; 0 unless given.")] = None,
    loss: Annotated[str | None, typer.Option(help="hinge unless given; fedmls list shows all.")] = None,
    certificate: Annotated[
        float | None, typer.Option(help="Prove the gap, for a model within this distance of 0.", metavar="RADIUS")
    ] = None,
    until: Annotated[float | None, typer.Option(help="Stop when the gap is proved to be at most this.")] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Rows to cut into nodes: CSV, Parquet, svmlight or NPZ; the paper's unless given."),
    ] = None,
    label: Annotated[str | None, typer.Option(help="The label column; the last one unless given.")] = None,
    ignore: Annotated[list[str] | None, typer.Option(help="A column that is not to be used; may be repeated.")] = None,
    by: Annotated[str | None, typer.Option(help="The cut: kmeans (unless given), iid, dirichlet, or a column.")] = None,
    parts: Annotated[
        Path | None, typer.Option(help="A folder of nodes made by fedmls split, in place of --data.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Results folder; results/federation-… unless given.")] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with the run in --out, or the last one: --rounds, --until may change."),
    ] = False,
) -> None:
    """A real federation on this machine, for a trial: server and nodes are processes, with TLS and keys of their own.

    Runs a job over NVFlare or Flower, one line for each exchange, and compares the model with that of the simulation.
    Everything is taken down again. Ctrl-C keeps what was done: --resume goes on.
    """
    from fedmls.federation import federate as federating
    from fedmls.federation import trial as trials

    changes = {"rounds": rounds, "until": until}
    options = {"batch": batch, "seed": seed, "loss": loss, "certificate": certificate}
    if resume:
        rows = {"nodes": nodes, "data": data, "label": label, "ignore": ignore, "by": by, "parts": parts}
        fixed = options | rows | {"algorithm": algorithm, "set": set_, "job": job}
        for name in (name for name, value in fixed.items() if value):
            raise ValueError(f"with --resume the job is that of the run; leave out --{name}")
        trial = trials.reopen(out, engine, changes)
    else:
        wanted = trials.make_job(job, algorithm, set_ or (), options | changes)
        source = trials.Source(parts, data, label, by, tuple(ignore or ()), nodes)
        trial = trials.begin(out, engine or "nvflare", wanted, source)
    outcome = federating.run(trial, _say)
    _say(*federating.summary(outcome))
    _say("Files:", *(f"  {file}" for file in sorted(trial.folder.iterdir())))


def _say(*lines: str) -> None:
    for line in lines:
        typer.echo(line)


def _print_table(summary: Any, title: str) -> None:
    from fedmls.experiments.results import cells

    _print_cells(cells(summary), title, names=3)


def _print_cells(cells: list[list[str]], title: str, names: int) -> None:
    """Header first; the first ``names`` columns are words, the others numbers."""
    from rich.console import Console
    from rich.table import Table

    header, *rows = cells
    shown = Table(title=title, title_justify="left")
    for i, name in enumerate(header):
        shown.add_column(name, justify="left" if i < names else "right")
    for row in rows:
        shown.add_row(*row)
    console = Console()
    if not console.is_terminal:
        console = Console(width=140)
    console.print(shown)


def main() -> None:
    app()


if __name__ == "__main__":
    main()
