"""The one configuration of a run: what simulation, in-process federation, NVFlare and Flower all read (TOML or JSON).

name = "trial"
rounds = 200
batch = 0.1
loss = "hinge"

[algorithm]                  # without parameters also: algorithm = "fedmls"
name = "fedmls"

[algorithm.parameters]
lam0 = 1.0
paired = true
"""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tomli_w

from fedmls.algorithms import Finder, find, from_dict, is_file, only_installed
from fedmls.checks import at_least, check_batch, check_share, one_of, positive, real, truth, unknown, whole
from fedmls.compression import address_inside
from fedmls.datasets.tables import CATEGORICAL
from fedmls.federation.messages import RUN_NAME
from fedmls.federation.privacy import Privacy, check_private
from fedmls.federation.secure_sums import check_secure
from fedmls.files import whole_file
from fedmls.hyperparameters import hyperparameters, to_dict
from fedmls.losses import Loss, get_loss
from fedmls.rounds import require_algorithm
from fedmls.types import Algorithm

FILES = ("job.toml", "job.json")
ON_MISSING = ("wait", "without", "stop")
ON_BAD = ("stop", "without")


@hyperparameters
class Job:
    """The algorithm and the problem, as in :func:`fedmls.simulate` and :class:`fedmls.Problem`, and how to run them.

    name: begins the name of the run; nodes keep one file for each run.
    loss_parameter: q of pinball, ε of epsilon_insensitive, δ of huber.
    weights: "equal", "rows" (m_i/m), or a table of node names with weights that sum to 1.
    impute: missing values become the column's mean over all nodes.  standardise: columns get mean 0 and deviation 1
    over all nodes. For either, nodes tell their column sums before round 1.
    categorical: "onehot": a column of text becomes a 0/1 column for each of its levels; nodes tell those that at least
    ``min_rows`` of their rows have. "refuse", unless given: a node with such a column does not take part.
    report_objective: nodes tell f_i at the models, and the history shows Σ w_i f_i. Without it there is no ``until``.
    What an algorithm or a certificate sends of f_i by itself is sent all the same; a node may refuse that.
    nodes: who must be there; whoever is connected unless given.
    timeout: seconds for one exchange.  on_missing: a node that does not answer in time is asked again until it does
    ("wait"); another client is drawn in its place ("without"; for algorithms with ``participants``); or the run ends
    ("stop"). on_bad: the same for a node that refuses, or whose answer fails a check: "stop" or "without".
    max_norm: an uploaded vector that is longer fails the check.  max_rows: so does a node that says it has more rows;
    with weights = "rows" they are its weight, and nobody can count them.
    privacy: noise on the uploads (:mod:`fedmls.federation.privacy`), a table with clip, noise and delta.
    secure: the server sees sums over nodes only (:mod:`fedmls.federation.secure_sums`).
    holdout: the share of each node's rows that never train, on which the last model is scored; or True, for the rows
    that nodes hold out by their own configurations (:class:`fedmls.federation.NodeConfig`), which go before the share.
    start: begin at the model of an earlier run, the path of its folder or of its model.npz on the server; in a file,
    relative to the file.
    """

    algorithm: Algorithm
    rounds: int
    name: str = "run"
    batch: float = 1.0
    seed: int = 0
    every: int = 1
    certificate: float | bool | None = None
    until: float | None = None
    loss: str = "hinge"
    loss_parameter: float | None = None
    intercept: bool = True
    l2: float = 0.0
    l1: float = 0.0
    reduction: str = "sum"
    weights: str | dict[str, float] = "equal"
    impute: bool = True
    standardise: bool = False
    report_objective: bool = True
    nodes: tuple[str, ...] | None = None
    timeout: float = 600.0
    on_missing: str = "wait"
    on_bad: str = "stop"
    max_norm: float = 1e9
    max_rows: int = 10**9
    privacy: Privacy | None = None
    secure: bool = False
    start: str | None = None
    categorical: str | None = None
    holdout: float | bool | None = None

    def __post_init__(self) -> None:
        require_algorithm(self.algorithm)
        if is_file(address_inside(self.algorithm)):
            raise ValueError(only_installed(address_inside(self.algorithm)))
        whole("rounds", self.rounds)
        whole("every", self.every)
        whole("seed", self.seed, least=0, most=2**63 - 1)
        check_batch(self.batch)
        if not isinstance(self.name, str) or not RUN_NAME.fullmatch(self.name) or len(self.name) > 80:
            raise ValueError(f"name is {self.name!r}; take letters, digits, '.', '_' and '-', at most 80")
        self.get_loss()
        at_least("l2", self.l2, 0.0)
        at_least("l1", self.l1, 0.0)
        one_of("reduction", self.reduction, ("sum", "mean"))
        for name in ("intercept", "impute", "standardise", "report_objective", "secure"):
            truth(name, getattr(self, name))
        if self.categorical is not None:
            one_of("categorical", self.categorical, CATEGORICAL)
            object.__setattr__(self, "categorical", "onehot" if self.categorical == "onehot" else None)
        self._check_weights()
        self._check_proof()
        self._check_answers()
        self._check_holdout()
        if self.privacy is not None:
            check_private(self)
        if self.secure:
            check_secure(self)
        if self.start is not None and (not isinstance(self.start, str) or not self.start):
            raise ValueError(f"start is {self.start!r}; give the path of an earlier run's folder or of its model.npz")

    def _check_weights(self) -> None:
        if not isinstance(self.weights, dict):
            one_of("weights", self.weights, ("equal", "rows"))
        elif not all(isinstance(node, str) and real(weight) is not None for node, weight in self.weights.items()):
            raise ValueError(f"weights is {self.weights!r}; give node names with their weights")
        if self.nodes is not None:
            if not isinstance(self.nodes, list | tuple) or not all(isinstance(node, str) for node in self.nodes):
                raise ValueError(f"nodes is {self.nodes!r}; give a list of names")
            object.__setattr__(self, "nodes", tuple(self.nodes))

    def _check_proof(self) -> None:
        if self.certificate is not None and self.certificate is not True:
            positive("certificate", self.certificate)
        if self.until is None:
            return
        positive("until", self.until)
        if self.certificate is None and self.algorithm.traits.proves:
            object.__setattr__(self, "certificate", True)  # it costs nothing
        if self.certificate is None or not self.report_objective:
            missing = "certificate" if self.certificate is None else "report_objective = true"
            raise ValueError(f"until is {self.until!r}, which takes a proof; add {missing}")

    def _check_answers(self) -> None:
        positive("timeout", self.timeout)
        positive("max_norm", self.max_norm)
        whole("max_rows", self.max_rows, most=2**40)
        one_of("on_missing", self.on_missing, ON_MISSING)
        one_of("on_bad", self.on_bad, ON_BAD)
        if "without" in (self.on_missing, self.on_bad) and (
            self.algorithm.participants is None or self.algorithm.traits.follow_up
        ):
            key = "on_missing" if self.on_missing == "without" else "on_bad"
            raise ValueError(
                f"{key} is 'without', but {self.algorithm.name} as it is set needs every client in every round; "
                "take fedmlsp, or fedavg, scaffold or feddyn with participants, or another " + key
            )

    def _check_holdout(self) -> None:
        if isinstance(self.holdout, str):
            raise ValueError(
                f"holdout is {self.holdout!r}; a job takes a share of the rows, e.g. 0.2, or true: a column or a file "
                "is named in the configuration of a node, for which rows it holds out is its own choice"
            )
        if self.holdout is False:
            object.__setattr__(self, "holdout", None)
        elif self.holdout is not None and self.holdout is not True:
            check_share("holdout", self.holdout)

    @property
    def sends_cuts(self) -> bool:
        """Whether nodes send a cut of their slopes, for a certificate that the algorithm does not make by itself."""
        return self.certificate is not None and not self.algorithm.traits.proves

    def get_loss(self) -> Loss:
        return get_loss(self.loss, self.loss_parameter)

    def to_dict(self) -> dict[str, Any]:
        """Return the job as plain values, without what is None."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        values |= {"algorithm": _without_none(to_dict(self.algorithm)), "nodes": self.nodes and list(self.nodes)}
        values["privacy"] = self.privacy and dict(self.privacy.__dict__)
        return {name: value for name, value in values.items() if value is not None}

    @classmethod
    def from_dict(cls, values: dict[str, Any], finder: Finder = find) -> "Job":
        """Return the job of these plain values.  finder: finds the class of the algorithm's name."""
        known = list(cls.__dataclass_fields__)
        for key in values:
            if key not in known:
                raise ValueError(unknown("key of a job", key, known))
        for key in ("algorithm", "rounds"):
            if key not in values:
                raise ValueError(f"the job has no {key!r}")
        made: dict[str, Any] = {"algorithm": _algorithm(values["algorithm"], finder)}
        if values.get("privacy") is not None:
            made["privacy"] = _privacy(values["privacy"])
        return cls(**values | made)

    @classmethod
    def read(cls, file: str | Path, changes: Callable[[dict[str, Any]], dict[str, Any]] = dict) -> "Job":
        """Read a TOML or JSON file, or the job.toml or job.json of a folder.

        changes: makes the job's plain values of those in the file.
        """
        file = Path(file)
        if file.is_dir():
            found = [file / name for name in FILES if (file / name).exists()]
            if len(found) != 1:
                raise ValueError(f"{file} holds {len(found)} of {' and '.join(FILES)}; it must hold one")
            file = found[0]
        try:
            values = read_config(file)
            if isinstance(values.get("start"), str) and values["start"]:
                values["start"] = str(file.parent.resolve() / values["start"])
            return cls.from_dict(changes(values))
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from None

    def write(self, file: str | Path) -> Path:
        """Write a TOML or JSON file, or the job.toml of a folder, which is made; return the file."""
        file = Path(file)
        if file.suffix not in (".toml", ".json"):
            file = file / FILES[0]
        values = self.to_dict()
        text = json.dumps(values, indent=2) + "\n" if file.suffix == ".json" else tomli_w.dumps(values)
        with whole_file(file) as stream:
            stream.write(text.encode())
        return file


def reveals_objective(job: Job) -> str:
    """Return why the server of this job learns f_i, or as much, even if it asks for no objective; else nothing."""
    if job.sends_cuts:
        return "the cuts of a certificate tell as much; leave out certificate"
    if job.algorithm.traits.reveals_objective:
        return f"{job.algorithm.name} as it is set sends it up by itself; take another algorithm, or a number for lam0"
    return ""


def _algorithm(values: Any, finder: Finder) -> Algorithm:
    """Return the algorithm of these plain values, or of its name alone; parameters may be left out."""
    values = {"name": values} if isinstance(values, str) else values
    if not isinstance(values, dict) or "name" not in values:
        raise ValueError(f"algorithm is {values!r}; give its name, or a table with name and parameters")
    for key in values:
        if key not in ("name", "parameters"):
            raise ValueError(unknown("key of the algorithm", key, ("name", "parameters")))
    try:
        return from_dict({"name": values["name"], "parameters": values.get("parameters", {})}, finder)
    except (TypeError, AttributeError, KeyError) as error:
        raise ValueError(f"algorithm: {error}") from None


def _privacy(values: Any) -> Privacy:
    try:
        return Privacy(**values)
    except TypeError as error:
        raise ValueError(f"privacy: {error}") from None


def _without_none(value: Any) -> Any:
    if not isinstance(value, dict):
        return list(value) if isinstance(value, tuple) else value
    return {name: _without_none(part) for name, part in value.items() if part is not None}


def read_config(file: Path) -> dict[str, Any]:
    """Return the plain values of a TOML or JSON file."""
    try:
        if file.suffix == ".json":
            values = json.loads(file.read_text(encoding="utf-8"))
        else:
            values = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError("there is no such file") from None
    except ValueError as error:  # of either reader, or of a file that is no text
        raise ValueError(f"no {file.suffix[1:].upper() or 'TOML'}: {error}") from None
    if not isinstance(values, dict):
        raise ValueError("it must hold a table of keys")
    return values
