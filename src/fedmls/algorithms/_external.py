"""Algorithms from outside of the package: of a file, of a module, or of a package that offers them as entry points.

A package offers one by an entry point of the group ``fedmls.algorithms``::

    [project.entry-points."fedmls.algorithms"]
    fedexp = "my_package.fedexp:FedExP"
"""

import copyreg
import sys
from collections.abc import Mapping
from functools import cache, reduce
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from fedmls.hyperparameters import to_dict
from fedmls.types import DERIVE, Algorithm

GROUP = "fedmls.algorithms"


@cache
def offered() -> Mapping[str, EntryPoint]:
    """Return the entry points of installed packages, by name."""
    return {point.name: point for point in entry_points(group=GROUP)}


def is_file(address: str) -> bool:
    """Whether the address names a class in a file, which other machines do not have."""
    return address.rpartition(":")[0].endswith(".py")


def load(address: str, base: Path = Path()) -> type[Algorithm]:
    """Return the class at "module:Class" or "path/to/file.py:Class", a path from base on. This runs the module."""
    where, _, name = address.rpartition(":")
    if not is_file(address):
        return _class_of(_module(where, address), name, address)
    found = _class_of(_module_of_file((base / Path(where).expanduser()).resolve(), address), name, address)
    copyreg.pickle(found, _by_address)  # other processes find it by its file
    return found


def _module(name: str, address: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _broken(address, error) from error
        raise ValueError(
            f"algorithm {address!r}: there is no module {error.name!r} here; install it, or set PYTHONPATH to its "
            "folder (a simulation takes path/to/file.py:Class, too)"
        ) from None
    except Exception as error:
        raise _broken(address, error) from error


def _module_of_file(file: Path, address: str) -> ModuleType:
    """Return the module of the file. Its name is the file's path, so that the address of its classes leads there."""
    if str(file) in sys.modules:
        return sys.modules[str(file)]
    if not file.is_file():
        raise ValueError(f"algorithm {address!r}: there is no file {file}; give path/to/file.py:Class")
    spec = spec_from_file_location(str(file), file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[str(file)] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[str(file)]
        raise _broken(address, error) from error
    return module


def _class_of(module: ModuleType, name: str, address: str) -> type[Algorithm]:
    try:
        found = reduce(getattr, name.split("."), module)
    except AttributeError:
        own = [
            key for key, value in vars(module).items() if _is_algorithm(value) and value.__module__ == module.__name__
        ]
        there = f"it has {', '.join(own)}" if own else "it has no algorithm"
        raise ValueError(f"algorithm {address!r}: there is no class {name!r}; {there}") from None
    return checked(found, address)


def checked(found: Any, address: str) -> type[Algorithm]:
    """Return what was found, if it is the class of an algorithm."""
    if not _is_algorithm(found):
        raise ValueError(f"algorithm {address!r}: {found!r} is no class of an algorithm; {DERIVE}")
    algorithm: type[Algorithm] = found
    return algorithm


def load_offered(name: str) -> type[Algorithm]:
    """Return the class of the entry point of this name."""
    try:
        found = offered()[name].load()
    except Exception as error:
        raise _broken(name, error) from error
    return checked(found, name)


def _is_algorithm(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Algorithm) and value is not Algorithm


def _broken(address: str, error: Exception) -> ValueError:
    return ValueError(f"algorithm {address!r} cannot be imported ({type(error).__name__}: {error}); mend it first")


def _by_address(algorithm: Algorithm) -> tuple[Any, ...]:
    from fedmls.algorithms import from_dict

    return from_dict, (to_dict(algorithm),)
