"""How the best plan does as the GPUs grow: MFU and tokens a second, one point a count."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from meshplan.report.markup import Html
from meshplan.report.svg import WIDTH, canvas, dots, line, polyline, text, ticks
from meshplan.report.words import Words
from meshplan.units import format_count

_LEFT, _RIGHT, _TOP, _HEIGHT = 62.0, 22.0, 30.0, 170.0


def scaling_chart(points: Sequence[Mapping[str, Any]], gpus: int, words: Words) -> Html:
    """MFU over the number of GPUs (logarithmic), the same work in every step.

    ``points``: as in ``scale --json``, one curve by rising GPUs: ``gpus``, ``tokens_per_s`` and ``plan`` with
    ``mfu`` (``None`` where no plan is possible); ``gpus`` is the count that was asked about.
    """
    found = [p for p in points if p["plan"] is not None]
    top = max((p["plan"]["mfu"] for p in found), default=0.1) * 1.15
    low, high = math.log2(points[0]["gpus"]), math.log2(points[-1]["gpus"])
    base = _TOP + _HEIGHT

    def x(count: int) -> float:
        share = (math.log2(count) - low) / (high - low) if high > low else 0.5
        return _LEFT + 14 + (WIDTH - _LEFT - _RIGHT - 28) * share

    def y(mfu: float) -> float:
        return base - _HEIGHT * mfu / top

    body: list[Html] = [text(0, 12, words("scaling.mfu"), "small soft")]
    for value in ticks(100 * top, 5):
        body.append(line(_LEFT, y(value / 100), WIDTH - _RIGHT, y(value / 100), "grid"))
        body.append(text(_LEFT - 6, y(value / 100) + 4, f"{value:g}%", "small soft end"))
    body.append(line(_LEFT, base, WIDTH - _RIGHT, base, "axis"))
    for p in points:
        at, strong = x(p["gpus"]), "strong " if p["gpus"] == gpus else ""
        body.append(line(at, base, at, base + 5, "axis"))
        body.append(text(at, base + 19, f"{p['gpus']:,}", f"{strong}small mid"))
        if p["plan"] is None:
            body.append(text(at, base - 6, "✗", "limit mid"))
            continue
        body.append(text(at, base + 34, format_count(p["tokens_per_s"]), "small soft mid"))
        body.append(text(at, y(p["plan"]["mfu"]) - 9, f"{100 * p['plan']['mfu']:.1f}%", f"{strong}small mid"))
    body.append(text(0, base + 19, words("scaling.gpus"), "small soft"))
    body.append(text(0, base + 34, words("scaling.tokens"), "small soft"))
    line_points = [(x(p["gpus"]), y(p["plan"]["mfu"])) for p in found]
    if line_points:
        body.append(polyline(line_points, "path sc1"))
        body.append(dots(line_points, "sc1"))
    if len(found) < len(points):
        body.append(text(WIDTH, 12, words("scaling.nothing"), "small limit end"))
    told = ", ".join(words("scaling.point", gpus=f"{p['gpus']:,}", mfu=_mfu(p)) for p in points)
    title, desc = words("scaling.title"), words("scaling.desc", points=told)
    return canvas("scaling", body, height=base + 46, title=title, desc=desc)


def _mfu(point: Mapping[str, Any]) -> str:
    return "—" if point["plan"] is None else f"{100 * point['plan']['mfu']:.1f}%"
