"""Directives and roles whose content meshplan works out when the site is built.

``{run} meshplan …`` runs a command and shows what it prints; ``{write} NAME`` shows a file and puts it
into the page's folder, where its commands run; ``{sample} NAME`` puts one of ``tools/samples`` there and
``{show-file} NAME`` shows one that a command wrote. ``{setup}`` runs Python and shows nothing;
``{python}`` shows Python and what it prints; ``{picture}`` draws the picture its last line makes. The role
``{v}`` is the value of an expression, ``{f}`` links a function of meshplan. ``{exercise}`` and ``{answer}``
hold text. A page has one namespace, which starts with the words of ``figures``.
"""

from __future__ import annotations

import ast
import contextlib
import io
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import commands
import figures
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective, SphinxRole

_spaces: dict[str, dict[str, Any]] = {}
_folders: dict[str, tempfile.TemporaryDirectory[str]] = {}


def space_of(page: str) -> dict[str, Any]:
    """The namespace of a page."""
    if page not in _spaces:
        language = "zh" if page.startswith("zh/") else "en"
        _spaces[page] = {**figures.names(language), "__name__": "page"}
    return _spaces[page]


def folder_of(page: str) -> Path:
    """The folder in which a page's commands run."""
    if page not in _folders:
        _folders[page] = tempfile.TemporaryDirectory(prefix="meshplan-docs-")
    folder = Path(_folders[page].name) / "my-model"  # a model without a name is called as its folder
    folder.mkdir(exist_ok=True)
    return folder


def execute(code: str, space: dict[str, Any]) -> tuple[str, Any]:
    """Run ``code``; what it prints, and the value of its last line where that is an expression."""
    tree = ast.parse(code)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(tree, "page", "exec"), space)
        value = None
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "page", "eval"), space)
    return out.getvalue(), value


class Live(SphinxDirective):
    """What the directives share."""

    has_content = True

    @property
    def code(self) -> str:
        return "\n".join(self.content)

    def worked(self) -> tuple[str, Any]:
        """What the directive's Python prints, and its value."""
        try:
            return execute(self.code, space_of(self.env.docname))
        except Exception as error:
            raise self.error(f"{error!r} in:\n{self.code}") from error

    def shown(self, text: str, language: str) -> nodes.Node:
        block = nodes.literal_block(text.rstrip("\n"), text.rstrip("\n"), language=language)
        self.set_source_info(block)
        return nodes.container("", block, classes=["shown"])


class Run(Live):
    """A command and what it prints."""

    required_arguments = 1
    final_argument_whitespace = True
    option_spec: ClassVar = {
        "exit": directives.nonnegative_int, "lines": directives.unchanged, "from": directives.unchanged,
    }  # fmt: skip

    def run(self) -> list[nodes.Node]:
        command = self.arguments[0]
        shown = commands.run(command, folder_of(self.env.docname))
        wanted = self.options.get("exit", 0)
        if shown.code != wanted:
            raise self.error(f"{command}: exit code {shown.code}, not {wanted}: {shown.text[-300:]}")
        text, start = shown.text.rstrip("\n"), self.options.get("from")
        if start is not None:
            found = text.find(start)
            if found < 0:
                raise self.error(f"{command} does not print {start!r}")
            text = text[text.rfind("\n", 0, found) + 1 :]
        text = ("…\n" if start is not None else "") + _part(text, self.options.get("lines"))
        return [self.shown(f"$ {command}\n{text}", "text")]


def _part(text: str, wanted: str | None) -> str:
    """Lines ``3-7`` (from 1) or ``-12`` of a text; what is left out shows as dots."""
    if wanted is None:
        return text
    lines = text.rstrip("\n").split("\n")
    first, _, last = wanted.partition("-")
    start, end = int(first or 1), int(last or len(lines))
    head = ["…"] if start > 1 else []
    return "\n".join([*head, *lines[start - 1 : end], *(["…"] if end < len(lines) else [])])


class Write(Live):
    """A file that the page's commands read."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        block = commands.Block(kind="{write}", argument=name, body=self.code + "\n")
        commands.write(block, folder_of(self.env.docname))
        literal = nodes.literal_block(self.code, self.code, language=name.rpartition(".")[2])
        return [nodes.container("", nodes.caption(name, name), literal, literal_block=True)]


class Sample(Live):
    """A file or folder of ``tools/samples`` that the page's commands read; shows nothing."""

    required_arguments = 1
    has_content = False

    def run(self) -> list[nodes.Node]:
        block = commands.Block(kind="{sample}", argument=self.arguments[0])
        commands.put_sample(block, folder_of(self.env.docname))
        return []


class ShowFile(Live):
    """A file that the page's commands wrote."""

    required_arguments = 1
    has_content = False
    option_spec: ClassVar = {"lines": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        text = (folder_of(self.env.docname) / self.arguments[0]).read_text(encoding="utf-8")
        name = self.arguments[0]
        part = _part(text, self.options.get("lines"))
        literal = nodes.literal_block(part, part, language="bash" if name.endswith(".sh") else "text")
        return [nodes.container("", nodes.caption(name, name), literal, literal_block=True)]


class Setup(Live):
    """Python that shows nothing."""

    def run(self) -> list[nodes.Node]:
        self.worked()
        return []


class Python(Live):
    """Python, and what it prints."""

    def run(self) -> list[nodes.Node]:
        printed, value = self.worked()
        if value is not None:
            printed += f"{value}\n"
        found = [self.shown(self.code, "python")]
        return [*found, self.shown(printed, "text")] if printed.strip() else found


class Picture(Live):
    """The picture that the last line of the Python makes; the argument is its caption."""

    optional_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        _, picture = self.worked()
        if not str(picture).startswith("<svg"):
            raise self.error("a picture must end with an expression that is an SVG")
        if not self.arguments:
            return [nodes.raw("", f'<figure class="picture">{picture}</figure>', format="html")]
        caption = nodes.paragraph("", "", *self.state.inline_text(self.arguments[0], self.lineno)[0])
        head = nodes.raw("", f'<figure class="picture">{picture}<figcaption>', format="html")
        return [head, caption, nodes.raw("", "</figcaption></figure>", format="html")]


class Value(SphinxRole):
    """The value of an expression."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        try:
            value = eval(self.text, space_of(self.env.docname))
        except Exception as error:
            message = self.inliner.reporter.error(f"{self.text}: {error!r}", line=self.lineno)
            return [], [message]
        return [nodes.Text(str(value))], []


class Code(SphinxRole):
    """A function of meshplan by its full name, with a link to its page and source; it must exist."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        module, _, name = self.text.rpartition(".")
        try:
            getattr(import_module(module), name)
        except (ImportError, AttributeError) as error:
            return [], [self.inliner.reporter.error(f"{self.text}: {error!r}", line=self.lineno)]
        link = addnodes.pending_xref(
            "", refdomain="py", reftype="obj", reftarget=self.text, refdoc=self.env.docname, refwarn=True
        )
        short = self.text.removeprefix("meshplan.")
        link += nodes.literal(short, short, classes=["xref", "py"])
        return [link], []


class Exercise(SphinxDirective):
    """A question to the reader."""

    has_content = True
    word: ClassVar = {"en": "Exercise", "zh": "练习"}

    def run(self) -> list[nodes.Node]:
        count = self.env.temp_data["exercises"] = self.env.temp_data.get("exercises", 0) + 1
        title = f"{self.word[_language(self.env.docname)]} {count}"
        box = nodes.container(classes=["exercise"])
        box += nodes.paragraph(title, title, classes=["exercise-title"])
        self.state.nested_parse(self.content, self.content_offset, box)
        return [box]


class Answer(SphinxDirective):
    """Its answer, folded away."""

    has_content = True
    word: ClassVar = {"en": "Answer", "zh": "答案"}

    def run(self) -> list[nodes.Node]:
        body = nodes.container()
        self.state.nested_parse(self.content, self.content_offset, body)
        word = self.word[_language(self.env.docname)]
        head = f'<details class="answer"><summary>{word}</summary>'
        return [
            nodes.raw("", head, format="html"),
            *body.children,
            nodes.raw("", "</details>", format="html"),
        ]


def _language(page: str) -> str:
    return "zh" if page.startswith("zh/") else "en"


def _forget(app: Sphinx, env: Any, page: str) -> None:
    _spaces.pop(page, None)
    _folders.pop(page, None)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register everything."""
    found = {
        "run": Run, "write": Write, "show-file": ShowFile, "sample": Sample, "setup": Setup, "python": Python,
        "picture": Picture, "exercise": Exercise, "answer": Answer,
    }  # fmt: skip
    for name, directive in found.items():
        app.add_directive(name, directive)
    app.add_role("v", Value())
    app.add_role("f", Code())
    app.connect("env-purge-doc", _forget)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
