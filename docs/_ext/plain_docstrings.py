"""Docstrings are written to be read in the source. For the site,

- letters that reStructuredText takes for markup (f*, coef_, |x|) are kept as they are;
- a paragraph of "name: what it is" becomes a list, one entry for each name;
- indented lines, and columns made with spaces, stay as they are;
- the type of arrays has the short name that the source has, and Any, which says nothing, is left out;
- a reference may leave out modules, as in :class:`Problem`.
"""

import re
from typing import Any

MARKUP = re.compile(r"(``.*?``|:\w+(?::\w+)*:`[^`]*`)")  # to be left alone
NAMES = r"[A-Za-z_]\w*(?:, [A-Za-z_]\w*)*"
ENTRY = re.compile(rf"^({NAMES}): (?=\S)")
NEXT = re.compile(rf"(?<=[.\w)\]])  (?={NAMES}: )")
N = r"~?(?:numpy\.|typing\.)?"
ARRAY = re.compile(rf"{N}ndarray\[tuple\[{N}Any, \.\.\.\], {N}dtype\[{N}float64\]\]")
ANY = re.compile(rf": {N}Any(?=[,)]| =)")


def plain(lines: list[str]) -> list[str]:
    """The docstring as reStructuredText."""
    out: list[str] = []
    for paragraph in _paragraphs(lines):
        if _is_literal(paragraph):
            marked = any(line.strip() for line in out) and [line for line in out if line][-1].endswith("::")
            out += ([] if marked else ["::", ""]) + [f"  {line}" for line in paragraph]
        elif paragraph[0].startswith("==="):  # a table, whose last column may be as wide as it likes
            out += [escape(line) for line in paragraph]
        elif ENTRY.match(paragraph[0]):
            out += _entries(paragraph)
        else:
            out += [escape(line) for line in paragraph]
        out.append("")
    return out


def _paragraphs(lines: list[str]) -> list[list[str]]:
    found: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            found[-1].append(line)
        elif found[-1]:
            found.append([])
    return [paragraph for paragraph in found if paragraph]


def _is_literal(paragraph: list[str]) -> bool:
    """Code, or columns made with spaces."""
    columns = sum(bool(re.match(r"\S+ {2,}\S", line)) for line in paragraph)
    return paragraph[0].startswith(" ") or (columns >= 2 and not paragraph[0].startswith("==="))


def _entries(paragraph: list[str]) -> list[str]:
    """A list of the names in a paragraph; what follows a name until the next one belongs to it."""
    out: list[str] = []
    for line in [part for whole in paragraph for part in NEXT.split(whole)]:
        match = ENTRY.match(line)
        if match:
            names = ", ".join(f"``{name}``" for name in match[1].split(", "))
            out.append(f"- {names}: {escape(line[match.end() :])}")
        else:
            out.append(f"  {escape(line.strip())}")
    return out


def escape(line: str) -> str:
    """Markup characters, outside of what is marked up on purpose."""
    parts = MARKUP.split(line)
    for i in range(0, len(parts), 2):
        parts[i] = re.sub(r"[*|]|_(?=\W|$)|`", r"\\\g<0>", parts[i])
    return "".join(parts)


def docstring(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = plain(lines)


def signature(
    app: Any, what: str, name: str, obj: Any, options: Any, arguments: str | None, result: str | None
) -> tuple[str | None, str | None]:
    short = [None if text is None else ANY.sub("", ARRAY.sub("Array", text)) for text in (arguments, result)]
    return short[0], short[1]


def short_reference(app: Any, env: Any, node: Any, content: Any) -> Any:
    """Where a name without its module leads, if there is one of that name."""
    domain, target = env.domains["py"], node.get("reftarget", "")
    found = sorted(name for name in domain.objects if name.endswith(f".{target}"))
    if node.get("refdomain") != "py" or not found:
        return None
    return domain.resolve_xref(env, node["refdoc"], app.builder, node["reftype"], found[0], node, content)


def setup(app: Any) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", docstring)
    app.connect("autodoc-process-signature", signature)
    app.connect("missing-reference", short_reference)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
