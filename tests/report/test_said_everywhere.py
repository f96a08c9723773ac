"""Every sentence that a question on the page can be answered with has a Chinese form.

The sentences are read off the source: what stands in ``InputError(...)``, with ``7`` for what varies.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import meshplan
from meshplan.report.said import said
from meshplan.report.words import words_in

SOURCE = Path(meshplan.__file__).parent
CHINESE = words_in("zh")
ASKED = (
    "model/*.py", "cluster/[cfgp]*.py", "plan/*.py", "cost/handbook.py", "cost/models.py",
    "search/fidelity.py", "search/reasons*.py", "export/accelerate.py", "export/bridge.py",
    "export/launch*.py", "export/megatron*.py", "export/targets.py", "export/torchtitan.py",
    "report/plan_key.py", "schedule/generate.py", "units.py", "web/*.py",
    "cli/options.py", "cli/wishes.py", "cli/estimate.py",
)  # fmt: skip
"""Modules that a question, a dropped file or a download of the page runs through."""
ELSEWHERE = {
    "model/load.py", "model/hub.py", "model/presets.py",  # paths, downloads and our own files
    "cluster/profile.py", "cluster/profile_numbers.py", "cluster/collectives.py", "cluster/curves.py",  # ours
    "web/run.py",  # the command line, before there is a page
}  # fmt: skip
FILLED = {"place": "line 7, column 7", "plural": "stages", "each": "7 micro-batches a rank"}
"""Words that the module puts together first."""
NOT_ON_THE_PAGE = re.compile(
    r"--\w|no groups 7 in this mesh|rank 7 is not in a mesh|the name of the cluster file|seq must be at least"
    r"|YAML documents|is none of7 layers|gpus_per_node|without a command to start"
    r"|micro-batch group size|sections 7"
)
"""Flags, and what only commands ask."""
OURS = re.compile(
    r"\b(the|does|needs?|must|would|have|has|not|than|with|and|or|is|are|of|for|from|more|only|known|missing|an?"
    r"|which|be|by|at|in|use|write|give)\b"
)
"""Words of a sentence, as titles, names and flags have none."""


def templates(file: Path) -> Iterator[tuple[int, str]]:
    """Line and text of every sentence raised in a module."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        text = spelt(node.args[0])
        if name in ("InputError", "fail") and text is not None and re.search(r"[a-z]{3}", text):
            text = re.sub(r": 7$", ": no candidates", text)  # a sentence in a sentence
            yield node.lineno, re.sub(r"(?<=[a-z])7$", "", text)  # "did you mean" or nothing


def spelt(node: ast.AST) -> str | None:
    """A literal with 7 for what is filled in."""
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(spelt(part) or "7" for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return (spelt(left) or "7") + (spelt(right) or "7")
        case ast.IfExp(body=body):
            return spelt(body)
        case ast.FormattedValue(value=ast.IfExp() as choice):
            return spelt(choice)
        case ast.FormattedValue(value=ast.Name(id=name)) if name in FILLED:
            return FILLED[name]
    return None


def found() -> list[tuple[str, str]]:
    files = {file for pattern in ASKED for file in SOURCE.glob(pattern)}
    every = []
    for file in sorted(files):
        where = file.relative_to(SOURCE).as_posix()
        if where not in ELSEWHERE:
            every += [(f"{where}:{line}", text) for line, text in templates(file)]
    return [(where, text) for where, text in every if not NOT_ON_THE_PAGE.search(text)]


def test_there_are_sentences_to_look_at() -> None:
    assert len(found()) > 120


@pytest.mark.parametrize(("where", "text"), found(), ids=[where for where, _ in found()])
def test_it_has_a_chinese_form(where: str, text: str) -> None:
    told = said(text, CHINESE)
    assert re.search(r"[\u4e00-\u9fff]", told), (where, text)
    plain = re.sub(r"'[^']*'|\"[^\"]*\"|`[^`]*`", "", told)
    assert not OURS.search(plain), (where, text, told)
