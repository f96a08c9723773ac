"""All plans that fit: step time against memory, the front no plan beats in both, and the error band."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from meshplan.report.markup import Html
from meshplan.report.svg import WIDTH, across, box, canvas, dots, legend, line, polyline, text
from meshplan.report.words import Words

Floats = npt.NDArray[np.float64]

GIB = 2.0**30
SLOWEST = 4.0
"""Plans slower than this many times the best are counted, not drawn."""
_LEFT, _RIGHT, _TOP, _HEIGHT = 48.0, 10.0, 24.0, 240.0


def pareto_chart(
    step_s: Sequence[float], memory_bytes: Sequence[float], limit_bytes: float, words: Words,
    *, chosen: int | None = 0, band: float | None = None, more: int = 0,
) -> Html:  # fmt: skip
    """A dot a plan, the fastest first; ``chosen`` is the index to mark.

    ``band``: half the width within which the model cannot tell plans apart, as a share of the best
    step; ``more``: plans that exist but were not kept.
    """
    step, memory = np.asarray(step_s, dtype=np.float64), np.asarray(memory_bytes, dtype=np.float64)
    relative = step / step.min()
    drawn = relative <= SLOWEST
    top = max(float(relative[drawn].max()) * 1.05, 1.0 + 2 * (band or 0.0), 1.1)
    scale = (WIDTH - _LEFT - _RIGHT) / (1.04 * limit_bytes)
    base = _TOP + _HEIGHT

    def x(value: float) -> float:
        return _LEFT + value * scale

    def y(value: float) -> float:
        return base - 14 - (_HEIGHT - 20) * math.log(value) / math.log(top)

    body: list[Html] = []
    tied = 0
    if band:
        tied = int((relative <= 1 + band).sum())
        body.append(box(_LEFT, y(1 + band), WIDTH - _RIGHT - _LEFT, y(1.0) - y(1 + band), "band"))
    body += across(_LEFT, base, scale * GIB, 1.04 * limit_bytes / GIB, _HEIGHT, words("pareto.memory"))
    for value in _levels(top):
        body.append(line(_LEFT, y(value), WIDTH - _RIGHT, y(value), "grid"))
        body.append(text(_LEFT - 6, y(value) + 4, f"{value:g}×", "small soft end"))
    body.append(text(0, _TOP - 10, words("pareto.step", best=f"{step.min():.4g}"), "small soft"))
    body.append(line(x(limit_bytes), _TOP, x(limit_bytes), base, "cut"))
    points = np.stack([_LEFT + memory * scale, np.zeros(len(step))], axis=1)
    points[:, 1] = base - 14 - (_HEIGHT - 20) * np.log(np.maximum(relative, 1.0)) / math.log(top)
    body.append(dots(_pixels(points[drawn]), "sc8"))
    front = [i for i in pareto_front(step, memory) if drawn[i]]
    if front:
        body.append(polyline(_stairs(points[front]), "path sc2"))
        body.append(dots(points[front].tolist(), "sc2"))
    if chosen is not None and drawn[chosen]:
        body += _mark(float(points[chosen, 0]), float(points[chosen, 1]), f"#{chosen + 1}")
    entries = [
        ("c8", "", words("pareto.plan")),
        ("c2", "", words("pareto.front")),
        ("c1", "", words("pareto.chosen")),
    ]
    if band:
        entries.append(("band", "", words("pareto.band", share=f"{band:.1%}")))
    swatches, height = legend(entries, 0, base + 40, WIDTH)
    left = int((~drawn).sum())
    notes = [words("pareto.slower", count=f"{left:,}", times=f"{SLOWEST:g}")] if left else []
    notes += [words("pareto.more", count=f"{more:,}")] if more else []
    bottom = base + 40 + height
    written = [text(0, bottom + 14 + 16 * i, note, "small soft") for i, note in enumerate(notes)]
    return canvas(
        "pareto", body, swatches, written, height=bottom + 16 * len(notes) + 8,
        title=words("pareto.title"),
        desc=words(
            "pareto.desc", plans=f"{len(step):,}", best=f"{step.min():.4g}", front=len(front),
            least=f"{memory.min() / GIB:.1f}", most=f"{memory.max() / GIB:.1f}",
        ) + (" " + words("pareto.tied", count=f"{tied:,}", share=f"{band:.1%}") if band else ""),
    )  # fmt: skip


def pareto_front(step: Floats, memory: Floats) -> list[int]:
    """Indices of the plans that no other beats in both, by rising memory.

    >>> pareto_front(np.array([1.0, 2.0, 3.0]), np.array([3.0, 1.0, 2.0]))
    [1, 0]
    """
    found: list[int] = []
    fastest = math.inf
    for i in np.lexsort((step, memory)).tolist():
        if step[i] < fastest:
            found.append(i)
            fastest = float(step[i])
    return found


def _pixels(points: Floats) -> list[tuple[float, float]]:
    """The points without those that would fall on the same pixel."""
    whole = np.unique(np.rint(points), axis=0) if len(points) > 400 else points
    return [(float(a), float(b)) for a, b in whole]


def _stairs(points: Floats) -> list[tuple[float, float]]:
    corners: list[tuple[float, float]] = []
    for x, y in points.tolist():
        if corners:
            corners.append((x, corners[-1][1]))
        corners.append((x, y))
    return corners


def _levels(top: float) -> list[float]:
    steps = (1.0, 1.1, 1.2, 1.3, 1.5, 2.0, 3.0, 4.0)
    found = [value for value in steps if value <= top]
    return found if len(found) < 6 else [value for value in found if value not in (1.1, 1.3)]


def _mark(x: float, y: float, label: str) -> list[Html]:
    return [box(x - 5, y - 5, 10, 10, "c1"), text(x + 9, y - 5, label, "strong")]
