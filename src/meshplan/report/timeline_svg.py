"""A simulated schedule as an SVG: one row a rank, time to the right.

Where an action is wide enough it is a box, with the number of its micro-batch if that fits. Where
actions are narrower than that, a row is shaded by what its rank does there, so that 64 ranks and
512 micro-batches still show fill, steady state, bubbles and drain. In a picture folded to a given width,
the begin and the end are drawn large instead, and what repeats between them is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from xml.sax.saxutils import escape

import numpy as np

from meshplan.report.timeline import KIND_NAMES, headline, shares
from meshplan.schedule.order import LETTERS
from meshplan.schedule.result import Simulation

_NARROW, _USUAL, _WIDE = 900.0, 1600.0, 3300.0
"""Widths in pixels: the least, the one where numbers cannot fit anyway, the most to make them fit."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 60, 56, 64
_COLOURS = {"F": (86, 148, 214), "B": (233, 163, 59), "I": (233, 163, 59), "W": (76, 166, 107)}
_IDLE = (238, 238, 238)
_BOX, _NUMBER = 2.0, 15.0
"""Narrowest box in pixels; narrowest box with a number in it."""
_FOLD_BELOW, _FOLD_TO, _FOLD_DEEP = 4.0, 9.0, 4.5
"""Actions narrower than this many pixels make a picture of given width fold, so that they are this wide; in
deep pipelines, which take long to fill, this wide."""
_DEEP = 8
"""Ranks above which a pipeline is deep."""
_GAP = 26.0
"""Pixels between the two halves of a folded picture."""
_STYLE = (
    "text{font-family:system-ui,sans-serif;font-size:12px;fill:#222}"
    ".n{font-size:10px;text-anchor:middle;fill:#111}.h{font-size:16px;font-weight:600}"
    ".r{text-anchor:end}.t{text-anchor:middle}"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sheet:
    """Where things go: pixels wide, pixels of a row, pixels a second, pixels of a typical action; and what
    is drawn where: from, to (seconds), pixels from the left."""

    width: float
    row: float
    scale: float
    typical: float
    spans: tuple[tuple[float, float, float], ...]

    @classmethod
    def of(cls, run: Simulation, across: float | None = None) -> _Sheet:
        margins = _LEFT + _RIGHT
        work = run.work[run.work > 0]
        typical = float(np.quantile(work, 0.2)) if work.size else 0.0
        wanted = 1.1 * _NUMBER * run.step / typical + margins if typical else _NARROW
        width = across or (_USUAL if wanted > _WIDE else max(wanted, _NARROW))
        scale = (width - margins) / run.step if run.step > 0 else 0.0
        spans: tuple[tuple[float, float, float], ...] = ((0.0, run.step, float(_LEFT)),)
        if across and 0 < typical * scale < _FOLD_BELOW:
            scale = (_FOLD_DEEP if run.order.ranks > _DEEP else _FOLD_TO) / typical
            half = (width - margins - _GAP) / 2
            spans = (
                (0.0, half / scale, float(_LEFT)),
                (run.step - half / scale, run.step, _LEFT + half + _GAP),
            )
        ranks = run.order.ranks
        row = 26.0 if ranks <= 16 else 18.0 if ranks <= 32 else 12.0
        return cls(width=round(width), row=row, scale=scale, typical=typical * scale, spans=spans)

    def x(self, at: float, span: int) -> float:
        """The place of a moment of a span."""
        begin, _, left = self.spans[span]
        return left + (at - begin) * self.scale


def is_folded(run: Simulation, across: float) -> bool:
    """Whether a picture of this width leaves out the middle of the run."""
    return len(_Sheet.of(run, across).spans) > 1


def draw_svg(run: Simulation, *, title: str | None = None, across: float | None = None) -> str:
    """The timeline as one SVG document, 900 to 3,300 pixels wide, under a headline (``title``). ``across``: a
    width to keep; what would be too narrow to see is then folded."""
    sheet = _Sheet.of(run, across)
    ranks, row, width = run.order.ranks, sheet.row, sheet.width
    height = _TOP + ranks * row + _BOTTOM
    title = escape(headline(run) if title is None else title)
    about = escape(_description(run))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" role="img" aria-labelledby="title desc">',
        f'<title id="title">{title}</title>',
        f'<desc id="desc">{about}</desc>',
        f"<style>{_STYLE}</style>",
        f'<rect width="{width:g}" height="{height:g}" fill="#fff"/>',
        f'<text class="h" x="{_LEFT}" y="28">{title}</text>',
    ]
    draw = _boxes if sheet.typical >= _BOX else _shades
    for rank in range(ranks):
        y = _TOP + rank * row
        share = run.idle[rank] / run.step if run.step else 0.0
        parts.append(f'<text class="r" x="{_LEFT - 8}" y="{y + row / 2 + 4:g}">rank {rank}</text>')
        parts += [
            _rect(left, y, (end - begin) * sheet.scale, row - 2, _IDLE) for begin, end, left in sheet.spans
        ]
        parts += draw(run, sheet, rank, y)
        parts.append(f'<text x="{width - _RIGHT + 8:g}" y="{y + row / 2 + 4:g}">{share:.1%}</text>')
    parts += [*_axis(run, sheet, _TOP + ranks * row), *_legend(run, sheet, height - 16), "</svg>"]
    return "\n".join(parts) + "\n"


def _description(run: Simulation) -> str:
    worst = int(run.idle.argmax())
    return (
        f"One row for each of {run.order.ranks} pipeline ranks, time from left to right over {run.step:.6g}. "
        f"Rank {worst} idles most, {run.idle[worst] / max(run.step, 1e-300):.1%} of the step; "
        f"at most {int(run.peak_in_flight.max())} activations are alive on a rank."
    )


def _boxes(run: Simulation, sheet: _Sheet, rank: int, y: float) -> list[str]:
    order, scale, height = run.order, sheet.scale, sheet.row - 2
    chunks = order.stages_of(rank)
    parts: list[str] = []
    for i, span in _drawn(run, sheet, rank):
        if run.together and order.paired[i]:
            continue
        begin = max(float(run.start[i]), sheet.spans[span][0])
        width = (min(float(run.end[i]), sheet.spans[span][1]) - begin) * scale
        x = sheet.x(begin, span)
        action = order.action(i)
        # Later stages of a rank are drawn lighter.
        lighter = 0.45 * chunks.index(action.stage) / max(len(chunks) - 1, 1)
        parts.append(
            _rect(x, y, width, height, _mixed([(1 - lighter, _COLOURS[action.kind]), (lighter, (255,) * 3)]))
        )
        if width >= _NUMBER and height >= 14:
            middle = f'x="{x + width / 2:.2f}" y="{y + height / 2 + 3.5:g}"'
            parts.append(f'<text class="n" {middle}>{action.micro_batch}</text>')
    return parts


def _drawn(run: Simulation, sheet: _Sheet, rank: int) -> Iterator[tuple[int, int]]:
    """Actions of a rank that are in the picture, each with its span."""
    low, high = int(run.order.first[rank]), int(run.order.first[rank + 1])
    for span, (begin, end, _) in enumerate(sheet.spans):
        seen = (run.end[low:high] > begin) & (run.start[low:high] < end)
        for i in np.flatnonzero(seen).tolist():
            yield low + i, span


def _shades(run: Simulation, sheet: _Sheet, rank: int, y: float) -> list[str]:
    """Blocks of equal shade: every few pixels the mix of what the rank does there, in sixths."""
    height, across = sheet.row - 2, sheet.width - _LEFT - _RIGHT
    cells = round(across / min(max(4 * sheet.typical, 2.0), 8.0))
    cell = across / cells
    mix = np.rint(shares(run, rank, cells) * 6).astype(int)
    starts = np.flatnonzero(np.append(True, (np.diff(mix, axis=0) != 0).any(axis=1)))
    ends = np.append(starts[1:], cells)
    parts = []
    for low, high in zip(starts.tolist(), ends.tolist(), strict=True):
        sixths = mix[low].tolist()
        if any(sixths):
            weights = [(n / 6, _COLOURS[LETTERS[k]]) for k, n in enumerate(sixths)]
            idle = max(0.0, 1.0 - sum(w for w, _ in weights))
            parts.append(
                _rect(_LEFT + cell * low, y, cell * (high - low), height, _mixed([*weights, (idle, _IDLE)]))
            )
    return parts


def _mixed(weights: list[tuple[float, tuple[int, ...]]]) -> tuple[int, ...]:
    total = sum(w for w, _ in weights) or 1.0
    return tuple(round(sum(w * colour[c] for w, colour in weights) / total) for c in range(3))


def _rect(x: float, y: float, width: float, height: float, colour: tuple[int, ...]) -> str:
    r, g, b = colour
    gap = 0.4 if width > 2 * _BOX else 0.0
    return (
        f'<rect x="{x:.2f}" y="{y:g}" width="{max(width - gap, 0.0):.2f}" height="{height:g}" '
        f'fill="#{r:02x}{g:02x}{b:02x}"/>'
    )


def _axis(run: Simulation, sheet: _Sheet, y: float) -> list[str]:
    """Times below the rows, at round numbers."""
    if run.step <= 0:
        return []
    rough = sum(end - begin for begin, end, _ in sheet.spans) / 10
    power = 10.0 ** np.floor(np.log10(rough))
    tick = next(m * power for m in (1, 2, 5, 10) if m * power >= rough)
    parts = []
    for span, (begin, end, left) in enumerate(sheet.spans):
        if span:
            parts.append(f'<text class="t" x="{left - _GAP / 2:.2f}" y="{y + 4:g}">…</text>')
        for k in range(int(np.ceil(begin / tick)), int(end / tick) + 1):
            x = sheet.x(k * tick, span)
            parts.append(f'<path d="M{x:.2f} {y:g}v6" stroke="#888"/>')
            parts.append(f'<text class="t" x="{x:.2f}" y="{y + 20:g}">{k * tick:g}</text>')
    return parts


def _legend(run: Simulation, sheet: _Sheet, y: float) -> list[str]:
    present = [LETTERS[k] for k in np.unique(run.order.kind).tolist()]
    parts, x = [], float(_LEFT)
    for name, colour in [*((KIND_NAMES[k], _COLOURS[k]) for k in present), ("idle", _IDLE)]:
        parts.append(_rect(x, y - 10, 12, 12, colour))
        parts.append(f'<text x="{x + 18:g}" y="{y:g}">{name}</text>')
        x += 40 + 7 * len(name)
    parts.append(
        f'<text class="r" x="{sheet.width - 8:g}" y="{y:g}">'
        "right: share of the pipeline time a rank idles</text>"
    )
    return parts
