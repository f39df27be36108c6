"""The page: the summary in the template, with style, script and plotly inside, so that it works from disk, offline.

What comes from files is escaped: by Jinja in the page, as \\u003c and the like in the script's data. And the page's
policy lets the browser run these very scripts and nothing else, and fetch nothing.
"""

import base64
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedmls.report.build import summarise

HERE = Path(__file__).parent


def write(paths: Sequence[Path | str], out: Path | str | None = None) -> Path:
    """Write the report of one results folder, or of several side by side.

    out: report.html in the folder unless given; for several, report-with-….html in the first.
    """
    folders = [Path(path) for path in paths]
    if not folders:
        raise ValueError("there is no folder; give one results folder or several")
    file = _default(folders) if out is None else Path(out)
    if file.is_dir():
        raise ValueError(f"{file} is a folder; give a file, such as {file / 'report.html'}")
    text = render(summarise(folders))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def _default(folders: list[Path]) -> Path:
    others = "-".join(folder.resolve().name for folder in folders[1:])
    return folders[0] / (f"report-with-{others}.html" if others else "report.html")


def render(summary: dict[str, Any]) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from plotly.offline import get_plotlyjs

    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    scripts = [get_plotlyjs(), *((HERE / name).read_text(encoding="utf-8") for name in ("chart.js", "report.js"))]
    return environment.get_template("page.html.j2").render(
        **summary,
        style=(HERE / "report.css").read_text(encoding="utf-8"),
        scripts=scripts,
        hashes=" ".join(f"'sha256-{_digest(script)}'" for script in scripts),
        data=_safe_json({"chart": summary["chart"], "folders": [folder["label"] for folder in summary["folders"]]}),
    )


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _safe_json(values: Any) -> str:
    """Return JSON without a character that could end the script element it stands in."""
    text = json.dumps(values, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
