"""What the Tab key offers, within a fifth of a second: nothing is imported, names are read from the source."""

from collections.abc import Callable
from pathlib import Path

Completion = Callable[[str], list[str]]
PACKAGE = Path(__file__).parents[1]


def one_of_names(*names: str) -> Completion:
    """What the Tab key offers: those that begin with what is there."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


def keys_of(file: str, registry: str) -> list[str]:
    """Return the keys of a dictionary that a file of this package writes out, without running the file."""
    import ast

    for statement in ast.parse((PACKAGE / file).read_text("utf-8")).body:
        if isinstance(statement, ast.AnnAssign) and ast.unparse(statement.target) == registry:
            assert isinstance(statement.value, ast.Dict)
            return [ast.literal_eval(key) for key in statement.value.keys if key is not None]
    raise LookupError(f"{file} has no {registry}")


def algorithms(incomplete: str) -> list[str]:
    """Complete the name of an algorithm: each has a file of its name, or is an entry point of an installed package."""
    from importlib.metadata import entry_points

    own = sorted(file.stem for file in (PACKAGE / "algorithms").glob("[!_]*.py"))
    return one_of_names(*own, *entry_points(group="fedmls.algorithms").names)(incomplete)


def losses(incomplete: str) -> list[str]:
    return one_of_names(*keys_of("losses.py", "LOSSES"))(incomplete)


def problems(incomplete: str) -> list[str]:
    return one_of_names(*keys_of("benchmark/suite.py", "SUITE"))(incomplete)


def methods(incomplete: str) -> list[str]:
    """Complete the last of several names with commas between."""
    before, comma, last = incomplete.rpartition(",")
    return [before + comma + name for name in one_of_names(*keys_of("benchmark/methods.py", "METHODS"))(last)]


cuts = one_of_names("kmeans", "iid", "dirichlet")
decimals = one_of_names(".", ",")
