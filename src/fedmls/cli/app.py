"""The command ``fedmls`` without its commands: the page it starts with, and how errors and Ctrl-C are told."""

import functools
import os
import shutil
import sys
import textwrap
from collections.abc import Callable
from typing import Annotated, Any

import typer

from fedmls.cli.output import say

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

    say(f"fedmls {__version__}. {ABOUT}", "", "To begin with:")
    for command, about in FIRST.items():
        say(f"  {command}", f"      {about}")
    say("", "Commands:")
    commands = getattr(context.command, "commands", {})
    for name, command in commands.items():
        first, *more = textwrap.wrap(command.get_short_help_str(1000), max(40, columns() - 13))
        say(f"  {name:<11}{first}", *(f"{'':13}{line}" for line in more))
    say("", "fedmls COMMAND --help shows its options.")
    say("fedmls --install-completion lets the Tab key complete them.")


def columns() -> int:
    return min(110, shutil.get_terminal_size().columns)


def leave_at_once(code: int) -> None:
    """Leave without waiting, as Python would, for a solver that is still at work."""
    from fedmls.progress import abandoned

    if abandoned():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _in_columns(text: str) -> str:
    """The text as a terminal shows it without breaking words; elsewhere as it is."""
    if not sys.stderr.isatty():
        return text
    lines = (
        textwrap.wrap(line, columns(), break_long_words=False, break_on_hyphens=False) for line in text.split("\n")
    )
    return "\n".join("\n".join(line) for line in lines)


def reports_errors(command: Callable[..., None]) -> Callable[..., None]:
    """Errors are one line; Ctrl-C says what is kept."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except KeyboardInterrupt as stop:
            typer.echo(("\n" if sys.stderr.isatty() else "") + _in_columns(str(stop) or "stopped"), err=True)
            leave_at_once(130)
            raise typer.Exit(130) from None
        except BrokenPipeError:  # as in fedmls list | head -1
            raise
        except (ValueError, OSError) as error:
            typer.echo(_in_columns(f"error: {error}"), err=True)
            raise typer.Exit(2) from None

    return wrapped
