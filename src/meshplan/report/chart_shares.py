"""Where the efficiency goes as the GPUs grow: every GPU's time, one stacked bar a number of GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshplan.report.markup import Html
from meshplan.report.svg import WIDTH, box, canvas, legend, line, text
from meshplan.report.words import Words, key_of

SHARES: Mapping[str, tuple[str, str]] = {
    "useful": ("m", "c3"),
    "kernels": ("k", "c1"),
    "recompute": ("r", "c4 up"),
    "tp": ("t", "c2"),
    "cp": ("c", "c9"),
    "ep": ("e", "c6 up"),
    "pipeline": ("p", "c8"),
    "imbalance": ("i", "c7 up"),
    "dp": ("d", "c5 up"),
    "straggler": ("s", "c7 cross"),
    "once a step": ("n", "c1 cross"),
}
"""Where time goes → its letter, its fill and how that is hatched, in the order of the bars. Those hatched
alike can be told apart by people who see fewer colours."""
OTHER = ("o", "c8 cross")
SMALLEST = 0.002
"""Share that is drawn and no longer named."""
_LEFT, _RIGHT, _ROW, _TOP = 62.0, 8.0, 30.0, 20.0


def shares_chart(points: Sequence[Mapping[str, Any]], gpus: int, words: Words) -> Html:
    """One bar a point, full length all of the time; the first part is MFU.

    ``points``: as in ``scale --json``, one curve by rising GPUs: ``gpus``, ``plan`` (``None`` where no plan
    is possible) and ``shares``, which sum to one; ``gpus`` is the count that was asked about.
    """
    base = _TOP + _ROW * len(points)
    body: list[Html] = [text(0, 12, words("scaling.gpus"), "small soft")]
    seen: dict[str, tuple[str, str]] = {}
    for i, point in enumerate(points):
        y = _TOP + i * _ROW
        strong = "strong " if point["gpus"] == gpus else ""
        body.append(text(_LEFT - 8, y + 18, f"{point['gpus']:,}", f"{strong}small end"))
        if point["plan"] is None:
            body.append(text(_LEFT, y + 18, words("scaling.nothing"), "small limit"))
            continue
        body += _bar(point["shares"], y, seen, words)
    body.append(line(_LEFT, _TOP, _LEFT, base, "axis"))
    for share in (0.25, 0.5, 0.75, 1.0):
        x = _LEFT + (WIDTH - _LEFT - _RIGHT) * share
        body.append(line(x, base, x, base + 4, "axis"))
        body.append(
            text(x, base + 16, f"{100 * share:g}%", "small soft end" if share == 1 else "small soft mid")
        )
    order = [*SHARES, *(name for name in seen if name not in SHARES)]
    entries = [(seen[name][1], seen[name][0], _word(name, words)) for name in order if name in seen]
    swatches, height = legend(entries, 0, base + 28, WIDTH)
    told = "; ".join(_told(point, words) for point in points)
    return canvas(
        "shares", body, swatches, height=base + 30 + height,
        title=words("shares.title"), desc=words("shares.desc", points=told),
    )  # fmt: skip


def _bar(shares: Mapping[str, float], y: float, seen: dict[str, tuple[str, str]], words: Words) -> list[Html]:
    found: list[Html] = []
    x = _LEFT
    for name in (*SHARES, *(name for name in shares if name not in SHARES)):
        share = shares.get(name, 0.0)
        if share <= 0:
            continue
        width = share * (WIDTH - _LEFT - _RIGHT)
        letter, fill = SHARES.get(name, OTHER)
        found.append(
            box(x, y + 3, max(width - 0.8, 0.3), _ROW - 6, fill, f"{_word(name, words)}: {share:.1%}")
        )
        if width >= 11:
            found.append(text(x + width / 2, y + 19, letter, "on mid"))
        if share >= SMALLEST:
            seen[name] = (letter, fill)
        x += width
    return found


def _word(name: str, words: Words) -> str:
    """What people call a share; one without a text of its own is called as the part of the step."""
    known = f"shares.{key_of(name)}" in words.texts
    return words(f"shares.{key_of(name)}") if known else words.part(name)


def _told(point: Mapping[str, Any], words: Words) -> str:
    if point["plan"] is None:
        return f"{point['gpus']:,}: —"
    parts = sorted(point["shares"].items(), key=lambda item: -item[1])
    told = ", ".join(f"{_word(name, words)} {share:.1%}" for name, share in parts if share >= SMALLEST)
    return f"{point['gpus']:,}: {told}"
