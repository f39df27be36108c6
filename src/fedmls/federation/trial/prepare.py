"""A trial of ``fedmls federate``, before it runs: its job, its nodes with their rows, its folder.

The folder holds the job and its results (:mod:`fedmls.federation.server.folder`), and

trial.json   the engine, where the nodes' files are, and the command
parts        data, configuration and state of each node, unless they are elsewhere
deployment   the logs of the server and of the nodes
"""

import json
import shutil
import sys
from collections import Counter
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
from fedmls.datasets.tables import some
from fedmls.federation.codec import MessageError
from fedmls.federation.deploy.base import Deployment
from fedmls.federation.deploy.flower import FlowerDeployment
from fedmls.federation.deploy.nvflare import NVFlareDeployment
from fedmls.federation.errors import Refused
from fedmls.federation.job import Job
from fedmls.federation.messages import Message, Survey, Surveyed, encode
from fedmls.federation.node.first_exchanges import surveyed
from fedmls.federation.node.rows import label_texts, prepared
from fedmls.federation.node.site import Site
from fedmls.federation.node_config import NodeConfig
from fedmls.federation.secure_sums import check_enough
from fedmls.federation.server import replies
from fedmls.federation.server.folder import CHECKPOINT, EVENTS
from fedmls.federation.server.survey import SurveyedProblem, agree, natural
from fedmls.federation.site_files import PARTITIONERS, split
from fedmls.federation.sites import left_out, look_at_sites, write_nodes
from fedmls.files import check_folder, whole_file
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
    notes: tuple[str, ...] = ()  # what its rows are, in sentences


@dataclass(frozen=True)
class Source:
    """The nodes' rows: a file for each of them, a folder of such files or of nodes' configurations; or one file, the
    paper's unless given, that is cut here.
    """

    parts: Path | Sequence[Path] | None = None
    file: Path | None = None
    label: str | None = None
    by: str | None = None
    ignore: tuple[str, ...] = ()
    nodes: int | None = None
    decimal: str | None = None

    def __post_init__(self) -> None:
        if self.nodes is not None:
            whole("nodes", self.nodes)
        cut = {"data": self.file, "by": self.by, "nodes": self.nodes}
        for name in (name for name, value in cut.items() if value is not None and self.parts is not None):
            raise ValueError(f"--parts is of nodes with their rows; leave out --{name}")
        if self.by is not None and self.by not in PARTITIONERS and self.nodes is not None:
            raise ValueError(
                f"--by {self.by} makes a node of each value of that column; leave out --nodes, "
                f"or cut by {' or '.join(PARTITIONERS)}"
            )
        for name in self._of_files():
            if self.parts is None and self.file is None:
                raise ValueError(f"--{name} is of a file; name it with --data, or several with --parts")

    def _of_files(self) -> list[str]:
        """Return which options are given that say how to read files."""
        options = {"label": self.label, "ignore": self.ignore or None, "decimal": self.decimal}
        return [name for name, value in options.items() if value is not None]

    def folder(self, trial: Path, seed: int, algorithms: Sequence[str] = ()) -> Path:
        """Return the folder of the nodes; without one it is made in the trial's, with leave to run these algorithms."""
        if self.parts is not None:
            return self._configured() or self._made(trial / PARTS, algorithms)
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
                decimal=self.decimal,
                algorithms=algorithms,
            )
        fewest, least = min(part.rows for part in written.values()), NodeConfig.read(next(iter(written))).min_rows
        if fewest < least:
            raise ValueError(
                f"one of {len(written)} nodes would have {fewest} rows, and nodes answer for at least {least}; "
                "ask for fewer nodes, or cut by iid"
            )
        return parts

    def notes(self) -> list[str]:
        """Return which files in the folders are not read, in sentences."""
        folders = [] if self._configured() else [path for path in self._paths if path.is_dir()]
        return [f"not read in {folder}: {some(others)}" for folder in folders if (others := left_out(folder))]

    @property
    def _paths(self) -> list[Path]:
        return [self.parts] if isinstance(self.parts, Path) else list(self.parts or ())

    def _configured(self) -> Path | None:
        """Return the folder, if it is one of nodes' configurations."""
        paths = self._paths
        if len(paths) != 1 or not any(paths[0].glob("*.toml")):
            return None
        for name in self._of_files():
            raise ValueError(f"the nodes in {paths[0]} have configurations (*.toml), which say it; leave out --{name}")
        return paths[0].resolve()

    def _made(self, parts: Path, algorithms: Sequence[str]) -> Path:
        """Make the nodes of the files in this folder, and return it."""
        found = look_at_sites(self._paths, self.label, self.ignore, self.decimal)
        write_nodes(found, parts, algorithms=algorithms)
        return parts


def check_engine(name: str) -> None:
    """Refuse an engine that is not there."""
    one_of("engine", name, ENGINES)
    if sys.platform != "linux":
        raise ValueError(f"a deployment on one machine takes Linux, and this is {sys.platform}")
    ENGINES[name].check_installed()


def example() -> str:
    """Return the text of a job's file to start from."""
    return (resources.files(__package__) / "example.toml").read_text(encoding="utf-8")


def make_job(file: Path | None, algorithm: str | None, settings: Sequence[str], options: Mapping[str, Any]) -> Job:
    """Return the job of the file, or the default one, but for what is said otherwise.

    A file need not name an algorithm or rounds. Without a file, FedMLS-B proves its gap.

    settings: parameters of the algorithm, "name=value", values as in TOML.
    """

    def changed(values: dict[str, Any]) -> dict[str, Any]:
        given = {key: value for key, value in options.items() if value is not None}
        least = {key: JOB[key] for key in ("algorithm", "rounds")}
        values = least | values | given
        return values | {"algorithm": _changed_algorithm(values["algorithm"], algorithm, settings)}

    if file is not None:
        return Job.read(file, changed)
    job = Job.from_dict(changed(dict(JOB)))
    if job.algorithm.traits.proves and job.certificate is None:
        return replace(job, certificate=True)  # it costs nothing
    return job


def _changed_algorithm(before: Any, name: str | None, settings: Sequence[str]) -> Any:
    """Return a job's entry for the algorithm, of this name if there is one, with these settings."""
    changed = dict(setting(text, "--set lam0=10") for text in settings)
    before = {"name": before} if isinstance(before, str) else before
    if not isinstance(before, dict) or "name" not in before:
        return before if name is None else {"name": name, "parameters": changed}
    if name is None or name == before["name"]:
        return before | {"parameters": before.get("parameters", {}) | changed}
    return {"name": name, "parameters": PARAMETERS.get(name, {}) | changed}


def begin(out: Path | None, engine: str, job: Job, source: Source, command: str = "") -> Trial:
    """Make a trial in a folder of its own, which must be empty; after an error nothing of it is left."""
    check_engine(engine)
    external = [one for one in [address_inside(job.algorithm)] if ":" in one]
    with _new_folder(out) as folder:
        parts = source.folder(folder, job.seed, external)
        trial = _checked(folder, engine, job, parts, command)
        trial = replace(trial, notes=(*trial.notes, *source.notes()))
        _write(trial, PARTS if parts == folder / PARTS else str(parts))
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
    if job.secure:
        check_enough(len(nodes))
    ENGINES[engine](folder / DEPLOYMENT, nodes)
    _check_memory(ENGINES[engine], len(nodes))
    if job.privacy is not None:
        job.privacy.epsilon(job.rounds)  # whether there is an accountant
    answers = answers_of(job, nodes)
    survey = survey_of(job, answers)
    problem = problem_of(job, nodes, survey)
    simulation(lambda algorithm, rows, **settings: Simulation(algorithm, rows, RunConfig(**settings)), job, problem)
    held_out = ("rows that are held out are not counted here",) if job.holdout is not None else ()
    notes = (sites_told(survey), *decimals_told(nodes), *gaps_told(answers), *held_out)
    return Trial(folder, engine, job, nodes, problem, command, notes)


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
    if out is not None and check_folder(out).exists() and any(out.iterdir()):
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


def problem_of(job: Job, nodes: Mapping[str, Path], survey: SurveyedProblem | None = None) -> Problem:
    """Return the rows of all nodes as one problem, prepared as the job says."""
    survey = survey or survey_of(job, answers_of(job, nodes))
    rows = [Site(NodeConfig.read(nodes[name])).divided(job).training for name in survey.nodes]
    parts = [prepared(one, survey.columns, survey.means, survey.scales, survey.levels) for one in rows]
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


def survey_of(job: Job, answers: Mapping[str, Surveyed]) -> SurveyedProblem:
    """Return what the server will learn before round 1; sums are not masked here."""
    return agree(replace(job, secure=False), dict(answers))


def answers_of(job: Job, nodes: Mapping[str, Path]) -> dict[str, Surveyed]:
    """Return what the nodes will answer before round 1, asked of them here, where nothing is to be hidden."""
    job = replace(job, secure=False)
    asked, found = Message("trial", 1, 0, Survey(job.to_dict())), {}
    for name, file in nodes.items():
        try:
            site = Site(replace(NodeConfig.read(file), peers=None))
            found[name] = replies.surveyed(encode(asked.reply(surveyed(site, job))), asked, job)
        except (Refused, MessageError) as error:
            raise ValueError(f"node {name} refuses: {error}") from None
    return found


def sites_told(survey: SurveyedProblem) -> str:
    """Return a line on the sites, their rows, and what the labels become."""
    sites = some(f"{name} ({rows} rows)" for name, rows in zip(survey.nodes, survey.rows, strict=True))
    labels = "" if survey.classes is None else f"; {survey.classes[0]} is -1, {survey.classes[1]} is +1"
    return f"sites: {sites}{labels}"


def decimals_told(nodes: Mapping[str, Path]) -> list[str]:
    """Return a line on the sites that write numbers with a comma, if there are any."""
    commas = [name for name, file in nodes.items() if NodeConfig.read(file).decimal == ","]
    return [f"numbers are read with a decimal comma: {some(commas)}"] if commas else []


def gaps_told(answers: Mapping[str, Surveyed]) -> list[str]:
    """Return a line on missing values and what they become, if there are any."""
    gaps: Counter[str] = Counter()
    for one in answers.values():
        if one.counts is not None:
            gaps.update({column: one.rows - n for column, n in zip(one.columns, one.counts.tolist(), strict=True)})
    found = [f"{column!r} ({count})" for column, count in gaps.items() if count]
    if not found:
        return []
    count = f"{gaps.total()} gap{'s are' if gaps.total() > 1 else ' is'}"
    return [f"{count} filled with the column's mean over all sites (impute): {some(found)}"]


def simulation(how: Callable[..., Any], job: Job, problem: Problem) -> Any:
    """Return what ``how``, simulate or Simulation, makes of the job."""
    names = ("rounds", "batch", "seed", "every", "certificate", "until")
    return how(job.algorithm, problem, optimum=None, **{name: getattr(job, name) for name in names})
