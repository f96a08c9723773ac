"""Where one step goes: its exposed parts one after the other, and what computing hides, apart."""

from __future__ import annotations

from collections.abc import Mapping

from meshplan.report.markup import Html
from meshplan.report.palette import TIME_FAMILIES, time_family
from meshplan.report.parts import step_time
from meshplan.report.svg import WIDTH, box, canvas, legend, line, shortened, text
from meshplan.report.words import Words

SMALLEST = 0.0005
"""Share of the step below which parts are drawn as one."""
_LEFT, _RIGHT, _ROW, _TOP = 118.0, 122.0, 24.0, 8.0


def waterfall_chart(time: Mapping[str, float], hidden: Mapping[str, float], words: Words) -> Html:
    """One row a part, each starting where the one before ends; the last row is the whole step.

    ``time`` and ``hidden``: seconds by part, as in the plans of ``plan --json``.
    """
    step = float(sum(time.values()))
    rows = _rows(time, step, words)
    behind = [(part, value) for part, value in hidden.items() if value >= SMALLEST * step]
    longest = max([step, *(value for _, value in behind)])
    scale = (WIDTH - _LEFT - _RIGHT) / longest if longest > 0 else 0.0
    body: list[Html] = []
    x, y = _LEFT, _TOP
    for name, family, value in rows:
        fill = TIME_FAMILIES[family][0]
        body.append(
            box(x, y + 3, max(value * scale, 0.8), _ROW - 7, fill, f"{name}: {step_time(value, step)}")
        )
        body += _labels(name, value, step, y)
        x += value * scale
        body.append(line(x, y + 3, x, y + _ROW + 3, "grid"))
        y += _ROW
    body.append(box(_LEFT, y + 3, step * scale, _ROW - 7, "c9"))
    body += _labels(words("time.step"), step, step, y, "strong")
    y += _ROW + 6
    if behind:
        body.append(text(0, y + 18, words("time.hidden"), "small soft"))
        y += _ROW
        for part, value in sorted(behind, key=lambda item: -item[1]):
            colour = TIME_FAMILIES[time_family(part)][0]
            body.append(box(_LEFT, y + 3, value * scale, _ROW - 7, f"hollow s{colour}"))
            body += _labels(words.part(part), value, step, y)
            y += _ROW
    families = dict.fromkeys(family for _, family, _ in rows)
    entries = [(TIME_FAMILIES[f][0], "", words(f"family.{f}")) for f in families]
    swatches, height = legend(entries, 0, y + 8, WIDTH)
    return canvas(
        "time", body, swatches, height=y + height + 12,
        title=words("time.title"),
        desc=words(
            "time.desc", step=step_time(step),
            parts=", ".join(f"{name} {step_time(value, step)}" for name, _, value in rows),
            hidden=", ".join(f"{words.part(p)} {step_time(v, step)}" for p, v in behind)
            or words("time.none"),
        ),
    )  # fmt: skip


def _rows(time: Mapping[str, float], step: float, words: Words) -> list[tuple[str, str, float]]:
    """Name, family and seconds, by family and the largest of each first; the tiny ones as one row."""
    large = [(part, value) for part, value in time.items() if value >= SMALLEST * step and value > 0]
    order = list(TIME_FAMILIES)
    large.sort(key=lambda item: (order.index(time_family(item[0])), -item[1]))
    rows = [(words.part(part), time_family(part), value) for part, value in large]
    rest = step - sum(value for _, value in large)
    if rest > 1e-6 * step:
        rows.append((words("time.rest"), "waiting", rest))
    return rows


def _labels(name: str, value: float, step: float, y: float, class_: str = "") -> list[Html]:
    share = f"{100 * value / step:.1f}%" if step > 0 else ""
    at = y + _ROW - 8
    return [
        text(_LEFT - 8, at, shortened(name, _LEFT - 12), f"end {class_}".strip()),
        text(WIDTH - 58, at, step_time(value, step), f"end {class_}".strip()),
        text(WIDTH, at, share, f"end soft {class_}".strip()),
    ]
