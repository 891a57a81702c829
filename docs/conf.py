"""Sphinx configuration: numpydoc docstrings, MyST pages and notebooks, the PyData theme."""

from importlib import metadata

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
exclude_patterns = ["_build", "jupyter_execute"]

autosummary_generate = True
autodoc_typehints = "none"
numpydoc_show_class_members = False

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "auto"
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_merge_streams = True
# Markdown that cells display may hold tables.
nb_render_markdown_format = "myst"

html_theme = "pydata_sphinx_theme"
html_title = f"tcpdelay {release}"
html_sidebars = {"**": []}  # the pages are few; tables need the width
html_theme_options = {"show_toc_level": 2, "navigation_with_keys": False}
