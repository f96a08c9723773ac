"""Two plans side by side, and what stands against a plan that somebody has in mind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshplan.cost.costs import CostModel
from meshplan.report.gather import named_ranking_row, named_row
from meshplan.report.plan_key import plan_key
from meshplan.search.ranking import Ranking
from meshplan.search.reasons import Case, Wish, answer

SCHEMA_VERSION = 1


def compare_data(ranking: Ranking, a: int, b: int) -> dict[str, Any]:
    """Rows ``a`` and ``b`` of a ranking: what differs between the plans, and every part of their time and
    memory with the difference (``b`` less ``a``), the largest differences first."""
    first, second = named_ranking_row(ranking, a), named_ranking_row(ranking, b)
    return {
        "schema_version": SCHEMA_VERSION,
        "a": first,
        "b": second,
        "changes": {
            name: [first[name], second[name]]
            for name in (
                "tp",
                "cp",
                "cp_kind",
                "pp",
                "dp",
                "vp",
                "ep",
                "etp",
                "mbs",
                "micro_batches",
                "schedule",
                "sharding",
                "replicas",
                "recomputed_layers",
                "recompute_modules",
            )
            if first[name] != second[name]
        },
        "time": _differences(first["time"], second["time"]),
        "hidden": _differences(first["hidden"], second["hidden"]),
        "memory": _differences(first["memory"], second["memory"]),
    }


def _differences(a: Mapping[str, float], b: Mapping[str, float]) -> list[dict[str, Any]]:
    parts = dict.fromkeys((*a, *b))
    found = [
        {
            "part": part,
            "a": a.get(part, 0.0),
            "b": b.get(part, 0.0),
            "difference": b.get(part, 0.0) - a.get(part, 0.0),
        }
        for part in parts
    ]
    found = [row for row in found if row["a"] or row["b"]]
    return sorted(found, key=lambda row: -abs(row["difference"]))


def why_not(ranking: Ranking, wish: Wish, cost_model: CostModel) -> dict[str, Any]:
    """What stands against the plans with these fields (``plan_key.read_plan``); what they leave open is
    searched.

    ``verdict``: ``best``; ``slower`` (``row`` is the best of them, ``relative`` its step over the best
    plan's); ``memory`` (``row`` misses by least, by ``excess_bytes``); or ``rules`` (``reasons``: the rules
    broken, each with the values that would pass).
    """
    case = Case(
        model=ranking.model,
        cluster=ranking.cluster,
        workload=ranking.workload,
        space=ranking.space,
        cost_model=cost_model,
    )
    found = answer(case, wish)
    data: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "plan": plan_key(found.plan), "row": None}
    if found.costs is None:
        reasons = [{"rule": b.rule, "reason": b.reason} for b in found.broken]
        return {**data, "verdict": "rules", "reasons": reasons}
    row = {**named_row(ranking, found.costs, 0), "rank": None}
    if not found.fits:
        excess = row["memory_bytes"] - found.costs.memory_limit_bytes
        return {**data, "verdict": "memory", "row": row, "excess_bytes": excess}
    best = float(ranking.costs.step_s[0]) if len(ranking) else row["step_s"]
    verdict = "best" if row["step_s"] <= best * (1 + 1e-9) else "slower"
    return {**data, "verdict": verdict, "row": row, "relative": row["step_s"] / best}
