"""What a node has at hand to answer from: its configuration, its limits, its state folder, its rows, its problem."""

from functools import partial
from pathlib import Path
from typing import Any

from fedmls.algorithms import find_installed
from fedmls.federation.errors import Refused
from fedmls.federation.job import Job
from fedmls.federation.messages import Begin
from fedmls.federation.node.held_out import DividedRows, divide, held_out_file
from fedmls.federation.node.limits import Limits
from fedmls.federation.node.rows import SiteRows, label_texts, prepared, read_rows
from fedmls.federation.node.state import LOST, StateFolder, digest, fingerprint
from fedmls.federation.node_config import NodeConfig
from fedmls.problem import Problem


class Site:
    """Rows and the problem are kept in memory, and read again only when the file has changed."""

    def __init__(self, config: NodeConfig) -> None:
        self.config, self.limits, self.state = config, Limits(config), StateFolder(config.state)
        self._rows: tuple[Any, SiteRows] | None = None
        self._problem: tuple[Any, Problem] | None = None

    def rows(self) -> SiteRows:
        """Return the rows of the node's file."""
        stamp = _stamp(self.config.data)
        if self._rows is None or self._rows[0] != stamp:
            self._rows = stamp, read_rows(self.config)
        return self._rows[1]

    def divided(self, job: Job) -> DividedRows:
        """Return the rows that train in this job, and those that are held out."""
        return divide(self.rows(), self.config, job)

    def data(self) -> str:
        """Return a fingerprint of all rows that the configuration names."""
        held_out = held_out_file(self.config)
        own = fingerprint(self.rows())
        return own if held_out is None else digest([own, fingerprint(held_out)])

    def job(self, values: dict[str, Any]) -> Job:
        """Return the job that the server tells, of an algorithm that this node has; raise Refused if it is none.

        No code is run at the server's word that is not allowed here.
        """
        try:
            return Job.from_dict(values, partial(find_installed, allowed=self.config.algorithms))
        except (ValueError, TypeError, AttributeError) as error:
            raise Refused(f"it cannot read the job: {error}") from None

    def problem(self, run: str, begin: Begin, fingerprint: str | None = None) -> Problem:
        """Return the node's own problem; with a fingerprint, raise Refused if it is another than when the run began."""
        key = run, _stamp(self.config.data)
        if self._problem is None or self._problem[0] != key:
            job = self.job(begin.job)
            rows = self.divided(job).training
            problem = Problem(
                prepared(rows, begin.columns, begin.means, begin.scales, begin.levels),
                rows.y if begin.classes is None else label_texts(rows.y),
                loss=job.get_loss(),
                intercept=job.intercept,
                l2=job.l2,
                l1=job.l1,
                reduction=job.reduction,
                classes=begin.classes,
            )
            self._problem = key, problem
        problem = self._problem[1]
        if fingerprint is not None and problem.fingerprint != fingerprint:
            self._problem = None
            raise Refused(f"its data have changed since the run began; {LOST}")
        return problem


def _stamp(file: Path) -> Any:
    """Return what changes when the file does; None if it is not there."""
    try:
        about = file.stat()
    except OSError:
        return None
    return about.st_mtime_ns, about.st_size
