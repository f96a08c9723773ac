"""What every page gets: colours of the pictures, the language it is in, a link to its translation."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from meshplan.report.palette import CHART_CSS, DARK, LIGHT, variables

_folder = tempfile.TemporaryDirectory(prefix="meshplan-docs-css-")
CSS = (
    f".mp-chart{{{variables(LIGHT)}}}"
    f'body[data-theme="dark"] .mp-chart{{{variables(DARK)}}}'
    f'@media screen and (prefers-color-scheme:dark){{body:not([data-theme="light"]) .mp-chart'
    f"{{{variables(DARK)}}}}}{CHART_CSS}"
    ".mp-chart.mp-timeline{max-width:none;min-width:40rem}"
)


def _style(app: Sphinx) -> None:
    (Path(_folder.name) / "pictures.css").write_text(CSS, encoding="utf-8")
    app.config.html_static_path.append(_folder.name)
    app.add_css_file("pictures.css")


def _page(app: Sphinx, page: str, template: str, context: dict[str, Any], tree: Any) -> None:
    chinese = page.startswith("zh/")
    if chinese:
        context["language"] = "zh-CN"
    other, name, code = (
        (page.removeprefix("zh/"), "English", "en") if chinese else (f"zh/{page}", "中文", "zh-CN")
    )
    if "body" in context and other in app.env.found_docs:
        link = context["pathto"](other)
        anchor = f'<a href="{link}" hreflang="{code}" lang="{code}">{name}</a>'
        context["body"] = f'<p class="language">{anchor}</p>{context["body"]}'


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect both."""
    app.connect("builder-inited", _style)
    app.connect("html-page-context", _page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
