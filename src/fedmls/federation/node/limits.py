"""What a node's own configuration forbids, whatever the server asks for; and its ledger of privacy."""

import json
from typing import Any

from fedmls.federation.errors import Refused
from fedmls.federation.job import Job, reveals_objective
from fedmls.federation.node_config import NodeConfig
from fedmls.federation.privacy import check_installed, epsilon
from fedmls.files import whole_file

LEDGER = "privacy.jsonl"  # in the state folder: the noise and the rounds of every run with privacy that began here


class Limits:
    def __init__(self, config: NodeConfig) -> None:
        self.config = config

    def check_objective(self, job: Job) -> None:
        """Raise Refused if f_i may not be told."""
        if not (self.config.report_objective and job.report_objective):
            raise Refused("it does not tell its objective (report_objective = false)")

    def check_scores(self, job: Job) -> None:
        """Raise Refused if sums over the held-out rows may not be told."""
        if job.holdout is None:
            raise Refused("it is asked for scores that the job has no need of")
        if not (self.config.report_scores or job.secure):
            raise Refused("it tells scores in secure sums only (report_scores = false)")

    def check_job(self, job: Job, begins: str | None = None) -> None:
        """Raise Refused if the job tells more than the configuration allows.

        begins: the run that begins now, of which a note is kept if it has privacy.
        """
        if self.config.peers is not None and not job.secure:
            raise Refused("it takes part only in secure runs (peers)")
        if not self.config.report_objective and (why := reveals_objective(job)):
            raise Refused(f"it does not tell its objective (report_objective = false), and {why}")
        if job.privacy is not None:
            self._check_privacy({"run": begins, "noise": job.privacy.noise, "rounds": job.rounds})
        elif self.config.max_epsilon is not None:
            raise Refused("it takes part only in runs with privacy (max_epsilon)")

    def _check_privacy(self, this: dict[str, Any]) -> None:
        try:
            check_installed()
        except ValueError as error:
            raise Refused(str(error)) from None
        file, limit = self.config.state / LEDGER, self.config.max_epsilon
        noted = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        if limit is not None:
            spent = _epsilon([*noted, this], self.config.delta)
            if spent > limit:
                raise Refused(
                    f"with this run its ε would be {spent:.3g}, and at most {limit:g} is allowed (max_epsilon)"
                )
        if this["run"] is not None:
            with whole_file(file, private=True) as stream:
                stream.write("".join(json.dumps(one) + "\n" for one in [*noted, this]).encode())


def _epsilon(runs: list[dict[str, Any]], delta: float) -> float:
    try:
        return epsilon([(run["noise"], run["rounds"]) for run in runs], delta)
    except ValueError as error:
        raise Refused(str(error)) from None
