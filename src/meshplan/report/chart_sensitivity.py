"""How much each hardware number matters: per cent of step time for one per cent more of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshplan.report.markup import Html
from meshplan.report.svg import WIDTH, box, canvas, line, shortened, text
from meshplan.report.words import Words

_LEFT, _RIGHT, _ROW, _TOP = 186.0, 70.0, 26.0, 8.0


def sensitivity_chart(found: Mapping[str, Any], words: Words) -> Html:
    """One bar a hardware number, as long as the per cent by which one per cent more of it shortens the step.

    ``found``: as under ``sensitivities`` of ``plan --sensitivities --json``: ``rows`` with ``name`` and
    ``per_cent`` (negative where more helps), ``fixed``, ``tenth_more_memory``.
    """
    rows = [(words(f"hardware.{row['name']}"), -row["per_cent"], "c1") for row in found["rows"]]
    rows.append((words("sensitivity.fixed"), found["fixed"], "c8"))
    longest = max(1.0, *(abs(value) for _, value, _ in rows))
    scale = (WIDTH - _LEFT - _RIGHT) / longest
    base = _TOP + _ROW * len(rows)
    body: list[Html] = []
    for i, (name, value, fill) in enumerate(rows):
        y = _TOP + i * _ROW
        body.append(text(_LEFT - 8, y + 17, shortened(name, _LEFT - 12), "end"))
        left = _LEFT + min(value, 0.0) * scale
        body.append(box(left, y + 4, max(abs(value) * scale, 0.8), _ROW - 8, fill))
        body.append(text(_LEFT + max(value, 0.0) * scale + 6, y + 17, f"{value:.2f}%", "small"))
    body.append(line(_LEFT, _TOP, _LEFT, base + 4, "axis"))
    memory = f"{100 * found['tenth_more_memory']:+.1f}%" if abs(found["tenth_more_memory"]) >= 5e-4 else "0%"
    body.append(text(0, base + 24, words("sensitivity.memory", change=memory), "small soft"))
    told = ", ".join(f"{name} {value:.2f}%" for name, value, _ in rows)
    return canvas(
        "sensitivity", body, height=base + 32,
        title=words("sensitivity.title"), desc=words("sensitivity.desc", rows=told, memory=memory),
    )  # fmt: skip
