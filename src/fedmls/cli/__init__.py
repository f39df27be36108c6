"""The command line: parses, calls, prints.

app.py          the command itself;  completion.py: the Tab key;  output.py: lines and tables
experiments.py  reproduce, run, compare, report, watch, figure, plan
models.py       predict
about.py        doctor, list
new.py          new, node
federation.py   split, key, peers, runs, federate
following.py    the options --watch and --track
"""

import sys
from io import TextIOWrapper

from fedmls.cli import experiments  # isort: skip (the order of the commands is that of these lines)
from fedmls.cli import models  # isort: skip
from fedmls.cli import about  # isort: skip
from fedmls.cli import new  # isort: skip
from fedmls.cli import federation  # isort: skip
from fedmls.cli.app import FIRST, app
from fedmls.cli.output import REPLACED

__all__ = ["FIRST", "about", "app", "experiments", "federation", "main", "models", "new"]


def main() -> None:
    """Run the command; letters that a terminal or a file cannot take are replaced."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=REPLACED)
    app()
