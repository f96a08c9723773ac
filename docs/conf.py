"""The documentation site: ``python -m sphinx -W --keep-going -b html docs build/docs``."""

from __future__ import annotations

import sys
from pathlib import Path

import meshplan

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "meshplan"
author = "the meshplan authors"
version = release = meshplan.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "mathml",
    "live",
    "reference",
    "notebook",
    "pages",
]
exclude_patterns = ["_ext", "_static", "notebooks"]
source_suffix = {".md": "markdown"}
html_theme = "furo"
html_title = "meshplan"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_math_renderer = "mathml"
html_show_copyright = False
pygments_style = "tango"
smartquotes = False
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True}
python_use_unqualified_type_names = True
nitpicky = False
