"""Sphinx configuration: numpydoc docstrings, MyST pages and notebooks, the PyData theme."""

import os
import re
import sys
from importlib import metadata
from pathlib import Path

# Pages import `terminal`, which shows commands with their output.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))

sys.path.insert(0, str(Path(__file__).parent))

from command_pages import write_command_pages
from sphinx.application import Sphinx

project = "tcpdelay"
author = "tcpdelay developers"
project_copyright = f"2026, {author}"
release = version = metadata.version("tcpdelay")

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "numpydoc",
    "myst_nb",
    "sphinx-mathjax-offline",  # equations without a request to any other host
]
smartquotes_action = "qe"  # quotes and ellipses; two hyphens begin an option
exclude_patterns = ["_build", "jupyter_execute", "**/.ipynb_checkpoints"]

autosummary_generate = True
templates_path = ["_templates"]  # pages of classes, without `__init__`: its parameters are those of the class
autodoc_typehints = "none"
numpydoc_show_class_members = False

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "auto"
# docs/notebooks is a link to the repository's notebooks. They are shown with their committed outputs.
nb_execution_excludepatterns = ["notebooks/*.ipynb"]
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_merge_streams = True
# Markdown that cells display may hold tables.
nb_render_markdown_format = "myst"

html_theme = "pydata_sphinx_theme"
html_title = f"tcpdelay {release}"
html_static_path = ["_static"]
html_css_files = ["layout.css"]
# The row at the top has the five sections; beside a page stand the pages of its section.
html_sidebars = {"**": ["sidebar-nav-bs"], "index": []}
html_theme_options = {
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "header_links_before_dropdown": 5,
    "navbar_center": ["navbar-nav"],
    "navbar_end": ["theme-switcher"],
    "navbar_persistent": ["search-button-field"],  # on a phone too
}


def links_from_the_notebooks(app: Sphinx, docname: str, source: list[str]) -> None:
    """Turn links between files of the repository into names of documents: MyST would follow the link docs/notebooks."""
    if docname.startswith("notebooks/"):
        within = re.sub(r"\]\(([\w-]+)\.ipynb\)", r"](\1)", source[0])
        source[0] = re.sub(r"\]\(\.\./docs/([\w/-]+)\.md\)", r"](../\1)", within)


def setup(app: Sphinx) -> None:
    app.connect("source-read", links_from_the_notebooks)
    app.connect("builder-inited", lambda app: write_command_pages(Path(app.srcdir) / "generated"))
    # It copies files at the end of a build, but does not declare that it is safe for pages that are read in parallel.
    app.extensions["sphinx-mathjax-offline"].parallel_read_safe = True
