"""A trial of ``fedmls federate``, before it runs: its job, its nodes with their rows, its folder.

The folder holds the job and its results (:mod:`fedmls.federation.server.folder`), and

trial.json   the engine, where the nodes' files are, and the command
parts        data, configuration and state of each node, unless they are elsewhere
deployment   the logs of the server and of the nodes
"""

import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from fedmls.checks import is_sparse, one_of, setting, unknown, whole
from fedmls.compression import address_inside
from fedmls.federation.codec import MessageError
from fedmls.federation.deploy.base import Deployment
from fedmls.federation.deploy.flower import FlowerDeployment
from fedmls.federation.deploy.nvflare import NVFlareDeployment
from fedmls.federation.errors import Refused
from fedmls.federation.job import Job
from fedmls.federation.messages import Message, Survey, encode
from fedmls.federation.node.first_exchanges import surveyed
from fedmls.federation.node.rows import label_texts, prepared, read_rows
from fedmls.federation.node.site import Site
from fedmls.federation.node_config import NodeConfig
from fedmls.federation.server import replies
from fedmls.federation.server.folder import CHECKPOINT, EVENTS
from fedmls.federation.server.survey import SurveyedProblem, agree, natural
from fedmls.federation.site_files import PARTITIONERS, split
from fedmls.files import whole_file
from fedmls.problem import Problem
from fedmls.results.events import read_events
from fedmls.simulation.config import RunConfig
from fedmls.simulation.run import Simulation

ENGINES: dict[str, type[Deployment]] = {"nvflare": NVFlareDeployment, "flower": FlowerDeployment}
NODES = 3  # this and the next two: unless told otherwise
PARAMETERS: dict[str, dict[str, Any]] = {"fedmls": {"lam0": "auto", "paired": True}, "fedmlse": {"lam0": "auto"}}
JOB = {
    "name": "trial",
    "algorithm": {"name": "fedmlsb", "parameters": {}},
    "rounds": 10,
    "batch": 0.1,
    "timeout": 120.0,
}
RESULTS, NAME = Path("results"), "federation-"  # of the folders of trials without a name
TRIAL, PARTS, DEPLOYMENT = "trial.json", "parts", "deployment"


@dataclass(frozen=True)
class Trial:
    folder: Path
    engine: str
    job: Job
    nodes: dict[str, Path]  # their configuration files
    problem: Problem  # all their rows
    command: str  # that began it


@dataclass(frozen=True)
class Source:
    """The nodes' rows: a folder made by ``fedmls split``, or a file, the paper's unless given, that is cut here."""

    parts: Path | None = None
    file: Path | None = None
    label: str | None = None
    by: str | None = None
    ignore: tuple[str, ...] = ()
    nodes: int | None = None

    def __post_init__(self) -> None:
        if self.nodes is not None:
            whole("nodes", self.nodes)
        cut = {
            "data": self.file,
            "label": self.label,
            "by": self.by,
            "ignore": self.ignore or None,
            "nodes": self.nodes,
        }
        for name in (name for name, value in cut.items() if value is not None and self.parts is not None):
            raise ValueError(f"--parts is a folder of nodes with their rows; leave out --{name}")
        if self.by is not None and self.by not in PARTITIONERS and self.nodes is not None:
            raise ValueError(
                f"--by {self.by} makes a node of each value of that column; leave out --nodes, "
                f"or cut by {' or '.join(PARTITIONERS)}"
            )
        for name in ("label", "ignore"):
            if cut[name] is not None and self.file is None:
                raise ValueError(f"--{name} is of a file; name it with --data")

    def folder(self, trial: Path, seed: int, algorithms: Sequence[str] = ()) -> Path:
        """Return the folder of the nodes; without one it is made in the trial's, with leave to run these algorithms."""
        if self.parts is not None:
            return self.parts.resolve()
        parts, own = trial / PARTS, resources.files("fedmls.datasets") / "breast_cancer_wisconsin.csv"
        with resources.as_file(own) as paper:
            written = split(
                self.file or paper,
                parts,
                by=self.by or "kmeans",
                clients=NODES if self.nodes is None else self.nodes,
                label=self.label,
                ignore=self.ignore,
                seed=seed,
                algorithms=algorithms,
            )
        fewest, least = min(written.values()), NodeConfig.read(next(iter(written))).min_rows
        if fewest < least:
            raise ValueError(
                f"one of {len(written)} nodes would have {fewest} rows, and nodes answer for at least {least}; "
                "ask for fewer nodes, or cut by iid"
            )
        return parts


def check_engine(name: str) -> None:
    """Refuse an engine that is not there."""
    one_of("engine", name, ENGINES)
    if sys.platform != "linux":
        raise ValueError(f"a deployment on one machine takes Linux, and this is {sys.platform}")
    ENGINES[name].check_installed()


def make_job(file: Path | None, algorithm: str | None, settings: Sequence[str], options: Mapping[str, Any]) -> Job:
    """Return the job of the file, or the default one, but for what is said otherwise.

    Without a file, FedMLS-B proves its gap.

    settings: parameters of the algorithm, "name=value", values as in TOML.
    """
    values: dict[str, Any] = dict(JOB) if file is None else Job.read(file).to_dict()
    values |= {key: value for key, value in options.items() if value is not None}
    before = values["algorithm"]
    name = algorithm or before["name"]
    parameters = before["parameters"] if name == before["name"] else PARAMETERS.get(name, {})
    changed = dict(setting(text, "--set lam0=10") for text in settings)
    values["algorithm"] = {"name": name, "parameters": parameters | changed}
    job = Job.from_dict(values)
    if file is None and job.algorithm.traits.proves and job.certificate is None:
        return replace(job, certificate=True)  # it costs nothing
    return job


def begin(out: Path | None, engine: str, job: Job, source: Source, command: str = "") -> Trial:
    """Make a trial in a folder of its own, which must be empty; after an error nothing of it is left."""
    check_engine(engine)
    external = [one for one in [address_inside(job.algorithm)] if ":" in one]
    with _new_folder(out) as folder:
        parts = source.folder(folder, job.seed, external)
        trial = _checked(folder, engine, job, parts, command)
        _write(trial, PARTS if source.parts is None else str(parts))
    return trial


def reopen(out: Path | None, engine: str | None, changes: Mapping[str, Any]) -> Trial:
    """Return a trial that was stopped. changes: of its job; rounds and until may be others."""
    folder = out or _last_folder()
    try:
        about = json.loads((folder / TRIAL).read_text(encoding="utf-8"))
        engine, parts, command = engine or about["engine"], about["parts"], about.get("command", "")
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(f"{folder} holds no run of fedmls federate to go on with; leave out --resume") from None
    given = {key: value for key, value in changes.items() if value is not None}
    job = Job.from_dict(Job.read(folder).to_dict() | given)
    _check_unfinished(folder, job)
    check_engine(engine)
    trial = _checked(folder, engine, job, folder / parts, command)
    _write(trial, parts)
    if not (folder / CHECKPOINT).exists():
        (folder / EVENTS).unlink(missing_ok=True)  # the run begins anew
    return trial


def _write(trial: Trial, parts: str) -> None:
    trial.job.write(trial.folder)
    about = {"engine": trial.engine, "parts": parts, "command": trial.command}
    with whole_file(trial.folder / TRIAL) as stream:
        stream.write((json.dumps(about, indent=2) + "\n").encode())


def _checked(folder: Path, engine: str, job: Job, parts: Path, command: str) -> Trial:
    """Return the trial, if it can be run: what is wrong shows before anything is started."""
    nodes = node_files(parts, job)
    ENGINES[engine](folder / DEPLOYMENT, nodes)
    _check_memory(ENGINES[engine], len(nodes))
    if job.privacy is not None:
        job.privacy.epsilon(job.rounds)  # whether there is an accountant
    problem = problem_of(job, nodes)
    simulation(lambda algorithm, rows, **settings: Simulation(algorithm, rows, RunConfig(**settings)), job, problem)
    return Trial(folder, engine, job, nodes, problem, command)


def _check_unfinished(folder: Path, job: Job) -> None:
    done = max((event["round"] for event in read_events(folder) if "round" in event), default=0)
    how = ended(folder, job)
    if how == "proved":
        raise ValueError(f"the run in {folder} has ended: its gap was proved in round {done}")
    if how == "finished" or done > job.rounds:
        raise ValueError(f"the run in {folder} has done {done} rounds; a larger --rounds takes it further")


def ended(folder: Path, job: Job) -> str:
    """Return how the run ended, "finished" or "proved"; nothing if it did not, or its results are not written."""
    from fedmls.results.read import read_setup

    setup = read_setup(folder) or {"status": ""}
    if setup["status"] == "finished" and setup["job"]["rounds"] < job.rounds:
        return ""
    if setup["status"] == "proved" and not (job.until is not None and setup["job"]["until"] <= job.until):
        return ""  # a smaller gap is not proved yet
    return setup["status"] if setup["status"] in ("finished", "proved") else ""


@contextmanager
def _new_folder(out: Path | None) -> Iterator[Path]:
    """Yield an empty folder; after an error it is as it was before."""
    if out is not None and (out / TRIAL).exists():
        raise ValueError(f"{out} holds a run already; go on with it by --resume, or name another folder")
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} is not empty; name another folder")
    folder = out or RESULTS / f"{NAME}{max(_numbers(), default=0) + 1}"
    was_there = folder.exists()
    folder.mkdir(parents=True, exist_ok=out is not None)
    try:
        yield folder
    except BaseException:
        shutil.rmtree(folder / PARTS, ignore_errors=True)
        if not was_there:
            folder.rmdir()
        if out is None:
            with suppress(OSError):  # there are others in it
                RESULTS.rmdir()
        raise


def _numbers() -> list[int]:
    """Return the numbers of the folders of trials that were started without --out."""
    names = [file.name.removeprefix(NAME) for file in RESULTS.glob(f"{NAME}*")]
    return [int(name) for name in names if name.isdecimal()]


def _last_folder() -> Path:
    numbers = _numbers()
    if not numbers:
        raise ValueError(f"there is no run in {RESULTS} to go on with; name its folder with --out")
    return RESULTS / f"{NAME}{max(numbers)}"


def node_files(parts: Path, job: Job) -> dict[str, Path]:
    """Return the configuration files of the nodes of the job, by name."""
    if not parts.is_dir():
        raise ValueError(f"{parts} is no folder; make one of nodes with fedmls split")
    found = sorted(parts.glob("*.toml"))
    files = {NodeConfig.read(file).name: file for file in found}
    if not files:
        raise ValueError(f"{parts} holds no configuration of a node (*.toml); make them with fedmls split")
    if len(files) < len(found):
        raise ValueError(f"{parts} holds two nodes of one name; give each a name of its own")
    for name in job.nodes or ():
        if name not in files:
            raise ValueError(unknown("node of the job", name, files))
    return {name: files[name] for name in sorted(job.nodes or files, key=natural)}


def _check_memory(engine: type[Deployment], n: int) -> None:
    """Raise a ValueError if there are more nodes than memory for them: they would bring the machine to a halt."""
    free = (psutil.virtual_memory().available + psutil.swap_memory().free) // 2**20
    if n * engine.megabytes > free:
        raise ValueError(
            f"{n} nodes over {engine.title} take about {n * engine.megabytes / 1000:.1f} GB of memory, and "
            f"{free / 1000:.1f} GB are free; take fewer"
        )


def problem_of(job: Job, nodes: Mapping[str, Path]) -> Problem:
    """Return the rows of all nodes as one problem, prepared as the job says."""
    survey = survey_of(job, nodes)
    rows = [read_rows(NodeConfig.read(nodes[name])) for name in survey.nodes]
    parts = [prepared(one, survey.columns, survey.means, survey.scales) for one in rows]
    if any(map(is_sparse, parts)):
        from scipy.sparse import csr_array, vstack

        X = vstack([csr_array(part) for part in parts], format="csr")
    else:
        X = np.concatenate(parts)
    y = np.concatenate([one.y if survey.classes is None else label_texts(one.y) for one in rows])
    return Problem(
        X,
        y,
        clients=np.repeat(np.arange(survey.n), survey.rows),
        loss=job.get_loss(),
        intercept=job.intercept,
        l2=job.l2,
        l1=job.l1,
        reduction=job.reduction,
        weights=survey.weights,
        classes=survey.classes,
    )


def survey_of(job: Job, nodes: Mapping[str, Path]) -> SurveyedProblem:
    """Return what the server will learn before round 1, asked of the nodes here, where nothing is to be hidden."""
    job = replace(job, secure=False)
    asked, found = Message("trial", 1, 0, Survey(job.to_dict())), {}
    for name, file in nodes.items():
        try:
            site = Site(replace(NodeConfig.read(file), peers=None))
            found[name] = replies.surveyed(encode(asked.reply(surveyed(site, job))), asked, job)
        except (Refused, MessageError) as error:
            raise ValueError(f"node {name} refuses: {error}") from None
    return agree(job, found)


def simulation(how: Callable[..., Any], job: Job, problem: Problem) -> Any:
    """Return what ``how``, simulate or Simulation, makes of the job."""
    names = ("rounds", "batch", "seed", "every", "certificate", "until")
    return how(job.algorithm, problem, optimum=None, **{name: getattr(job, name) for name in names})
