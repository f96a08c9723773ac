"""The registry: every rule is complete, stable and vectorised, and each sentence offers what passes."""

from __future__ import annotations

import random
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from meshplan.cluster.presets import cluster_of
from meshplan.errors import UnknownNameError
from meshplan.model.load import load_model
from meshplan.plan.kinds import CpKind, Recompute, Schedule, Sharding
from meshplan.plan.plans import ALL_LAYERS, DEFAULT_ORDER, Plan, Plans
from meshplan.plan.rules import (
    FRAMEWORKS,
    REGISTRY,
    RULES,
    Rule,
    Setting,
    broken,
    framework_rules,
    rule_named,
    rules_of,
    warnings_of,
)
from meshplan.plan.workload import Workload

STABLE = Path(__file__).with_name("ids.txt").read_text(encoding="utf-8").split()
"""Ids that people may have written down: they stay, or they go with a word in the changelog."""


def test_ids_are_stable() -> None:
    assert sorted(REGISTRY) == sorted(STABLE)


@pytest.mark.parametrize("rule", REGISTRY.values(), ids=lambda rule: rule.id)
def test_every_rule_is_complete(rule: Rule) -> None:
    assert rule.title
    assert "\n" not in rule.title
    assert set(rule.columns) <= {f.name for f in fields(Plans)}
    assert rule.fix == "" or rule.fix in rule.columns
    assert rule.sources
    for source in rule.sources:
        assert source.framework in FRAMEWORKS
        assert source.where
    assert len({source.framework for source in rule.sources}) == len(rule.sources)


def some_plan(rng: random.Random, setting: Setting) -> Plan:
    gpus = setting.cluster.gpus
    tp, cp, pp = (
        rng.choice((1, 2, 3, 8, 16, 24, 36)),
        rng.choice((1, 1, 2, 3, 4)),
        rng.choice((1, 1, 2, 4, 5)),
    )
    vp = rng.choice((1, 1, 2, 3))
    stages = pp * vp
    layout = rng.choice((None, None, (4,) * stages, (3,) * (stages + 1)))
    return Plan(
        tp=tp,
        sp=rng.random() < 0.7,
        cp=cp,
        cp_kind=rng.choice(list(CpKind)),
        pp=pp,
        vp=vp,
        schedule=rng.choice(list(Schedule)),
        layout=layout,
        dp=max(gpus // (tp * cp * pp), 1),
        sharding=rng.choice(list(Sharding)),
        replicas=rng.choice((1, 1, 2, 4)),
        ep=rng.choice((1, 1, 2, 16, 48)),
        etp=rng.choice((1, 1, 2, 3)),
        mbs=rng.choice((1, 2, 3)),
        recompute_layers=rng.choice((0, 0, 70, ALL_LAYERS)),
        recompute_modules=rng.choice([Recompute.NONE, *Recompute]),
    )


SETTINGS = [
    Setting(load_model(name), cluster_of(gpu, 64), Workload(seq=seq, gbs=gbs))
    for name, gpu, seq, gbs in (
        ("llama-3.1-70b", "h100-sxm", 8192, 512),
        ("deepseek-v3", "h100-sxm", 4096, 96),
        ("gpt-oss-20b", "ascend-910b", 12000, 100),
        ("llama-3.2-1b", "a100-80gb", 6000, 60),
    )
]
SETTINGS += [
    Setting(
        load_model("deepseek-v3"),
        cluster_of("b200-sxm", 64),
        Workload(
            seq=4096, gbs=96, precision=precision, offload="optimizer", offload_fraction=0.5,
            capacity_factor=1.2,
        ),
    )
    for precision in ("fp16", "nvfp4")
]  # fmt: skip


@pytest.mark.parametrize("rule", REGISTRY.values(), ids=lambda rule: rule.id)
def test_a_table_gets_the_verdicts_of_its_plans(rule: Rule) -> None:
    rng = random.Random(rule.id)
    seen = set()
    for setting in SETTINGS:
        plans = [some_plan(rng, setting) for _ in range(60)]
        order = rng.choice((DEFAULT_ORDER, ("tp", "cp", "ep", "pp", "dp"), ("dp", "tp", "cp", "ep", "pp")))
        together = rule.passes(setting, Plans.of(*plans, order=order))
        assert together.dtype == np.bool_
        assert together.shape == (60,)
        alone = [bool(rule.passes(setting, Plans.of(plan, order=order))[0]) for plan in plans]
        assert together.tolist() == alone
        seen |= set(alone)
        for plan, passed in zip(plans, alone, strict=True):
            if not passed:
                sentence = rule.explain(setting, plan, order)
                assert "\n" not in sentence
                for value in rule.nearest(setting, plan, order):
                    mended = replace(plan, **{rule.fix: value})
                    assert rule.passes(setting, Plans.of(mended, order=order))[0]
    rare = {"torchtitan-order", "pp-outside", "seq-beyond-model", "stages-have-layers"}
    assert False in seen or rule.id in rare, "no plan here breaks this rule: the test says nothing about it"


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_framework_has_its_own_rules_and_the_general_ones(framework: str) -> None:
    rules = rules_of(framework)
    assert {"gpus-product", "gbs-divides"} <= {rule.id for rule in rules}
    assert all(rule.severity == "error" for rule in rules)
    assert all(rule.severity == "warning" for rule in warnings_of(framework))
    assert set(framework_rules(framework)) <= set(rules)
    assert {rule.id for rule in rules_of("megatron-bridge")} == {rule.id for rule in rules_of("megatron")}


def test_launch_files_spell_out_stages() -> None:
    # They write a layout where layers do not divide, and 1F1B where the plan has another schedule.
    model = load_model("glm-4.5-air")
    setting = Setting(model, cluster_of("h100-sxm", 32), Workload(seq=4096, gbs=64))
    plan = Plan(tp=8, pp=4, dp=1, schedule=Schedule.ZB_H1)
    assert {r.id for r in broken(setting, plan, rules_of("megatron"))} == {
        "layers-divide-pp",
        "megatron-schedules",
    }
    assert broken(setting, plan, framework_rules("megatron")) == []


def test_names_nobody_knows() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'tp-kv-heads'"):
        rule_named("tp-kv-head")
    with pytest.raises(UnknownNameError, match="unknown framework 'megatrom'; did you mean 'megatron'"):
        rules_of("megatrom")


def test_the_general_rules_are_those_of_any_framework() -> None:
    assert rules_of("any") == RULES
    assert rules_of() == RULES
