"""The files of a run, in its job's folder.

job.toml         what to run (or job.json)
checkpoint       the run after its last exchange: all that a driver needs to go on
events.jsonl     one line for each exchange, as it is done; others may follow it
model.npz        when the run ends: x, and what it is a model of: columns, classes, means, scales, intercept
model.json       the same to read, in the columns' own units, with how it was trained and what is proved

and, as in every results folder (:mod:`fedmls.results`),

history.parquet  one row for each recorded round, with the columns of a simulation
summary.csv      the last of them, in short; summary.md is the same to read
setup.json       the job, the problem, how the run ended, the nodes with their rows and G_i, versions
"""

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedmls.federation.codec import MEBIBYTE, MessageError, seal, unseal
from fedmls.federation.job import Job
from fedmls.federation.messages import CheckpointFile, Message, as_map, decode, encode
from fedmls.federation.server.snapshot import Snapshot
from fedmls.federation.server.survey import SurveyedProblem
from fedmls.files import whole_file
from fedmls.results.held_out import HeldOutScores
from fedmls.results.layout import EVENTS as EVENTS
from fedmls.results.model import Description, Model, model_file, proof, read_model, training, write_model
from fedmls.results.setup import write_setup
from fedmls.types import Array, Run

CHECKPOINT = "checkpoint"
MAY_CHANGE = ("rounds", "until", "timeout", "on_missing", "on_bad", "max_norm", "start")  # of a job that goes on


class RunFolder:
    """The folder of a job and of its run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.job = Job.read(self.path)

    @property
    def checkpoint(self) -> Path:
        return self.path / CHECKPOINT

    def begin(self) -> None:
        """Delete what is left of an earlier run, but its results, until there are new ones."""
        for name in (CHECKPOINT, EVENTS):
            (self.path / name).unlink(missing_ok=True)

    def event(self, **values: Any) -> None:
        """Write a line for whoever follows the run."""
        values = {"time": round(time.time(), 3), **values}
        plain = {key: None if _is_unknown(value) else value for key, value in values.items()}
        line = json.dumps(plain, ensure_ascii=False).encode() + b"\n"
        with (self.path / EVENTS).open("a+b") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                line = line if file.read() == b"\n" else b"\n" + line  # after one that a full disk cut off
            file.write(line)

    def save(self, run: str, survey: SurveyedProblem, snapshot: Snapshot) -> None:
        """Write the checkpoint: the run after its last exchange."""
        body = CheckpointFile(self.job.to_dict(), as_map(survey), snapshot.plain())
        spent = snapshot.spent
        with whole_file(self.checkpoint) as stream:
            stream.write(seal(encode(Message(run, spent.exchanges, spent.round, body))))

    def load(self) -> tuple[str, SurveyedProblem, Snapshot, Job]:
        """Return the run's name, its survey and snapshot, if they belong to this job, and the job as it was then."""
        data = self.checkpoint.read_bytes()
        try:
            kept = decode(unseal(data), limit=max(len(data), MEBIBYTE), own=True)
            if not isinstance(kept.body, CheckpointFile):
                raise MessageError(f"a file of the kind {kept.kind!r}, not 'checkpoint'")
        except MessageError as error:
            raise ValueError(f"{self.checkpoint}: {error}; delete it to start anew") from None
        before, now = kept.body.job, self.job.to_dict()
        for key in sorted({*before, *now} - {*MAY_CHANGE}):
            if before.get(key) != now.get(key):
                raise ValueError(
                    f"{self.checkpoint} belongs to another job: its {key} is {before.get(key)!r}, "
                    f"not {now.get(key)!r}; take another folder, or begin anew with resume=False"
                )
        survey = SurveyedProblem(**kept.body.survey)
        snapshot = Snapshot.from_plain(kept.body.at, self.job.algorithm, survey.n)
        return kept.run, survey, snapshot, Job.from_dict(before)

    def finish(self, survey: SurveyedProblem, x: Array, history: Any, lipschitz: Array, about: dict[str, Any]) -> None:
        """Write the results."""
        run = Run(self.job.algorithm, self.job.seed, self.job.batch, x, history, None)
        self._write_history(run, about.get("held_out"))
        write_model(self.path, self._described(survey, run, about))
        self.tell(survey, lipschitz, about)

    def tell(self, survey: SurveyedProblem, lipschitz: Array, about: dict[str, Any]) -> None:
        """Write the set-up. about: the run's name, its status ("running" until it ends) and ε."""
        nodes = [
            {"name": node, "rows": int(rows), "weight": float(weight), "lipschitz": None if math.isinf(G) else float(G)}
            for node, rows, weight, G in zip(survey.nodes, survey.rows, survey.weights, lipschitz, strict=True)
        ]
        told = {"job": self.job.to_dict(), **about, "nodes": nodes, "columns": survey.columns}
        write_setup(self.path, self._setup(survey) | told)

    def _described(self, survey: SurveyedProblem, run: Run, ended: Mapping[str, Any]) -> Description:
        """Return the model with all that leads from a table to predictions."""
        job = self.job
        names = ("intercept", "l2", "l1", "reduction", "secure")
        about: dict[str, Any] = {**ended, "clients": survey.n, "rows": int(sum(survey.rows))}
        about |= {name: getattr(job, name) for name in names}
        return Description(
            _model_of(survey, run.x),
            survey.label,
            job.loss,
            job.get_loss().parameter or None,
            survey.levels or {},
            survey.means if job.impute else None,
            survey.scales is not None,
            training(run, {"how": "federation", **about}),
            proof(run),
        )

    def _write_history(self, run: Run, held_out: dict[str, Any] | None) -> None:
        from fedmls.hyperparameters import describe
        from fedmls.results.write import write_history, write_summary

        labels = run.algorithm.title, "", describe(run.algorithm)
        write_history(self.path, [run], [labels])
        if len(run.history):
            scores = None if held_out is None else HeldOutScores.from_plain(held_out)
            write_summary(self.path, [run], [labels], held_out=scores)

    def _setup(self, survey: SurveyedProblem) -> dict[str, Any]:
        """What a results folder tells of every experiment, as far as a server knows it."""
        job = self.job
        return {
            "title": job.name,
            "command": "",
            "spec": job.to_dict(),
            "problem": {
                "data": "the nodes' own",
                "rows": int(sum(survey.rows)),
                "columns": survey.columns,
                "coordinates": survey.dimension,
                "loss": job.loss,
                "loss_parameter": job.loss_parameter,
                **{name: getattr(job, name) for name in ("intercept", "l2", "l1", "reduction")},
                "clients": survey.n,
            },
            "partition": [
                {"client": node, "rows": int(rows)} for node, rows in zip(survey.nodes, survey.rows, strict=True)
            ],
            "optimum": {str(job.seed): None},
        }


def _is_unknown(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _model_of(survey: SurveyedProblem, x: Array) -> Model:
    """Return x with what it is a model of."""
    p = len(survey.columns)
    means, scales = (np.zeros(p), np.ones(p)) if survey.scales is None else (survey.means, survey.scales)
    return Model(x, survey.columns, survey.classes or [], means, scales, survey.intercept)


def read_start(start: str | Path, survey: SurveyedProblem) -> Array:
    """Return the model of an earlier run, in the coordinates of this one."""
    file = model_file(start)
    model = read_model(file)
    if model.columns != survey.columns or model.intercept != survey.intercept:
        raise ValueError(f"{file} is a model of other columns")
    if model.classes != (survey.classes or []):
        raise ValueError(f"{file} is a model of other labels")
    new = _model_of(survey, model.x)
    p = len(model.columns)
    slopes = model.x[:p] / model.scales  # in the units of the rows
    moved = float(slopes @ (new.means - model.means))
    if survey.intercept:
        return np.append(slopes * new.scales, model.x[p] + moved)
    if moved:
        raise ValueError(f"{file} was standardised otherwise, and without an intercept it cannot be carried over")
    return np.asarray(slopes * new.scales)
