"""Lines of a commented TOML file."""

from typing import Any

import tomli_w

WIDTH = 29  # where comments begin


def toml_line(key: str, value: Any, comment: str = "") -> str:
    """Return ``key = value  # comment``, a list in one line."""
    listed = isinstance(value, list | tuple)
    text = f"[{', '.join(map(_text, value))}]" if listed else _text(value)
    line = f"{key} = {text}"
    return f"{line:<{WIDTH - 2}}  # {comment}" if comment else line


def _text(value: Any) -> str:
    return tomli_w.dumps({"x": value}).removeprefix("x = ").rstrip("\n")
