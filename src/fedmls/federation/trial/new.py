"""The first job on the files of several sites, written from what their columns hold."""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from fedmls.datasets.overview import Overview
from fedmls.datasets.tables import mapping, some
from fedmls.datasets.toml_lines import toml_line
from fedmls.federation.sites import look_at_sites, write_nodes
from fedmls.federation.trial.prepare import PARTS, example
from fedmls.files import check_folder


def new_job(
    paths: Sequence[Path],
    out: Path,
    label: str | None = None,
    ignore: Sequence[str] = (),
    decimal: str | None = None,
) -> list[str]:
    """Write a commented job.toml into a new folder, and the configurations of its nodes into the folder parts in it.

    Options are those of :func:`fedmls.federation.sites.look_at_sites`. Columns that cannot be used are left out.
    Returns what was found, in sentences.
    """
    if check_folder(out).exists() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty; name another folder")
    found = look_at_sites(paths, label, ignore, decimal)
    unfit = {name: why for one in found.values() for name, why in one.unfit.items()}
    nodes = write_nodes(found, out / PARTS, leave_out=unfit)
    (out / "job.toml").write_text(_job_text(out, list(found.values())), encoding="utf-8")
    sentences = [
        f"{len(nodes)} sites, {sum(one.rows for one in found.values())} rows: {some(file.stem for file in nodes)}"
    ]
    if unfit:
        sentences.append(f"left out: {some(f'{name!r} ({why})' for name, why in unfit.items())}")
    return sentences


def _job_text(out: Path, found: Collection[Overview]) -> str:
    """Return the example of a job with this job's name, loss, and a word on its gaps."""
    gaps: Counter[str] = Counter()
    for one in found:
        gaps.update(one.gaps)
    told = some((f"{name} ({count})" for name, count in gaps.items()), 3)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", out.name).strip("-.") or "job"
    lines = {
        "# A job": f"# A job for: fedmls federate --job {out / 'job.toml'} --parts {out / PARTS}",
        "name =": toml_line("name", name, "begins the name of the run"),
        "loss =": _loss(found),
        "# categorical": _categorical(found),
        "impute =": toml_line("impute", True, f"gaps become their column's mean: {told or 'there are none'}"),
    }
    return "".join(_replaced(line, lines) for line in example().splitlines(keepends=True))


def _categorical(found: Collection[Overview]) -> str:
    text = dict.fromkeys(name for one in found for name in one.text)
    if not text:
        return toml_line("# categorical", "refuse", '"onehot": text becomes 0/1 columns')
    return toml_line("categorical", "onehot", some(text, 5))


def _replaced(line: str, lines: Mapping[str, str]) -> str:
    """Return the line, or the one that begins alike in its place."""
    return next((f"{other}\n" for begin, other in lines.items() if line.startswith(begin)), line)


def _loss(found: Collection[Overview]) -> str:
    label = next(iter(found)).label
    classes = sorted({value for one in found for value in one.classes or ()})
    if any(one.classes is None for one in found):
        return toml_line("loss", "absolute", f"the label {label!r} holds numbers")
    if len(classes) > 2:
        raise ValueError(f"the label {label!r} has {len(classes)} values, {some(classes, 5)}; a job takes two classes")
    return toml_line("loss", "hinge", mapping(label, (classes[0], classes[-1])))
