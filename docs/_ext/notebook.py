"""``{notebook} NAME``: a notebook as a page, its cells run when the site is built."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from live import Live, execute
from sphinx.application import Sphinx


class Notebook(Live):
    """The cells of a notebook beside the page, with what they show."""

    required_arguments = 1
    has_content = False

    def run(self) -> list[nodes.Node]:
        relative, file = self.env.relfn2path(self.arguments[0])
        self.env.note_dependency(relative)
        space: dict[str, Any] = {"__name__": "notebook"}
        found: list[nodes.Node] = []
        for cell in json.loads(Path(file).read_text(encoding="utf-8"))["cells"]:
            text = "".join(cell["source"])
            if cell["cell_type"] == "markdown":
                body = nodes.container()
                self.state.nested_parse(StringList(text.splitlines(), file), self.content_offset, body)
                found += body.children
                continue
            printed, value = execute(text, space)
            found.append(self.shown(text, "python"))
            if printed:
                found.append(self.shown(printed, "text"))
            if value is not None:
                found.append(_value(value))
        return found


def _value(value: object) -> nodes.Node:
    html = getattr(value, "_repr_html_", None)
    if html is not None:
        return nodes.raw("", f'<div class="cell">{html()}</div>', format="html")
    text = repr(value)
    return nodes.literal_block(text, text, language="text")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register it."""
    app.add_directive("notebook", Notebook)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
