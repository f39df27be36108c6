"""The commands that write files to begin with, from what data files hold: new, node."""

from pathlib import Path
from typing import Annotated

import typer

from fedmls.cli.app import app, reports_errors
from fedmls.cli.completion import decimals
from fedmls.cli.output import say, say_wrapped

LABEL = "The label column; the last one unless given."
IGNORE = "A column that is not used; may be repeated."
DECIMAL = "What the numbers in a CSV are written with, . or , (found out unless given)."


@app.command()
@reports_errors
def new(
    paths: Annotated[list[Path], typer.Argument(help="A CSV or Parquet file; a folder of them.", metavar="PATH...")],
    label: Annotated[str | None, typer.Option(help=LABEL)] = None,
    ignore: Annotated[list[str] | None, typer.Option(help=IGNORE)] = None,
    decimal: Annotated[str | None, typer.Option(help=DECIMAL, autocompletion=decimals)] = None,
    out: Annotated[
        Path | None, typer.Option(help="NAME.toml unless given; of a folder, the folder NAME-job.", metavar="PATH")
    ] = None,
) -> None:
    """A commented file to begin with, from the columns of your own data.

    Of a file: an experiment for fedmls run. Of a folder, or several files, one for each site: a job for
    fedmls federate, and a node for each file.
    """
    if len(paths) == 1 and not paths[0].is_dir():
        _new_experiment(paths[0], label, tuple(ignore or ()), decimal, out)
        return
    from fedmls.federation.trial.new import new_job

    folder = out or Path(f"{paths[0].resolve().name if len(paths) == 1 else 'sites'}-job")
    say_wrapped(*new_job(paths, folder, label, ignore or (), decimal))
    say("Run it with:", f"  fedmls federate --job {folder / 'job.toml'} --parts {folder / 'parts'}")


def _new_experiment(
    file: Path, label: str | None, ignore: tuple[str, ...], decimal: str | None, out: Path | None
) -> None:
    from fedmls.datasets.files import stem
    from fedmls.datasets.overview import look_at
    from fedmls.experiments.new import experiment_text
    from fedmls.files import relative_to

    found = look_at(file, label, ignore, decimal)
    written = out or Path(f"{stem(file)}.toml")
    text = experiment_text(relative_to(file, written.parent), str(written), found)
    _write_new(written, text)
    say_wrapped(f"{written}: {found.rows} rows, label {found.label!r}")
    say("Run it with:", f"  fedmls run {written}")


def _write_new(file: Path, text: str) -> None:
    if file.exists():
        raise ValueError(f"{file} is there already; name another file with --out")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


@app.command()
@reports_errors
def node(
    file: Annotated[Path, typer.Argument(help="The rows of a site: CSV, Parquet, svmlight or NPZ.", metavar="FILE")],
    label: Annotated[str | None, typer.Option(help=LABEL)] = None,
    ignore: Annotated[list[str] | None, typer.Option(help=IGNORE)] = None,
    decimal: Annotated[str | None, typer.Option(help=DECIMAL, autocompletion=decimals)] = None,
    name: Annotated[str | None, typer.Option(help="The name of the node; that of the file unless given.")] = None,
    out: Annotated[Path | None, typer.Option(help="The file to write; NAME.toml unless given.", metavar="FILE")] = None,
) -> None:
    """A node's configuration, for a federation between machines.

    Looks at the rows first, here at the site, and says what is in the way of using them.
    """
    from fedmls.datasets.tables import some
    from fedmls.federation.node.rows import refusal
    from fedmls.federation.node_config import NodeConfig
    from fedmls.federation.sites import write_own_node

    written, found = write_own_node(file, out, name=name, label=label, ignore=ignore or (), decimal=decimal)
    config = NodeConfig.read(written)
    told = "" if found is None else f", {found.rows} rows, label {found.label!r}"
    say_wrapped(f"{written}: node {config.name}{told}")
    if found is not None and found.gaps:
        gaps = some(f"{column!r} ({count})" for column, count in found.gaps.items())
        say_wrapped(f"gaps, which a job with impute fills: {gaps}")
    if found is not None:
        say_wrapped(*found.text_told(), *found.label_told())
    if why := refusal(config):
        say_wrapped(f"as it is, it would refuse: {why}")
