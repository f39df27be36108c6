"""The clients, the set-up and how to run it again, from setup.json as far as it tells."""

import json
import shlex
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import tomli_w

from fedmls.checks import real
from fedmls.report import numerals
from fedmls.results.held_out import HeldOutScores

CLIENTS = 40  # shown one by one; of more the largest
CLASSES = 6  # shown one by one; of more the smallest together
LISTED = 12  # of a list
NO_FACTS = {
    *("title", "command", "spec", "problem", "partition", "optimum", "versions", "job", "nodes", "columns", "held_out"),
    *("run", "variants", "target", "epsilon"),
}
OF_JOB = {  # what a federation's page tells of its job beside the problem, and how it is called there
    "rounds": "rounds",
    "batch": "batch",
    "seed": "seed",
    "standardise": "columns scaled (standardise)",
    "impute": "missing values become means (impute)",
    "weights": "weights of the nodes",
    "secure": "secure sums",
    "privacy": "privacy",
    "certificate": "certificate",
    "until": "until",
    "on_missing": "a node that does not answer",
    "on_bad": "a node whose answer is bad",
}
Part = Mapping[str, Any]


def clients(partition: Any) -> dict[str, Any] | None:
    """Return the bars of the clients: rows, classes or the range of labels, in per cent of what is widest."""
    listed = partition if isinstance(partition, list) else []
    parts = [part for part in listed if isinstance(part, dict) and (real(part.get("rows")) or 0) > 0]
    if not parts:
        return None
    rows = sorted(int(part["rows"]) for part in parts)
    shown = parts if len(parts) <= CLIENTS else sorted(parts, key=lambda part: -part["rows"])[:CLIENTS]
    classes, span = _classes(parts), _span(parts)
    left = len(parts) - len(shown)
    each = f"{rows[0]:,} to {rows[-1]:,} each" if rows[0] < rows[-1] else f"{rows[0]:,} each"
    return {
        "lead": f"{numerals.several(len(parts), 'client')} with {numerals.several(sum(rows), 'row')}, {each}",
        "classes": classes,
        "has_labels": span is not None,
        "bars": [_bar(part, rows[-1], classes, span) for part in shown],
        "left": f"and {numerals.several(left, 'smaller client')}" if left else "",
    }


def held_out(found: Any) -> dict[str, Any] | None:
    """Return a federation's scores on held-out rows: a table, header first, and what is to be said beside it."""
    try:
        scores = HeldOutScores.from_plain(found)
        return {"cells": scores.cells(), "remarks": scores.remarks()}
    except (TypeError, KeyError, AttributeError, ValueError):  # there are none, or the file was changed by hand
        return None


def _counts(part: Part) -> dict[str, int]:
    found = part.get("classes")
    pairs = found.items() if isinstance(found, dict) else ()
    return {str(name): int(number) for name, number in pairs if real(number) is not None}


def _classes(parts: Sequence[Part]) -> list[str]:
    """Return the classes in the order of the files; of many the largest, and "others"."""
    total: Counter[str] = Counter()
    for part in parts:
        total.update(_counts(part))
    if len(total) <= CLASSES:
        return list(total)
    large = {name for name, _ in total.most_common(CLASSES - 1)}
    return [*(name for name in total if name in large), "others"]


def _label(part: Part) -> tuple[float, float, float] | None:
    label = part.get("label")
    values = [real(label.get(key)) for key in ("min", "median", "max")] if isinstance(label, dict) else [None]
    return None if None in values else tuple(values)  # type: ignore[return-value]


def _span(parts: Sequence[Part]) -> tuple[float, float] | None:
    """Return the smallest and the largest label of all clients."""
    found = [label for part in parts if (label := _label(part)) is not None]
    return (min(low for low, _, _ in found), max(high for _, _, high in found)) if found else None


def _bar(part: Part, most: int, classes: list[str], span: tuple[float, float] | None) -> dict[str, Any]:
    rows, counts, label = int(part["rows"]), _counts(part), _label(part)
    rest = sum(number for name, number in counts.items() if name not in classes)
    numbers = [counts.get(name, rest if name == "others" else 0) for name in classes] if counts else []
    return {
        "client": str(part.get("client", "")),
        "rows": f"{rows:,}",
        "width": round(100 * rows / most, 2),
        "parts": [{"rows": f"{k:,}", "width": round(100 * k / max(1, sum(numbers)), 2)} for k in numbers],
        "label": None if label is None or span is None else _range(label, span),
    }


def _range(label: tuple[float, float, float], span: tuple[float, float]) -> dict[str, Any]:
    """Return where the bar of a client's labels begins, its width and its median, in per cent of the span."""
    low, middle, high = label
    wide = (span[1] - span[0]) or 1.0
    return {
        "left": round(100 * (low - span[0]) / wide, 2),
        "width": round(100 * (high - low) / wide, 2),
        "middle": round(100 * (middle - span[0]) / wide, 2),
        "texts": [numerals.small(value) for value in label],
    }


def setup(setups: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what was run, the versions and the commands; several folders side by side, with differences marked."""
    return {
        "facts": _side_by_side([_facts(one) for one in setups]),
        "versions": _side_by_side([_table(one, "versions") for one in setups]),
        "commands": [_again(one) for one in setups],
    }


def _table(setup: dict[str, Any], key: str) -> dict[str, Any]:
    value = setup.get(key)
    return value if isinstance(value, dict) else {}


def _facts(setup: dict[str, Any]) -> dict[str, Any]:
    job = _table(setup, "job")
    told = {title: job[key] for key, title in OF_JOB.items() if key in job}
    privacy = {"ε of what was released": setup.get("epsilon")}
    facts = _table(setup, "problem") | {"optimum f*": _optimum(_table(setup, "optimum"))} | setup | told | privacy
    return {key: value for key, value in facts.items() if value not in (None, [], {}) and key not in NO_FACTS}


def _optimum(by_seed: dict[str, Any]) -> str | None:
    values = [value for one in by_seed.values() if (value := real(one)) is not None]
    if not values:
        return None
    low, high = f"{min(values):.6g}", f"{max(values):.6g}"
    return low if low == high else f"{low} to {high}, by seed"


def _side_by_side(facts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for key in dict.fromkeys(key for one in facts for key in one):
        values = [_text(one[key]) if key in one else numerals.NOTHING for one in facts]
        rows.append({"name": str(key).replace("_", " "), "values": values, "differs": len({*values}) > 1})
    return rows


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, dict):
        return "; ".join(f"{key}: {_text(one)}" for key, one in value.items())
    if isinstance(value, list):
        more = f" … ({len(value):,} in all)" if len(value) > LISTED else ""
        return ", ".join(map(_text, value[:LISTED])) + more
    return numerals.NOTHING if value is None else str(value)


def _again(setup: dict[str, Any]) -> dict[str, str]:
    typed = setup.get("command") or ""
    command = shlex.join(map(str, typed)) if isinstance(typed, list) else str(typed)
    about = (
        "The job as a file, for fedmls federate --job:"
        if "job" in setup
        else "The experiment as a file, for fedmls run:"
    )
    return {"command": command, "file": _file(setup.get("spec")), "about": about}


def _file(spec: Any) -> str:
    """Return the experiment's file: TOML, or JSON where that cannot say it."""
    if not isinstance(spec, dict) or not spec:
        return ""
    try:
        text = tomli_w.dumps(spec)
        same = tomllib.loads(text) == spec
    except (ValueError, TypeError):
        same = False
    return text if same else json.dumps(spec, indent=2, ensure_ascii=False)
