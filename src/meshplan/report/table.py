"""Tables as text: columns that align, the least important ones left out where the screen is narrow."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

GAP = "  "
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """One column: its title, its cells, how it aligns and when it may go."""

    title: str
    cells: Sequence[str]
    right: bool = False
    """Aligned right, as numbers are."""
    priority: int = 0
    """0: always shown; the highest number is left out first."""


def table(columns: Sequence[Column], width: int) -> list[str]:
    """Lines of text, the titles first, in at most ``width`` columns where leaving out columns and breaking
    texts between words can do it."""
    shown = list(columns)
    while _width(shown) > width and (least := max(column.priority for column in shown)) > 0:
        shown = [column for column in shown if column.priority < least]
    sizes = _squeezed(shown, width)
    rows = zip(*([column.title, *column.cells] for column in shown), strict=True)
    return [
        GAP.join(
            pad(cell, size, right=c.right) for cell, size, c in zip(line, sizes, shown, strict=True)
        ).rstrip()
        for row in rows
        for line in zip_longest(*map(folded, row, sizes), fillvalue="")
    ]


def folded(text: str, size: int) -> list[str]:
    """``text`` in lines of ``size`` columns, broken between words; the later ones are set in by two.

    >>> folded("tp8 cp1 dp4 pp2", 9)
    ['tp8 cp1', '  dp4 pp2']
    """
    if display_width(text) <= size:
        return [text]
    indent = " " * (len(text) - len(text.lstrip()) + 2)
    lines, line = [], ""
    for word in re.findall(r"\s*\S+", text):
        if line.strip() and display_width(line + word) > size:
            lines.append(line)
            line = indent + word.lstrip()
        else:
            line += word
    return [*lines, line]


def markdown(columns: Sequence[Column]) -> list[str]:
    """The lines of a Markdown table with every column."""
    rows = list(zip(*([column.title, *column.cells] for column in columns), strict=True))
    rule = ["---:" if column.right else "---" for column in columns]
    escaped = [[cell.replace("|", "\\|").strip() for cell in row] for row in rows]
    return [f"| {' | '.join(row)} |" for row in (escaped[0], rule, *escaped[1:])]


def csv_text(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Comma-separated values with one line of titles."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return out.getvalue()


def display_width(text: str) -> int:
    """Columns that ``text`` takes: two for wide East Asian characters, none for combining
    marks and colours.

    >>> display_width("step"), display_width("显存")
    (4, 4)
    """
    if "\x1b" in text:
        text = _COLOUR.sub("", text)
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(ch) in "WF" for ch in text)
    return len(text) + wide - sum(unicodedata.combining(ch) != 0 for ch in text)


def pad(text: str, size: int, *, right: bool = False) -> str:
    """``text`` filled with spaces to ``size`` columns."""
    space = " " * (size - display_width(text))
    return space + text if right else text + space


def least_width(columns: Sequence[Column]) -> int:
    """Columns that the table takes with all left out that may be."""
    return _width([column for column in columns if not column.priority])


def _squeezed(columns: Sequence[Column], width: int) -> list[int]:
    """The columns' sizes; where the table is too wide, texts give way, the widest first, down to a word."""
    sizes = [_size(column) for column in columns]
    least = [size if c.right else _least(c) for c, size in zip(columns, sizes, strict=True)]
    over = sum(sizes) + len(GAP) * (len(sizes) - 1) - width
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        cut = max(min(over, sizes[i] - least[i]), 0)
        sizes[i] -= cut
        over -= cut
    return sizes


def _least(column: Column) -> int:
    """The title stays on its line; a later line of a cell is set in by two more than the cell."""
    words = [
        len(cell) - len(cell.lstrip()) + 2 + display_width(word)
        for cell in column.cells
        for word in cell.split()
    ]
    return min(max([display_width(column.title), *words]), _size(column))


def _size(column: Column) -> int:
    return max(display_width(cell) for cell in (column.title, *column.cells))


def _width(columns: Sequence[Column]) -> int:
    return sum(_size(column) for column in columns) + len(GAP) * (len(columns) - 1)
