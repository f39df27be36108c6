"""Letters with indices, written x_i, z^i or y_{k+1} in the running text, get real ones. Code stays as it is."""

import re
from typing import Any

from docutils import nodes
from sphinx import addnodes

# A letter by itself (perhaps after a number or Δ, and with a bar or hat), a bracket or a norm; then _ or ^ and one
# or two letters, {...}, or one of the few words that the pages have there (n_clients is a name).
ONE = r"(?:\{[^{}]+\}|[^\W_²³]{1,2}|low|best|exponent)"
INDEXED = re.compile(
    r"(?:(?<![^\W\dΔ])(?<!\w\.)[^\W\d_][\u0300-\u036f\u2080-\u2089′]?|[)\]‖])"
    rf"(?:_{ONE}(?:\^{ONE})?|\^{ONE}(?:_{ONE})?)(?![^\W²³])"
)
INDEX = re.compile(r"([_^])(?:\{([^{}]+)\}|([^\W_²³]+))")
LEFT_ALONE = (nodes.literal, nodes.literal_block, nodes.math, nodes.math_block, nodes.raw, nodes.comment)


def indexed(text: str) -> list[nodes.Node]:
    """The text as nodes, with subscripts and superscripts."""
    out: list[nodes.Node] = []
    end = 0
    for match in INDEXED.finditer(text):
        for index in INDEX.finditer(text, match.start(), match.end()):
            out.append(nodes.Text(text[end : index.start()]))
            kind = nodes.subscript if index[1] == "_" else nodes.superscript
            out.append(kind("", index[2] or index[3]))
            end = index.end()
    return [*out, nodes.Text(text[end:])]


def _is_prose(node: Any) -> bool:
    while node is not None:
        if isinstance(node, (*LEFT_ALONE, addnodes.desc_signature)):
            return False
        node = node.parent
    return True


def typeset(app: Any, doctree: Any) -> None:
    for text in list(doctree.findall(nodes.Text)):
        if re.search(r"[_^]", text) and _is_prose(text.parent):
            text.parent.replace(text, indexed(str(text)))


def setup(app: Any) -> dict[str, Any]:
    app.connect("doctree-read", typeset)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
