"""The start page, and the Tab key in a real bash."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import fedmls
from fedmls.benchmark.methods import METHODS
from fedmls.benchmark.suite import SUITE

with warnings.catch_warnings():  # Typer imports what Click is going to drop
    warnings.simplefilter("ignore", DeprecationWarning)
    from typer.main import get_command

    from fedmls import cli
    from fedmls.cli import completion

BIN = Path(sys.executable).parent
BASH = shutil.which("bash")
needs_bash = pytest.mark.skipif(BASH is None or not (BIN / "fedmls").exists(), reason="needs bash and fedmls")


def bash(script, home, *arguments):
    env = os.environ | {"HOME": str(home), "PATH": os.pathsep.join([str(BIN), os.environ["PATH"]])}
    done = subprocess.run(
        [BASH, "--norc", "-c", script, "bash", *arguments],
        capture_output=True,
        text=True,
        env=env,
        cwd=home,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A home folder in which the completion has been installed."""
    folder = tmp_path_factory.mktemp("home")
    bash("fedmls --install-completion && true", folder)  # "and": bash stays, to be recognised
    return folder


def pressed(home, *words):
    """What Tab offers after these words, the last of which is incomplete, in a bash that has read its .bashrc."""
    script = """
    source "$HOME/.bashrc"
    COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 ))
    $(complete -p fedmls | sed 's/.*-F \\([^ ]*\\) .*/\\1/') fedmls
    printf '%s\\n' "${COMPREPLY[@]}"
    """
    return bash(script, home, "fedmls", *words).split()


@pytest.mark.processes
@needs_bash
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["repr"], ["reproduce"]),
        (["federate", "--algorithm", "fedm"], sorted(name for name in fedmls.ALGORITHMS if name.startswith("fedm"))),
        (["federate", "--engine", ""], ["nvflare", "flower"]),
        (["compare", "paper"], ["paper-std", "paper-raw"]),
        (["compare", "paper-std", "chain"], ["chain-8", "chain-20"]),
        (["compare", "--algorithms", "fedavg,scaff"], ["fedavg,scaffold", "fedavg,scaffnew"]),
        (["split", "rows.csv", "--by", "d"], ["dirichlet"]),
        (["doctor", "--j"], ["--json"]),
        (["compare", "--algorithms", "nosuch"], []),
    ],
)
def test_the_tab_key(words, offered, home):
    assert pressed(home, *words) == offered


@pytest.mark.processes
@needs_bash
def test_the_script_that_is_shown_is_the_one_that_is_installed(home):
    shown = bash("fedmls --show-completion && true", home)
    assert shown.strip() == (home / ".bash_completions" / "fedmls.sh").read_text().strip()


@pytest.mark.processes
@pytest.mark.parametrize(
    "words", ["repr", "federate --algorithm f", "federate --loss h", "compare pa", "compare --algorithms fedavg,"]
)
def test_the_tab_key_loads_nothing_heavy(words):
    """A Tab is answered within a fifth of a second only without these."""
    heavy = ("numpy", "numba", "scipy", "pandas", "sklearn", "matplotlib", "pyarrow", "joblib", "rich", "msgpack")
    code = f"""
import atexit, sys
sys.argv = ["fedmls"]
atexit.register(lambda: print("loaded", *(m for m in {heavy} if m in sys.modules)))
from fedmls.cli import main
main()
"""
    typed = f"fedmls {words}"
    env = os.environ | {
        "_FEDMLS_COMPLETE": "complete_bash",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(typed.split()) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False, timeout=60
    )
    *offered, loaded = done.stdout.splitlines()
    assert offered
    assert loaded == "loaded"


def test_what_is_offered_is_what_there_is():
    assert completion.methods("") == list(METHODS)
    assert completion.problems("") == list(SUITE)
    assert sorted(completion.algorithms("")) == sorted(fedmls.algorithms.names())
    assert completion.losses("") == list(fedmls.LOSSES)


# the start page


def start_page(columns):
    env = os.environ | {"COLUMNS": str(columns)}
    return subprocess.run(
        [sys.executable, "-m", "fedmls.cli"], capture_output=True, text=True, env=env, timeout=60, check=True
    )


@pytest.mark.processes
@pytest.mark.parametrize("columns", [80, 140])
def test_fedmls_alone_says_what_to_do_first(columns):
    done = start_page(columns)
    assert done.stderr == ""
    assert done.stdout.startswith(f"fedmls {fedmls.__version__}. Federated learning of convex models")
    lines = done.stdout.splitlines()
    listed = [found[1] for line in lines if (found := re.match(r"  (\w+) {2,}\S", line))]
    assert listed == list(get_command(cli.app).commands)
    assert all(f"  {command}" in lines for command in cli.FIRST)
    commands = lines[lines.index("Commands:") :]
    assert max(len(line) for line in commands[:-1]) <= columns


def test_what_the_start_page_says_can_be_typed():
    """Every command of it exists, with these options."""
    group = get_command(cli.app)
    for line in cli.FIRST:
        _, name, *options = shlex.split(line.split(" > ")[0])
        command = group.commands[name]
        with command.make_context(name, options) as context:
            assert context.params


@pytest.mark.parametrize("name", sorted(get_command(cli.app).commands))
def test_every_command_and_option_has_a_help_text(name):
    command = get_command(cli.app).commands[name]
    assert command.help
    assert command.get_short_help_str(1000).endswith(".")
    for parameter in command.params:
        if parameter.param_type_name == "option":
            assert parameter.help, f"{name} {parameter.opts}"
