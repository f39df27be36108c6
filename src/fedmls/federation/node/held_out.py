"""Which of a node's rows are held out: they never train, and the last model is scored on them.

A share is not drawn by the job's seed. A server that could choose which rows train would learn single rows from the
differences of column sums in several runs. So rows stand in an order that the data alone give, the same in every run,
and shares take them from its front in steps of ``min_rows``: two shares differ by as many rows or by none.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedmls.federation.errors import Refused
from fedmls.federation.job import Job
from fedmls.federation.node.rows import SiteRows, read_rows
from fedmls.federation.node.state import fingerprint
from fedmls.federation.node_config import NodeConfig
from fedmls.local.random import GOLDEN, mix


class DividedRows(NamedTuple):
    training: SiteRows
    held_out: SiteRows  # which may be none


def divide(rows: SiteRows, config: NodeConfig, job: Job) -> DividedRows:
    """Return the rows that train, and those that are held out by the node's configuration, or else by the job."""
    least, apart = config.min_rows, held_out_file(config)
    share = config.holdout if isinstance(config.holdout, float) else job.holdout
    if apart is not None:
        if {*apart.columns} != {*rows.columns}:
            raise Refused("the columns of its held-out rows are not those of its data")
        parts = DividedRows(rows, apart)
    elif rows.marks is not None:
        parts = _by_marks(rows, rows.marks)
    elif isinstance(share, float):
        parts = _by_marks(rows, drawn(rows, share, least))
    else:
        parts = DividedRows(rows, _taken(rows, slice(0)))
    training, held_out = (part.X.shape[0] for part in parts)
    if training < least:
        raise Refused(f"it has {training} rows that are not held out, and answers only for at least {least} (min_rows)")
    if job.holdout is not None and 0 < held_out < least:
        raise Refused(f"it holds out {held_out} rows and tells scores only of at least {least} (min_rows)")
    return parts


def drawn(rows: SiteRows, share: float, least: int) -> Any:
    """Return which rows are held out: about this share, in steps of ``least``, and as many or none are left."""
    m = rows.X.shape[0]
    held_out = min(round(share * m / least), m // least - 1) * least
    key = np.uint64(int(fingerprint(rows)[:16], 16))
    numbers = np.arange(1, m + 1, dtype=np.uint64)
    hashes: Any = mix(key + numbers * GOLDEN)
    marks = np.zeros(m, dtype=bool)
    marks[np.argsort(hashes, kind="stable")[:held_out]] = True
    return marks


def held_out_file(config: NodeConfig) -> SiteRows | None:
    """Return the rows of the file that is held out; None where the configuration names none."""
    if not isinstance(config.holdout, Path):
        return None
    return read_rows(replace(config, data=config.holdout, holdout=None, min_rows=1))


def _by_marks(rows: SiteRows, marks: Any) -> DividedRows:
    return DividedRows(_taken(rows, ~marks), _taken(rows, marks))


def _taken(rows: SiteRows, which: Any) -> SiteRows:
    return rows._replace(X=rows.X[which], y=rows.y[which], marks=None)
