"""The command line: parses, calls, prints."""

import functools
import os
import shutil
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

ABOUT = "Federated learning of convex models with few communication rounds."
FIRST = {
    "fedmls reproduce --rounds 100 --seeds 2": "the paper's experiment in small, half a minute: a table and figures",
    "fedmls run --example > my.toml": "an experiment of your own, to be edited; fedmls run my.toml runs it",
    "fedmls compare --grid 3 --rounds 100": "all methods on one problem, half a minute: who needs the fewest exchanges",
}

app = typer.Typer(
    help=ABOUT,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from fedmls import __version__

        typer.echo(f"fedmls {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        _start_page(context)


def _start_page(context: typer.Context) -> None:
    """What to do first."""
    from fedmls import __version__

    _say(f"fedmls {__version__}. {ABOUT}", "", "To begin with:")
    for command, about in FIRST.items():
        _say(f"  {command}", f"      {about}")
    _say("", "Commands:")
    commands = getattr(context.command, "commands", {})
    for name, command in commands.items():
        first, *more = textwrap.wrap(command.get_short_help_str(1000), max(40, _columns() - 13))
        _say(f"  {name:<11}{first}", *(f"{'':13}{line}" for line in more))
    _say("", "fedmls COMMAND --help shows its options. fedmls --install-completion lets the Tab key complete them.")


def _columns() -> int:
    return min(110, shutil.get_terminal_size().columns)


def _leave_at_once(code: int) -> None:
    """If a solver is still at work, which Python would wait for."""
    from fedmls.progress import abandoned

    if abandoned():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


Completion = Callable[[str], list[str]]


def _one_of(*names: str) -> Completion:
    """What the Tab key offers: those that begin with what is there."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


def _algorithms(incomplete: str) -> list[str]:
    from fedmls.algorithms import names

    return _one_of(*names())(incomplete)


def _losses(incomplete: str) -> list[str]:
    from fedmls import LOSSES

    return _one_of(*LOSSES)(incomplete)


def _problems(incomplete: str) -> list[str]:
    from fedmls.benchmark.suite import SUITE

    return _one_of(*SUITE)(incomplete)


def _methods(incomplete: str) -> list[str]:
    """Of several, with commas between, the last one."""
    from fedmls.benchmark.methods import METHODS

    before, comma, last = incomplete.rpartition(",")
    return [before + comma + name for name in _one_of(*METHODS)(last)]


_cuts = _one_of("kmeans", "iid", "dirichlet")


def told(command: Callable[..., None]) -> Callable[..., None]:
    """Errors are one line; Ctrl-C says what is kept."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except KeyboardInterrupt as stop:
            typer.echo(("\n" if sys.stderr.isatty() else "") + (str(stop) or "stopped"), err=True)
            _leave_at_once(130)
            raise typer.Exit(130) from None
        except BrokenPipeError:  # as in fedmls list | head -1
            raise
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
    from fedmls.experiments.run import Experiment
    from fedmls.experiments.spec import check_holdout

    if full and rounds is not None:
        raise ValueError("--full is 10,000 rounds; leave out --rounds or --full")
    rounds = whole("rounds", paper.FULL if full else 1000 if rounds is None else rounds)
    spec = paper.spec(rounds, whole("seeds", seeds), check_holdout(holdout, "holdout"))
    name = f"paper-{rounds}-rounds" + (f"-holdout-{holdout:g}" if holdout else "")
    folder = out or Path("results") / name
    _say(_runs(spec, folder))
    done = Experiment(spec).run(folder, command=_typed(), jobs=jobs)
    _print_table(done.summary, f"Relative gap to the certified optimum after {rounds} rounds, mean ± spread over seeds")
    _say(*paper.sentences(done))
    _say("Files:", *(f"  {file}" for file in sorted(folder.iterdir()) if file.is_file()))


@app.command()
@told
def run(
    file: Annotated[
        str | None, typer.Argument(help="The experiment: a TOML file, or the name of one that is here.", metavar="FILE")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="In place of what the file says: key=value, e.g. data.file=x.csv; may be repeated."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Results folder; the file's, or results/FILE, unless given.")] = None,
    jobs: Annotated[int, typer.Option(help="Runs at a time; -1 is one per core.")] = -1,
    dask: Annotated[
        str | None, typer.Option(help="Send the runs to the Dask scheduler at this address.", metavar="ADDRESS")
    ] = None,
    example: Annotated[
        bool, typer.Option("--example", help="Print a file to start from, or FILE; run nothing.")
    ] = False,
) -> None:
    """An experiment of your own: data, clients, algorithms with grids of parameters, seeds.

    fedmls run --example > my.toml writes a commented file; fedmls run my.toml runs it. Finished runs are kept in the
    results folder: after Ctrl-C, or with some lines changed, start again and only what is missing is run.
    """
    from fedmls.experiments import spec as specs
    from fedmls.experiments.run import Experiment
    from fedmls.results.summary import best

    if example:
        typer.echo(specs.text(file or "example"), nl=False)
        return
    if file is None:
        raise ValueError("name a file, e.g. my.toml; fedmls run --example > my.toml writes one to start from")
    spec = specs.read(file, set_ or ())
    folder = out or spec.out or Path("results") / Path(file).stem
    experiment = Experiment(spec)
    _say(*filter(None, [spec.title]), *experiment.sentences(), _runs(spec, folder))
    done = experiment.run(folder, command=_typed(), jobs=jobs, dask=dask)
    _print_table(best(done.summary, spec.config.target), "Best of each method, mean ± spread over seeds")
    _say("Files:", *(f"  {file}" for file in sorted(folder.iterdir()) if file.is_file()))


@app.command()
@told
def compare(
    problems: Annotated[
        list[str] | None,
        typer.Argument(help="Problems of the suite; the first unless given.", autocompletion=_problems),
    ] = None,
    suite: Annotated[bool, typer.Option("--suite", help="All problems of the suite.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="Show the problems and the methods, run nothing.")] = False,
    algorithms: Annotated[
        str | None,
        typer.Option(
            help="Only these methods, with commas between: those of --list, module:Class, path/to/file.py:Class.",
            autocompletion=_methods,
        ),
    ] = None,
    also: Annotated[
        str | None, typer.Option(help="These, too: algorithms of your own, module:Class or path/to/file.py:Class.")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Rounds of a run at most; expensive problems have fewer.")] = 500,
    seeds: Annotated[int, typer.Option(help="Runs of the best grid points, with other mini-batches.")] = 3,
    grid: Annotated[int, typer.Option(help="Grid points for every method.")] = 15,
    batch: Annotated[float, typer.Option(help="Share of a client's rows in a local step.")] = 0.1,
    profile_by: Annotated[
        str,
        typer.Option(
            help="What the figure compares: exchanges, rounds, passes or bytes.",
            autocompletion=_one_of("exchanges", "rounds", "passes", "bytes"),
        ),
    ] = "exchanges",
    out: Annotated[Path, typer.Option(help="Results folder.")] = Path("results/compare"),
    markdown: Annotated[Path | None, typer.Option(help="Write the page here too, and the figure beside it.")] = None,
    jobs: Annotated[int, typer.Option(help="Runs at a time; -1 is one per core.")] = -1,
) -> None:
    """Every method on one or many problems: what each takes to come close to the optimum.

    Counts exchanges, passes over the rows and bytes to relative gaps of 10% to 0.01%.
    Each method is tuned by the same number of grid points; the best run with several seeds.
    PROBLEMS are names that --list shows; the first unless given.
    Finished runs are kept in the results folder: after Ctrl-C, start again to go on.
    """
    from fedmls.benchmark import compare as comparing
    from fedmls.benchmark import tables
    from fedmls.benchmark.methods import METHODS
    from fedmls.benchmark.suite import SUITE, entries
    from fedmls.checks import one_of

    if list_:
        _say("Problems:", *(f"  {name:26}{entry.about}" for name, entry in SUITE.items()))
        _say("Methods:", *(f"  {name:26}{method.title}: {method.tuned}" for name, method in METHODS.items()))
        return
    if suite and problems:
        raise ValueError("--suite is all problems; leave out --suite or the names")
    chosen = entries(list(SUITE) if suite else problems or list(SUITE)[:1])
    one_of("profile-by", profile_by, comparing.COSTS)
    names = list(METHODS) if algorithms is None else [name.strip() for name in algorithms.split(",")]
    names += [] if also is None else [name.strip() for name in also.split(",")]
    settings = comparing.Settings(rounds, seeds, grid, batch)
    done = comparing.compare(chosen, out, settings, names, jobs=jobs, tell=_say)
    tables.write(done, profile_by, markdown)
    if len(chosen) <= 3:
        for name, target in ((name, target) for name in chosen for target in comparing.TARGETS):
            _print_cells(tables.costs_of(done, name, target), f"{name} to a relative gap of {target:g}", names=1)
        _say("* the fewest of its group; parameters: those of the best grid point", "")
    else:
        _print_cells(tables.scores(done), "Problems on which a method is first or within 10% in exchanges", names=1)
    _say(*tables.sentences(done))
    _say("Files:", *(f"  {file}" for file in sorted(out.iterdir()) if file.is_file()))


@app.command()
@told
def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...")],
    out: Annotated[Path | None, typer.Option(help="The file; report.html in DIR unless given.", metavar="FILE")] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> None:
    """A page of HTML from results: curves to play with, tables, the clients, how to reproduce it.

    DIR is a results folder of fedmls run, reproduce or federate; several are put side by side. The page works offline.
    """
    from fedmls.report import write

    file = write(folders, out)
    _say(f"{file} ({file.stat().st_size / 1e6:.1f} MB)")
    if open_:
        import webbrowser

        webbrowser.open(file.resolve().as_uri())


@app.command()
@told
def plan(
    eps: Annotated[float, typer.Option(help="The wanted gap: f(x) - f* at the end, at most.")],
    G: Annotated[
        float, typer.Option("--G", help="How long the clients' subgradients are at most; see Problem.lipschitz().")
    ],
    distance: Annotated[float, typer.Option(help="‖x0 - x*‖, from the start to a minimiser, or an upper bound.")],
    n: Annotated[int, typer.Option("--n", help="How many clients.")],
    sigma: Annotated[float, typer.Option(help="Standard deviation of the mini-batch subgradients.")] = 0.0,
    dimension: Annotated[int | None, typer.Option(help="Coordinates of the model, to count bytes.")] = None,
) -> None:
    """The rounds and local steps of FedMLS that are proved to reach a wanted accuracy.

    By the paper's rule and by a sharper one (docs/theory.md); both hold for the worst problem there is.
    To train so: FedMLS(lam=lambda, T=T) over K rounds.
    """
    from fedmls import theory

    plans = [
        theory.plan(eps=eps, G=G, distance=distance, n=n, sigma=sigma, dimension=dimension, rule=rule)
        for rule in theory.RULES
    ]
    _print_cells(theory.side_by_side(plans), theory.describe(plans[0]), names=1)


@app.command()
@told
def doctor(
    json_: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    results: Annotated[Path, typer.Option(help="Where results are going to be.")] = Path("results"),
) -> None:
    """What is installed and whether it works, to be pasted into a bug report.

    Runs the compiled loop and compares it with NumPy. The exit code is 1 if something is broken.
    Names no user and no machine.
    """
    import json

    from fedmls import doctor as doctors

    found = doctors.examine(results)
    _say(*([json.dumps(found, indent=2)] if json_ else doctors.lines(found)))
    if found["broken"]:
        raise typer.Exit(1)


@app.command("list")
@told
def list_() -> None:
    """Algorithms, losses, data sets and experiments that are there."""
    from fedmls import LOSSES
    from fedmls.algorithms import names
    from fedmls.datasets import DATASETS
    from fedmls.experiments.spec import shipped

    for title, entries in (("Algorithms", names()), ("Losses", LOSSES), ("Experiments for fedmls run", shipped())):
        _say(f"{title}: {', '.join(entries)}")
    _say("Data sets:", *(f"  {name:26}{dataset.about}" for name, dataset in DATASETS.items()))


@app.command()
@told
def split(
    file: Annotated[Path, typer.Argument(help="CSV, Parquet, svmlight or NPZ.", metavar="FILE")],
    out: Annotated[Path, typer.Option(help="The folder for the parts; it must be empty.")],
    by: Annotated[
        str,
        typer.Option(help="kmeans, iid, dirichlet, or a column whose values are the clients.", autocompletion=_cuts),
    ] = "kmeans",
    clients: Annotated[int, typer.Option(help="How many parts; a column has its own.")] = 10,
    label: Annotated[str | None, typer.Option(help="The label column; the last one unless given.")] = None,
    ignore: Annotated[list[str] | None, typer.Option(help="A column that is not to be used; may be repeated.")] = None,
    alpha: Annotated[float, typer.Option(help="Of dirichlet: the smaller, the more unlike the clients.")] = 0.5,
    seed: Annotated[int, typer.Option(help="Of kmeans, iid and dirichlet.")] = 0,
) -> None:
    """Cut a file of rows into the parts of a federation, for a trial.

    FILE is CSV, Parquet, svmlight or NPZ. Each part is a node's data and its configuration.
    fedmls federate --parts runs them.
    """
    from fedmls.federation import NodeConfig
    from fedmls.federation.site_files import split as cut

    written = cut(file, out, by=by, clients=clients, label=label, ignore=ignore or (), alpha=alpha, seed=seed)
    configs = [NodeConfig.read(config) for config in written]
    _say(f"{len(written)} nodes in {out}, label {configs[0].label!r}:")
    for (file_written, rows), config in zip(written.items(), configs, strict=True):
        few = f"  too few: it answers for at least {config.min_rows} (min_rows)" if rows < config.min_rows else ""
        _say(f"  {file_written.name:<14}{rows:>8} rows{few}")


@app.command()
@told
def key(
    file: Annotated[Path, typer.Argument(help="The configuration of a node.", metavar="NODE.toml")],
) -> None:
    """The public key of a node, for the peers of others in secure runs; its key is made if there is none."""
    from fedmls.federation import NodeConfig
    from fedmls.federation.secure_sums import as_text, private_key, public_key

    _say(as_text(public_key(private_key(NodeConfig.read(file).key_file))))


@app.command()
@told
def peers(
    file: Annotated[Path, typer.Argument(help="The configuration of a node.", metavar="NODE.toml")],
    keys: Annotated[
        list[str] | None, typer.Argument(help="The others' keys, as they told them by other ways.", metavar="[KEY]...")
    ] = None,
) -> None:
    """Show and check the peers of a node: whom it takes part with in secure runs, by their public keys.

    Each key is followed by a fingerprint, to be compared by word of mouth. With KEYs, those must be the peers.
    The exit code is 1 if something is wrong, or if there are no peers.
    """
    from fedmls.federation import NodeConfig
    from fedmls.federation import secure_sums as sums

    config = NodeConfig.read(file)
    own = sums.public_key(sums.private_key(config.key_file))
    for key in dict.fromkeys((sums.as_text(own), *(config.peers or ()))):
        public = sums.from_text(key)
        _say(f"{key}  {sums.fingerprint(public)}" + (f"  {config.name} itself" if public == own else ""))
    wrong = sums.check_peers(own, config.peers, keys or ())
    for sentence in wrong:
        typer.echo(f"{config.name}: {sentence}", err=True)
    if wrong:
        raise typer.Exit(1)


@app.command()
@told
def runs(
    file: Annotated[Path, typer.Argument(help="The configuration of a node.", metavar="NODE.toml")],
    clear: Annotated[list[str] | None, typer.Option(help="Clear this run; may be repeated.", metavar="RUN")] = None,
    clear_all: Annotated[bool, typer.Option("--clear-all", help="Clear all runs.")] = False,
) -> None:
    """What a node keeps of its runs, and how to delete it.

    A run that is cleared cannot go on, and nothing in it is answered again; what was spent of max_epsilon stays spent.
    """
    from datetime import datetime

    from fedmls.federation import NodeConfig
    from fedmls.federation.locks import exclusive
    from fedmls.federation.node.state import StateFolder

    folder = StateFolder(NodeConfig.read(file).state)
    folder.make()
    with exclusive(folder.path / "lock", wait=True):
        for run in folder.runs() if clear_all else clear or ():
            folder.clear(run)
            _say(f"{run} is cleared")
        for run in folder.runs():
            about = folder.file(run).stat()
            _say(f"{run:<30}{about.st_size / 1000:>12.1f} kB  {datetime.fromtimestamp(about.st_mtime):%Y-%m-%d %H:%M}")


@app.command()
@told
def federate(
    engine: Annotated[
        str | None,
        typer.Option(help="nvflare or flower; nvflare unless given.", autocompletion=_one_of("nvflare", "flower")),
    ] = None,
    nodes: Annotated[int | None, typer.Option(help="How many nodes; 3 unless given.")] = None,
    rounds: Annotated[int | None, typer.Option(help="How many rounds; 10 unless given.")] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(
            help="fedmlsb unless given; fedmls pairs its rounds, two in an exchange. fedmls list shows all; or "
            "module:Class, of a module that the nodes have.",
            autocompletion=_algorithms,
        ),
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
    loss: Annotated[
        str | None, typer.Option(help="hinge unless given; fedmls list shows all.", autocompletion=_losses)
    ] = None,
    secure: Annotated[bool, typer.Option("--secure", help="The server sees sums over nodes only.")] = False,
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
    by: Annotated[
        str | None,
        typer.Option(help="The cut: kmeans (unless given), iid, dirichlet, or a column.", autocompletion=_cuts),
    ] = None,
    parts: Annotated[
        Path | None, typer.Option(help="A folder of nodes made by fedmls split, in place of --data.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Results folder; results/federation-… unless given.")] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with the run in --out, or the last one: --rounds, --until may change."),
    ] = False,
) -> None:
    """A real federation on this machine, for a trial: server and nodes are processes of their own.

    Runs a job over NVFlare or Flower, with TLS and keys made for it, one line for each exchange.
    Compares the model with that of the simulation. Everything is taken down again.
    Ctrl-C keeps what was done: --resume goes on.
    """
    from fedmls.federation.trial import execute as federating
    from fedmls.federation.trial import prepare as trials

    changes = {"rounds": rounds, "until": until}
    options = {"batch": batch, "seed": seed, "loss": loss, "certificate": certificate, "secure": secure or None}
    if resume:
        rows = {"nodes": nodes, "data": data, "label": label, "ignore": ignore, "by": by, "parts": parts}
        fixed = options | rows | {"algorithm": algorithm, "set": set_, "job": job}
        for name in (name for name, value in fixed.items() if value):
            raise ValueError(f"with --resume the job is that of the run; leave out --{name}")
        trial = trials.reopen(out, engine, changes)
    else:
        wanted = trials.make_job(job, algorithm, set_ or (), options | changes)
        source = trials.Source(parts, data, label, by, tuple(ignore or ()), nodes)
        trial = trials.begin(out, engine or "nvflare", wanted, source, _typed())
    outcome = federating.run(trial, _say)
    _say(*federating.summary(outcome))
    _say("Files:", *(f"  {file}" for file in sorted(trial.folder.iterdir())))


def _say(*lines: str) -> None:
    for line in lines:
        typer.echo(line)


def _runs(spec: Any, folder: Path) -> str:
    def counted(count: int, name: str) -> str:
        return f"{count} {name}{'s' if count > 1 else ''}"

    curves, seeds = len(spec.curves), len(spec.seeds)
    most = "" if spec.config.target is None and spec.config.until is None else "at most "
    what = f"{counted(curves * seeds, 'run')} of {most}{counted(spec.config.rounds, 'round')}"
    return f"{what} ({counted(curves, 'curve')}, {counted(seeds, 'seed')}) into {folder}"


def _typed() -> str:
    """The command as it was given."""
    import shlex

    return shlex.join(["fedmls", *sys.argv[1:]])


def _print_table(summary: Any, title: str) -> None:
    from fedmls.results.layout import LABELS
    from fedmls.results.summary import cells

    shown = cells(summary)
    _print_cells(shown, title, names=sum(name in LABELS for name in shown[0]))


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
