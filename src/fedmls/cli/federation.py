"""The commands of federations: split, key, peers, runs, federate."""

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from fedmls.cli.app import app, reports_errors
from fedmls.cli.completion import algorithms, cuts, decimals, losses, one_of_names
from fedmls.cli.following import Track, Watch, tracker, watched
from fedmls.cli.new import DECIMAL, IGNORE, LABEL
from fedmls.cli.output import model_told, report_command, say, say_wrapped, typed


@app.command()
@reports_errors
def split(
    file: Annotated[Path, typer.Argument(help="CSV, Parquet, svmlight or NPZ.", metavar="FILE")],
    out: Annotated[Path, typer.Option(help="The folder for the parts; it must be empty.")],
    by: Annotated[
        str,
        typer.Option(help="kmeans, iid, dirichlet, or a column whose values are the clients.", autocompletion=cuts),
    ] = "kmeans",
    clients: Annotated[int, typer.Option(help="How many parts; a column has its own.")] = 10,
    label: Annotated[str | None, typer.Option(help=LABEL)] = None,
    ignore: Annotated[list[str] | None, typer.Option(help=IGNORE)] = None,
    decimal: Annotated[str | None, typer.Option(help=DECIMAL, autocompletion=decimals)] = None,
    alpha: Annotated[float, typer.Option(help="Of dirichlet: the smaller, the more unlike the clients.")] = 0.5,
    seed: Annotated[int, typer.Option(help="Of kmeans, iid and dirichlet.")] = 0,
) -> None:
    """Cut a file of rows into the parts of a federation, for a trial.

    FILE is CSV, Parquet, svmlight or NPZ. Each part is a node's data and its configuration.
    fedmls federate --parts runs them.
    """
    from fedmls.datasets.files import kind_of
    from fedmls.datasets.overview import FRAMES, look_at
    from fedmls.federation import NodeConfig
    from fedmls.federation.site_files import split as cut

    ignored = ignore or ()
    written = cut(
        file, out, by=by, clients=clients, label=label, ignore=ignored, alpha=alpha, seed=seed, decimal=decimal
    )
    configs = [NodeConfig.read(config) for config in written]
    say(f"{len(written)} nodes in {out}, label {configs[0].label!r}:")
    for (file_written, part), config in zip(written.items(), configs, strict=True):
        few = f"  too few: it answers for at least {config.min_rows} (min_rows)" if part.rows < config.min_rows else ""
        value = "" if part.value is None else f"  {by} = {part.value}"
        say(f"  {file_written.name:<14}{part.rows:>8} rows{value}{few}")
    if kind_of(file) in FRAMES:
        say_wrapped(*look_at(file, configs[0].label, configs[0].ignore, decimal).text_told())


@app.command()
@reports_errors
def key(
    file: Annotated[Path, typer.Argument(help="The configuration of a node.", metavar="NODE.toml")],
) -> None:
    """The public key of a node, for the peers of others in secure runs; its key is made if there is none."""
    from fedmls.federation import NodeConfig
    from fedmls.federation.secure_sums import as_text, private_key, public_key

    say(as_text(public_key(private_key(NodeConfig.read(file).key_file))))


@app.command()
@reports_errors
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
        say(f"{key}  {sums.fingerprint(public)}" + (f"  {config.name} itself" if public == own else ""))
    wrong = sums.check_peers(own, config.peers, keys or ())
    for sentence in wrong:
        typer.echo(f"{config.name}: {sentence}", err=True)
    if wrong:
        raise typer.Exit(1)


@app.command()
@reports_errors
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
            say(f"{run} is cleared")
        for run in folder.runs():
            about = folder.file(run).stat()
            say(f"{run:<30}{about.st_size / 1000:>12.1f} kB  {datetime.fromtimestamp(about.st_mtime):%Y-%m-%d %H:%M}")


@app.command()
@reports_errors
def federate(
    engine: Annotated[
        str | None,
        typer.Option(help="nvflare or flower; nvflare unless given.", autocompletion=one_of_names("nvflare", "flower")),
    ] = None,
    nodes: Annotated[int | None, typer.Option(help="How many nodes; 3 unless given.")] = None,
    rounds: Annotated[int | None, typer.Option(help="How many rounds; 10 unless given.")] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(
            help="fedmlsb unless given; fedmls pairs its rounds, two in an exchange. fedmls list shows all; or "
            "module:Class, of a module that the nodes have.",
            autocompletion=algorithms,
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
        str | None, typer.Option(help="hinge unless given; fedmls list shows all.", autocompletion=losses)
    ] = None,
    loss_parameter: Annotated[
        float | None, typer.Option(help="q of pinball, ε of epsilon_insensitive, δ of huber.")
    ] = None,
    categorical: Annotated[
        str | None,
        typer.Option(
            help="onehot: a column of text becomes a 0/1 column for each of its levels; refuse unless given.",
            autocompletion=one_of_names("onehot", "refuse"),
        ),
    ] = None,
    holdout: Annotated[
        float | None, typer.Option(help="Share of each node's rows that never train, for scores of the model.")
    ] = None,
    standardise: Annotated[
        bool, typer.Option("--standardise", help="Columns get mean 0 and deviation 1, over all nodes, in training.")
    ] = False,
    secure: Annotated[bool, typer.Option("--secure", help="The server sees sums over nodes only.")] = False,
    certificate: Annotated[
        float | None, typer.Option(help="Prove the gap, for a model within this distance of 0.", metavar="RADIUS")
    ] = None,
    until: Annotated[float | None, typer.Option(help="Stop when the gap is proved to be at most this.")] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Rows to cut into nodes: CSV, Parquet, svmlight or NPZ; the paper's unless given."),
    ] = None,
    label: Annotated[str | None, typer.Option(help=LABEL)] = None,
    ignore: Annotated[list[str] | None, typer.Option(help=IGNORE)] = None,
    decimal: Annotated[str | None, typer.Option(help=DECIMAL, autocompletion=decimals)] = None,
    by: Annotated[
        str | None,
        typer.Option(help="The cut: kmeans (unless given), iid, dirichlet, or a column.", autocompletion=cuts),
    ] = None,
    parts: Annotated[
        list[Path] | None,
        typer.Option(
            help="A file of rows (CSV, Parquet) for each site, or a folder of them; or a folder of nodes made by "
            "fedmls split or new. May be repeated.",
            metavar="PATH",
        ),
    ] = None,
    more: Annotated[
        list[Path] | None, typer.Argument(help="More of --parts, as in --parts rows/*.csv", metavar="[PATH]...")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Results folder; results/federation-… unless given.")] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with the run in --out, or the last one: --rounds, --until may change."),
    ] = False,
    example: Annotated[
        bool, typer.Option("--example", help="Print a job's file to start from, for --job; run nothing.")
    ] = False,
    watch: Watch = False,
    track: Track = None,
) -> None:
    """A real federation on this machine, for a trial: server and nodes are processes of their own.

    Runs a job over NVFlare or Flower, with TLS and keys made for it, one line for each exchange.
    Compares the model with that of the simulation. Everything is taken down again.
    Ctrl-C keeps what was done: --resume goes on.
    """
    from fedmls.federation.trial import execute as federating
    from fedmls.federation.trial import prepare as trials

    changes = {"rounds": rounds, "until": until}
    if example:
        typer.echo(trials.example(), nl=False)
        return
    options: dict[str, object] = {"holdout": holdout}
    options |= {"batch": batch, "seed": seed, "loss": loss, "certificate": certificate, "secure": secure or None}
    options |= {"loss_parameter": loss_parameter, "categorical": categorical, "standardise": standardise or None}
    paths = [*(parts or ()), *(more or ())] or None
    if resume:
        rows = {"nodes": nodes, "data": data, "label": label, "ignore": ignore, "by": by, "parts": paths}
        rows |= {"decimal": decimal}
        fixed = options | rows | {"algorithm": algorithm, "set": set_, "job": job}
        for name in (name.replace("_", "-") for name, value in fixed.items() if value):
            raise ValueError(f"with --resume the job is that of the run; leave out --{name}")
        trial = trials.reopen(out, engine, changes)
    else:
        wanted = trials.make_job(job, algorithm, set_ or (), options | changes)
        source = trials.Source(paths, data, label, by, tuple(ignore or ()), nodes, decimal)
        trial = trials.begin(out, engine or "nvflare", wanted, source, typed())
    say_wrapped(*trial.notes)
    with ExitStack() as stack:
        stack.enter_context(watched(trial.folder, watch))
        for one in tracker(track, trial.folder):
            stack.enter_context(one)
        outcome = federating.run(trial, say)
    say_wrapped(*federating.summary(outcome))
    say(*model_told(trial.folder))
    say("Files:", *(f"  {file}" for file in sorted(trial.folder.iterdir())), report_command(trial.folder))
