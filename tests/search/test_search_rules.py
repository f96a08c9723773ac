"""Rules: the right verdict, and a sentence whose nearest values do pass."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshplan.cluster.presets import cluster_of
from meshplan.model.layers import Attention, Layer, Mlp, Moe
from meshplan.model.model import Model
from meshplan.plan.divisors import divisors, nearest_divisors
from meshplan.plan.kinds import Schedule
from meshplan.plan.plans import Plan, Plans
from meshplan.plan.rules import HANDBOOK_RULES, RULES, TP_IN_NODE, Rule, Setting, broken
from meshplan.plan.workload import Workload

BY_ID = {rule.id: rule for rule in (*RULES, *HANDBOOK_RULES)}


def model(
    *, heads: int = 64, kv: int = 8, layers: int = 80, width: int = 28672, moe: Moe | None = None
) -> Model:
    layer = Layer(attention=Attention(heads=heads, kv_heads=kv, head_dim=128), mlp=moe or Mlp(width=width))
    return Model(name="toy", hidden=8192, vocab=32000, layers=(layer,) * layers)


def setting(of: Model | None = None, *, gpus: int = 64, seq: int = 8192, gbs: int = 512) -> Setting:
    return Setting(of or model(), cluster_of("h100-sxm", gpus), Workload(seq=seq, gbs=gbs))


# Cases people met, in words: heads, KV heads, layers, experts and folding as frameworks check them.
# rule, setting, plan that fails, words of the sentence
FAILING = [
    (
        "tp-divides-heads",
        setting(model(heads=52, kv=52)),
        Plan(tp=8),
        "tp 8 does not divide 52 heads; tp 4 or 13 would",
    ),
    (
        "tp-divides-heads",
        setting(model(heads=12, kv=12)),
        Plan(tp=8),
        "tp 8 does not divide 12 heads; tp 6 or 12 would",
    ),
    (
        "tp-kv-heads",
        setting(model(heads=24, kv=8)),
        Plan(tp=12),
        "neither divides the 8 KV heads nor is a multiple of them; tp 8 or 16 would",
    ),
    (
        "tp-divides-mlp",
        setting(model(width=28670)),
        Plan(tp=4),
        "tp 4 does not divide the MLP width 28,670; tp 2 or 5 would",
    ),
    ("tp-in-node", setting(), Plan(tp=16), "tp 16 crosses nodes of 8 GPUs; tp 8 would"),
    (
        "layers-divide-pp",
        setting(model(layers=46)),
        Plan(pp=4),
        "46 layers do not divide over pp 4; pp 2 or 23 would",
    ),
    (
        "layers-divide-pp",
        setting(model(layers=30)),
        Plan(pp=4),
        "30 layers do not divide over pp 4; pp 3 or 5 would",
    ),
    (
        "layers-divide-vp",
        setting(),
        Plan(pp=16, vp=2),
        "80 layers do not divide over pp 16 × vp 2; vp 1 or 5 would",
    ),
    (
        "vp-fits-schedule",
        setting(),
        Plan(pp=4, vp=2),
        "vp 2 needs an interleaved schedule, not 1f1b; vp 1 would",
    ),
    (
        "vp-fits-schedule",
        setting(),
        Plan(pp=4, schedule=Schedule.INTERLEAVED),
        "the interleaved schedule needs vp above 1; vp 2 would",
    ),
    (
        "vp-fits-schedule",
        setting(),
        Plan(pp=4, schedule=Schedule.ZB_V),
        "the zb-v schedule takes vp 2, not 1; vp 2 would",
    ),
    (
        "vp-fits-schedule",
        setting(),
        Plan(pp=1, vp=2, schedule=Schedule.ZB_V),
        "the zb-v schedule needs pp above 1",
    ),
    (
        "vp-fits-schedule",
        setting(),
        Plan(pp=4, vp=2, schedule=Schedule.DUALPIPE),
        "the dualpipe schedule takes vp 1, not 2; vp 1 would",
    ),
    (
        "seq-divides-cp",
        setting(seq=8190),
        Plan(cp=2),
        "seq 8,190 does not divide into 2 × cp 2 parts; cp 1 or 3 would",
    ),
    (
        "cp-min-tokens",
        setting(seq=8192),
        Plan(cp=4),
        "cp 4 leaves 2,048 tokens a rank, fewer than 4,096; cp 2 would",
    ),
    (
        "sp-divides-seq",
        setting(seq=8190),
        Plan(tp=4),
        "seq 8,190 / cp 1 does not divide over tp 4; tp 3 or 5 would",
    ),
    (
        "gbs-divides",
        setting(gbs=256),
        Plan(dp=126, mbs=2),
        "gbs 256 does not divide over dp 126 × mbs 2 = 252; gbs 252 or 504 would",
    ),
    ("gbs-divides", setting(gbs=3), Plan(dp=8), "gbs 3 does not divide over dp 8 × mbs 1 = 8; gbs 8 would"),
    (
        "gpus-product",
        setting(gpus=8),
        Plan(tp=2, dp=16),
        "tp 2 × cp 1 × dp 16 × pp 1 = 32, not 8 GPUs; dp 4 would",
    ),
    ("gpus-product", setting(), Plan(tp=8, pp=3), "pp 3 does not divide 64 GPUs; pp 2 or 4 would"),
    ("gpus-product", setting(), Plan(tp=8, dp=4, pp=4), "tp 8 × cp 1 × dp 4 × pp 4 = 128, not 64 GPUs"),
    (
        "ep-divides-experts",
        setting(model(moe=Moe(experts=128, topk=8, width=768))),
        Plan(ep=48),
        "ep 48 does not divide 128 experts; ep 32 or 64 would",
    ),
    ("ep-divides-experts", setting(), Plan(ep=2), "ep 2 needs experts, and toy has none; ep 1 would"),
    (
        "etp-divides-expert",
        setting(model(moe=Moe(experts=8, topk=2, width=768))),
        Plan(etp=5),
        "etp 5 does not divide the expert width 768; etp 4 or 6 would",
    ),
    (
        "expert-folding",
        setting(model(moe=Moe(experts=128, topk=8, width=768))),
        Plan(tp=1, dp=4, ep=8),
        "etp 1 × ep 8 = 8 does not divide tp 1 × cp 1 × dp 4 = 4; ep 4 would",
    ),
]


@pytest.mark.parametrize(
    ("rule", "where", "plan", "words"), FAILING, ids=lambda v: v if isinstance(v, str) else ""
)
def test_failing_plan_and_its_sentence(rule: str, where: Setting, plan: Plan, words: str) -> None:
    found = BY_ID[rule]
    assert not found.passes(where, Plans.of(plan))[0]
    sentence = found.explain(where, plan)
    assert words in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize(
    ("rule", "where", "plan", "words"), FAILING, ids=lambda v: v if isinstance(v, str) else ""
)
def test_what_the_sentence_offers_passes(rule: str, where: Setting, plan: Plan, words: str) -> None:
    offer = re.search(r"; (\w+) ([\d,]+)(?: or ([\d,]+))? would$", words)
    if offer is None:
        return
    for text in offer.groups()[1:]:
        if text is None:
            continue
        value = int(text.replace(",", ""))
        if offer[1] == "gbs":
            mended, ask = plan, where._replace(workload=replace(where.workload, gbs=value))
        else:
            mended, ask = replace(plan, **{offer[1]: value}), where
        if rule == "gpus-product":  # one dimension was named; the others are free to fill up the GPUs
            assert where.cluster.gpus % value == 0
        else:
            assert BY_ID[rule].passes(ask, Plans.of(mended))[0]


# Plans of published runs and of frameworks' own examples: nothing to complain about.
PASSING = [
    (setting(), Plan(tp=4, cp=2, pp=2, dp=4)),
    (
        setting(model(heads=128, kv=8, layers=128, width=53248), gpus=16384, gbs=2048),
        Plan(tp=8, pp=16, dp=128),
    ),
    (setting(model(heads=24, kv=2, width=24576)), Plan(tp=4, dp=16)),
    (setting(), Plan(tp=8, pp=4, vp=5, dp=2, schedule=Schedule.INTERLEAVED)),
    (setting(), Plan(tp=8, pp=4, vp=2, dp=2, schedule=Schedule.ZB_V)),
    (setting(model(moe=Moe(experts=128, topk=8, width=768))), Plan(tp=4, dp=16, ep=16, etp=1)),
    (setting(model(moe=Moe(experts=8, topk=2, width=14336))), Plan(tp=4, dp=16, ep=8, etp=4)),
    (setting(model(layers=61)), Plan(tp=8, pp=2, dp=4, layout=(31, 30))),
]


@pytest.mark.parametrize(("where", "plan"), PASSING)
def test_valid_plans_break_nothing(where: Setting, plan: Plan) -> None:
    assert broken(where, plan, RULES) == []


def test_every_rule_is_complete() -> None:
    assert len({rule.id for rule in RULES}) == len(RULES)
    for rule in BY_ID.values():
        assert rule.title
        assert set(rule.columns) <= set(Plans.__dataclass_fields__)
        assert rule.fix == "" or rule.fix in rule.columns


@pytest.mark.parametrize("rule", BY_ID.values(), ids=lambda rule: rule.id)
def test_a_rule_reads_only_its_columns(rule: Rule) -> None:
    # The search applies a rule as soon as these columns are known, with others still at their defaults.
    moe = setting(model(moe=Moe(experts=16, topk=2, width=512)))
    base = Plan(tp=3, cp=3, pp=3, dp=3, ep=3, etp=3, vp=3, mbs=3)
    odd = replace(
        base,
        **{
            name: 7
            for name in ("tp", "cp", "pp", "dp", "ep", "etp", "vp", "mbs", "replicas")
            if name not in rule.columns
        },
    )
    assert rule.passes(moe, Plans.of(base))[0] == rule.passes(moe, Plans.of(odd))[0]


@settings(deadline=None)
@given(tp=st.integers(1, 200), heads=st.integers(1, 200))
def test_nearest_values_are_the_nearest_that_pass(tp: int, heads: int) -> None:
    where = setting(model(heads=heads, kv=heads))
    rule = BY_ID["tp-divides-heads"]
    near = rule.nearest(where, Plan(tp=tp))
    valid = [d for d in range(1, 401) if heads % d == 0]
    below = [d for d in valid if d < tp][-1:]
    above = [d for d in valid if tp < d <= max(2 * tp, 64)][:1]
    assert near == below + above


def test_tp_may_not_leave_the_node_of_the_cluster_at_hand() -> None:
    assert TP_IN_NODE.passes(setting(), Plans.of(Plan(tp=8)))[0]
    small = setting()._replace(cluster=cluster_of("h100-sxm", 64, gpus_per_node=4))
    assert not TP_IN_NODE.passes(small, Plans.of(Plan(tp=8)))[0]


@settings(deadline=None)
@given(st.integers(1, 5000), st.integers(1, 6000))
def test_divisors(number: int, wanted: int) -> None:
    assert divisors(number) == tuple(d for d in range(1, number + 1) if number % d == 0)
    near = nearest_divisors(number, wanted)
    assert all(number % d == 0 and d != wanted for d in near)
    assert not any(min(near, default=0) < d < wanted for d in divisors(number) if near and near[0] < wanted)
