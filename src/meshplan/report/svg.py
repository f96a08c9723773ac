"""What every picture is made of: a canvas with title and description, text, boxes, lines, axes, a legend.

Pictures are SVG text with classes and no style of their own, so that a page with a strict content
security policy can hold them; ``standalone`` adds the style for a file of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from zlib import crc32

from meshplan.report.markup import Child, Html, h, num, plain
from meshplan.report.palette import CHART_CSS, theme_css
from meshplan.report.table import display_width

WIDTH = 480.0
"""Width of most pictures in user units: with letters of 13 units they can be read on a phone held upright."""
WIDE = 640.0
TEXT = 13.0


def canvas(kind: str, *children: Child, width: float = WIDTH, height: float, title: str, desc: str) -> Html:
    """One picture. ``title`` and ``desc`` are read out by screen readers."""
    key = f"{kind}-{crc32(plain(title + desc).encode()):08x}"
    return h(
        "svg",
        h("title", title, id=f"{key}-t"),
        h("desc", desc, id=f"{key}-d"),
        children,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {num(width)} {num(height)}",
        class_=f"mp-chart mp-{kind}",
        role="img",
        aria_labelledby=f"{key}-t {key}-d",
    )


def standalone(picture: str) -> str:
    """The picture as a file of its own: with the colours, and a size for viewers that want one."""
    head, _, rest = picture.partition("</desc>")
    width, height = head.partition('viewBox="0 0 ')[2].partition('"')[0].split(" ")
    head = head.replace("<svg ", f'<svg width="{width}" height="{height}" ', 1)
    return f"{head}</desc><style>{theme_css('.mp-chart')}{CHART_CSS}</style>{rest}\n"


def text(x: float, y: float, words: Child, class_: str = "", **more: str) -> Html:
    """Words with their baseline at ``y``; ``end`` and ``mid`` among the classes move the anchor."""
    return h("text", words, x=float(x), y=float(y), class_=class_ or None, **more)


def box(x: float, y: float, width: float, height: float, class_: str, hint: str = "") -> Html:
    """A rectangle; ``hint`` is shown when the pointer rests on it. ``up`` or ``cross`` among the classes
    hatches it, for fills that some eyes cannot tell apart."""
    found = h(
        "rect", h("title", hint) if hint else None, x=float(x), y=float(y), width=float(max(width, 0.0)),
        height=float(height), class_=class_,
    )  # fmt: skip
    lines = "".join(
        _diagonals(x, y, width, height, down=down)
        for kind, downs in HATCHES.items()
        if kind in class_.split()
        for down in downs
    )
    return h("g", found, h("path", d=lines, class_="hatch")) if lines else found


HATCHES = {"up": (False,), "cross": (False, True)}
"""Class of a box → which way its lines go."""
_BETWEEN = 6.0


def _diagonals(x: float, y: float, width: float, height: float, *, down: bool) -> str:
    """Parallel lines at 45 degrees, cut off at the edges of a box."""
    found = []
    at = _BETWEEN / 2
    while at < width + height:
        low, high = max(at - height, 0.0), min(at, width)
        ends = (x + low, at - low), (x + high, at - high)
        (ax, ay), (bx, by) = ((px, y + height - up if down else y + up) for px, up in ends)
        found.append(f"M{num(ax, 1)} {num(ay, 1)}L{num(bx, 1)} {num(by, 1)}")
        at += _BETWEEN
    return "".join(found)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Html:
    """A straight line."""
    return h("path", d=f"M{num(x1)} {num(y1)}L{num(x2)} {num(y2)}", class_=class_)


def polyline(points: Sequence[tuple[float, float]], class_: str) -> Html:
    """A line through all points."""
    return h("path", d="M" + "L".join(f"{num(x)} {num(y)}" for x, y in points), class_=class_)


def dots(points: Iterable[tuple[float, float]], class_: str) -> Html:
    """A dot at every point, as one element: thousands stay small."""
    return h("path", d="".join(f"M{num(x, 1)} {num(y, 1)}h0" for x, y in points), class_=f"dots {class_}")


def text_width(words: str, size: float = TEXT) -> float:
    """About how wide words are, in user units."""
    return display_width(words) * size * 0.56


def shortened(words: str, room: float, size: float = TEXT) -> str:
    """``words``, cut with an ellipsis where they are wider than ``room``."""
    if text_width(words, size) <= room:
        return words
    while words and text_width(words + "…", size) > room:
        words = words[:-1]
    return words.rstrip() + "…"


def ticks(top: float, most: int = 6) -> list[float]:
    """Round numbers from 0 to at most ``top``.

    >>> ticks(79.1)
    [0.0, 20.0, 40.0, 60.0]
    """
    if not top > 0:
        return [0.0]
    power = 10.0 ** math.floor(math.log10(top / most))
    step = next(m * power for m in (1, 2, 5, 10) if m * power * most >= top)
    return [step * k for k in range(int(top / step * (1 + 1e-9)) + 1)]


def across(
    x: float, y: float, scale: float, top: float, height: float, unit: str, most: int = 6
) -> list[Html]:
    """A horizontal axis below bars: grid lines up over ``height``, figures and the unit below ``y``."""
    parts = [line(x, y, x + top * scale, y, "axis")]
    for value in ticks(top, most):
        at = x + value * scale
        parts.append(line(at, y - height, at, y, "grid"))
        parts.append(text(at, y + 15, f"{value:g}", "small soft mid"))
    parts.append(text(x + top * scale, y + 30, unit, "small soft end"))
    return parts


def legend(
    entries: Sequence[tuple[str, str, str]], x: float, y: float, right: float
) -> tuple[list[Html], float]:
    """Swatches (fill class, letter, words) in as many lines as they need, and the height they take."""
    parts: list[Html] = []
    at, row = x, y
    for fill, letter, words in entries:
        width = 26 + text_width(words)
        if at > x and at + width > right:
            at, row = x, row + 20
        parts.append(box(at, row, 15, 15, fill))
        if letter:
            parts.append(text(at + 7.5, row + 11.5, letter, "on mid"))
        parts.append(text(at + 20, row + 12, words))
        at += width + 12
    return parts, row - y + 20
