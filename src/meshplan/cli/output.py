"""Files that commands write: whole or not at all, and said on standard error."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from meshplan.files import write_text


def write_file(path: Path | None, text: str | Callable[[TextIO], Any]) -> None:
    """Write a text, or what a function writes, where a flag asks for it (``None``: nowhere) and say so.

    Raises ``InputError``; what was there stays then.
    """
    if path is not None:
        write_text(path, text)
        print(f"wrote {path}", file=sys.stderr)
