"""Links from a page of source back to the reference. Sphinx takes for granted that all names of a module are documented
under one module; here some are documented as fedmls.Problem and some as fedmls.types.Local.
"""

import re
from typing import Any


def documented(name: str, objects: Any) -> str:
    """The name under which the reference has an object, which may say more of its module."""
    last = name.partition(".")[2]
    found = [name] if name in objects else sorted(other for other in objects if other.endswith(f".{last}"))
    return found[0] if found else name


def correct(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    if page.startswith("_modules/") and "body" in context:
        objects = app.env.domains["py"].objects
        context["body"] = re.sub(
            r'(?<=#)fedmls\.[\w.]+(?=">)', lambda match: documented(match[0], objects), context["body"]
        )


def setup(app: Any) -> dict[str, Any]:
    app.connect("html-page-context", correct)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
