"""The documentation site: its small extensions; and, where `make docs` has built it, that its pages need no network."""

import importlib.util
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest

import fedmls

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SITE = ROOT / "build" / "docs"
MATHS = [
    pytest.param(tex, id=f"{page.stem}-{i}")
    for page in [*sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("howto/*.md"))]
    for i, tex in enumerate(re.findall(r"^\$\$\n(.*?)^\$\$", page.read_text(encoding="utf-8"), re.M | re.S))
]


def extension(name):
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / "_ext" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_is_in_the_contents():
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^[\w/-]+$", "\n".join(re.findall(r"```\{toctree\}(.*?)```", index, re.S)), re.M))
    pages = {str(page.relative_to(DOCS).with_suffix("")) for page in [*DOCS.glob("*.md"), *DOCS.glob("howto/*.md")]}
    assert listed - {"gallery/index"} == pages - {"index"}


def test_every_public_name_is_in_the_reference():
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    missing = [name for name in fedmls.__all__ if not re.search(rf"\bfedmls\.{name}\b", text)]
    assert not missing


def promises():
    """The marks of the page on security, each with the tests that it names."""
    page = (DOCS / "security.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (S\d+) \| .* \| (.*) \|$", page, re.M)
    assert len(rows) == len(dict(rows)) > 40
    return {mark: re.findall(r"`(test_\w+)`", tests) for mark, tests in rows}


def test_every_promise_names_tests_that_exist():
    written = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("test_*.py"))
    there = set(re.findall(r"^def (test_\w+)", written, re.M))
    for mark, tests in promises().items():
        assert tests, f"{mark} names no test"
        assert set(tests) <= there, f"{mark} names {sorted(set(tests) - there)}, which are no tests"


@pytest.mark.parametrize("name", ["federation", "deploy", "deploy-nvflare", "deploy-flower", "security"])
def test_marks_on_the_pages_lead_to_promises(name):
    page = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    prose = re.sub(r"```.*?```", "", page, flags=re.S)
    used, linked = (set(re.findall(pattern, prose, re.M)) for pattern in (r"\[(S\d+)\](?![:(])", r"^\[(S\d+)\]: "))
    assert used == linked  # a mark that is not linked is no link
    assert set(re.findall(r"\bS\d+\b", page)) <= promises().keys()
    assert "[tested]" not in page


@pytest.mark.parametrize("name", ["federation", "deploy-nvflare", "deploy-flower"])
def test_every_row_on_what_is_guarded_or_goes_wrong_has_a_mark_or_says_why_not(name):
    page = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    [section] = re.findall(r"^## What (?:goes wrong|is guarded, and what is not)\n(.*?)^## ", page, re.M | re.S)
    rows = [
        row for row in re.findall(r"^\| (.*) \|$", section, re.M) if row.strip("-| ") and row != "what | what happens"
    ]
    assert len(rows) > 8
    for row in rows:
        assert re.search(r"\[S\d+\]|not tested|seen with strace", row) or row.split(" | ")[0] in UNKEPT, row


# What is told there as not guarded, or as a matter of the machine, is no promise.
UNKEPT = (
    "storage",
    "between a site's own processes",
    "the server",
    "the CA's key and the administrator's kit",
    "the administrator's interface",
    "code in an app",
    "a SuperNode's own port (9094, plain HTTP)",
)


@pytest.mark.parametrize("tex", MATHS)
def test_formulas_become_mathml(tex):
    math = ET.fromstring(extension("mathml").to_mathml(tex, "block"))
    assert math.tag.endswith("math")
    assert "".join(math.itertext()).strip()


@pytest.mark.parametrize("tex", [r"\nosuchcommand x", r"a & b"])
def test_formulas_that_are_not_understood_are_refused(tex):
    with pytest.raises(ValueError, match="not understood"):
        extension("mathml").to_mathml(tex, "block")


def test_docstrings_as_restructuredtext():
    plain = extension("plain_docstrings").plain
    assert plain(["f* and |x| of ``f*``, coef_ too"]) == [r"f\* and \|x\| of ``f*``, coef\_ too", ""]
    entries = plain(["batch: a share.  seed: of", "the mini-batches."])
    assert entries == ["- ``batch``: a share.", "- ``seed``: of", "  the mini-batches.", ""]
    assert plain(["Code:", "", "    x = 1"]) == ["Code:", "", "::", "", "      x = 1", ""]
    assert plain(["a  first", "b  second"])[0] == "::"


@pytest.mark.parametrize(
    ("text", "indices"),
    [
        ("Σ w_i f_i(x)", ["i", "i"]),
        ("y_{k+1}, x̂^i and ‖x‖_1", ["k+1", "i", "1"]),
        ("2G_i² and Δy_i", ["i", "i"]),
        ("max_rounds, coef_, a_file_name, n_clients, 1_000", []),
    ],
)
def test_indices_in_prose(text, indices):
    nodes = extension("subscripts").indexed(text)
    assert [node.astext() for node in nodes if node.tagname != "#text"] == indices
    assert "".join(node.astext() for node in nodes) == (re.sub(r"[_^]\{?|\}", "", text) if indices else text)


class Needed(HTMLParser):
    """The addresses that a browser fetches by itself to show a page."""

    def __init__(self):
        super().__init__()
        self.addresses = []

    def handle_starttag(self, tag, attributes):
        if tag in ("script", "link", "img", "iframe", "source"):
            self.addresses += [value for name, value in attributes if name in ("src", "href", "srcset") and value]


@pytest.mark.skipif(not (SITE / "index.html").exists(), reason="make docs has not been run")
def test_the_site_needs_no_network():
    for page in SITE.rglob("*.html"):
        needed = Needed()
        needed.feed(page.read_text(encoding="utf-8"))
        assert not [address for address in needed.addresses if re.match(r"(https?:)?//", address)], page
    for style in SITE.rglob("*.css"):
        assert not re.search(r"url\(\s*['\"]?(https?:)?//|@import\s+['\"](https?:)?//", style.read_text("utf-8")), style


@pytest.mark.skipif(not (SITE / "index.html").exists(), reason="make docs has not been run")
def test_the_site_shows_formulas_and_figures():
    assert (SITE / "algorithms.html").read_text(encoding="utf-8").count("<math ") >= 10
    for script in (ROOT / "examples").glob("plot_*.py"):
        page = (SITE / "gallery" / f"{script.stem}.html").read_text(encoding="utf-8")
        assert re.search(rf"_images/sphx_glr_{script.stem}_\d+.*\.png", page), script.stem
