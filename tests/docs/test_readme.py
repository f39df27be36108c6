"""The code in the documents runs as it stands and prints what they say; commands exist; links lead somewhere."""

import re
import shlex
import sys
import tomllib
import types
from pathlib import Path

import click
import numpy as np
import pytest
import typer

from fedmls.cli import app

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / "README.md", ROOT / "CONTRIBUTING.md"),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "howto").glob("*.md")),
]
FENCED = re.compile(r"^```([\w{}-]*)\n(.*?)^```", re.M | re.S)
NUMBER = re.compile(r"-?\d[\d,]*\.?\d*(?:e-?\d+)?")


def text_of(page):
    return page.read_text(encoding="utf-8")


def blocks(page, *kinds):
    return [(kind, block) for kind, block in FENCED.findall(text_of(page)) if kind in kinds]


def with_blocks(*kinds):
    return [pytest.param(page, id=page.stem) for page in PAGES if blocks(page, *kinds)]


@pytest.fixture
def module():
    """Where the code of a page lives: a module, for NamedTuples and dataclasses look theirs up."""
    made = types.ModuleType("page_of_the_documentation")
    sys.modules[made.__name__] = made
    yield made.__dict__
    del sys.modules[made.__name__]


@pytest.mark.parametrize("page", with_blocks("python"))
def test_code_runs(page, module, capsys):
    """The blocks of a page run one after the other; a block of text after one is what it prints."""
    printed = None
    for i, (kind, block) in enumerate(blocks(page, "python", "text"), start=1):
        if kind == "python":
            exec(compile(block, f"{page.name}, block {i}", "exec"), module)
            printed = capsys.readouterr().out
            assert printed.strip(), f"block {i} prints nothing"
        elif printed is not None:
            assert_alike(printed, block)


def assert_alike(printed, shown):
    """The same words in the same order, and numbers within 5%, as other machines round otherwise."""
    assert NUMBER.sub("#", printed).split() == NUMBER.sub("#", shown).split()
    numbers = [[float(number.replace(",", "")) for number in NUMBER.findall(text)] for text in (printed, shown)]
    np.testing.assert_allclose(*numbers, rtol=0.05)


@pytest.mark.parametrize("page", with_blocks("py"))
def test_files_of_python_that_need_more_than_a_page_compile(page):
    for i, (_, block) in enumerate(blocks(page, "py"), start=1):
        compile(block, f"{page.name}, file {i}", "exec")


@pytest.mark.parametrize("page", with_blocks("toml"))
def test_toml_can_be_read(page):
    for _, block in blocks(page, "toml"):
        assert tomllib.loads(block)


def shell_lines(page):
    """What a page tells to type: indented, in a block for a shell, or within a sentence."""
    text = text_of(page)
    shells = "\n".join(block for _, block in blocks(page, "console", "sh", "bash"))
    plain = FENCED.sub("", text)
    indented = "\n".join(line.strip() for line in plain.splitlines() if line.startswith("    "))
    joined = re.sub(r"\\\n\s*", " ", f"{shells}\n{indented}")
    spoken = re.findall(r"`(fedmls [^`]*)`", re.sub(r"\s+", " ", plain))
    return [line.removeprefix("$ ").strip() for line in joined.splitlines()] + spoken


def fedmls_commands(page):
    for line in shell_lines(page):
        first = re.split(r"\s+(?:>|\||&&)\s+", line, maxsplit=1)[0]
        first = re.sub(r"[][…]|\.\.\.", " ", first)  # the brackets and dots of "[--out DIR]..."
        if re.match(r"fedmls( |$)", first):
            name, *rest = [*shlex.split(first, comments=True)[1:], ""]
            yield name, ["1" if re.fullmatch("[A-Z]+", word) else word for word in rest[:-1]]  # N in "[--jobs N]"


COMMANDS = typer.main.get_command(app).commands


@pytest.mark.parametrize("page", [page for page in PAGES if list(fedmls_commands(page))], ids=lambda page: page.stem)
def test_commands_and_options_exist(page):
    for name, rest in fedmls_commands(page):
        if not name or name.isupper() or name.startswith("-"):  # fedmls COMMAND --help
            continue
        assert name in COMMANDS, f"fedmls {name}"
        try:
            COMMANDS[name].make_context(name, rest)
        except click.MissingParameter:
            pass  # a sentence may leave out what it is not about
        except click.exceptions.Exit:
            pass  # --help
        except click.UsageError as error:
            pytest.fail(f"fedmls {name} {shlex.join(rest)}: {error.format_message()}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_to_files(page):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text_of(page)):
        assert (page.parent / target).exists(), target
