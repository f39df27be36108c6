"""``fedmls doctor``: what is installed and whether it works, to be pasted into a bug report.

Names no user, no host and no folder but Numba's cache, and those of trials that were killed and have left processes
behind; the home folder is written ~.
"""

import os
import platform
import re
import shutil
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

import numpy as np
from packaging.requirements import Requirement  # comes with matplotlib

from fedmls.local import descent
from fedmls.problem import Problem
from fedmls.progress import waiting

SETTINGS = ("NUMBA_", "OMP_", "MKL_", "OPENBLAS_")  # what else decides how the loop is compiled and run
CLOSE = 1e-12
LOW_DISK_GB = 1.0


def examine(results: Path) -> dict[str, Any]:
    """All that is known, in plain values; ``broken`` has a sentence for each thing that does not work."""
    packages, extras = dependencies()
    loop = waiting("compiling the loop", compiled_loop)  # which makes the cache, too
    found: dict[str, Any] = {
        "fedmls": version("fedmls"),
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "platform": platform.platform(),
        "cores": {"usable": usable_cores(), "all": os.cpu_count()},
        "packages": packages,
        "extras": extras,
        "compiled_loop": loop,
        "cache": cache(),
        "settings": {name: _short(value) for name, value in sorted(os.environ.items()) if name.startswith(SETTINGS)},
        "disk": disk(results),
        "left_behind": left_behind(),
    }
    return found | {"broken": broken(found)}


def dependencies() -> tuple[dict[str, Any], dict[str, Any]]:
    """What fedmls needs, and for each extra what it needs: by name the version (None: not there) and the wanted one."""
    packages: dict[str, Any] = {}
    extras: dict[str, Any] = {}
    for line in requires("fedmls") or ():
        needed = Requirement(line)
        extra = re.search(r"extra == ['\"]([\w-]+)", str(needed.marker))
        place = packages if extra is None else extras.setdefault(extra[1], {})
        there = installed(needed.name)
        fits = there is not None and needed.specifier.contains(there, prereleases=True)
        place[needed.name] = {"version": there, "wanted": str(needed.specifier), "fits": fits}
    return packages, extras


def installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def usable_cores() -> int:
    """Those that this process may use: in a container often not all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def compiled_loop() -> dict[str, Any]:
    """Ten steps on six rows, against the same in NumPy."""
    began = time.monotonic()
    try:
        difference = loop_against_numpy()
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        return {"works": False, "error": f"{type(error).__name__}: {first}"}
    seconds = round(time.monotonic() - began, 2)
    return {"works": difference <= CLOSE, "difference": difference, "seconds": seconds}


def loop_against_numpy() -> float:
    """The largest difference between the iterates of the compiled loop and of its NumPy twin."""
    X = np.array([[1.0, 2.0], [-1.5, 0.5], [0.3, -2.0], [2.0, 1.0], [-0.7, -0.2], [0.9, -1.1]])
    problem = Problem(X, [1, -1, -1, 1, -1, 1], clients=[0, 0, 0, 1, 1, 1], loss="hinge", intercept=False)
    steps, average = 1 / np.arange(2.0, 12.0), 2 / np.arange(2.0, 12.0)
    local = problem.local()
    local.begin(1)
    fast = local.descend(np.zeros((2, 2)), steps, average=average)
    worst = 0.0
    for client in range(2):
        rows = slice(problem.offsets[client], problem.offsets[client + 1])
        A, b = X[rows], problem.y[rows]
        slow = descent.descend(lambda u, A=A, b=b: -b * (b * (A @ u) < 1) @ A, np.zeros(2), steps, average=average)  # type: ignore[misc]
        worst = max(worst, *(float(np.abs(f[client] - s).max()) for f, s in zip(fast, slow, strict=True)))
    return worst


def compile_ahead() -> None:
    """Compile the loops of all algorithms, for dense and for sparse rows, into Numba's cache: no later run has to."""
    from fedmls.algorithms import ALGORITHMS
    from fedmls.benchmark.methods import scale
    from fedmls.datasets import svm
    from fedmls.simulation.run import simulate

    for density in (1.0, 0.5):
        problem = svm(60, 4, 3, density=density, l2=1.0)
        for algorithm in ALGORITHMS.values():
            simulate(algorithm.fair_start(scale(problem)), problem, rounds=3, batch=0.5)


def cache() -> dict[str, Any]:
    """Numba's folder for the compiled loop; without one, every process compiles anew."""
    folder = getattr(getattr(descent.descend_rows, "stats", None), "cache_path", None)
    if folder is None:
        return {"folder": None, "writable": False}
    try:
        with tempfile.TemporaryFile(dir=folder):
            return {"folder": _short(folder), "writable": True}
    except OSError:
        return {"folder": _short(folder), "writable": False}


def disk(results: Path) -> dict[str, Any]:
    """Room for results: in the folder, or in the nearest that is there."""
    folder = results.absolute()
    while not folder.exists():
        folder = folder.parent
    return {
        "folder": _short(str(results)),
        "free_gb": round(shutil.disk_usage(folder).free / 1e9, 1),
        "writable": os.access(folder, os.W_OK),
    }


def left_behind() -> dict[str, list[int]]:
    """Processes that trials of a federation have left behind, by the trial's folder."""
    if sys.platform != "linux":
        return {}
    from fedmls.federation.deploy import processes

    return {_short(str(folder.parent)): found for folder, found in processes.left_behind().items()}


def broken(found: dict[str, Any]) -> list[str]:
    sentences = []
    for name, one in found["packages"].items():
        if not one["fits"]:
            there = f"{one['version']} is installed" if one["version"] else "it is not installed"
            wanted = f"{name}{one['wanted']}"
            sentences.append(f"fedmls needs {wanted}, but {there}; run pip install '{wanted}'")
    loop = found["compiled_loop"]
    if "error" in loop:
        sentences.append(f"the compiled loop does not run: {loop['error']}")
    elif not loop["works"]:
        sentences.append(f"the compiled loop and NumPy disagree by {loop['difference']:.1e}; results cannot be trusted")
    if not found["cache"]["writable"]:
        sentences.append("the compiled loop cannot be kept; set NUMBA_CACHE_DIR to a folder that can be written to")
    if not found["disk"]["writable"]:
        sentences.append(f"results cannot be written to {found['disk']['folder']}; go elsewhere or give --out")
    return sentences


def worries(found: dict[str, Any]) -> list[str]:
    """Return what is not broken and yet not as it should be: the names of the lines that tell it."""
    unfit = [name for name, needed in found["extras"].items() if any(_is_unfit(one) for one in needed.values())]
    little = ["disk"] if found["disk"]["free_gb"] < LOW_DISK_GB else []
    return [*little, *(["left behind"] if found["left_behind"] else []), *unfit]


def _is_unfit(package: dict[str, Any]) -> bool:
    return package["version"] is not None and not package["fits"]


def lines(found: dict[str, Any]) -> list[str]:
    """Return what was found as lines of text."""
    loop, kept, disk, cores = (found[name] for name in ("compiled_loop", "cache", "disk", "cores"))
    works = f"agrees with NumPy to {loop['difference']:.0e}" if loop["works"] else "does not work"
    took = f"; the first call took {loop['seconds']:.1f} s" if "seconds" in loop else ""
    room = "" if disk["writable"] else ", which cannot be written to: go elsewhere or give --out"
    room = room or (", which is little" if disk["free_gb"] < LOW_DISK_GB else "")
    rows = {
        "fedmls": found["fedmls"],
        "python": found["python"],
        "platform": found["platform"],
        "cores": f"{cores['usable']} usable of {cores['all']}",
        "packages": ", ".join(f"{name} {one['version'] or 'missing'}" for name, one in found["packages"].items()),
        "compiled loop": works + took,
        "numba cache": f"{kept['folder']}, {'writable' if kept['writable'] else 'NOT writable'}",
        "settings": ", ".join(f"{name}={value}" for name, value in found["settings"].items()) or "none",
        "disk": f"{disk['free_gb']} GB free for {disk['folder']}{room}",
    }
    text = [f"{name:<15}{value}" for name, value in rows.items()]
    text += [f"{'left behind':<15}{_left(*one)}" for one in found["left_behind"].items()] + ["extras"]
    text += [f"  {name:<13}{_extra(name, needed)}" for name, needed in found["extras"].items()]
    if found["broken"]:
        return text + [f"BROKEN: {sentence}" for sentence in found["broken"]]
    worth = ", ".join(worries(found))
    return [*text, f"Nothing that is needed is broken; see {worth} above." if worth else "Nothing is broken."]


def _left(folder: str, processes: list[int]) -> str:
    what = f"{len(processes)} processes of a trial in {folder} that was killed"
    return f"{what}; the next one beside it ends them ({' '.join(map(str, processes))})"


def _extra(name: str, needed: dict[str, Any]) -> str:
    there = ", ".join(f"{package} {one['version']}" for package, one in needed.items() if one["version"])
    if all(one["fits"] for one in needed.values()):
        return there
    wanted = ", ".join(f"{package} {one['wanted']}" for package, one in needed.items() if not one["fits"])
    return f"{there + '; needs ' + wanted if there else 'not installed'}: pip install 'fedmls[{name}]'"


def _short(path: str) -> str:
    """Return the path without the user's name."""
    home = str(Path.home())
    return path.replace(home, "~") if len(home) > 1 else path
