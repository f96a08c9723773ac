"""Two plans of a ranking side by side, as plain data."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshplan.report.gather import named_ranking_row
from meshplan.search.ranking import Ranking
from meshplan.search.reasons_compare import Difference, compare

SCHEMA_VERSION = 1
CHOICES = (
    "tp", "cp", "cp_kind", "pp", "dp", "vp", "ep", "etp", "mbs", "micro_batches", "schedule", "layout",
    "sharding", "replicas", "recomputed_layers", "recompute_modules",
)  # fmt: skip
"""What plans may differ in, by the keys of ``plan --json``."""


def compare_data(ranking: Ranking, a: int, b: int) -> dict[str, Any]:
    """Rows ``a`` and ``b`` of a ranking: what differs between the plans, and every part of their time and
    memory with the difference (``b`` less ``a``), the largest differences first."""
    first, second = named_ranking_row(ranking, a), named_ranking_row(ranking, b)
    found = compare(*(ranking.costs.take(np.array([row])) for row in (a, b)))
    return {
        "schema_version": SCHEMA_VERSION,
        "a": first,
        "b": second,
        "changes": {name: [first[name], second[name]] for name in CHOICES if first[name] != second[name]},
        "time": _parts(found.time),
        "hidden": _parts(found.hidden),
        "memory": _parts(found.memory),
    }


def _parts(differences: tuple[Difference, ...]) -> list[dict[str, Any]]:
    return [{"part": d.part, "a": d.a, "b": d.b, "difference": d.more} for d in differences if d.a or d.b]
