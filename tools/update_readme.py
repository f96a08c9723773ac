"""Writes what commands really print into the READMEs: ``python tools/update_readme.py [--check]``.

A ``console`` block that starts with ``$ meshplan …`` is replaced by that line and the command's output
(both streams, 100 columns, no colour). ``--check`` writes nothing and returns 1 if a file would change.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
from pathlib import Path
from unittest import mock

from meshplan.cli import main as meshplan

HERE = Path(__file__).parent.parent
READMES = (HERE / "README.md", HERE / "README.zh-CN.md")
BLOCK = re.compile(r"```console\n\$ (meshplan [^\n]*)\n.*?```", re.DOTALL)
ENVIRONMENT = {"COLUMNS": "100", "NO_COLOR": "1"}


def refreshed(text: str) -> str:
    """``text`` with the output of every console block as the commands print it now."""
    return BLOCK.sub(lambda block: f"```console\n$ {block[1]}\n{output(block[1])}```", text)


def output(command: str) -> str:
    """What a command prints, standard error after standard output."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.dict(os.environ, ENVIRONMENT),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        meshplan(shlex.split(command)[1:])
    return out.getvalue() + err.getvalue()


def main(argv: list[str]) -> int:
    """Rewrite the READMEs, or with ``--check`` say whether they would change."""
    changed = False
    for file in READMES:
        old = file.read_text(encoding="utf-8")
        new = refreshed(old)
        if new != old:
            changed = True
            print(f"{file.name}: {'differs' if '--check' in argv else 'written'}")
            if "--check" not in argv:
                file.write_text(new, encoding="utf-8")
    return int(changed and "--check" in argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
