"""The commands that tell about the package: doctor, list."""

from pathlib import Path
from textwrap import wrap
from typing import Annotated

import typer

from fedmls.cli.app import app, reports_errors
from fedmls.cli.completion import algorithms
from fedmls.cli.output import say, say_entries, say_wrapped


@app.command()
@reports_errors
def doctor(
    json_: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    results: Annotated[Path, typer.Option(help="Where results are going to be.")] = Path("results"),
    compile_: Annotated[
        bool, typer.Option("--compile", help="Compile all loops first, once and for all: a minute or two.")
    ] = False,
) -> None:
    """What is installed and whether it works, to be pasted into a bug report.

    Runs the compiled loop and compares it with NumPy. The exit code is 1 if something is broken.
    Names no user and no machine.
    """
    import json

    from fedmls import doctor as doctors
    from fedmls.progress import waiting

    if compile_:
        waiting("compiling all loops", doctors.compile_ahead)
    found = doctors.examine(results)
    if json_:
        say(json.dumps(found, indent=2))
    else:
        say_wrapped(*doctors.lines(found))
    if found["broken"]:
        raise typer.Exit(1)


@app.command("list")
@reports_errors
def list_(
    name: Annotated[
        str | None, typer.Argument(help="An algorithm: what it is, and its parameters.", autocompletion=algorithms)
    ] = None,
) -> None:
    """Algorithms, losses, data sets and experiments that are there; or one algorithm with its parameters."""
    if name is not None:
        say(*_described(name))
        return
    from fedmls import LOSSES
    from fedmls.algorithms import names
    from fedmls.datasets import DATASETS
    from fedmls.experiments.spec import shipped

    for title, entries in (("Algorithms", names()), ("Losses", LOSSES), ("Experiments for fedmls run", shipped())):
        say_wrapped(f"{title}: {', '.join(entries)}")
    say("Data sets:")
    say_entries({name: dataset.about for name, dataset in DATASETS.items()})


def _described(name: str) -> list[str]:
    """Return an algorithm in lines: its name, what its class says, its parameters with their defaults."""
    from dataclasses import MISSING, fields
    from inspect import getdoc

    from fedmls.algorithms import find

    kind = find(name)
    of = [(field.name, field.default) for field in fields(kind)]  # type: ignore[arg-type]
    shown = [f"  {name:14}{'must be given' if default is MISSING else repr(default)}" for name, default in of]
    said = [line.replace("``", "") for line in (getdoc(kind) or "").splitlines()]
    lines = [part for line in said for part in (wrap(line, 80) or [""])]
    return [
        f"{kind.title}, {kind.address()} in files and commands",
        "",
        *lines,
        "",
        *(["Parameters:"] * bool(shown)),
        *shown,
    ]
