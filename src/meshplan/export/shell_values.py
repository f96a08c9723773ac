"""What a shell would make of values: tests, whole-number arithmetic, and words that are not known."""

from __future__ import annotations

import re
from dataclasses import dataclass

_OPEN, _CLOSE, _SPACE = "\ue001", "\ue002", "\ue003"
_MARK = re.compile(f"{_OPEN}([^{_CLOSE}]*){_CLOSE}")


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a command. ``raw`` marks in place what only a running shell would know."""

    raw: str

    @property
    def text(self) -> str:
        """The word without what is not known."""
        return _MARK.sub("", self.raw)

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of what is not known: ``$TP``, ``$(date)``."""
        return tuple(dict.fromkeys(name.replace(_SPACE, " ") for name in _MARK.findall(self.raw)))

    def __str__(self) -> str:
        return self.text


def unknown(name: str) -> Word:
    """A word that is not known, under a name that survives splitting at spaces."""
    return Word(_OPEN + re.sub(r"\s", _SPACE, comment_of(name)) + _CLOSE)


def test(words: list[Word]) -> bool | None:
    """The verdict of ``[ … ]`` where all its words are literal; ``None`` where it is not known."""
    texts = [word.text for word in words]
    if len(texts) < 3 or texts[0] not in ("[", "[[", "test") or any(word.missing for word in words):
        return None
    inner = texts[1:] if texts[0] == "test" else texts[1:-1]
    match inner:
        case ["-z", value]:
            return not value
        case ["-n", value]:
            return bool(value)
        case [left, "=" | "==", right]:
            return left == right
        case [left, "!=", right]:
            return left != right
        case [left, "-eq" | "-ne" | "-gt" | "-ge" | "-lt" | "-le" as how, right] if (
            left.isdecimal() and right.isdecimal()
        ):
            a, b = int(left), int(right)
            return {"-eq": a == b, "-ne": a != b, "-gt": a > b, "-ge": a >= b, "-lt": a < b, "-le": a <= b}[
                how
            ]
    return None


def comment_of(text: str) -> str:
    """A short form of an expansion, for messages."""
    plain = " ".join(text.split())
    return plain if len(plain) <= 40 else plain[:37] + "..."
