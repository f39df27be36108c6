"""Formulas as MathML, which browsers draw by themselves: no script and no network is needed. The font is in _static."""

import re
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.util import logging

# Brackets, which latex2mathml writes as if they were letters.
BRACKETS = {"27E8": "prefix", "27E9": "postfix", "2308": "prefix", "2309": "postfix"}
# Bar, hat and tilde over a letter: the signs for it that fonts for mathematics place well.
ACCENTS = {"AF": ("203E", "true"), "5E": ("2C6", "false"), "7E": ("2DC", "false")}
ACCENTED = re.compile(r"<mover[^>]*>(<mi>[^<]*</mi>)<mo[^>]*>&#x0*(AF|5E|7E);</mo></mover>")
PRIME = '<mo lspace="0" rspace="0">&#x2032;</mo>'

log = logging.getLogger(__name__)


def _accented(match: re.Match[str]) -> str:
    sign, stretchy = ACCENTS[match[2]]
    return f'<mover accent="true">{match[1]}<mo stretchy="{stretchy}">&#x{sign};</mo></mover>'


def to_mathml(tex: str, display: str) -> str:
    """The formula as a <math> element. ValueError for a command that is not known."""
    tex = re.sub(r"\b(begin|end)\{aligned\}", r"\1{align*}", tex.strip())
    math = convert(tex, display=display)
    for code, form in BRACKETS.items():
        math = math.replace(f"<mi>&#x0{code};</mi>", f'<mo form="{form}" stretchy="false">&#x{code};</mo>')
    math = math.replace("<mo>&#x02016;</mo>", '<mo stretchy="false" lspace="0" rspace="0">&#x2016;</mo>')
    math = ACCENTED.sub(_accented, math)
    # As a superscript a prime is raised twice where the browser has no font for mathematics.
    math = re.sub(
        r"<msup>(<mi>.</mi>|<mover[^>]*>.*?</mover>)<mi>&#x02032;</mi></msup>", rf"<mrow>\1{PRIME}</mrow>", math
    )
    unknown = re.findall(r"\\\w+", math)
    if unknown or re.search(r"&(?!#?\w+;)", math):
        raise ValueError(f"{' '.join(unknown) or '&'} is not understood in the formula {tex}")
    return math


def _write(translator: Any, node: Any, display: str) -> None:
    try:
        translator.body.append(to_mathml(node.astext(), display))
    except ValueError as error:
        log.warning("%s", error, location=node)
        translator.body.append(translator.encode(node.astext()))


def inline(translator: Any, node: Any) -> None:
    _write(translator, node, "inline")
    raise nodes.SkipNode


def block(translator: Any, node: Any) -> None:
    translator.body.append(translator.starttag(node, "div", CLASS="formula"))
    _write(translator, node, "block")
    translator.body.append("</div>\n")
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, Any]:
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
