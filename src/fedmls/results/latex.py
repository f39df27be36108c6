r"""Tables for papers: a tabular with the rules of the package booktabs, to be had by \input."""

import re
import unicodedata

SPECIAL = {
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"<": r"\ensuremath{<}", ">": r"\ensuremath{>}", "|": r"\ensuremath{|}"},
    **{"–": "--", "−": r"\ensuremath{-}", "×": r"\ensuremath{\times}", "√": r"\ensuremath{\surd}"},
}
EXPONENT = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)e([+-]\d+)(?![\w.])")


def table(cells: list[list[str]], words: int) -> str:
    """Return text cells, header first, as a table; the first ``words`` columns are words, the others numbers."""
    header, *rows = cells
    columns = "l" * words + "r" * (len(header) - words)
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", _line(header), r"\midrule"]
    lines += [*map(_line, rows), r"\bottomrule", r"\end{tabular}"]
    return "% needs \\usepackage{booktabs}\n" + "\n".join(lines) + "\n"


def _line(cells: list[str]) -> str:
    return " & ".join(map(text, cells)) + r" \\"


def text(plain: str) -> str:
    """Return the text for LaTeX: its own characters escaped, powers of ten and Greek letters as mathematics."""
    parts, at = [], 0
    for found in EXPONENT.finditer(plain):
        parts += [_escaped(plain[at : found.start()]), rf"\ensuremath{{{found[1]}\cdot10^{{{int(found[2])}}}}}"]
        at = found.end()
    return "".join([*parts, _escaped(plain[at:])])


def _escaped(plain: str) -> str:
    return "".join(SPECIAL.get(letter) or _letter(letter) for letter in plain)


def greek(letter: str) -> str:
    """Return the name of a small Greek letter, as LaTeX has it; nothing for others."""
    *kind, name = unicodedata.name(letter, "").split(" ") or [""]
    return name.lower().replace("lamda", "lambda") if kind == ["GREEK", "SMALL", "LETTER"] else ""


def _letter(letter: str) -> str:
    if greek(letter):
        return rf"\ensuremath{{\{greek(letter)}}}"
    name = unicodedata.name(letter, "")
    if name.startswith(("SUBSCRIPT ", "SUPERSCRIPT ")) and unicodedata.digit(letter, None) is not None:
        mark = "_" if name.startswith("SUB") else "^"
        return rf"\ensuremath{{{mark}{unicodedata.digit(letter)}}}"
    return letter
