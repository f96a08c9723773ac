"""What if: the best plan after a change beside the one before it, and what each hardware number is worth."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meshplan.cost.costs import Costs
from meshplan.report.parts import step_time, wrap
from meshplan.report.plan_names import plan_names
from meshplan.report.plan_rows import plan_data
from meshplan.report.screen import Screen
from meshplan.report.table import Column, table
from meshplan.report.why_view import binding_lines
from meshplan.search.ranking import Ranking
from meshplan.search.reasons_compare import Sensitivities
from meshplan.search.what_if import WhatIf
from meshplan.search.what_if_software import Changed
from meshplan.units import format_bytes

SAME = 1e-9
"""Gains below this are none."""


def what_if_lines(found: WhatIf, screen: Screen) -> list[str]:
    """Both best plans, before and after."""
    changes = ", ".join(f"{c.name} {c.new} instead of {c.old}{_usable(found, c)}" for c in found.changes)
    by = {"memory": " (best: least memory)", "simplicity": " (best: simplest)"}.get(found.objective, "")
    lines = [*wrap(f"what if: {changes}{by}", screen.width)]
    rows = [row for row in _rows(found) if row[2] is not None]
    if not rows:
        return [*lines, "no plan fits, before or after"]
    first, *body = table(
        [
            Column(title="", cells=[name for name, _, _ in rows]),
            Column(title="plan", cells=[_plan(costs) for _, _, costs in rows]),
            Column(title="step", cells=[_cell(c, step_time(_step(c))) for _, _, c in rows], right=True),
            Column(
                title="MFU", cells=[_cell(c, f"{_first(c).mfu[0]:.1%}", "") for _, _, c in rows], right=True
            ),
            Column(
                title="tokens/s",
                cells=[_cell(c, f"{tokens / _step(c):,.0f}", "") for _, tokens, c in rows],
                right=True,
            ),
            Column(
                title="memory",
                cells=[format_bytes(float(_first(costs).memory_bytes[0])) for _, _, costs in rows],
                right=True,
                priority=1,
            ),
        ],
        screen.width,
    )
    return [*lines, screen.bold(first), *body, *wrap(_verdict(found), screen.width)]


def _usable(found: WhatIf, change: Changed) -> str:
    """What plans may fill of a memory that is the whole board's."""
    if change.name not in ("memory", "hbm"):
        return ""
    then, now = (format_bytes(r.costs.memory_limit_bytes) for r in (found.after, found.before))
    return f" ({then} usable instead of {now})"


def _rows(found: WhatIf) -> Iterator[tuple[str, int, Costs | None]]:
    """What the plan is, the tokens of its step, and its price."""
    before, after = found.before, found.after
    yield "best before", before.workload.tokens, _best(before)
    if found.old_then is not None:
        yield "that plan after", after.workload.tokens, found.old_then
    yield "best after", after.workload.tokens, _best(after)


def _best(ranking: Ranking) -> Costs | None:
    return ranking.costs.take(slice(0, 1)) if len(ranking) else None


def _first(costs: Costs | None) -> Costs:
    assert costs is not None
    return costs


def _step(costs: Costs | None) -> float:
    return float(_first(costs).step_s[0])


def _cell(costs: Costs | None, text: str, without: str = "does not fit") -> str:
    """``text``, or what stands there for a plan that does not fit."""
    return text if bool(_first(costs).fits[0]) else without


def _plan(costs: Costs | None) -> str:
    plans = _first(costs).plans
    return " ".join(plan_names(plans, plans.order)[0].split())


def _verdict(found: WhatIf) -> str:
    before, after = _best(found.before), _best(found.after)
    if after is None:
        return "no plan fits then" if found.after.closest_miss is not None else "no plan is valid then"
    if before is None:
        return "no plan fitted before"
    if found.objective == "memory":
        need, then = (float(costs.memory_bytes[0]) for costs in (before, after))
        text = f"{format_bytes(then)} on the fullest GPU instead of {format_bytes(need)}"
        return f"{text}; {_moved(found, 'memory_bytes')}"
    rate_before = found.before.workload.tokens / _step(before)
    rate = found.after.workload.tokens / _step(after) / rate_before
    per_gpu = rate * found.before.cluster.gpus / found.after.cluster.gpus
    text = f"{rate:.2f} × the tokens a second"
    if found.before.cluster.gpus != found.after.cluster.gpus:
        text += f", {per_gpu:.2f} × a GPU"
    return f"{text}; {_moved(found, 'step_s')}"


def _moved(found: WhatIf, column: str) -> str:
    """What became of the best plan of before; ``column`` of the costs is what plans are compared by."""
    old, new = found.old_then, _first(_best(found.after))
    if old is None:
        return "the best plan of before is not possible then"
    if not bool(old.fits[0]):
        return "the best plan of before does not fit any more"
    if _plan(old) == _plan(new):
        return "the best plan stays the best"
    if found.objective == "simplicity":
        return "the new best plan is simpler, or as simple and faster"
    gain = 1 - float(getattr(new, column)[0]) / float(getattr(old, column)[0])
    if column == "memory_bytes":
        less = f"needs {gain:.1%} less than" if gain > SAME else "needs as much as"
        return f"the new best plan {less} the old one"
    if gain <= SAME:  # tied with it, and simpler
        return "the best plan stays as good as the new one, within the model's usual error"
    return f"the new best plan's step is {gain:.1%} shorter than that of the old one"


def what_if_data(found: WhatIf) -> dict[str, Any]:
    """The same as plain data."""

    def row(costs: Costs | None, ranking: Ranking) -> dict[str, Any] | None:
        return None if costs is None else plan_data(costs, 0, ranking.workload, ranking.cluster.gpus)

    return {
        "objective": found.objective,
        "changes": [{"name": c.name, "old": c.old, "new": c.new} for c in found.changes],
        "before": row(_best(found.before), found.before),
        "after": row(_best(found.after), found.after),
        "old_plan_after": row(found.old_then, found.after),
        "new_plan_before": row(found.new_before, found.before),
        "feasible_before": found.before.counts.feasible,
        "feasible_after": found.after.counts.feasible,
    }


def sensitivity_lines(costs: Costs, found: Sensitivities, screen: Screen) -> list[str]:
    """What each hardware number is worth to the best plan."""
    return ["the best plan (A):", *binding_lines(costs, found, screen)]
