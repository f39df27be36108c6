"""The commands of experiments: reproduce, run, compare, report, watch, figure, plan."""

from pathlib import Path
from typing import Annotated

import typer

from fedmls.cli.app import app, reports_errors
from fedmls.cli.completion import methods, one_of_names, problems
from fedmls.cli.following import Track, Watch, tracker, watched
from fedmls.cli.output import (
    model_told,
    print_cells,
    print_table,
    report_command,
    runs_told,
    say,
    say_entries,
    say_wrapped,
    typed,
)


@app.command()
@reports_errors
def reproduce(
    rounds: Annotated[int | None, typer.Option(help="Rounds of every run; 1000 unless given.")] = None,
    seeds: Annotated[int, typer.Option(help="How many seeds: each has its own k-means clients and batches.")] = 20,
    full: Annotated[
        bool, typer.Option("--full", help="The released code's 10,000 rounds (hours; minutes on a GPU).")
    ] = False,
    holdout: Annotated[
        float, typer.Option(help="Keep this share of the rows for testing, anew for each seed (released code: 0.2).")
    ] = 0.0,
    out: Annotated[Path | None, typer.Option(help="Results folder; results/paper-… unless given.")] = None,
    jobs: Annotated[int, typer.Option(help="Runs at a time; -1 is one per core.")] = -1,
    device: Annotated[
        str,
        typer.Option(
            help="Where clients compute: cpu, or cuda, an NVIDIA GPU.", autocompletion=one_of_names("cpu", "cuda")
        ),
    ] = "cpu",
    watch: Watch = False,
    track: Track = None,
) -> None:
    """The experiment of the FedMLS paper: four methods on an SVM split over ten clients.

    Finished runs are kept in the results folder: after Ctrl-C, start again to go on.
    """
    from fedmls.checks import check_jobs, whole
    from fedmls.experiments import paper
    from fedmls.experiments.run import Experiment
    from fedmls.experiments.spec import check_holdout
    from fedmls.files import check_folder

    check_jobs(jobs)

    if full and rounds is not None:
        raise ValueError("--full is 10,000 rounds; leave out --rounds or --full")
    rounds = whole("rounds", paper.FULL if full else 1000 if rounds is None else rounds)
    spec = paper.spec(rounds, whole("seeds", seeds), check_holdout(holdout, "holdout"))
    name = f"paper-{rounds}-rounds" + (f"-holdout-{holdout:g}" if holdout else "")
    folder = check_folder(out or Path("results") / name)
    say_wrapped(runs_told(spec, folder))
    followers = tracker(track, folder)
    with watched(folder, watch):
        done = Experiment(spec).run(folder, command=typed(), jobs=jobs, device=device, followers=followers)
    print_table(done.summary, f"Relative gap to the certified optimum after {rounds} rounds, the median over seeds")
    say_wrapped(*paper.sentences(done))
    say(*model_told(folder))
    say("Files:", *(f"  {file}" for file in sorted(folder.iterdir()) if file.is_file()), report_command(folder))


@app.command()
@reports_errors
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
    device: Annotated[
        str,
        typer.Option(
            help="Where clients compute: cpu, or cuda, an NVIDIA GPU.", autocompletion=one_of_names("cpu", "cuda")
        ),
    ] = "cpu",
    dask: Annotated[
        str | None, typer.Option(help="Send the runs to the Dask scheduler at this address.", metavar="ADDRESS")
    ] = None,
    watch: Watch = False,
    track: Track = None,
    example: Annotated[
        bool, typer.Option("--example", help="Print a file to start from, or FILE; run nothing.")
    ] = False,
) -> None:
    """An experiment of your own: data, clients, algorithms with grids of parameters, seeds.

    fedmls run --example > my.toml writes a commented file; fedmls run my.toml runs it. Finished runs are kept in the
    results folder: after Ctrl-C, or with some lines changed, start again and only what is missing is run.
    """
    from fedmls.checks import check_jobs
    from fedmls.experiments import spec as specs
    from fedmls.experiments.run import Experiment
    from fedmls.files import check_folder
    from fedmls.results.summary import best

    if example:
        typer.echo(specs.text(file or "example"), nl=False)
        return
    if file is None:
        raise ValueError("name a file, e.g. my.toml; fedmls run --example > my.toml writes one to start from")
    check_jobs(jobs)
    spec = specs.read(file, set_ or ())
    folder = check_folder(out or spec.out or Path("results") / Path(file).stem)
    experiment = Experiment(spec)
    say_wrapped(*filter(None, [spec.title]), *experiment.sentences(), runs_told(spec, folder))
    followers = tracker(track, folder)
    with watched(folder, watch):
        done = experiment.run(folder, command=typed(), jobs=jobs, dask=dask, device=device, followers=followers)
    print_table(best(done.summary, spec.config.target), "Best of each method, the median over seeds")
    say(*model_told(folder))
    say("Files:", *(f"  {file}" for file in sorted(folder.iterdir()) if file.is_file()), report_command(folder))


@app.command()
@reports_errors
def compare(
    problems: Annotated[
        list[str] | None,
        typer.Argument(help="Problems of the suite; the first unless given.", autocompletion=problems),
    ] = None,
    suite: Annotated[bool, typer.Option("--suite", help="All problems of the suite.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="Show the problems and the methods, run nothing.")] = False,
    algorithms: Annotated[
        str | None,
        typer.Option(
            help="Only these methods, with commas between: those of --list, module:Class, path/to/file.py:Class.",
            autocompletion=methods,
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
            autocompletion=one_of_names("exchanges", "rounds", "passes", "bytes"),
        ),
    ] = "exchanges",
    out: Annotated[Path, typer.Option(help="Results folder.")] = Path("results/compare"),
    markdown: Annotated[Path | None, typer.Option(help="Write the page here too, and the figure beside it.")] = None,
    jobs: Annotated[int, typer.Option(help="Runs at a time; -1 is one per core.")] = -1,
    device: Annotated[
        str,
        typer.Option(
            help="Where clients compute: cpu, or cuda, an NVIDIA GPU.", autocompletion=one_of_names("cpu", "cuda")
        ),
    ] = "cpu",
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
    from fedmls.checks import check_jobs, one_of
    from fedmls.files import check_folder

    if list_:
        say("Problems:")
        say_entries({name: entry.about for name, entry in SUITE.items()})
        say("Methods:")
        say_entries({name: f"{method.title}: {method.tuned}" for name, method in METHODS.items()})
        return
    check_jobs(jobs)
    check_folder(out)
    if suite and problems:
        raise ValueError("--suite is all problems; leave out --suite or the names")
    chosen = entries(list(SUITE) if suite else problems or list(SUITE)[:1])
    one_of("profile-by", profile_by, comparing.COSTS)
    names = list(METHODS) if algorithms is None else [name.strip() for name in algorithms.split(",")]
    names += [] if also is None else [name.strip() for name in also.split(",")]
    settings = comparing.Settings(rounds, seeds, grid, batch)
    done = comparing.compare(chosen, out, settings, names, jobs=jobs, tell=say, device=device)
    tables.write(done, profile_by, markdown)
    if len(chosen) <= 3:
        for name, target in ((name, target) for name in chosen for target in comparing.TARGETS):
            print_cells(
                tables.costs_of(done, name, target), f"{name} to a relative gap of {target:g}", 1, ["passes", "MB"]
            )
        say("* the fewest of its group; parameters: those of the best grid point", "")
    else:
        print_cells(tables.scores(done), "Problems on which a method is first or within 10% in exchanges", 1)
    say_wrapped(*tables.sentences(done))
    say("Files:", *(f"  {file}" for file in sorted(out.iterdir()) if file.is_file()))


@app.command()
@reports_errors
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
    say(f"{file} ({file.stat().st_size / 1e6:.1f} MB)")
    if open_:
        import webbrowser

        webbrowser.open(file.resolve().as_uri())


@app.command()
@reports_errors
def watch(
    folder: Annotated[Path, typer.Argument(help="A results folder.", metavar="DIR")],
    port: Annotated[
        int, typer.Option(help="The port of the page; any that is free unless given.", min=0, max=65535)
    ] = 0,
    open_: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> None:
    """A page that follows a run, a sweep or a federation as it goes: curves, exchanges, bytes, time left.

    DIR is the results folder of fedmls run, reproduce or federate, running or not. Only this machine can see the page.
    Ctrl-C ends it, and not what it follows.
    """
    from threading import Event

    from fedmls.results.read import is_results
    from fedmls.watch import Server

    if not folder.is_dir():
        what = "it is no folder" if folder.exists() else "it is not there yet"
        raise ValueError(f"{folder}: {what}; give the results folder of a run, which has one once its f* is known")
    if not is_results(folder):
        raise ValueError(f"{folder}: it is no results folder; give that of fedmls run, reproduce or federate")
    with Server(folder, port) as server:
        say(f"{folder} is shown at {server.url} (Ctrl-C to end)")
        if open_:
            import webbrowser

            webbrowser.open(server.url)
        Event().wait()


@app.command()
@reports_errors
def figure(
    folder: Annotated[Path, typer.Argument(help="A results folder.", metavar="DIR")],
    x: Annotated[
        str,
        typer.Option(
            help="Against what: round, exchanges, bytes, local_steps or seconds.",
            autocompletion=one_of_names("round", "exchanges", "bytes", "local_steps", "seconds"),
        ),
    ] = "round",
    y: Annotated[
        str | None, typer.Option(help="What: relative_gap, certified_gap, objective or a metric; the first there is.")
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="Only these methods, as the results name them, with commas between.")
    ] = None,
    width: Annotated[float, typer.Option(help="Inches; a column of a paper is 3.5.")] = 3.5,
    out: Annotated[
        Path | None, typer.Option(help="The file, of which PDF and PNG are made; figure-X in DIR unless given.")
    ] = None,
) -> None:
    """A figure for a paper: the best parameter of each method, against rounds, exchanges, bytes or time.

    Lines are medians over seeds, bands go from the smallest to the largest.
    """
    from fedmls.report.figure import draw

    chosen = [] if methods is None else [name.strip() for name in methods.split(",")]
    say(*map(str, draw(folder, x=x, y=y, methods=chosen, width=width, out=out)))


@app.command()
@reports_errors
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
    print_cells(theory.side_by_side(plans), theory.describe(plans[0]), names=1)
