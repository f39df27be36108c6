"""The documentation site: `make docs` builds it into build/docs, without a network."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

import fedmls  # noqa: E402

project = "fedmls"
author = "The fedmls developers"
copyright = "the fedmls developers; MIT licence"
version = release = fedmls.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "sphinx_gallery.gen_gallery",
    "mathml",
    "plain_docstrings",
    "repository_links",
    "source_links",
    "subscripts",
]
exclude_patterns = ["gallery/*.ipynb", "gallery/*.py", "gallery/*.json"]
smartquotes = False  # words in quotes are often values
highlight_language = "none"  # shell commands and output; Python is named where it is meant

# Pages are Markdown that reads well on a code host, too: formulas between $$, links to files, anchors from headings.
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
myst_links_external_new_tab = False

html_math_renderer = "mathml"
html_theme = "furo"
html_title = "fedmls"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["copy.js"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_show_search_summary = False  # it would fetch the pages, which browsers refuse for files
templates_path: list[str] = []

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80
nitpick_ignore_regex = [
    ("py:.*", r"(numpy|np|pandas|pd|scipy|sklearn|collections|contextlib|pathlib|typing|abc)\..*"),
    ("py:class", r"fedmls\.(datasets|experiments|federation|results)\..*"),
    ("py:class", r"fedmls\.types\.(Server|Client|Down|Up)T"),
    ("py:class", r"(Any|Array|State|Message|Path|Callable|Sequence|Iterable|Mapping|DataFrame|Generator|optional)"),
]

sphinx_gallery_conf = {
    "examples_dirs": ["../examples"],
    "gallery_dirs": ["gallery"],
    "filename_pattern": r"/plot_",
    "ignore_pattern": r"benchopt",
    "nested_sections": False,
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 1_000_000,
    "write_computation_times": False,  # a page with scripts from elsewhere
    "doc_module": ("fedmls",),
    "reference_url": {"fedmls": None},
    "image_scrapers": ("matplotlib",),
    "image_srcset": ["2x"],
}
