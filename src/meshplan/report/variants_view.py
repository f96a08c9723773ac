"""The best plans of several precisions and orders side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshplan.report.parts import step_time
from meshplan.report.plan_names import plan_names
from meshplan.report.plan_rows import plan_data
from meshplan.report.screen import Screen
from meshplan.report.table import Column, table
from meshplan.search.ranking import Ranking
from meshplan.units import format_bytes


def variants_text(rankings: Sequence[Ranking], screen: Screen) -> str:
    """A table of the rankings, best first, and which one follows."""
    least = min((float(r.costs.step_s[0]) for r in rankings if len(r)), default=1.0)
    rows = [_cells(r, least) for r in rankings]
    titles = ("precision", "order", "best plan", "step", "rel", "MFU", "memory")
    columns = [
        Column(title=title, cells=[row[i] for row in rows], right=i > 2) for i, title in enumerate(titles)
    ]
    head, *lines = table(columns, screen.width)
    first = rankings[0]
    follows = f"in full, {first.workload.precision}, {'-'.join(first.space.order)}:"
    return screen.text("\n".join([screen.bold(head), *lines, "", follows, ""]) + "\n")


def _cells(ranking: Ranking, least: float) -> tuple[str, ...]:
    head = (ranking.workload.precision, "-".join(ranking.space.order))
    if not len(ranking):
        return (*head, "none fits", "", "", "", "")
    costs = ranking.costs.take(slice(0, 1))
    name = " ".join(plan_names(costs.plans, ranking.space.order)[0].split())
    step = float(costs.step_s[0])
    return (
        *head,
        name,
        step_time(step),
        f"{step / least:.2f}",
        f"{costs.mfu[0]:.1%}",
        format_bytes(float(costs.memory_bytes[0])),
    )


def variants_data(rankings: Sequence[Ranking]) -> list[dict[str, Any]]:
    """The same as plain data; the rest of the JSON is of the first."""
    return [
        {
            "precision": ranking.workload.precision,
            "order": "-".join(ranking.space.order),
            "best": plan_data(ranking.costs, 0, ranking.workload, ranking.cluster.gpus)
            if len(ranking)
            else None,
        }
        for ranking in rankings
    ]
