"""Links into the repository, as a code host follows them: the folder of examples is the gallery here; other folders and
Markdown outside of docs are plain text; other files can be downloaded (which MyST sees to).
"""

from pathlib import Path
from typing import Any

from sphinx.addnodes import pending_xref


def adapt(app: Any, doctree: Any) -> None:
    repository, here = Path(app.srcdir).parent, Path(app.env.doc2path(app.env.docname)).parent
    for node in list(doctree.findall(pending_xref)):
        if node.get("reftype") != "myst":
            continue
        target = (here / node["reftarget"]).resolve()
        if target == repository / "examples":
            node["refdomain"], node["reftarget"], node["reftargetid"] = "doc", "gallery/index", None
        elif target.is_relative_to(repository) and (target.is_dir() or target.with_suffix(".md").parent == repository):
            node.replace_self(node.children)


def setup(app: Any) -> dict[str, Any]:
    app.connect("doctree-read", adapt)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
