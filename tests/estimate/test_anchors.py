"""Published figures that the full model must reproduce; each expected value comes from its source."""

from dataclasses import replace

import pytest

from meshplan.cluster.presets import cluster_of
from meshplan.cost.full.explain import explain
from meshplan.cost.full.model import FullModel
from meshplan.cost.full.stack import load_stack
from meshplan.cost.k22 import first_rank_bytes
from meshplan.model.flops import flop_per_token
from meshplan.model.layers import Attention, Layer, Mlp, Moe
from meshplan.model.load import load_model
from meshplan.model.model import Model
from meshplan.plan.kinds import CpKind, Recompute, Schedule, Sharding
from meshplan.plan.plans import ALL_LAYERS, Plan
from meshplan.plan.workload import Workload

GIB = 2**30


def priced(model, gpu, gpus, seq, gbs, plan, *, stack="megatron-core-2025", precision="bf16", **switches):
    chosen = replace(load_stack(stack), **switches)
    model = load_model(model) if isinstance(model, str) else model
    cluster = cluster_of(gpu, gpus)
    return explain(
        FullModel(stack=chosen), model, cluster, Workload(seq=seq, gbs=gbs, precision=precision), plan
    )


def states(found, *, stage=None):
    """GiB of weights, gradients and optimizer states on the fullest rank, or on one kind of rank."""
    if stage is None:
        memory = {part: value[0] for part, value in found.costs.memory.items()}
    else:
        memory = found.stages[stage].memory
    return sum(float(memory[part]) for part in ("weights", "gradients", "optimizer")) / GIB


# ── Korthikanti et al. 2022 ──────────────────────────────────────────────────────────────────────

K22 = {  # hidden, layers, heads, pp, vp, gbs, mbs (arXiv 2205.05198, table 3)
    "22b": (6144, 48, 64, 1, 1, 4, 4),
    "175b": (12288, 96, 96, 8, 3, 64, 1),
    "530b": (20480, 105, 128, 35, 3, 280, 1),
    "1t": (25600, 128, 160, 64, 1, 512, 1),
}


@pytest.mark.parametrize(
    ("name", "baseline_gib", "present_gib"),
    [  # figure 1
        ("22b", 59.25, 9.5625),
        ("175b", 66.84375, 12.3515625),
        ("530b", 114.0234375, 23.076171875),
        ("1t", 131.25, 26.5625),
    ],
)
def test_k22_activations_exactly(name, baseline_gib, present_gib):
    hidden, layers, heads, pp, vp, _, mbs = K22[name]
    sizes = {
        "layers": layers,
        "seq": 2048,
        "mbs": mbs,
        "hidden": hidden,
        "heads": heads,
        "tp": 8,
        "pp": pp,
        "vp": vp,
    }
    assert first_rank_bytes(**sizes) / GIB == pytest.approx(baseline_gib, rel=1e-12)
    present = first_rank_bytes(**sizes, sp=True, recompute="selective") / GIB
    assert present == pytest.approx(present_gib, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "relative"),
    [  # figure 7: per cent of tensor parallelism alone: sequence parallelism, selective, both, full
        ("175b", (62.04, 56.53, 18.49, 8.71)),
        ("530b", (58.31, 62.04, 20.27, 9.42)),
        ("1t", (58.31, 62.04, 20.27, 9.42)),
    ],
)
def test_k22_techniques_relative_to_tensor_parallelism(name, relative):
    hidden, layers, heads, *_ = K22[name]
    sizes = {"layers": layers, "seq": 2048, "mbs": 1, "hidden": hidden, "heads": heads, "tp": 8}
    whole = first_rank_bytes(**sizes)
    found = [
        first_rank_bytes(**sizes, sp=sp, recompute=how) / whole * 100
        for sp, how in ((True, "none"), (False, "selective"), (True, "selective"), (False, "full"))
    ]
    assert found == pytest.approx(relative, abs=0.7)  # the figure includes the input embedding's dropout


@pytest.mark.parametrize("name", K22)
def test_full_model_keeps_the_activations_of_k22(name):
    """Tensor by tensor the full model counts the same layer: 34·s·b·h/t with SP and selective recompute."""
    hidden, layers, heads, pp, vp, gbs, mbs = K22[name]
    plan = Plan(
        tp=8,
        pp=pp,
        vp=vp,
        schedule=Schedule.INTERLEAVED if vp > 1 else Schedule.ONE_F_ONE_B,
        mbs=mbs,
        sharding=Sharding.DDP,
        recompute_modules=Recompute.CORE_ATTN,
    )
    found = priced(_gpt(hidden, layers, heads), "a100-80gb", 8 * pp, 2048, gbs, plan, stack="megatron-2022")
    expected = first_rank_bytes(
        layers=layers,
        seq=2048,
        mbs=mbs,
        hidden=hidden,
        heads=heads,
        tp=8,
        sp=True,
        pp=pp,
        vp=vp,
        recompute="selective",
    )
    first = next(stage for stage in found.stages if stage.embedding)
    assert first.memory["activations"] == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize(
    ("name", "recompute", "step_s"),
    [  # table 5: full recomputation without SP; selective with SP
        ("22b", "full", 1.42),
        ("22b", "selective", 1.10),
        ("175b", "full", 18.13),
        ("175b", "selective", 13.75),
        ("530b", "full", 49.05),
        ("530b", "selective", 37.83),
        ("1t", "full", 94.42),
        ("1t", "selective", 71.49),
    ],
)
def test_k22_iteration_time(name, recompute, step_s):
    hidden, layers, heads, pp, vp, gbs, mbs = K22[name]
    plan = Plan(
        tp=8,
        sp=recompute == "selective",
        pp=pp,
        vp=vp,
        schedule=Schedule.INTERLEAVED if vp > 1 else Schedule.ONE_F_ONE_B,
        mbs=mbs,
        sharding=Sharding.DDP,
        recompute_layers=ALL_LAYERS if recompute == "full" else 0,
        recompute_modules=Recompute.CORE_ATTN if recompute == "selective" else Recompute.NONE,
    )
    found = priced(
        _gpt(hidden, layers, heads),
        "a100-80gb",
        8 * pp,
        2048,
        gbs,
        plan,
        stack="megatron-2022",
        precision="fp16",
    )
    assert float(found.costs.step_s[0]) == pytest.approx(step_s, rel=0.10)


def _gpt(hidden, layers, heads, vocab=51200):
    layer = Layer(
        attention=Attention(heads=heads, kv_heads=heads, head_dim=hidden // heads),
        mlp=Mlp(width=4 * hidden, gated=False),
        norm_bias=True,
    )
    return Model(
        name="gpt", hidden=hidden, vocab=vocab, layers=(layer,) * layers, tied_embeddings=True, positions=2048
    )


# ── Llama 3 and DeepSeek-V3 ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("gpus", "cp", "dp", "seq", "gbs", "tflops"),
    [
        (8192, 1, 64, 8192, 2048, 430),
        (16384, 1, 128, 8192, 2048, 400),
        (16384, 16, 8, 131072, 128, 380),
    ],
)
def test_llama_3_405b(gpus, cp, dp, seq, gbs, tflops):
    """arXiv 2407.21783, table 4; FLOP with causal attention counted once (the paper does not say)."""
    plan = Plan(
        tp=8,
        cp=cp,
        cp_kind=CpKind.ALL_GATHER,
        pp=16,
        vp=8,
        schedule=Schedule.INTERLEAVED,
        dp=dp,
        sharding=Sharding.ZERO2,
    )
    found = priced("llama-3.1-405b", "h100-sxm", gpus, seq, gbs, plan, stack="llama-3")
    model = load_model("llama-3.1-405b")
    step = flop_per_token(model, seq) * seq * gbs / (gpus * tflops * 1e12)
    assert float(found.costs.step_s[0]) == pytest.approx(step, rel=0.10)


def test_deepseek_v3():
    """arXiv 2505.09343, table 4: 19.926 s a step; arXiv 2412.19437: 180 K H800 hours a trillion tokens."""
    plan = Plan(
        pp=16,
        schedule=Schedule.DUALPIPE,
        dp=128,
        ep=64,
        recompute_modules=Recompute.NORM | Recompute.MLA_UP_PROJ,
    )
    found = priced("deepseek-v3", "h800", 2048, 4096, 15360, plan, stack="deepseek-v3", precision="fp8")
    step = float(found.costs.step_s[0])
    assert step == pytest.approx(19.926, rel=0.15)
    hours = 2048 * step / 3600 * 1e12 / (4096 * 15360)
    assert hours == pytest.approx(180e3, rel=0.15)


def test_deepseek_v3_fits_as_it_was_trained():
    """The same run on 80 GB, with what arXiv 2412.19437, 3.2.3 and 3.3.3, switches on: norms, the MLA
    up-projection and SwiGLU computed again, its inputs in fp8, attention's output in E5M6, bf16 moments. With
    all of that in bf16 it would not."""
    modules = Recompute.NORM | Recompute.MLA_UP_PROJ | Recompute.MOE_ACT | Recompute.MLP_ACT
    plan = Plan(pp=16, schedule=Schedule.DUALPIPE, dp=128, ep=64, recompute_modules=modules)
    shape = ("deepseek-v3", "h800", 2048, 4096, 15360, plan)
    as_trained = priced(*shape, stack="deepseek-v3", precision="fp8")
    assert as_trained.costs.fits[0]
    assert float(as_trained.costs.step_s[0]) == pytest.approx(19.926, rel=0.15)
    wide = priced(
        *shape,
        stack="deepseek-v3",
        precision="fp8",
        act_input_bytes=2.0,
        core_bytes=2.0,
        optimizer_bytes=12.0,
    )
    assert not wide.costs.fits[0]


# ── memory that people asked about ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("tp", "dp", "sharding", "gib", "fits"),
    [
        (1, 8, Sharding.DDP, 113.0, False),
        (1, 8, Sharding.ZERO1, 47.1, False),
        (2, 4, Sharding.ZERO1, 28.2, True),
        (4, 2, Sharding.ZERO1, 18.8, True),
    ],
)
def test_llama_2_7b_on_eight_a100_40gb(tp, dp, sharding, gib, fits):
    """NVIDIA/Megatron-LM#606: out of memory even with sequences of 64 tokens."""
    plan = Plan(tp=tp, dp=dp, sharding=sharding)
    found = priced("llama-2-7b", "a100-40gb", 8, 64, 8, plan)
    assert states(found) == pytest.approx(gib, rel=0.005)
    assert bool(found.costs.fits[0]) is fits


def test_eighteen_bytes_a_parameter():
    """NVIDIA/Megatron-LM#654: 2 for the weight, 4 for the gradient, 12 for Adam; only the last is sharded."""
    model = load_model("llama-2-7b")
    for dp in (1, 8):
        found = priced(model, "a100-80gb", dp, 64, 8, Plan(dp=dp))
        memory = {part: float(value[0]) / 6_738_415_616 for part, value in found.costs.memory.items()}
        assert memory["weights"] == pytest.approx(2, rel=1e-3)
        assert memory["gradients"] == pytest.approx(4, rel=1e-3)
        assert memory["optimizer"] == pytest.approx(12 / dp, rel=1e-3)


@pytest.mark.parametrize(
    ("gpus", "tp", "pp", "dp", "mbs", "gib", "measured_gb"),
    [(8, 1, 2, 4, 2, 28.2, 49.8), (8, 8, 1, 1, 4, 14.1, 28.8), (16, 1, 2, 8, 2, 23.5, 69.1)],
)
def test_llama_2_7b_states_on_h800(gpus, tp, pp, dp, mbs, gib, measured_gb):
    """NVIDIA/Megatron-LM#597 and #482: sequence length and recomputation of each row are not told, so that
    only the states are determined, and the measured peak is above them."""
    found = priced("llama-2-7b", "h800", gpus, 4096, 128, Plan(tp=tp, pp=pp, dp=dp, mbs=mbs))
    assert states(found) == pytest.approx(gib, rel=0.01)
    assert states(found) * GIB < measured_gb * 1e9


def test_recomputing_attention_saves_little_under_flash_attention():
    """NVIDIA/Megatron-LM#1225: 25.52 to 24.94 GB. Without flash attention it is most of the activations."""
    for stack, least, most in (("megatron-core-2025", 0.95, 1.0), ("megatron-2022", 0.0, 0.6)):
        kept = []
        for modules in (Recompute.NONE, Recompute.CORE_ATTN):
            plan = Plan(recompute_modules=modules)
            found = priced("gpt-2-xl", "h100-sxm", 1, 2048, 8, plan, stack=stack)
            kept.append(float(found.costs.memory["activations"][0]))
        assert least <= kept[1] / kept[0] <= most, stack


@pytest.mark.parametrize(
    ("gpus", "ep", "gib"), [(8, 8, 71.5), (8, 4, 91.8), (8, 1, 213), (32, 8, 39.5), (32, 16, 29.4)]
)
def test_qwen3_30b_states_by_expert_parallelism(gpus, ep, gib):
    """NVIDIA/Megatron-LM#2762, yanring/Megatron-MoE-ModelZoo#21: one node runs out of memory."""
    found = priced("qwen3-30b-a3b", "h100-sxm", gpus, 4096, 64, Plan(dp=gpus, ep=ep))
    assert states(found) == pytest.approx(gib, rel=0.005)


def test_qwen3_30b_fully_sharded_fits_one_node():
    """The same, with FSDP2: 16 bytes a parameter over 8 GPUs."""
    plan = Plan(dp=8, sharding=Sharding.ZERO3, recompute_layers=ALL_LAYERS)
    found = priced("qwen3-30b-a3b", "h100-sxm", 8, 4096, 8, plan, stack="torchtitan")
    assert states(found) == pytest.approx(56.9, rel=0.005)


def test_llama_3_3_70b_persistent_memory():
    """NVIDIA-NeMo/Automodel PR #2673: 17.5 GB a GPU before the first step, PP8 and FSDP over 4, all states
    in bf16: 8 bytes a parameter over 32 GPUs."""
    plan = Plan(pp=8, dp=4, sharding=Sharding.ZERO3, mbs=4)
    found = priced(
        "llama-3.3-70b",
        "h100-sxm",
        32,
        1024,
        128,
        plan,
        stack="torchtitan",
        grad_bytes=2.0,
        optimizer_bytes=6.0,
    )
    held = [states(found, stage=i) * stage.ranks for i, stage in enumerate(found.stages)]
    assert sum(held) / 8 * GIB == pytest.approx(17.6e9, rel=0.01)


def _tiny(*layers):
    return Model(name="tiny", hidden=16, vocab=32, layers=layers, final_norm_bias=True)


_TINY_ATTENTION = Attention(heads=4, kv_heads=4, head_dim=4)
_TINY = Layer(attention=_TINY_ATTENTION, mlp=Mlp(width=64, gated=False), norm_bias=True)
_TINY_MOE = Layer(
    attention=_TINY_ATTENTION, mlp=Moe(experts=2, topk=1, width=32, gated=False), norm_bias=True
)


def test_the_fullest_stage_of_an_uneven_layout_counts():
    """NVIDIA-NeMo/Megatron-Bridge PR #5077: 9,952 parameters on the last of [1, 2, 2, 3], not 6,792."""
    model = _tiny(*[_TINY] * 8)
    found = priced(
        model, "h100-sxm", 4, 8, 4, Plan(pp=4, layout=(1, 2, 2, 3), sharding=Sharding.DDP), stack="torchtitan"
    )
    gradients = max(stage.memory["gradients"] for stage in found.stages) / 4
    assert gradients == pytest.approx(9952, rel=0.002)


def test_uneven_layout_of_a_mixed_model():
    """The same request, dense and MoE layers mixed: 4,096 parameters of experts and 5,856 others on the
    last stage (and 64 of routers, which the estimator there leaves out)."""
    kinds = [_TINY, _TINY_MOE, _TINY, _TINY, _TINY_MOE, _TINY, _TINY_MOE, _TINY_MOE]
    plan = Plan(pp=4, layout=(1, 2, 2, 3), sharding=Sharding.DDP)
    found = priced(_tiny(*kinds), "h100-sxm", 4, 8, 4, plan, stack="torchtitan")
    last = next(stage for stage in found.stages if stage.head)
    assert last.memory["gradients"] / 4 == pytest.approx(4096 + 5856 + 64, rel=0.002)


@pytest.mark.parametrize(("tp", "ep", "etp"), [(1, 8, 1), (2, 8, 1), (2, 4, 2), (8, 2, 1)])
def test_experts_are_split_by_their_own_degrees(tp, ep, etp):
    """NVIDIA/Megatron-LM#4050: experts over ETP · EP, their optimizer over the ranks with the same experts,
    router and norms on every rank."""
    dp = 16 // tp
    found = priced("qwen3-30b-a3b", "h100-sxm", 16, 4096, 64, Plan(tp=tp, dp=dp, ep=ep, etp=etp))
    hidden, layers, experts = 2048, 48, 48 * 128 * 3 * 2048 * 768
    split = layers * 2 * hidden * (4096 + 512) + 2 * 151936 * hidden
    repeated = layers * (hidden * 128 + 2 * hidden + 2 * 128)
    dense, own = split / tp + repeated, experts / (ep * etp)
    assert float(found.costs.memory["weights"][0]) == pytest.approx(2 * (dense + own), rel=0.003)
    edp = 16 // (ep * etp)
    expected = 12 * (dense / dp + own / edp)
    assert float(found.costs.memory["optimizer"][0]) == pytest.approx(expected, rel=0.003)


def test_torchtitan_deepseek_16b_states():
    """pytorch/torchtitan#1789: FSDP2 over 8 H100; 15.7 B parameters of 16 bytes: 29.3 GiB."""
    plan = Plan(dp=8, ep=8, sharding=Sharding.ZERO3)
    found = priced("deepseek-v2-lite", "h100-sxm", 8, 4096, 8, plan, stack="torchtitan")
    assert states(found) == pytest.approx(29.3, rel=0.01)


@pytest.mark.parametrize(("cp", "mib"), [(1, 320.0), (8, 40.0)])
def test_checkpoint_of_a_layer_is_its_share_of_the_sequence(cp, mib):
    """verl-project/verl#7476: full-length checkpoints of 340 MiB (2 · 34.8 K tokens · 5,120), two a layer,
    where sequence parallelism over 8 should have left an eighth; here for 32,768 tokens, one or two."""
    layer = Layer(attention=Attention(heads=40, kv_heads=8, head_dim=128), mlp=Mlp(width=25600))
    model = Model(name="27.8b", hidden=5120, vocab=151936, layers=(layer,) * 64)
    plan = Plan(
        cp=cp, cp_kind=CpKind.ULYSSES, dp=8 // cp, sharding=Sharding.ZERO3, recompute_layers=ALL_LAYERS
    )
    found = priced(model, "h100-sxm", 8, 32768, 8, plan, stack="torchtitan")
    kept = float(found.costs.memory["activations"][0]) / 2**20
    count = round(kept / 64 / mib)
    assert count in (1, 2)
    assert kept / 64 / count == pytest.approx(mib, rel=0.05)


def test_recomputing_attention_is_useless_for_qwen3_30b():
    """NVIDIA-NeMo/Megatron-Bridge PR #3880: 42.21 s and 61.35 GB without, 42.92 s and 63.14 GB with."""
    found = [
        priced(
            "qwen3-30b-a3b", "h100-sxm", 16, 4096, 1024, Plan(dp=16, ep=16, recompute_modules=modules)
        ).costs
        for modules in (Recompute.NONE, Recompute.CORE_ATTN)
    ]
    slower = float(found[1].step_s[0] / found[0].step_s[0])
    smaller = float(found[1].memory_bytes[0] / found[0].memory_bytes[0])
    assert 1.0 - 1e-9 <= slower < 1.05
    assert smaller == pytest.approx(1.0, abs=0.03)


def test_cross_entropy_in_fp32():
    """ISEEKYAN/Megatron-LM PR #132: 8,192 tokens × 151,936 logits are 4.638 GiB in fp32."""
    layer = Layer(attention=Attention(heads=8, kv_heads=8, head_dim=64), mlp=Mlp(width=1024))
    model = Model(name="wide", hidden=512, vocab=151936, layers=(layer,))
    stack = {"loss_bytes": 4.0, "gradient_dummies": False, "fragmentation": 0.0}
    found = priced(model, "h100-sxm", 1, 8192, 1, Plan(), stack="torchtitan", **stack)
    assert float(found.costs.memory["loss and workspace"][0]) / GIB == pytest.approx(4.638, rel=0.001)


def _activations(model, plan, stack):
    return float(
        priced(model, "h100-sxm", plan.gpus, 4096, 8, plan, stack=stack).costs.memory["activations"][0]
    )


def test_norms_after_attention_and_mlp_keep_their_inputs():
    """Gemma 2: four norms a layer; the two that follow a block read 2 bytes a feature more each."""
    plain = Layer(attention=Attention(heads=8, kv_heads=8, head_dim=64), mlp=Mlp(width=2048))
    after = replace(plain, norms=4)
    kept = [
        _activations(
            Model(name="m", hidden=512, vocab=1024, layers=(layer,) * 4), Plan(), "megatron-core-2025"
        )
        for layer in (plain, after)
    ]
    assert kept[1] - kept[0] == pytest.approx(4 * 2 * 2 * 512 * 4096)


def test_torch_pipelines_keep_what_a_stage_sent():
    """torch.distributed.pipelining holds a stage's output until its backward: 2 · s · h for each of the two
    micro-batches the first of two stages has alive."""
    layer = Layer(attention=Attention(heads=8, kv_heads=8, head_dim=64), mlp=Mlp(width=2048))
    model = Model(name="m", hidden=512, vocab=1024, layers=(layer,) * 4)
    plan = Plan(pp=2, sharding=Sharding.DDP, mbs=1)
    found = priced(model, "h100-sxm", 2, 4096, 8, plan, stack="torchtitan")
    first = next(s for s in found.stages if s.embedding)
    per_layer = _activations(model, Plan(sharding=Sharding.DDP), "torchtitan") - 2 * 2 * 512 * 4096
    assert first.memory["activations"] == pytest.approx(2 * (per_layer / 2 + 2 * 512 * 4096))
