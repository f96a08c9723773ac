"""What the terminal can do: width, characters, colour. Output is understandable without any of them."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TextIO

from meshplan.report.table import folded
from meshplan.units import one_is_singular

DEFAULT_WIDTH = 100
NARROWEST = 40
_ASCII = str.maketrans({
    "·": "|", "→": "->", "×": "x", "…": "...", "≥": ">=", "≤": "<=", "–": "-", "−": "-", "±": "+-", "µ": "u",
    "≈": "=",
    "█": "#", "▉": "#", "▊": "#", "▋": "#", "▌": "#", "▍": " ", "▎": " ", "▏": " ", "─": "-", "│": "|",
})  # fmt: skip
_BLOCKS = " ▏▎▍▌▋▊▉"


@dataclass(frozen=True, kw_only=True, slots=True)
class Screen:
    """Where text is shown: columns, whether it can show more than ASCII, whether it shows colour."""

    width: int = DEFAULT_WIDTH
    unicode: bool = True
    colour: bool = False

    @classmethod
    def of(cls, stream: TextIO | None = None, env: Mapping[str, str] | None = None) -> Screen:
        """The screen behind ``stream`` (standard output).

        Respects ``COLUMNS``, ``NO_COLOR``, ``FORCE_COLOR``, ``CLICOLOR_FORCE`` and ``TERM=dumb``.
        """
        stream = sys.stdout if stream is None else stream
        env = os.environ if env is None else env
        width = shutil.get_terminal_size((DEFAULT_WIDTH, 24)).columns
        return cls(width=max(width, NARROWEST), unicode=_shows(stream, "█·→×"), colour=_colour(stream, env))

    def text(self, text: str) -> str:
        """``text`` in the characters this screen has, lines that are too wide broken between words; of one
        thing in the singular."""
        lines = one_is_singular(text).split("\n")
        if not self.unicode:
            lines = [line.translate(_ASCII).rstrip() for line in lines]  # the thinnest bars become spaces
        return "\n".join(part for line in lines for part in folded(line, self.width))

    def bold(self, text: str) -> str:
        """``text``, bold where colour is on."""
        return f"\x1b[1m{text}\x1b[0m" if self.colour else text

    def dim(self, text: str) -> str:
        """``text``, dim where colour is on."""
        return f"\x1b[2m{text}\x1b[0m" if self.colour else text


def printable(text: str) -> str:
    r"""``text`` with every character that could steer a terminal written out.

    >>> printable("a\x1b[31mb")
    'a\\x1b[31mb'
    """
    return "".join(ch if ch.isprintable() else repr(ch)[1:-1] for ch in text)


def bar(share: float, width: int) -> str:
    """A bar of ``width`` columns filled to ``share`` (0 to 1, clipped), in eighths of a column.

    >>> bar(0.5, 4), bar(1.2, 4), bar(0.28, 4)
    ('██  ', '████', '█▏  ')
    """
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    full, rest = divmod(eighths, 8)
    text = "█" * full + (_BLOCKS[rest] if rest else "")
    return text + " " * (width - len(text))


def _shows(stream: TextIO, text: str) -> bool:
    try:
        text.encode(stream.encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _colour(stream: TextIO, env: Mapping[str, str]) -> bool:
    if env.get("NO_COLOR"):
        return False
    if env.get("FORCE_COLOR", "0") != "0" or env.get("CLICOLOR_FORCE", "0") != "0":
        return True
    return stream.isatty() and env.get("TERM") != "dumb"
