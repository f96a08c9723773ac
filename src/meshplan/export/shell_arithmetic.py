"""Whole-number arithmetic of a shell, ``$(( … ))`` and ``(( … ))``: read by hand, never run."""

from __future__ import annotations

import re
from collections.abc import Callable

_TOKEN = re.compile(r"\s*(\d+|[A-Za-z_]\w*|\+\+|--|[+\-*/%]=|<=|>=|==|!=|&&|\|\||[-+*/%()<>!=,?:])")
_LEVELS: tuple[dict[str, Callable[[int, int], int]], ...] = (
    {"||": lambda a, b: int(bool(a or b))},
    {"&&": lambda a, b: int(bool(a and b))},
    {"==": lambda a, b: int(a == b), "!=": lambda a, b: int(a != b)},
    {
        "<": lambda a, b: int(a < b), "<=": lambda a, b: int(a <= b), ">": lambda a, b: int(a > b),
        ">=": lambda a, b: int(a >= b),
    },
    {"+": lambda a, b: a + b, "-": lambda a, b: a - b},
    {"*": lambda a, b: a * b, "/": lambda a, b: int(a / b), "%": lambda a, b: a - b * int(a / b)},
)  # fmt: skip
"""Operators from the loosest to the tightest; division goes towards zero as in C."""
MOST = 10**15

Known = Callable[[str], int | None]
Assign = Callable[[str, int], None]


class _UnknownError(Exception):
    """A value that is not known, or text that is no arithmetic."""


def arithmetic(text: str, known: Known, assign: Assign | None = None) -> int | None:
    """What an expression comes to; ``None`` where a value is not known or it is malformed.

    ``known`` gives the value of a variable; ``assign`` takes those that the expression sets (``i=0``,
    ``i+=2``, ``i++``), which otherwise make it unknown.

    >>> arithmetic("(2 + 3) * n % 7", {"n": 4}.get)
    6
    """
    try:
        reader = _Reader(text, known, assign)
        value = reader.whole()
    except (_UnknownError, ZeroDivisionError, RecursionError):
        return None
    return value if abs(value) < MOST else None


class _Reader:
    def __init__(self, text: str, known: Known, assign: Assign | None) -> None:
        self.tokens: list[str] = []
        at, text = 0, re.sub(r"\$\{?(\w+)\}?", r"\1", text.strip())
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise _UnknownError
            self.tokens.append(found[1])
            at = found.end()
        self.at, self.known, self.assign = 0, known, assign

    def whole(self) -> int:
        """The last of the expressions between commas."""
        value = self._choice()
        while self._take(","):
            value = self._choice()
        if self.at != len(self.tokens):
            raise _UnknownError
        return value

    def _next(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def _take(self, *words: str) -> str:
        if self._next() in words and self._next():
            self.at += 1
            return self.tokens[self.at - 1]
        return ""

    def _choice(self) -> int:
        value = self._level(0)
        if not self._take("?"):
            return value
        yes = self._choice()
        if not self._take(":"):
            raise _UnknownError
        no = self._choice()
        return yes if value else no

    def _level(self, depth: int) -> int:
        if depth == len(_LEVELS):
            return self._one()
        value = self._level(depth + 1)
        while operator := self._take(*_LEVELS[depth]):
            value = _LEVELS[depth][operator](value, self._level(depth + 1))
        return value

    def _one(self) -> int:
        if sign := self._take("-", "+", "!"):
            value = self._one()
            return {"-": -value, "+": value, "!": int(not value)}[sign]
        if step := self._take("++", "--"):
            return self._set(self._take(self._next()), 1 if step == "++" else -1, after=True)
        if self._take("("):
            value = self._choice()
            if not self._take(")"):
                raise _UnknownError
            return value
        token = self._take(self._next())
        if token.isdecimal():
            return int(token)
        if not token.isidentifier():
            raise _UnknownError
        if step := self._take("++", "--"):
            return self._set(token, 1 if step == "++" else -1, after=False)
        if self._take("="):
            return self._store(token, self._choice())
        if operator := self._take("+=", "-=", "*=", "/=", "%="):
            level = next(level for level in _LEVELS if operator[0] in level)
            return self._store(token, level[operator[0]](self._value(token), self._choice()))
        return self._value(token)

    def _value(self, name: str) -> int:
        value = self.known(name)
        if value is None:
            raise _UnknownError
        return value

    def _set(self, name: str, by: int, *, after: bool) -> int:
        old = self._value(name)
        new = self._store(name, old + by)
        return new if after else old

    def _store(self, name: str, value: int) -> int:
        if self.assign is None:
            raise _UnknownError
        self.assign(name, value)
        return value
