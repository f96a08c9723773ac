"""Situations people met, from public threads: the right verdict, and a fix that really is valid.

Each row names the thread. What must be true of a fix is worked out here by hand, apart from the rules.
"""

from __future__ import annotations

from typing import Any

import pytest

from meshplan.cluster.presets import cluster_of
from meshplan.model.layers import Attention, Layer, Mlp, Moe
from meshplan.model.load import load_model
from meshplan.model.model import Model
from meshplan.plan.kinds import CpKind, Recompute, Schedule, Sharding
from meshplan.plan.plans import ALL_LAYERS, Plan
from meshplan.plan.workload import Workload
from meshplan.schedule.layout import rank_of_stage
from meshplan.schedule.layout_string import read_layout
from meshplan.search.check import Check, check_plan
from meshplan.search.repair import Repair

LOOPED = Schedule.INTERLEAVED


def dense(name: str, *, layers: int, hidden: int, heads: int, kv: int, width: int) -> Model:
    attention = Attention(heads=heads, kv_heads=kv, head_dim=hidden // heads)
    return Model(
        name=name,
        hidden=hidden,
        vocab=32000,
        layers=(Layer(attention=attention, mlp=Mlp(width=width)),) * layers,
    )


def check(
    model: Model | str, gpus: int, plan: Plan, *, seq: int = 4096, gbs: int = 512, framework: str = "megatron"
) -> Check:
    model = load_model(model) if isinstance(model, str) else model
    return check_plan(
        model, cluster_of("h100-sxm", gpus), Workload(seq=seq, gbs=gbs), plan, framework=framework
    )


def ids(found: Check) -> set[str]:
    return {finding.rule.id for finding in found.errors}


def fixes(found: Check) -> list[dict[str, Any]]:
    """What each offered fix changes; every one is asked again, and must not break anything."""
    for fix in found.repairs:
        again = check_plan(*fix.setting, fix.plan, framework=found.framework, order=found.order)
        assert again.valid
        assert_adds_up(fix, uneven=found.framework in ("torchtitan", "pytorch"))
    return [{change.name: change.new for change in fix.changes} for fix in found.repairs]


def assert_adds_up(fix: Repair, *, uneven: bool) -> None:
    """The plain arithmetic that any plan must satisfy; ``uneven``: stages need not have as many layers."""
    plan, setting = fix.plan, fix.setting
    layers = len(setting.model.layers)
    assert plan.tp * plan.cp * plan.dp * plan.pp == setting.cluster.gpus
    assert setting.workload.gbs % (plan.dp * plan.mbs) == 0
    stages = plan.layout or (layers // (plan.pp * plan.vp),) * (plan.pp * plan.vp)
    assert len(stages) == plan.pp * plan.vp <= layers
    assert sum(stages) == layers or (uneven and plan.layout is None)
    for layer in setting.model.layers:
        assert layer.attention is None or layer.attention.heads % plan.tp == 0


def test_v1_virtual_stages_that_lose_layers() -> None:
    # NVIDIA/Megatron-LM#468: 80 layers, PP16, two layers a virtual stage: 5 layers a rank do not divide by 2.
    found = check("llama-2-70b", 16, Plan(tp=1, pp=16, vp=2, dp=1, schedule=LOOPED))
    assert ids(found) == {"layers-divide-vp"}
    assert fixes(found)[0] == {"vp": 1}  # no virtual stages
    assert {"vp": 5} in fixes(found)  # one layer each


def test_v2_even_split_that_does_not_divide() -> None:
    # NVIDIA/Megatron-LM#1304: 30 layers over PP4 silently built 28.
    model = dense("gpt2-30l", layers=30, hidden=1024, heads=16, kv=16, width=4096)
    found = check(model, 8, Plan(pp=4, dp=2), seq=1024, gbs=64)
    assert ids(found) == {"layers-divide-pp"}
    layouts = [fix["layout"] for fix in fixes(found) if "layout" in fix]
    assert layouts == [(7, 8, 8, 7)]
    by_ends = check(model, 8, Plan(pp=4, dp=2, layout=(8, 7, 7, 8)), seq=1024, gbs=64)  # the thread's own
    assert by_ends.valid


def test_v4_layers_and_folding() -> None:
    # modelscope/ms-swift#5737: GLM-4.5-Air, 46 layers, TP8 PP4 CP1 EP16 ETP1 mbs2 gbs16, full recompute.
    plan = Plan(tp=8, pp=4, ep=16, mbs=2, dp=2, recompute_layers=ALL_LAYERS)
    found = check("glm-4.5-air", 64, plan, gbs=16)
    assert ids(found) == {"layers-divide-pp"}
    assert {"pp": 2} in fixes(found)
    assert {"layout": (11, 12, 12, 11)} in fixes(found)
    by_ends = Plan(tp=8, pp=4, ep=16, mbs=2, dp=2, recompute_layers=ALL_LAYERS, layout=(12, 11, 11, 12))
    assert check("glm-4.5-air", 64, by_ends, gbs=16).valid
    # world % (EP · PP = 64) must be 0 as well: 32 GPUs are not enough for this folding.
    small = check("glm-4.5-air", 32, Plan(tp=8, pp=4, ep=16, mbs=2, dp=1), gbs=16)
    assert "expert-folding" in ids(small)
    assert all(
        fix.plan.tp * fix.plan.cp * fix.plan.dp % (fix.plan.ep * fix.plan.etp) == 0 for fix in small.repairs
    )
    assert small.repairs


def test_v6_more_chunks_than_layers() -> None:
    # NVIDIA-NeMo/Speech#14838: tp1 pp2 vp24 ep2 on 4 GPUs: 48 chunks fit a 48-layer model only.
    plan = Plan(pp=2, vp=24, ep=2, dp=2, schedule=LOOPED)
    assert check("qwen3-30b-a3b", 4, plan).valid  # 48 layers, and 1 · 2 · 2 = 4 divides the world
    for model, layers in (("gpt-oss-20b", 24), ("gpt-oss-120b", 36)):
        found = check(model, 4, plan)
        assert {"layers-divide-vp", "stages-have-layers"} <= ids(found)
        assert all(layers % (2 * fix["vp"]) == 0 for fix in fixes(found) if set(fix) == {"vp"})
        assert any(set(fix) == {"vp"} for fix in fixes(found))
    # etp taken for 2 (or 4) makes 1 · 2 · 2 into 8: does not divide 4.
    assert "expert-folding" in ids(check("qwen3-30b-a3b", 4, Plan(pp=2, ep=2, etp=2, dp=2)))


def test_v7_tp_does_not_enter_the_experts_product() -> None:
    # NVIDIA-NeMo/Megatron-Bridge#546: Qwen3-30B-A3B, TP4 PP1 EP4 ETP1: world % (ETP · EP · PP = 4) is all.
    found = check("qwen3-30b-a3b", 4, Plan(tp=4, ep=4, etp=1, dp=1))
    assert found.valid
    assert found.plan.edp == 1
    # ETP left at Megatron's default, TP, is another plan, and an impossible one on 4 GPUs.
    assert ids(check("qwen3-30b-a3b", 4, Plan(tp=4, ep=4, etp=4, dp=1))) == {"expert-folding"}


def test_v9_torchtitan_does_not_copy_kv_heads() -> None:
    # pytorch/torchtitan#2574: two KV heads, TP4.
    attention = Attention(heads=16, kv_heads=2, head_dim=256)
    moe = Moe(experts=64, topk=8, width=512)
    model = Model(name="kv2", hidden=2048, vocab=32000, layers=(Layer(attention=attention, mlp=moe),) * 40)
    titan = Plan(tp=4, dp=2, sharding=Sharding.ZERO3)
    found = check(model, 8, titan, framework="torchtitan")
    assert ids(found) == {"torchtitan-kv-heads"}
    assert {"tp": 2} in fixes(found)
    assert check(model, 8, Plan(tp=4, dp=2)).valid  # kv % tp or tp % kv is enough for Megatron


@pytest.mark.parametrize(
    ("model", "offers"),
    [
        # deepspeedai/DeepSpeed#3634: LLaMA-30B, 52 heads; 13 divides the heads but not the MLP's 17920.
        (dense("llama-30b", layers=60, hidden=6656, heads=52, kv=52, width=17920), {4}),
        # hpcaitech/ColossalAI#3043: GPT-2 small, 12 heads.
        (dense("gpt2-small", layers=12, hidden=768, heads=12, kv=12, width=3072), {4}),
    ],
)  # fmt: skip
def test_v10_v11_heads(model: Model, offers: set[int]) -> None:
    for framework in ("any", "megatron", "deepspeed"):
        plan = Plan(tp=8, dp=1, sp=framework != "deepspeed")
        found = check(model, 8, plan, seq=2048, gbs=64, framework=framework)
        assert "tp-divides-heads" in ids(found)
        assert offers <= {fix["tp"] for fix in fixes(found) if set(fix) == {"tp"}}
    (error,) = (f for f in found.errors if f.rule.id in ("tp-divides-heads", "tp-kv-heads"))  # said once
    assert error.sentence.startswith(f"tp 8 does not divide {model.layers[0].attention.heads} heads; tp ")  # type: ignore[union-attr]


def test_v13_too_few_micro_batches_for_interleaving() -> None:
    # NVIDIA-NeMo/Speech#14288: "should range in [PP=6, M=3]".
    model = dense("d24", layers=24, hidden=4096, heads=32, kv=32, width=11008)
    plan = Plan(tp=8, pp=6, vp=2, dp=1, schedule=LOOPED)
    found = check(model, 48, plan, gbs=3)
    assert ids(found) == {"megatron-interleaved-batches"}
    offered = fixes(found)
    assert {"vp": 1} in offered
    for fix in found.repairs:
        batches = fix.setting.workload.gbs // (fix.plan.dp * fix.plan.mbs)
        assert fix.plan.vp == 1 or (batches >= fix.plan.pp and batches % fix.plan.pp == 0)
    assert check(model, 48, plan, gbs=6).valid
    assert {w.rule.id for w in check(model, 48, Plan(tp=8, pp=6, dp=1), gbs=3).warnings} == {
        "few-micro-batches"
    }


@pytest.mark.parametrize("batches", [10, 3])
def test_v15_pytorch_rounds(batches: int) -> None:
    # pytorch/pytorch PR #129597: pp4 with 10 or 3 micro-batches: rounds = max(1, n // pp) divides n.
    model = dense("d16", layers=16, hidden=2048, heads=16, kv=16, width=8192)
    plan = Plan(pp=4, vp=2, dp=1, schedule=LOOPED, sharding=Sharding.ZERO2)
    assert check(model, 4, plan, gbs=batches, framework="pytorch").valid
    # 11 // 4 = 2 rounds do not divide 11.
    wrong = check(model, 4, plan, gbs=11, framework="pytorch")
    assert ids(wrong) == {"torch-interleaved-rounds"}
    assert all(fix["gbs"] in (8, 12) for fix in fixes(wrong) if set(fix) == {"gbs"})


def test_v17_batch_that_does_not_divide() -> None:
    # OpenRLHF/OpenRLHF#346: 7 GPUs, batch 256, mbs 2: 252 or 266.
    model = load_model("llama-3.1-8b")
    found = check(model, 7, Plan(dp=7, mbs=2, sharding=Sharding.ZERO3), gbs=256, framework="deepspeed")
    assert ids(found) == {"gbs-divides"}
    assert "gbs 252 or 266 would" in found.errors[0].sentence
    assert [fix for fix in fixes(found) if set(fix) == {"gbs"}][:2] == [{"gbs": 252}, {"gbs": 266}]


def test_v18_sequence_parallelism_beside_experts() -> None:
    # NVIDIA/Megatron-LM#1587, ROCm/Megatron-LM PR #85.
    moe = check("qwen3-30b-a3b", 8, Plan(tp=2, dp=4, ep=4, sp=False))
    assert ids(moe) == {"megatron-moe-needs-sp"}
    assert {"sp": True} in fixes(moe)
    assert check("llama-3.1-8b", 8, Plan(tp=2, dp=4, sp=False)).valid


def test_v20_zero_bubble_needs_the_v() -> None:
    # pytorch/torchtitan#774: rank r holds stages r and 2p - 1 - r, two a rank.
    model = load_model("llama-3.1-8b")
    good = Plan(pp=4, vp=2, dp=2, schedule=Schedule.ZB_V, sharding=Sharding.ZERO2)
    assert check(model, 8, good, gbs=64, framework="torchtitan").valid
    home = rank_of_stage(8, 4, v_shaped=True).tolist()
    assert [[s for s in range(8) if home[s] == r] for r in range(4)] == [[r, 7 - r] for r in range(4)]
    for vp in (1, 4):
        bad = Plan(pp=4, vp=vp, dp=2, schedule=Schedule.ZB_V, sharding=Sharding.ZERO2)
        found = check(model, 8, bad, gbs=64, framework="torchtitan")
        assert ids(found) == {"vp-fits-schedule"}
        assert {"vp": 2} in fixes(found)


def test_v21_stages_hold_every_layer() -> None:
    # pytorch/torchtitan PR #963: the remainder of an odd number of layers was left out.
    model = load_model("deepseek-v2-lite")  # 27 layers
    plan = Plan(pp=2, dp=4, layout=(13, 13), sharding=Sharding.ZERO2)
    found = check(model, 8, plan, framework="torchtitan", gbs=64)
    assert ids(found) == {"layout-layers"}
    assert "26 layers in all" in found.errors[0].sentence
    assert all(sum(fix.plan.layout or (27,)) == 27 for fix in found.repairs)
    assert {tuple(sorted(fix.get("layout", ()))) for fix in fixes(found)} >= {(13, 14)}


def test_v23_a_layout_string_of_forty_chunks() -> None:
    # NVIDIA-NeMo/Megatron-Bridge PR #5391: 80 layers, 64 H100, TP4 PP8 VP5.
    layout = read_layout("Et*2|(t*2|)*34,t*3|(t*2|)*3,tL").layers
    assert (len(layout), sum(layout)) == (40, 80)
    plan = Plan(tp=4, pp=8, vp=5, dp=2, schedule=LOOPED, layout=layout)
    assert check("llama-3.1-70b", 64, plan, gbs=256).valid


def test_v25_ep_divides_the_shards_and_the_experts() -> None:
    # pytorch/torchtitan PR #4258.
    plan = Plan(dp=8, ep=8, replicas=2, sharding=Sharding.ZERO3)
    found = check("qwen3-30b-a3b", 8, plan, framework="torchtitan", gbs=64)
    assert ids(found) == {"torchtitan-ep-in-shards"}  # 8 / 2 · 1 · 1 = 4 ranks shard
    assert all(
        fix.plan.dp // fix.plan.replicas * fix.plan.cp * fix.plan.tp % fix.plan.ep == 0
        for fix in found.repairs
    )
    assert {"ep": 4} in fixes(found)
    odd = check(
        "qwen3-30b-a3b", 24, Plan(dp=24, ep=3, sharding=Sharding.ZERO3), framework="torchtitan", gbs=96
    )
    assert ids(odd) == {"ep-divides-experts"}
    assert all(128 % fix.plan.ep == 0 for fix in odd.repairs)
    assert fixes(odd)


def test_v26_product_that_is_not_the_world() -> None:
    # huggingface/nanotron PR #329: 8 GPUs, tp2 dp16.
    found = check("llama-3.2-1b", 8, Plan(tp=2, dp=16), framework="any", gbs=64)
    assert ids(found) == {"gpus-product"}
    assert found.errors[0].sentence == "tp 2 × cp 1 × dp 16 × pp 1 = 32, not 8 GPUs; dp 4 would"
    assert fixes(found)[0] == {"dp": 4}


@pytest.mark.parametrize(("gbs", "valid"), [(64, True), (32, True), (48, False), (40, False)])
def test_v28_virtual_stages_constrain_the_batch(gbs: int, valid: bool) -> None:
    # NVIDIA-BioNeMo/bionemo-recipes#286: not multiples of PP · VP, but of the group, PP by default.
    plan = Plan(tp=2, pp=16, vp=5, dp=2, schedule=LOOPED)
    found = check("llama-3.1-70b", 64, plan, gbs=gbs)
    assert found.valid == valid
    if not valid:
        assert ids(found) == {"megatron-interleaved-batches"}
        assert all(
            fix.setting.workload.gbs // fix.plan.dp % fix.plan.pp == 0 or fix.plan.vp == 1
            for fix in found.repairs
        )
        assert fixes(found)


def test_moe_parallel_folding_of_published_runs() -> None:
    # arXiv 2504.14960 and 2412.19437: the mappings that were trained with are valid.
    assert check("mixtral-8x22b", 128, Plan(tp=2, pp=8, dp=8, ep=8, etp=1), gbs=256).valid
    deepseek = Plan(pp=16, dp=128, ep=64, schedule=Schedule.DUALPIPE, layout=(4,) * 15 + (1,))
    assert check("deepseek-v3", 2048, deepseek, gbs=15360, framework="any").valid


def test_llama_3_is_valid() -> None:
    # arXiv 2407.21783: TP8 CP16 PP16 DP8 at 128K tokens on 16,384 GPUs, pp inside dp.
    plan = Plan(tp=8, cp=16, pp=16, dp=8, cp_kind=CpKind.ALL_GATHER, layout=(7, *(8,) * 14, 7))
    found = check_plan(
        load_model("llama-3.1-405b"),
        cluster_of("h100-sxm", 16384),
        Workload(seq=131072, gbs=128),
        plan,
        framework="megatron",
        order=("tp", "cp", "ep", "pp", "dp"),
    )
    assert found.valid


def test_modules_that_are_not_there_are_only_worth_a_warning() -> None:
    found = check("llama-3.1-8b", 8, Plan(dp=8, recompute_modules=Recompute.MOE))
    assert found.valid
    (warning,) = found.warnings
    assert warning.rule.id == "recompute-fits-model"
    assert [change.name for change in warning.repairs[0].changes] == ["recompute_modules"]
