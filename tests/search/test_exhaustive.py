"""Small spaces of every kind, each plan enumerated, checked, priced and simulated one after the other: the
search finds the same first plans, whatever it leaves out on the way.

Unlike the search this goes through all combinations with ``itertools``, asks every rule about every plan, and
simulates all that fit.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import meshplan.search.search as searching
from meshplan.cluster.presets import cluster_of
from meshplan.cost.full.model import FullModel
from meshplan.model.layers import Attention, Layer, Mlp, Moe
from meshplan.model.model import Model
from meshplan.plan.kinds import CpKind, Recompute, Schedule, Sharding
from meshplan.plan.plans import AUTO_LAYERS, AUTO_LAYOUT, Plan, Plans
from meshplan.plan.rules import Rule, Setting, rules_of
from meshplan.plan.space import Space
from meshplan.plan.workload import Workload
from meshplan.search import bounded, fidelity
from meshplan.search.fidelity import simulate_all
from meshplan.search.reasons import LAYER_RULES

FULL = FullModel.of()
RULES: tuple[Rule, ...] = tuple(rule for rule in rules_of("any") if not rule.practice)
SCHEDULES = (
    (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED), (Schedule.ONE_F_ONE_B, Schedule.ZB_H1, Schedule.ZB_V),
    (Schedule.INTERLEAVED, Schedule.V_HALF, Schedule.LOOPED_BFS),
)  # fmt: skip
PROBLEMS = 12


def problem(seed: int) -> tuple[Setting, Space]:
    """A model with experts or without, layers that few counts divide, and a space with all dimensions."""
    rng = np.random.default_rng(seed)
    hidden = int(rng.choice([1024, 2048]))
    attention = Attention(heads=hidden // 64, kv_heads=8, head_dim=64)
    dense = Layer(attention=attention, mlp=Mlp(width=4 * hidden))
    sparse = Layer(attention=attention, mlp=Moe(experts=8, topk=2, width=2 * hidden))
    count = int(rng.choice([9, 10, 14, 15, 22]))
    experts = seed % 3 != 0
    layers = (dense,) + (sparse,) * (count - 1) if experts else (dense,) * count
    model = Model(
        name="small", hidden=hidden, vocab=int(rng.choice([32_000, 160_000])), layers=layers,
        tied_embeddings=bool(rng.integers(2)),
    )  # fmt: skip
    cluster = cluster_of("h100-sxm" if seed % 2 else "a100-40gb", int(rng.choice([8, 16])))
    workload = Workload(seq=int(rng.choice([4096, 16384])), gbs=int(rng.choice([24, 32, 48])))
    space = Space(
        tp=(1, 2),
        cp=(1, 2) if seed % 2 else (1, 4),
        cp_kind=(CpKind.RING, CpKind.ULYSSES) if seed % 4 == 1 else (CpKind.RING,),
        pp=(1, 2, 4),
        ep=(1, 2, 8) if experts else (1,),
        etp=(1, 2) if experts and seed % 2 else (1,),
        vp=(1, 2, 3),
        mbs=(1, 2),
        schedule=SCHEDULES[seed % len(SCHEDULES)],
        sharding=(Sharding.ZERO1, Sharding.ZERO3) if seed % 2 else (Sharding.ZERO1,),
        recompute=((AUTO_LAYERS, Recompute.NONE),),
    )
    return Setting(model, cluster, workload), space


def every_plan(setting: Setting, space: Space) -> Plans:
    """All plans of the space that break no rule; layers are cut by the cost model."""
    names = (
        "tp", "cp", "cp_kind", "pp", "ep", "etp", "vp", "mbs", "schedule", "sharding", "sp", "replicas",
    )  # fmt: skip
    values = space.values(setting)
    rules = [rule for rule in RULES if rule.id not in (*LAYER_RULES, "stages-have-layers")]
    found = []
    for chosen in product(*(values[name] for name in names)):
        given: dict[str, Any] = dict(zip(names, chosen, strict=True))
        dp, left = divmod(setting.cluster.gpus, given["tp"] * given["cp"] * given["pp"])
        # The first stage and the last may have embedding and head alone.
        if left or not dp or given["pp"] * given["vp"] > len(setting.model.layers) + 2:
            continue
        found.append(Plan(**given, dp=dp, recompute_layers=AUTO_LAYERS))
    plans = Plans.of(*found, order=space.order)
    return plans.take(np.flatnonzero(np.all([rule.passes(setting, plans) for rule in rules], axis=0)))


def all_simulated(setting: Setting, space: Space) -> np.ndarray:
    """Step times of all plans that fit, simulated, rising."""
    plans = every_plan(setting, space)
    costs = FULL.price(*setting, plans.replace(layout=np.full(len(plans), AUTO_LAYOUT)))
    run = simulate_all(FULL, setting, costs.take(np.flatnonzero(costs.fits)), auto=True)
    return np.sort(run.step_s[run.fits])


@pytest.fixture(scope="module")
def truths() -> dict[int, np.ndarray]:
    return {seed: all_simulated(*problem(seed)) for seed in range(PROBLEMS)}


def test_the_problems_are_worth_it(truths: dict[int, np.ndarray]) -> None:
    """There is something to find in most of them, and the first ones are not all alike."""
    counts = [len(steps) for steps in truths.values()]
    assert sum(counts) > 800
    assert sum(count > 20 for count in counts) > PROBLEMS * 2 / 3
    assert sum(steps[9] > steps[0] * 1.001 for steps in truths.values() if len(steps) > 9) > PROBLEMS / 2


@pytest.mark.parametrize("sure", [1, 6])
def test_the_first_plans_are_those_of_all_simulated(
    sure: int, truths: dict[int, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two plans are simulated at a time, so that stopping one too early shows."""
    monkeypatch.setattr(fidelity, "AT_ONCE", 2)
    spared = 0
    for seed, steps in truths.items():
        setting, space = problem(seed)
        found = searching.search(
            *setting, space=space, cost_model=FULL, rules=RULES, advise=False, fidelity="simulate", sure=sure
        )
        first = steps[:sure]
        assert found.costs.step_s[: len(first)] == pytest.approx(first, rel=1e-8), seed
        if not len(steps):
            continue
        assert found.simulated is not None
        assert found.simulated.sure >= len(first)
        assert found.simulated.left_open == 0
        spared += found.simulated.screened - found.simulated.plans
    assert sure > 1 or spared > 300


@pytest.mark.parametrize("rows", [4, 16])
def test_bounds_leave_out_no_plan_that_could_be_first(
    rows: int, truths: dict[int, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search of large spaces on these small ones, the bar looked at after every few rows."""
    monkeypatch.setattr(searching, "LARGE", 0)
    monkeypatch.setattr(bounded, "FIRST", rows)
    monkeypatch.setattr(bounded, "MOST", rows)
    spared = 0
    for seed, steps in truths.items():
        setting, space = problem(seed)
        found = searching.search(
            *setting, space=space, cost_model=FULL, rules=RULES, advise=False, fidelity="simulate", sure=4
        )
        assert bool(len(found)) == bool(len(steps))
        if len(steps):
            assert found.costs.step_s[0] == pytest.approx(steps[0], rel=2 * bounded.EPSILON), seed
            assert found.costs.step_s[0] >= steps[0] * (1 - 1e-8)
        spared += found.counts.skipped.get("slow", 0)
    assert spared > 300
