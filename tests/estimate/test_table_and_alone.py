"""A plan costs the same alone as in a table: what plans share is priced once, and nothing else is shared."""

import numpy as np
import pytest

from meshplan.cluster.presets import cluster_of
from meshplan.cost.full import model as full_model
from meshplan.cost.full.model import FullModel
from meshplan.model.load import load_model
from meshplan.plan.kinds import Schedule
from meshplan.plan.plans import ALL_LAYERS, AUTO_LAYERS, AUTO_LAYOUT, Plans
from meshplan.plan.workload import Workload

CASES = [
    ("llama-3.1-70b", "h100-sxm", 256, "megatron-core-2025"),
    ("llama-3.1-70b", "h100-sxm", 256, "torchtitan-2026"),
    ("deepseek-v2-lite", "h800", 64, "megatron-core-2025"),
    ("gpt-oss-20b", "b200", 64, "deepspeed"),
]


def table(name: str, gpus: int, count: int) -> Plans:
    """Plans that differ in one or in many things from each other."""
    draw = np.random.default_rng(5)
    layers = len(load_model(name).layers)
    rows = []
    while len(rows) < count:
        tp, cp, pp = (int(draw.choice(c)) for c in ((1, 2, 4, 8), (1, 2), (1, 2, 4)))
        dp, schedule, vp = gpus // (tp * cp * pp), Schedule.ONE_F_ONE_B, 1
        if pp > 1 and pp * 2 <= layers:
            schedule = Schedule(int(draw.integers(0, 11)))
            vp = 1 if schedule in (0, 1, 4, 5, 9) else 2
        experts = 4 if name != "llama-3.1-70b" else 1
        sharding = int(draw.integers(0, 4))
        rows.append({
            "tp": tp, "sp": int(draw.integers(0, 2)), "cp": cp, "cp_kind": int(draw.integers(0, 3)), "pp": pp,
            "vp": vp, "schedule": int(schedule), "dp": dp, "sharding": sharding,
            "replicas": min(int(draw.choice([1, 2, dp])), dp) if sharding == 3 else 1,
            "ep": int(draw.choice([1, experts])), "mbs": int(draw.choice([1, 2])),
            "recompute_layers": int(draw.choice([0, 3, AUTO_LAYERS, ALL_LAYERS])),
            "recompute_modules": int(draw.choice([0, 1, 4])),
        })  # fmt: skip
    plans = Plans.from_columns({key: np.array([row[key] for row in rows]) for key in rows[0]})
    return plans.replace(layout=np.where(draw.random(count) < 0.3, AUTO_LAYOUT, -1))


@pytest.mark.parametrize(("name", "gpu", "gpus", "stack"), CASES)
@pytest.mark.parametrize("block", [7, 1 << 14])
def test_every_plan_of_a_table_costs_what_it_costs_alone(name, gpu, gpus, stack, block, monkeypatch):
    monkeypatch.setattr(full_model, "BLOCK", block)
    model, cluster, full = load_model(name), cluster_of(gpu, gpus), FullModel.of(stack)
    workload, plans = Workload(seq=4096, gbs=512), table(name, gpus, 60)
    whole = full.price(model, cluster, workload, plans)
    for i in range(len(plans)):
        alone = full.price(model, cluster, workload, plans.take([i]))
        assert whole.plans[i] == alone.plans[0]
        assert whole.step_s[i] == pytest.approx(alone.step_s[0], rel=1e-12)
        assert whole.memory_bytes[i] == pytest.approx(alone.memory_bytes[0], rel=1e-12)
        for parts in ("time", "memory", "hidden"):
            ours, its = getattr(whole, parts), getattr(alone, parts)
            assert {k: v[i] for k, v in ours.items()} == pytest.approx(
                {k: v[0] for k, v in its.items()}, rel=1e-9, abs=1e-9
            )


def test_replicas_of_a_table_are_each_plans_own():
    """Gathering weights of 70.6e9 / 8 parameters over 2 of 16 ranks moves half of them, over 16 of 16 all but
    a sixteenth: plans with fewer ranks to a shard gather less."""
    model, cluster = load_model("llama-3.1-70b"), cluster_of("h100-sxm", 128)
    plans = Plans.from_columns({"tp": 8, "dp": 16, "sharding": 3, "replicas": np.array([1, 2, 4, 8])})
    costs = FullModel.of().price(model, cluster, Workload(seq=4096, gbs=64), plans)
    moved = costs.time["dp"] + costs.hidden["dp"]
    assert (np.diff(moved) < 0).all()
