"""The names of the package, which are loaded when they are asked for."""

import ast
import pickle
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import fedmls
from fedmls import federation

HEAVY = (
    *("numpy", "numba", "scipy.sparse", "scipy.optimize", "pandas", "sklearn", "matplotlib"),
    *("pyarrow", "rich", "joblib", "clarabel"),
)


def loaded_by(code):
    """Return which of the heavy modules a new interpreter has loaded after this code."""
    code += f"\nimport sys; print(*(name for name in {HEAVY} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.processes
def test_importing_the_package_loads_nothing_heavy():
    assert loaded_by("import fedmls; dir(fedmls); fedmls.__version__") == []


@pytest.mark.processes
def test_the_command_line_loads_nothing_heavy_before_it_runs_a_command():
    assert loaded_by("import fedmls.cli") == []


@pytest.mark.processes
def test_making_an_algorithm_and_a_problem_loads_numpy_and_numba_only():
    code = "import fedmls; fedmls.FedMLS(); fedmls.Problem([[1.0], [2.0]], [1, -1], [0, 1], loss='hinge')"
    assert loaded_by(code) == ["numpy", "numba"]


@pytest.mark.parametrize("package", [fedmls, federation])
def test_all_public_names_are_there_and_listed(package):
    assert set(package.__all__) <= set(dir(package))
    for name in package.__all__:
        value = getattr(package, name)
        assert getattr(value, "__name__", name) in (name, f"fedmls.{name}")
    star = {}
    exec(f"from {package.__name__} import *", star)
    assert set(package.__all__) <= set(star)


@pytest.mark.parametrize("package", [fedmls, federation])
def test_a_type_checker_sees_the_names_where_they_are_loaded_from(package):
    """The imports under TYPE_CHECKING are all of __all__, and give the same objects."""
    tree = ast.parse(Path(package.__file__).read_text("utf-8"))
    block = next(part for part in tree.body if isinstance(part, ast.If) and ast.unparse(part.test) == "TYPE_CHECKING")
    seen = [(part.module, alias.name) for part in block.body for alias in part.names]
    assert sorted(name for _, name in seen) == sorted(package.__all__)
    for module, name in seen:
        assert getattr(import_module(module), name) is getattr(package, name)


@pytest.mark.processes
def test_modules_need_no_import_of_their_own():
    code = "import fedmls; fedmls.losses.get_loss('hinge'); fedmls.problem.Problem; fedmls.estimators"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'fedmls' has no attribute 'FedMSL'"):
        fedmls.FedMSL  # noqa: B018


def test_algorithms_are_pickled_by_name():
    algorithm = fedmls.FedMLS(lam0=2.0)
    assert pickle.loads(pickle.dumps(algorithm)) == algorithm
    assert pickle.loads(pickle.dumps(fedmls.simulate)) is fedmls.simulate
