"""The sizes of the space, the frameworks that limit it, and choices that change nothing."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from meshplan.cluster.presets import cluster_of
from meshplan.cost.models import cost_model_named
from meshplan.model.load import load_model
from meshplan.model.model import Model
from meshplan.plan.frameworks import framework_values
from meshplan.plan.kinds import CpKind, Recompute, Schedule, Sharding
from meshplan.plan.plans import AUTO_LAYERS, Plans
from meshplan.plan.rules import FRAMEWORKS, Setting, broken, rules_of
from meshplan.plan.space import CHOICES, DEGREES, Space, module_sets
from meshplan.plan.workload import Workload
from meshplan.search.candidates import Funnel, Join
from meshplan.search.same import no_effect_rules
from meshplan.search.search import search

LLAMA = load_model("llama-3.1-8b")
MOE = load_model("moonlight-16b-a3b")
SETTING = Setting(LLAMA, cluster_of("h100-sxm", 16), Workload(seq=8192, gbs=48))


def test_a_larger_space_holds_the_smaller_one() -> None:
    for model in (LLAMA, MOE):
        setting = SETTING._replace(model=model)
        small, full = (Space.of(size, model).values(setting) for size in ("small", "full"))
        for name in (*DEGREES, *CHOICES):
            if name != "dp":
                assert set(small[name]) <= set(full[name]), name


def test_the_full_space_has_every_choice() -> None:
    full = Space.of("full", MOE)
    assert set(full.schedule) == set(Schedule)
    assert set(full.cp_kind) == set(CpKind)
    assert set(full.sharding) == set(Sharding)
    assert full.replicas is None
    values = full.values(SETTING._replace(model=MOE, cluster=cluster_of("h100-sxm", 24)))
    assert values["tp"] == values["replicas"] == (1, 2, 3, 4, 6, 8, 12, 24)
    assert values["etp"] == (1, 2, 3, 4, 6, 8)
    assert 13 in values["vp"]  # every number of virtual stages: 27 layers over 2 × 13 of them
    assert {modules for _, modules in values["recompute"]} == set(module_sets(MOE))


def test_module_sets_are_of_what_the_model_has() -> None:
    assert Recompute.MLA_UP_PROJ in module_sets(MOE)
    assert all(not how & (Recompute.MOE | Recompute.MLA_UP_PROJ) for how in module_sets(LLAMA))
    assert Recompute.NORM | Recompute.MLP in module_sets(LLAMA)


GIVEN: dict[str, Any] = {
    "tp": (2,), "sp": (False,), "cp": (2,), "cp_kind": (CpKind.ALL_GATHER,), "pp": (2,), "vp": (2,),
    "dp": (2,), "schedule": (Schedule.INTERLEAVED,), "layout": ("even",), "sharding": (Sharding.ZERO2,),
    "replicas": (2,), "ep": (2,), "etp": (2,), "mbs": (2,), "recompute": ((1, Recompute.NORM),),
}  # fmt: skip


def test_every_dimension_can_be_fixed() -> None:
    names = {f.name for f in fields(Space)} - {"order", "size", "framework"}
    assert set(GIVEN) == names
    moe = load_model("mixtral-8x7b")
    setting = SETTING._replace(model=moe, cluster=cluster_of("h200", 16))
    ranking = search(*setting, space=Space.of("full", moe, **GIVEN))
    assert len(ranking) == 1
    plan = ranking.best
    assert plan is not None
    for name in names - {"layout", "recompute"}:
        assert getattr(plan, name) == GIVEN[name][0], name
    assert (plan.recompute_layers, plan.recompute_modules) == (1, Recompute.NORM)


@pytest.mark.parametrize("framework", [f for f in FRAMEWORKS if f != "any"])
def test_a_framework_limits_the_space(framework: str) -> None:
    limits = framework_values(framework)
    values = Space.of("full", MOE, framework).values(SETTING._replace(model=MOE))
    for name, limit in limits.items():
        assert set(values[name]) <= set(limit), name
    setting = SETTING._replace(model=MOE)
    ranking = search(*setting, space=Space.of("small", MOE, framework), advise=False)
    assert len(ranking), framework
    rules = rules_of(framework)
    assert not [broken(setting, plan, rules) for plan in list(ranking)[:50] if broken(setting, plan, rules)]


def test_what_is_given_may_go_beyond_a_framework() -> None:
    space = Space.of("full", LLAMA, "torchtitan", schedule=(Schedule.DUALPIPE,))
    assert space.schedule == (Schedule.DUALPIPE,)


def plans_of(setting: Setting, space: Space, *, same: bool) -> Plans:
    rules = rules_of("any")
    if same:
        rules = (*rules, *no_effect_rules(space.values(setting), open_vp=space.vp is None))
    tables = list(Join(setting, space, rules, Funnel(), cuts=True).below(0, {}))
    return Plans.concatenate(tables)


@pytest.mark.parametrize("model", [LLAMA, MOE], ids=["dense", "moe"])
def test_what_changes_nothing_is_the_same_plan(model: Model) -> None:
    """Of all plans with the rules that spare repetitions and without, the prices are the same ones. (As many
    replicas as ranks, which is DDP with the buffers of another sharding, are left out.)"""
    setting = SETTING._replace(model=model, cluster=cluster_of("h200", 4), workload=Workload(seq=8192, gbs=8))
    space = Space.of("full", model, vp=(1, 2), mbs=(1,), replicas=(1, 2), recompute=((0, Recompute.NONE),))
    cost = cost_model_named()
    every, once = (plans_of(setting, space, same=same) for same in (False, True))
    assert len(once) < len(every)
    prices = []
    for plans in (every, once):
        costs = cost.price(*setting, plans.take(plans.replicas * 2 <= np.maximum(plans.dp * plans.cp, 2)))
        prices.append(
            {tuple(np.round(x, 9)) for x in np.stack([costs.step_s, costs.memory_bytes / 1e9], axis=1)}
        )
    assert prices[0] == prices[1]


def test_tables_are_enumerated_once() -> None:
    setting = SETTING._replace(model=MOE)
    space = Space.of("full", MOE, mbs=(1, 2), schedule=(Schedule.ONE_F_ONE_B, Schedule.ZB_V))
    plans = plans_of(setting, space, same=True)
    names = [f.name for f in fields(Plans) if f.name not in ("layouts", "order")]
    table = np.stack([getattr(plans, name) for name in names], axis=1)
    assert len(np.unique(table, axis=0)) == len(table)


def test_pruning_by_structure_loses_nothing() -> None:
    """Random plans of the space that break no rule are all enumerated."""
    rng = random.Random(5)
    setting = SETTING._replace(model=MOE, workload=Workload(seq=4096, gbs=48))
    space = Space.of("full", MOE, recompute=((AUTO_LAYERS, Recompute.NONE),))
    values = space.values(setting)
    rules = (*rules_of("any"), *no_effect_rules(values, open_vp=True))
    plans = Plans.concatenate(list(Join(setting, space, rules, Funnel(), cuts=True).below(0, {})))
    found = {replace(p, layout=None) for p in plans}
    seen: dict[bool, int] = defaultdict(int)
    for _ in range(20_000):
        tp, cp, pp = (rng.choice(values[n]) for n in ("tp", "cp", "pp"))
        if setting.cluster.gpus % (tp * cp * pp):
            continue
        pick = {
            n: rng.choice(values[n]) for n in ("vp", "ep", "etp", "mbs", "schedule", "sharding", "replicas")
        }
        pick |= {"tp": tp, "cp": cp, "pp": pp, "dp": setting.cluster.gpus // (tp * cp * pp)}
        plan = replace(
            next(iter(found)), **pick, cp_kind=rng.choice(values["cp_kind"]), recompute_layers=AUTO_LAYERS
        )
        if rng.random() < 0.5:  # uneven layers would break rules about layouts that are left open
            plan = replace(plan, vp=1)
        own = [r for r in rules if r.id not in ("layers-divide-pp", "layers-divide-vp")]
        valid = not broken(setting, plan, own)
        seen[valid] += 1
        assert (plan in found) == valid, (plan, broken(setting, plan, own))
    assert min(seen.values()) > 30
