"""The one family of errors a user can cause; anything else is a bug.

    MeshplanError
    ├── InputError       what was asked makes no sense: exit code 2
    └── UnknownNameError a name nobody knows, with the nearest known ones: exit code 2

"No plan fits" is not in this family: it is a result (``search.Ranking`` with no plans).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from contextlib import suppress


class MeshplanError(Exception):
    """Base of every error caused by what the user asked; ``str(error)`` is one sentence for people."""

    exit_code = 2


class InputError(MeshplanError):
    """What was asked cannot be: the message says what, where, and what would work."""


class UnknownNameError(InputError):
    """A name that is not known; carries the nearest known names.

    ``what`` is the kind of thing (``"GPU"``), ``name`` what was typed, ``known`` all valid names.
    """

    def __init__(self, what: str, name: str, known: Iterable[str], hint: str = "") -> None:
        self.name = name
        self.nearest = nearest(name, known)
        text = f"unknown {what} {shown(name)}"
        if self.nearest:
            text += "; did you mean " + " or ".join(f"'{n}'" for n in self.nearest) + "?"
        elif hint:
            text += f"; {hint}"
        super().__init__(text)


def shown(value: object, limit: int = 60) -> str:
    """``value`` quoted for a message: one line, printable, at most ``limit`` characters."""
    text = str(value)
    if not text.isascii():
        # What the system's encoding could not read was kept as bytes, which mostly are UTF-8.
        with suppress(UnicodeEncodeError):
            text = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    text = repr(text)
    return text if len(text) <= limit else text[: limit - 4] + "...'"


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Known names closest to ``name``, best first; compares without case, spaces or punctuation."""

    def plain(text: str) -> str:
        return "".join(ch for ch in text.lower() if ch.isalnum())

    by_plain: dict[str, str] = {}
    for candidate in known:
        by_plain.setdefault(plain(candidate), candidate)
    wanted = plain(name[:100])
    if not wanted:
        return []
    starts = sorted(
        (p for p in by_plain if p.startswith(wanted) or (len(p) > 2 and wanted.startswith(p))), key=len
    )
    close = difflib.get_close_matches(wanted, by_plain, n=count, cutoff=0.6)
    found = list(dict.fromkeys([*close[:1], *starts, *close]))
    return [by_plain[p] for p in found[:count]]
