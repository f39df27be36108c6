"""What commands have for those who follow them: --watch, --track."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmls.cli.completion import one_of_names
from fedmls.cli.output import say

if TYPE_CHECKING:
    from fedmls.tracking import Follower

TRACKERS = ("tensorboard", "mlflow")
Watch = Annotated[bool, typer.Option("--watch", help="Serve a page that follows it, to this machine only.")]
Track = Annotated[
    str | None,
    typer.Option(
        help="Log it as it goes: tensorboard, into the folder tensorboard of the results; or mlflow, to where "
        "MLFLOW_TRACKING_URI says.",
        autocompletion=one_of_names(*TRACKERS),
    ),
]


@contextmanager
def watched(folder: Path, wanted: bool) -> Iterator[None]:
    """Serve the page of the folder while something is done, if that is wanted."""
    if not wanted:
        yield
        return
    from fedmls.watch import Server

    with Server(folder) as server:
        say(f"to watch it: {server.url}")
        try:
            yield
        finally:
            server.say_the_end()


def tracker(name: str | None, folder: Path) -> "list[Follower]":
    """Return what logs the runs of the folder as they go, if that is wanted; what it needs is found out now."""
    if name is None:
        return []
    from fedmls import tracking
    from fedmls.checks import one_of

    one_of("track", name, TRACKERS)

    def make() -> "tracking.Tracker":
        if name == "mlflow":
            return tracking.MLflow(experiment=folder.resolve().name)
        return tracking.TensorBoard(folder / "tensorboard")

    make()  # what is missing for it shows now
    return [tracking.Follower(folder, make)]
