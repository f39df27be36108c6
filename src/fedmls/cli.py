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
