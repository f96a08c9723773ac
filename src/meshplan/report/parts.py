"""Pieces of text that several views share: parts of a whole with bars, times that compare, wrapping."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from meshplan.report.screen import bar
from meshplan.report.table import display_width, pad

BAR = 20


def bars(parts: Mapping[str, float], form: Callable[[float], str]) -> list[str]:
    """A line for each part above zero, largest first: name, ``form(value)``, share of the sum and a bar."""
    whole = sum(parts.values())
    found = sorted(((value, name) for name, value in parts.items() if value > 0), reverse=True)
    name_size = max((len(name) for _, name in found), default=0)
    size = max((len(form(value)) for value, _ in found), default=0)
    return [
        f"  {pad(name.replace('_', ' '), name_size)}  {pad(form(value), size, right=True)}"
        f"  {value / whole:>6.1%}  {bar(value / whole, BAR)}".rstrip()
        for value, name in found
    ]


def step_time(seconds: float, whole: float | None = None) -> str:
    """A time in the unit that suits ``whole`` (itself): seconds from one second on, so that a column
    compares at sight.

    >>> step_time(12.345), step_time(0.0421), step_time(0.0421, 12.3)
    ('12.35 s', '42.1 ms', '0.04 s')
    """
    whole = seconds if whole is None else whole
    return f"{seconds:.{1 if whole >= 100 else 2}f} s" if whole >= 1 else f"{1e3 * seconds:.1f} ms"


def wrap(text: str, width: int, indent: str = "  ") -> list[str]:
    """Lines of at most ``width``, broken between words; the second and later ones start with ``indent``."""
    lines, line = [], ""
    for word in text.split(" "):
        if line and display_width(line) + 1 + display_width(word) > width:
            lines.append(line)
            line = indent + word
        else:
            line = f"{line} {word}" if line else word
    return [*lines, line]
