"""Cuts left open against every cut that moves one layer between neighbours, as the whole step prices them."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from meshplan.cluster.presets import cluster_of
from meshplan.cost.full.model import FullModel
from meshplan.cost.full.stages import even_layout
from meshplan.model.load import load_model
from meshplan.plan.kinds import Schedule, Sharding
from meshplan.plan.plans import AUTO_LAYOUT, Plan, Plans
from meshplan.plan.workload import Workload

ZB_V = {"schedule": Schedule.ZB_V, "vp": 2}
V_HALF = {"schedule": Schedule.V_HALF, "vp": 2}
INTERLEAVED = {"schedule": Schedule.INTERLEAVED, "vp": 2}
ZERO1, ZERO2, ZERO3 = Sharding.ZERO1, Sharding.ZERO2, Sharding.ZERO3
CASES = [
    ("llama-3.1-8b", 64, 2048, 64, {"tp": 2, "pp": 4, "sharding": ZERO3}),
    ("llama-3.1-8b", 256, 2048, 256, {"tp": 4, "pp": 8, "sharding": ZERO3}),
    ("llama-3.1-8b", 256, 8192, 256, {"tp": 4, "pp": 8, "sharding": ZERO1}),
    ("llama-3.1-8b", 64, 4096, 64, {"tp": 2, "pp": 4, "sharding": ZERO3, **INTERLEAVED}),
    ("llama-3.1-8b", 64, 4096, 64, {"tp": 2, "pp": 4, "sharding": ZERO3, "schedule": Schedule.ZB_H1}),
    ("llama-3.1-70b", 256, 4096, 256, {"tp": 8, "pp": 4, "sharding": ZERO2, **ZB_V}),
    ("llama-3.1-70b", 256, 4096, 512, {"tp": 4, "pp": 8, "sharding": ZERO2, **ZB_V}),
    ("llama-3.1-70b", 256, 4096, 256, {"tp": 8, "pp": 4, "sharding": ZERO3, **V_HALF}),
    ("llama-3.1-70b", 256, 8192, 256, {"tp": 4, "pp": 4, "sharding": ZERO3}),
    ("mixtral-8x7b", 64, 4096, 128, {"tp": 2, "pp": 4, "ep": 8, "sharding": ZERO3}),
]


def near(cut: tuple[int, ...]) -> list[tuple[int, ...]]:
    """One layer moved over each border between stages, either way, also over several borders at once."""
    found = set()
    for moves in product((-1, 0, 1), repeat=len(cut) - 1) if len(cut) < 8 else _single(len(cut) - 1):
        given = np.array([0, *moves, 0])
        other = np.array(cut) + given[1:] - given[:-1]
        if other.min() >= 1:
            found.add(tuple(other.tolist()))
    return sorted(found)


def _single(borders: int) -> list[tuple[int, ...]]:
    """One border moves, or all borders between two stages do (a layer goes from one to the other)."""
    moved = {(0,) * borders}
    for first in range(borders):
        for last in range(first, borders):
            for by in (-1, 1):
                moved.add(tuple(by if first <= at <= last else 0 for at in range(borders)))
    return sorted(moved)


@pytest.mark.parametrize(("name", "gpus", "seq", "gbs", "wanted"), CASES)
def test_no_cut_near_the_chosen_one_is_a_percent_faster(
    name: str, gpus: int, seq: int, gbs: int, wanted: dict[str, Any]
) -> None:
    model, cluster, workload = load_model(name), cluster_of("h100-sxm", gpus), Workload(seq=seq, gbs=gbs)
    plan = {"dp": gpus // (wanted["tp"] * wanted["pp"]), "recompute_layers": 0, **wanted}
    full = FullModel.of()
    open_ = Plans.of(Plan(**plan)).replace(layout=np.full(1, AUTO_LAYOUT))
    chosen = full.price(model, cluster, workload, open_)
    stages = plan["pp"] * plan.get("vp", 1)
    cut = next(iter(chosen.plans)).layout or even_layout(len(model.layers), stages)
    others = Plans.of(*(Plan(**plan, layout=other) for other in near(cut)))
    assert len(others) > stages
    steps = full.price(model, cluster, workload, others).step_s
    assert chosen.step_s[0] <= 1.01 * steps.min()
