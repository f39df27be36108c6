"""The first file of an experiment, written from what the columns of a data file hold."""

from fedmls.datasets.overview import Overview
from fedmls.datasets.tables import some
from fedmls.datasets.toml_lines import toml_line

CLIENTS = 5
FEW = 50  # values at most of a column whose values may be the clients
ALGORITHMS = """\
[[algorithms]]
name = "fedmlsb"             # without parameters: its own defaults

[[algorithms]]
name = "fedmls"
lam0 = [0.1, 1.0]            # a list is a grid

[[algorithms]]
name = "fedavg"
eta0 = [0.001, 0.01]
"""


def experiment_text(file: str, name: str, found: Overview) -> str:
    """Return a commented experiment on the file, which runs as it stands.

    file: a path from the experiment's file on.  name: that of the experiment's file.
    """
    head = [
        f"# An experiment on {found.rows} rows, for: fedmls run {name}",
        "# All keys: docs/experiments.md",
        "",
        toml_line("rounds", 100),
        toml_line("seeds", 2, "how many; each has its own mini-batches"),
        toml_line("batch", 0.1, "share of a client's rows in a local step"),
        toml_line("loss", *_loss(found)),
    ]
    return "\n".join([*head, "", "[data]", *_data(file, found), "", "[partition]", *_partition(found), "", ALGORITHMS])


def _loss(found: Overview) -> tuple[str, str]:
    if found.classes is None:
        return "absolute", "for numbers; pinball, huber, epsilon_insensitive, too"
    return "hinge", "for two classes; logistic, squared_hinge, too"


def _data(file: str, found: Overview) -> list[str]:
    """Return the lines of the table [data]."""
    lines = [toml_line("file", file), toml_line("label", found.label, _label(found))]
    if found.classes is not None and len(found.classes) > 2:
        lines.append(toml_line("positive", found.classes[0], "the class to tell from the rest"))
    if found.decimal != ".":
        lines.append(toml_line("decimal", found.decimal, "what its numbers are written with"))
    unfit = some((f"{name}: {why}" for name, why in found.unfit.items()), 3)
    lines.append(toml_line("ignore", [*found.ignored, *found.unfit], unfit or "columns that are not used"))
    if found.text:
        text = some((f"{name} ({len(values)} values)" for name, values in found.text.items()), 3)
        lines.append(toml_line("categorical", "onehot", f"text: {text}"))
    gaps = some((f"{name} ({count})" for name, count in found.gaps.items() if name not in found.unfit), 3)
    if found.unlabelled:
        lines.append(toml_line("missing", "drop", f"{found.unlabelled} rows have no label"))
    elif gaps:
        lines.append(toml_line("missing", "mean", f"gaps: {gaps}"))
    lines.append(toml_line("standardise", True, "columns with mean 0 and deviation 1"))
    lines.append(toml_line("holdout", 0.2, "share of the rows kept for testing"))
    return lines


def _label(found: Overview) -> str:
    if found.classes is None:
        return "numbers"
    if len(found.classes) == 2:
        return f"{found.classes[0]} is -1, {found.classes[1]} is +1"
    return some(found.classes, 5)


def _partition(found: Overview) -> list[str]:
    """Return the lines of the table [partition]."""
    natural = [name for name, values in found.text.items() if 2 <= len(values) <= FEW]
    column = f'; a column: "{natural[0]}"' if natural else ", or a column"
    return [
        toml_line("by", "kmeans", f"or iid, dirichlet{column}"),
        toml_line("clients", max(1, min(CLIENTS, found.rows // 10)), "leave it out for a column"),
    ]
