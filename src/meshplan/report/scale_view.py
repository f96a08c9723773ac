"""How the best plan does as the GPUs grow: a table, bars of where the time goes, and a plot."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from string import ascii_letters
from typing import Any

from meshplan.cost.models import priced_by
from meshplan.report.parts import step_time, wrap
from meshplan.report.plan_names import plan_names
from meshplan.report.plan_rows import plan_data
from meshplan.report.screen import Screen
from meshplan.report.table import Column, pad, table
from meshplan.report.why_view import SCHEMA_VERSION, head, question_data
from meshplan.search.reasons import Case
from meshplan.search.scaling import USEFUL, Point, Scaling
from meshplan.units import format_count

LETTERS: Mapping[str, tuple[str, str]] = {
    USEFUL: ("#", "the model's own FLOP at the peak: MFU"),
    "kernels": ("k", "kernels below the peak"),
    "recompute": ("r", "computing again"),
    "tp": ("t", "tensor parallel transfers"),
    "cp": ("c", "context parallel transfers"),
    "ep": ("e", "expert parallel transfers"),
    "pipeline": ("p", "pipeline: filling, draining, sending"),
    "imbalance": ("i", "waiting for the slowest stage"),
    "dp": ("d", "gradient sync and optimizer"),
    "straggler": ("s", "waiting for the slowest GPU"),
}
"""Where time goes → its letter in the bars, and what it is."""
OTHER = ("o", "other")
PLOT_ROWS = 10
MARKS = ascii_letters
"""Of the curves, as many as there can be points."""


def scale_text(case: Case, found: Scaling, screen: Screen) -> str:
    """What ``meshplan scale`` prints."""
    question = head(case, screen)
    lines = [question[0], *wrap(_ask(case), screen.width), ""]
    for mark, (name, points) in zip(MARKS, found.curves.items(), strict=False):
        lines += [screen.bold(f"{mark}  {_title(name)}"), *_table(points, screen), ""]
        if any(point.costs is not None for point in points):
            lines += [*_bars(points, screen), ""]
    if any(point.costs is not None for point in found.points):
        lines += [*_plot(found, screen), "", *_legend(found, screen)]
    return screen.text("\n".join(lines).rstrip() + "\n")


def scale_data(case: Case, found: Scaling) -> dict[str, Any]:
    """The same as plain data; ``shares`` sum to one."""
    limit = next((p.costs.memory_limit_bytes for p in found.points if p.costs is not None), 0.0)
    return {
        "schema_version": SCHEMA_VERSION,
        **question_data(case, limit),
        "points": [_point_data(case, point) for point in found.points],
    }


def _point_data(case: Case, point: Point) -> dict[str, Any]:
    workload = replace(case.workload, gbs=point.gbs)
    return {
        "curve": point.curve,
        "gpus": point.gpus,
        "gbs": point.gbs,
        "plan": None if point.costs is None else plan_data(point.costs, 0, workload, point.gpus),
        "reason": point.reason or None,
        "tokens_per_s": point.tokens_per_s,
        "efficiency": point.efficiency,
        "shares": dict(point.shares),
    }


def _ask(case: Case) -> str:
    workload = case.workload
    return f"seq {workload.seq:,} · {workload.precision} · {priced_by(case.cost_model)}"


def _title(name: str) -> str:
    kind, _, rest = name.partition(", ")
    rest = rest.removeprefix("gbs ")
    if kind == "strong":
        return f"strong scaling: {rest} sequences a step on every number of GPUs"
    return f"weak scaling: {rest.replace(' on ', ' sequences on ')} GPUs, and as many more on more"


def _table(points: Sequence[Point], screen: Screen) -> list[str]:
    first, *rows = table(
        [
            Column(title="GPUs", cells=[f"{p.gpus:,}" for p in points], right=True),
            Column(title="gbs", cells=[_gbs(p, points[0]) for p in points], right=True, priority=1),
            Column(title="best plan", cells=[_plan(p) for p in points]),
            Column(title="step", cells=[_of(p, _step) for p in points], right=True),
            Column(title="MFU", cells=[_of(p, _mfu) for p in points], right=True),
            Column(title="tokens/s", cells=[_of(p, _tokens) for p in points], right=True),
            Column(title="eff.", cells=[_of(p, _efficiency) for p in points], right=True),
        ],
        screen.width,
    )
    return [screen.bold(first), *rows]


def _gbs(point: Point, first: Point) -> str:
    """The batch; none where it would have to be a part of a sequence to grow as the GPUs do."""
    uneven = first.gbs * point.gpus % first.gpus if point.curve.startswith("weak") else 0
    return "–" if uneven else f"{point.gbs:,}"


def _of(point: Point, say: Any) -> str:
    return "–" if point.costs is None else str(say(point))


def _plan(point: Point) -> str:
    costs = point.costs
    if costs is None:
        return point.reason
    return " ".join(plan_names(costs.plans, costs.plans.order)[0].split())


def _step(point: Point) -> str:
    assert point.costs is not None
    return step_time(float(point.costs.step_s[0]))


def _mfu(point: Point) -> str:
    assert point.costs is not None
    return f"{float(point.costs.mfu[0]):.1%}"


def _tokens(point: Point) -> str:
    return format_count(point.tokens_per_s or 0.0)


def _efficiency(point: Point) -> str:
    return "" if point.efficiency is None else f"{point.efficiency:.2f}"


def _bars(points: Sequence[Point], screen: Screen) -> Iterator[str]:
    """One bar a point: each column is a part of every GPU's time, by letter."""
    size = max(len(f"{p.gpus:,}") for p in points)
    room = max(screen.width - size - 4, 20)
    for point in points:
        if point.costs is not None:
            yield f"{pad(f'{point.gpus:,}', size, right=True)}  |{_letters(point.shares, room)}|"


def _letters(shares: Mapping[str, float], room: int) -> str:
    """``room`` letters, cut where the running sum of the shares ends, so that they always fill it."""
    order = [*LETTERS, *(name for name in shares if name not in LETTERS)]
    text, total = "", 0.0
    for name in order:
        total += shares.get(name, 0.0)
        text += LETTERS.get(name, OTHER)[0] * (round(min(total, 1.0) * room) - len(text))
    return text


def _legend(found: Scaling, screen: Screen) -> list[str]:
    seen = {name for p in found.points for name, share in p.shares.items() if share >= 0.002}
    words = [f"{mark} {what}" for name, (mark, what) in LETTERS.items() if name in seen]
    words += [f"{OTHER[0]} {OTHER[1]}"] if seen - set(LETTERS) else []
    text = "bars, every GPU's time: " + " · ".join(words)
    return [
        *wrap(_marks(found), screen.width),
        *wrap(text, screen.width),
        *wrap("eff.: tokens/s of a GPU over those at the first number of GPUs that has a plan", screen.width),
    ]


def _marks(found: Scaling) -> str:
    """What the marks of the plot are."""
    marks = [
        f"{mark} {kind} scaling, {rest}"
        for mark, (kind, _, rest) in zip(MARKS, (name.partition(", ") for name in found.curves), strict=False)
    ]
    met = ["* where curves meet"] if len(marks) > 1 else []
    return f"plot: {' · '.join([*marks, *met])}"


def _plot(found: Scaling, screen: Screen) -> Iterator[str]:
    """MFU over the number of GPUs, both axes labelled; a letter a curve, ``*`` where they meet."""
    good = [p for p in found.points if p.costs is not None]
    counts = sorted({p.gpus for p in found.points})
    top = math.ceil(max(float(p.costs.mfu[0]) for p in good if p.costs is not None) * 20) / 20
    step = max((screen.width - 8) // len(counts), 3)
    grid = [[" "] * (step * len(counts)) for _ in range(PLOT_ROWS)]
    for mark, points in zip(MARKS, found.curves.values(), strict=False):
        for point in points:
            if point.costs is None:
                continue
            row = PLOT_ROWS - 1 - min(int(float(point.costs.mfu[0]) / top * PLOT_ROWS), PLOT_ROWS - 1)
            column = counts.index(point.gpus) * step + step // 2
            grid[row][column] = mark if grid[row][column] == " " else "*"
    yield screen.bold("MFU of the best plan")
    for i, cells in enumerate(grid):
        label = f"{top * (PLOT_ROWS - i) / PLOT_ROWS:5.0%}" if i % 2 == 0 else " " * 5
        yield f"{label} │{''.join(cells)}".rstrip()
    yield " " * 6 + "─" * (step * len(counts) + 1)
    labels = [_short(count).center(step) for count in counts]
    yield (" " * 7 + "".join(labels)).rstrip() + " GPUs"


def _short(count: int) -> str:
    return f"{count // 1024}K" if count >= 1024 and count % 1024 == 0 else str(count)
