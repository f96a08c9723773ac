"""The reference, generated from code: ``{commands}`` is the command line's help, flag by flag."""

from __future__ import annotations

import contextlib
import io
from typing import Any
from unittest import mock

import cyclopts
from commands import ENVIRONMENT
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import make_id

from meshplan.cli.app import COMMANDS, build
from meshplan.cli.help import HelpFormatter, _description


class Collector(HelpFormatter):
    """Keeps the panels of a help text instead of printing them."""

    def __init__(self) -> None:
        super().__init__()
        self.panels: list[Any] = []

    def __call__(self, console: Any, options: Any, panel: Any) -> None:
        if panel.entries:
            self.panels.append(panel)


def help_of(*words: str) -> tuple[str, list[Any]]:
    """What ``meshplan words --help`` says before its panels, and the panels."""
    app, collector, out = build(), Collector(), io.StringIO()
    with mock.patch.dict("os.environ", {**ENVIRONMENT, "COLUMNS": "200"}), contextlib.redirect_stdout(out):
        found: cyclopts.App = app
        for word in words:
            found = found[word]
            found.help_formatter = collector
        app([*words, "--help"], exit_on_error=False, print_error=False)
    return out.getvalue(), collector.panels


class Commands(SphinxDirective):
    """A section for each command."""

    def run(self) -> list[nodes.Node]:
        found: list[nodes.Node] = []
        for command in COMMANDS:
            found += self._command(command.name)
        return found

    def _command(self, *words: str) -> list[nodes.Node]:
        text, panels = help_of(*words)
        title = " ".join(words)
        name = f"meshplan-{'-'.join(words)}"
        section = nodes.section(ids=[make_id(self.env, self.state.document, "", name)])
        section += nodes.title(title, "", nodes.literal(f"meshplan {title}", f"meshplan {title}"))
        usage, *paragraphs = [" ".join(part.split()) for part in text.strip().split("\n\n") if part.strip()]
        usage = usage.removeprefix("Usage: ")
        section += nodes.literal_block(usage, usage, language="text")
        section += [nodes.paragraph(p, p) for p in paragraphs]
        subcommands: list[str] = []
        for panel in panels:
            if panel.title == "Commands":
                subcommands = [e.display_labels_with_metavar[0].split()[0] for e in panel.entries]
                subcommands = [s for s in subcommands if not s.startswith("-")]
            section += nodes.rubric(panel.title, panel.title)
            section += _flags(panel)
        for name in subcommands:
            section += self._command(*words, name)
        return [section]


def _flags(panel: Any) -> nodes.Node:
    """One panel as a list of flags."""
    flags = nodes.definition_list()
    for entry in panel.entries:
        label = ", ".join(entry.display_labels_with_metavar)
        term = nodes.term("", "", nodes.literal(label, label))
        words = _description(entry)
        flags += nodes.definition_list_item("", term, nodes.definition("", nodes.paragraph(words, words)))
    return nodes.container("", flags, classes=["flags"])


def _plain_docstring(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Equations stand indented in docstrings: shown as written."""
    out: list[str] = []
    inside = False
    for line in lines:
        if line.startswith("    ") and not inside and (not out or not out[-1].strip()):
            previous = next((x for x in reversed(out) if x.strip()), "")
            if not previous.rstrip().endswith("::"):
                out += ["::", ""]
            inside = True
        elif line.strip() and not line.startswith(" "):
            inside = False
        out.append(line)
    lines[:] = out


def setup(app: Sphinx) -> dict[str, bool]:
    """Register everything."""
    app.add_directive("commands", Commands)
    app.connect("autodoc-process-docstring", _plain_docstring)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
