"""The commands that pages show: found in a page's text, run in-process in the page's own folder."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

ENVIRONMENT = {"COLUMNS": "100", "NO_COLOR": "1"}
SAMPLES = Path(__file__).parents[2] / "tools" / "samples"
PROGRESS = re.compile(r"^\(.*\)\n", re.MULTILINE)
"""What a command says while it takes a moment; how much of it depends on the machine."""
FENCE = re.compile(r"^(?P<ticks>`{3,})(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=ticks)$", re.DOTALL | re.MULTILINE)
OPTION = re.compile(r"^:([\w-]+):[ \t]*(.*)\n", re.MULTILINE)


class Stream(io.StringIO):
    """A terminal that can show every character."""

    encoding = "utf-8"


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """One fenced block of a page: ``kind`` and ``argument`` of its first line, its options and its text."""

    kind: str
    argument: str
    options: Mapping[str, str] = field(default_factory=dict)
    body: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """What a command printed (standard error after standard output) and its exit code."""

    text: str
    code: int


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks of a page in order; of ``{kind} argument`` and of ``language`` alike."""
    for match in FENCE.finditer(text):
        kind, _, argument = match["info"].strip().partition(" ")
        options, body = {}, match["body"]
        while (option := OPTION.match(body)) is not None:
            options[option[1]] = option[2].strip()
            body = body[option.end() :]
        yield Block(kind=kind, argument=argument.strip(), options=options, body=body)


def shown_commands(block: Block) -> list[str]:
    """The ``meshplan`` commands of a block of shell lines; a backslash joins lines."""
    if block.kind == "{run}":
        return [block.argument]
    if block.kind not in ("bash", "console"):
        return []
    lines = block.body.replace("\\\n", " ").splitlines()
    plain = [line.strip().removeprefix("$ ") for line in lines]
    return [" ".join(line.split()) for line in plain if line.startswith("meshplan ")]


def put_sample(block: Block, folder: Path) -> None:
    """The sample that a ``{sample} NAME`` block stands for, from ``tools/samples``, in the page's folder."""
    source, target = SAMPLES / block.argument, folder / block.argument
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copyfile(source, target)


def write(block: Block, folder: Path) -> None:
    """The file that a ``{write} NAME`` block stands for, in the page's folder."""
    file = folder / block.argument
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(block.body, encoding="utf-8")


_known: dict[str, Shown] = {}


def run(command: str, folder: Path) -> Shown:
    """Run one command line in ``folder``. What leaves no file behind and reads none is run once."""
    words = shlex.split(command)
    lasting = not any(word.endswith((".yaml", ".toml", ".json", ".sh")) for word in words)
    lasting = lasting and not {"--out", "--html", "--svg", "--trace", "trace"}.intersection(words)
    if lasting and command in _known:
        return _known[command]
    from meshplan.cli import main

    out, err = Stream(), Stream()
    with (
        mock.patch.dict(os.environ, ENVIRONMENT),
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = main(words[1:])
    shown = Shown(text=out.getvalue() + PROGRESS.sub("", err.getvalue()), code=code)
    if lasting:
        _known[command] = shown
    return shown
