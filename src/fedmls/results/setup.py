"""The set-up in a results folder: what was run, and the versions of what computed."""

import json
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedmls.files import whole_file
from fedmls.results.layout import SETUP

PACKAGES = ("fedmls", "numpy", "scipy", "numba", "pandas", "scikit-learn", "msgpack")  # whose versions are recorded


def write_setup(folder: Path, setup: Mapping[str, Any]) -> dict[str, Any]:
    """Write what was run, and the versions of what computed; return what was written."""
    versions = {name: version(name) for name in PACKAGES} | {"python": platform.python_version()}
    written = {**setup, "versions": versions}
    with whole_file(folder / SETUP) as stream:
        stream.write((json.dumps(written, indent=2, ensure_ascii=False) + "\n").encode())
    return written
