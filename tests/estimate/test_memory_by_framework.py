"""Memory that frameworks add to textbook states: expected values from their sources, papers and logs."""

import json
from dataclasses import replace

import pytest

from meshplan.cli import main
from meshplan.cluster.presets import cluster_of
from meshplan.cluster.profile import load_profile
from meshplan.cost.full.context import Context
from meshplan.cost.full.memory import PARTS
from meshplan.cost.full.model import FullModel
from meshplan.cost.full.readings import readings
from meshplan.cost.full.stack import load_stack, stack_from
from meshplan.errors import InputError
from meshplan.model.load import load_model
from meshplan.plan.kinds import Recompute, Schedule, Sharding
from meshplan.plan.plans import Plan, Plans
from meshplan.plan.workload import Workload
from meshplan.validation.cases import case_of
from meshplan.validation.rows import parse_rows
from meshplan.validation.run import price_cases

GIB = 2**30


def asked(capsys, line, codes=(0,)):
    code = main([*line.split(), "--json"])
    assert code in codes
    return json.loads(capsys.readouterr().out)


def memory(name, gpu, seq, gbs, plan, stack, **more):
    model = load_model(name) if isinstance(name, str) else name
    work = Workload(seq=seq, gbs=gbs, **more)
    costs = FullModel.of(stack).price(model, cluster_of(gpu, plan.gpus), work, Plans.of(plan))
    return {part: float(value[0]) for part, value in costs.memory.items()}


# ── Llama 3 ──────────────────────────────────────────────────────────────────────────────────────

META = "estimate llama-3.1-405b --gpu h100-sxm --tp 8 --pp 16 --stack llama-3"


@pytest.mark.parametrize(
    "run",
    [
        "--gpus 8192 --dp 64 --seq 8192 --gbs 2048",
        "--gpus 16384 --vp 8 --dp 128 --seq 8192 --gbs 2048",
        "--gpus 16384 --vp 8 --cp 16 --cp-kind all-gather --dp 8 --seq 131072 --gbs 128",
    ],
)
def test_llama_3_fits_as_it_was_trained(capsys, run):
    """arXiv 2407.21783, table 4, on 80 GB without recomputation; 3.3.2: FSDP shards optimizer states and
    gradients, and weights are kept after forward. It does not tell the virtual stages: eight are fast enough
    and fit sixteen micro-batches, of thirty-two only one stage a rank."""
    data = asked(capsys, f"{META} {run}")
    assert data["fits"]
    assert data["plan"]["sharding"] == "zero2"


def test_what_a_stack_shards_is_for_who_says_nothing(capsys):
    run = f"{META} --gpus 8192 --dp 64 --seq 8192 --gbs 2048 --sharding zero1"
    assert asked(capsys, run, codes=(0, 1))["plan"]["sharding"] == "zero1"


def test_plan_searches_what_llama_3_shards(capsys):
    line = "plan llama-3.1-405b --gpu h100-sxm --gpus 8192 --seq 8192 --gbs 2048 --stack llama-3"
    data = asked(capsys, f"{line} --tp 8 --pp 16 --vp 8 --top 100")
    assert {"zero1", "zero2"} <= {plan["sharding"] for plan in data["plans"]}


def test_a_stack_file_says_a_sharding_that_exists():
    with pytest.raises(InputError, match="sharding must be one of ddp, zero1, zero2, zero3, not 'zero4'"):
        stack_from({"name": "s", "title": "s", "sharding": "zero4"}, where="file")


def test_zero_2_holds_one_whole_gradient_for_a_moment():
    """Llama 3 405B, tp 8: of the largest unit (the vocabulary's matrix, 2.1 B parameters, is smaller than a
    layer's 3.19 B) 4 bytes a parameter, besides the shard; Megatron-FSDP's temporary main gradient."""
    plan = Plan(tp=8, pp=16, dp=64, sharding=Sharding.ZERO2)
    found = memory("llama-3.1-405b", "h100-sxm", 8192, 2048, plan, "llama-3")
    layer = 2 * 16384 * (16384 + 1024) + 3 * 16384 * 53248 + 2 * 16384
    shard = 4 * (layer / 8 * 8) / 64
    assert found["gradients"] == pytest.approx(shard, rel=0.01)
    assert found["gradient buffers"] == pytest.approx(4 * layer / 8, rel=0.001)


# ── DualPipe and multi-token prediction ──────────────────────────────────────────────────────────


def test_dualpipe_doubles_weights_and_gradients_not_the_optimizer():
    """arXiv 2412.19437, 3.2.1: two copies of the parameters; with ZeRO-1 what is sharded is sharded over both
    ranks that hold them. The outer ranks of four hold the first and last eight layers, embedding and head."""
    plan = Plan(pp=4, dp=2, schedule=Schedule.DUALPIPE)
    found = memory("llama-3.1-8b", "h100-sxm", 4096, 64, plan, "megatron-core-2025")
    held = 16 * 218_112_000 + 2 * 128_256 * 4096
    assert found["weights"] == pytest.approx(2 * held, rel=1e-4)
    assert found["gradients"] == pytest.approx(4 * held, rel=1e-4)
    assert found["optimizer"] == pytest.approx(12 * held / 4, rel=1e-4)


def test_the_projection_of_multi_token_prediction_is_split_in_megatron():
    """multi_token_prediction.py of Megatron-Core: eh_proj is column-parallel, 2h to h; norms are whole."""
    model = load_model("deepseek-v3")
    assert len(model.mtp) == 1
    plain = replace(model, mtp=())
    plan = Plan(tp=4, pp=4, dp=4, ep=16, vp=1)
    held = []
    for which in (model, plain):
        shape = Context(
            model=which, cluster=cluster_of("h100-sxm", 64), workload=Workload(seq=4096, gbs=64),
            plans=Plans.of(plan), stack=load_stack("megatron-core-2025"), profile=load_profile("h100-sxm"),
        )  # fmt: skip
        held.append(float(shape.end_parameters.max()))
    h = 7168
    # A copy of the embedding stands there too: 129,280 rows, padded to a multiple of 512, over 4 ranks.
    assert held[0] - held[1] == pytest.approx(2 * h * h / 4 + 3 * h + 129_536 / 4 * h, rel=1e-9)


# ── torchtitan ───────────────────────────────────────────────────────────────────────────────────

ROW = {
    "id": "x", "source": "torchtitan-commit", "release": "2025-03", "tier": "A", "model": "llama3-8b",
    "gpu": "H100-96GB-HBM2e", "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128,
    "ffn": 14336, "vocab": 128256, "gated": 1, "seq": 8192, "gpus": 8, "gpus_per_node": 8, "gbs": 8, "mbs": 1,
    "tp": 1, "cp": 1, "pp": 1, "dp": 8, "sharding": "fsdp", "recompute": "selective", "precision": "bf16",
    "step_s": 1.4, "tokens_s_gpu": "", "peak_gib": 49.58, "notes": "eager FSDP8 op-SAC",
}  # fmt: skip


def reserved(**changes):
    """GiB estimated to be reserved in a run like torchtitan's of Llama 3 8B on eight H100."""
    row = {**ROW, **changes}
    table = "\n".join((",".join(row), ",".join(f'"{value}"' for value in row.values())))
    return price_cases([case_of(r) for r in parse_rows(table, "t")])[0].memory_bytes / GIB


@pytest.mark.parametrize(
    ("changes", "gib"),
    [
        ({}, 49.58),  # pytorch/torchtitan, commit e23bb707d
        ({"notes": "chunked cross-entropy; eager FSDP8 op-SAC"}, 42.26),  # the same
        ({"notes": "compile FSDP8, op-SAC", "release": "2025-02"}, 47.65),  # commit 069bae286
        ({"notes": "eager, no AC", "release": "2024-07", "recompute": "none"}, 78.38),  # commit 9dc418a8b
        ({"release": "2024-12", "gbs": 16, "mbs": 2}, 82.4),  # benchmarks/llama3_h100_202412_torchtitan.md
        ({"release": "2024-12", "gbs": 16, "mbs": 2, "notes": "compile"}, 77.0),  # the same
        # benchmarks/llama3-8b_h200_202506_trainy-whitefiber.md: the loss compiled too
        ({"release": "2025-06", "gpu": "H200", "gpus": 32, "dp": 32, "gbs": 64, "mbs": 2, "notes": "compile"},
         47.96),
        # commit 2271b6386: checkpointing keeps the absolute values that casts take, operator by operator
        ({"release": "2025-01", "precision": "fp8-tensorwise", "notes": "float8 WITHOUT compile (eager)"},
         81.77),
    ],
)  # fmt: skip
def test_what_torchtitan_reserves(changes, gib):
    assert reserved(**changes) == pytest.approx(gib, rel=0.06)


def test_gathers_reserve_two_units_of_their_own():
    """FSDP2 copies in and gathers on a stream of its own: two buffers in bf16, of a layer and the head's
    525 M parameters (_fsdp_collectives.py)."""
    full = FullModel.of("torchtitan")
    setting = load_model("llama-3.1-8b"), cluster_of("h100-sxm", 8), Workload(seq=8192, gbs=8)
    plans = Plans.of(Plan(dp=8, sharding=Sharding.ZERO3), Plan(dp=8, sharding=Sharding.ZERO2))
    found = full.gather_buffers(*setting, plans)
    assert found.tolist() == [2 * (218_112_000 + 128_256 * 4096), 0]


def test_by_operator_torchtitan_keeps_what_experts_exchange():
    """pytorch/torchtitan pull request 1672: outputs of all-to-alls are kept, 2 bytes of 2,048 features for
    each of six experts a token, there and back, in 26 layers."""
    with_, without = (
        memory("deepseek-v2-lite", "h100-sxm", 4096, 8, Plan(
            dp=8, ep=ep, sharding=Sharding.ZERO3, recompute_modules=Recompute.OPERATORS,
        ), "torchtitan-moe")["activations"]
        for ep in (8, 1)
    )  # fmt: skip
    assert with_ - without == pytest.approx(26 * 4096 * 6 * 2 * 2048 * 2, rel=1e-6)


def test_estimate_says_what_tools_read(capsys):
    """pytorch/torchtitan, commit e23bb707d: 49.58 GiB reserved by Llama 3 8B on eight H100."""
    run = "estimate llama-3.1-8b --gpu h100-sxm --gpus 8 --seq 8192 --gbs 8 --stack torchtitan"
    data = asked(capsys, f"{run} --recompute operators")
    seen, parts = data["readings"], data["memory"]
    assert seen["reserved_bytes"] / GIB == pytest.approx(49.58, rel=0.06)
    assert seen["allocated_bytes"] == pytest.approx(
        data["memory_bytes"] - parts["fragmentation"] - parts["context and NCCL"]
    )
    assert seen["allocated_bytes"] < seen["reserved_bytes"] < seen["device_bytes"]


def test_an_allocator_that_runs_short_gives_back_what_it_keeps():
    parts = dict.fromkeys(PARTS, 0.0) | {"activations": 60.0, "fragmentation": 5.0, "context and NCCL": 4.0}
    wide, tight = (readings(parts, limit=limit, cached=0.1, buffers=2.0) for limit in (100.0, 70.0))
    assert (wide.allocated, wide.reserved, wide.device) == (60, 65 + 8, 69 + 8)
    assert (tight.allocated, tight.reserved, tight.device) == (60, 65 + 1, 70)


@pytest.mark.parametrize(("precision", "each"), [("fp16", 2), ("bf16", 4)])
def test_megatron_keeps_gradients_in_fp32_only_under_bf16(precision, each):
    """Megatron-LM, docs/user-guide/features/dist_optimizer.md: 2 bytes a gradient with fp16, 4 with bf16, not
    sharded by the distributed optimizer. Llama 3.1 8B has 8,030,261,248 parameters (its model card)."""
    work = Workload(seq=4096, gbs=8, precision=precision)
    full = FullModel(stack=load_stack("megatron-core-2025"))
    plan = Plans.of(Plan(dp=8, mbs=1, sharding=Sharding.ZERO1))
    costs = full.price(load_model("llama-3.1-8b"), cluster_of("h100-sxm", 8), work, plan)
    assert float(costs.memory["gradients"][0]) == pytest.approx(each * 8_030_261_248, rel=1e-3)
