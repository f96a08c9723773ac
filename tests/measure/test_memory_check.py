"""The memory model against one rank's real module: true layer shapes, cut layer counts."""

import json
import subprocess
import sys
from dataclasses import replace
from functools import lru_cache

import pytest

from meshplan.cost.full.stack import load_stack
from meshplan.measure.cut import with_layers
from meshplan.model.load import load_model
from meshplan.plan.kinds import CpKind, Recompute, Schedule, Sharding
from meshplan.plan.plans import ALL_LAYERS, Plan
from meshplan.plan.workload import Workload

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'meshplan[measure]'")
pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("default")]

Z1, Z2, Z3 = Sharding.ZERO1, Sharding.ZERO2, Sharding.ZERO3
OPERATORS = Recompute.OPERATORS
STACK = load_stack("torchtitan")

CASES = {
    "8b fsdp": ("llama-3.1-8b", 2, 8192, Plan(dp=8, sharding=Z3)),
    "8b fsdp over 128": ("llama-3.1-8b", 2, 4096, Plan(dp=128, sharding=Z3)),
    "8b full recompute": ("llama-3.1-8b", 4, 8192, Plan(dp=8, sharding=Z3, recompute_layers=ALL_LAYERS)),
    "8b half recompute": ("llama-3.1-8b", 4, 4096, Plan(dp=8, sharding=Z3, recompute_layers=2)),
    "8b tp2": ("llama-3.1-8b", 4, 4096, Plan(dp=8, sharding=Z3, tp=2)),
    "8b zero1": ("llama-3.1-8b", 4, 2048, Plan(dp=8, sharding=Z1)),
    "8b zero2": ("llama-3.1-8b", 4, 2048, Plan(dp=8, sharding=Z2)),
    "70b tp8": ("llama-3.1-70b", 2, 8192, Plan(dp=8, tp=8, sharding=Z3)),
    "70b tp8 recompute": (
        "llama-3.1-70b", 4, 8192, Plan(dp=8, tp=8, sharding=Z3, recompute_layers=ALL_LAYERS),
    ),
    "70b tp8 without sp": ("llama-3.1-70b", 2, 8192, Plan(dp=8, tp=8, sp=False, sharding=Z3)),
    "70b tp8 ring": ("llama-3.1-70b", 2, 32768, Plan(dp=2, cp=4, tp=8, sharding=Z3)),
    "8b by operator": ("llama-3.1-8b", 2, 8192, Plan(dp=8, sharding=Z3, recompute_modules=OPERATORS)),
    "8b by operator tp4": (
        "llama-3.1-8b", 2, 8192, Plan(dp=2, tp=4, sharding=Z3, recompute_modules=OPERATORS),
    ),
    "qwen3 moe ep8 by operator": (
        "qwen3-30b-a3b", 2, 4096, Plan(dp=8, ep=8, sharding=Z3, recompute_modules=OPERATORS),
    ),
    "qwen3 moe ep8": ("qwen3-30b-a3b", 2, 4096, Plan(dp=8, ep=8, sharding=Z3)),
    "qwen3 moe ep8 recompute": (
        "qwen3-30b-a3b", 2, 8192, Plan(dp=16, ep=8, sharding=Z3, recompute_layers=ALL_LAYERS),
    ),
    "qwen3 moe ep4 tp2": ("qwen3-30b-a3b", 2, 4096, Plan(dp=8, ep=4, tp=2, sharding=Z3)),
    "mixtral ep4": ("mixtral-8x7b", 2, 4096, Plan(dp=8, ep=4, sharding=Z3)),
    "mixtral ep4 tp2": ("mixtral-8x7b", 2, 4096, Plan(dp=8, ep=4, tp=2, sharding=Z3)),
}  # fmt: skip
"""Name → (model, layers, seq, plan); two micro-batches, so that gradients stand beside activations."""


@lru_cache(maxsize=64)
def seen_of(name, fused, rank):
    """The real module's run, once for all tests."""
    from meshplan.measure.memory.check import check_rank

    preset, layers, seq, plan = CASES[name]
    model = with_layers(load_model(preset), layers)
    work = Workload(seq=seq, gbs=2 * plan.dp)
    return check_rank(model, work, plan, pipeline_rank=rank, fused=fused), model, work, plan


def both(name, stack=STACK, rank=0):
    from meshplan.measure.memory.compare import modelled

    seen, model, work, plan = seen_of(name, stack.fused, rank)
    return seen, modelled(model, work, plan, stack, pipeline_rank=rank), model, work, plan


@pytest.mark.parametrize("name", CASES)
def test_states_are_exact_activations_within_one_percent_and_peaks_within_three(name):
    seen, said, *_ = both(name)
    # FSDP gives the first ranks the longer rows of what does not divide: up to one row more.
    assert seen.parameters == pytest.approx(said.parameters, rel=2e-4)
    assert seen.gradients_bytes == pytest.approx(said.gradients_bytes, rel=2e-4)
    assert seen.optimizer_bytes == pytest.approx(said.optimizer_bytes, rel=2e-4)
    assert seen.activations_bytes == pytest.approx(said.activations_bytes, rel=0.01)
    assert sum(seen.parts.values()) == seen.peak_bytes
    assert seen.peak_bytes == pytest.approx(said.peak_bytes, rel=0.03)


def test_states_are_exact_to_the_byte_where_shards_divide():
    seen, said, *_ = both("8b fsdp")
    assert (seen.parameters, seen.gradients_bytes, seen.optimizer_bytes) == (
        said.parameters, said.gradients_bytes, said.optimizer_bytes,
    )  # fmt: skip


def test_a_compiled_stack_keeps_less():
    compiled = load_stack("torchtitan-compile")
    seen, said, *_ = both("8b fsdp", compiled)
    eager, _, *_ = both("8b fsdp")
    assert seen.activations_bytes == pytest.approx(said.activations_bytes, rel=0.01)
    # silu(gate) of 2 layers: 2 · 8192 tokens · 14336 features · 2 bytes
    assert eager.activations_bytes - seen.activations_bytes == 2 * 8192 * 14336 * 2


B8, B8_DEEP, MOE, TIED = ("llama-3.1-8b", 2), ("llama-3.1-8b", 8), ("qwen3-30b-a3b", 2), ("llama-3.2-1b", 2)
DDP = Sharding.DDP
GATHER = CpKind.ALL_GATHER
TERMS = {
    "ddp": (B8, Plan(dp=4, sharding=DDP), 0),
    "zero1": (B8, Plan(dp=4, sharding=Z1), 0),
    "zero2": (B8, Plan(dp=4, sharding=Z2), 0),
    "zero3": (B8, Plan(dp=4, sharding=Z3), 0),
    "zero3 of a tied model": (TIED, Plan(dp=4, sharding=Z3), 0),
    "hsdp zero1": (B8, Plan(dp=8, sharding=Z1, replicas=2), 0),
    "hsdp zero2": (B8, Plan(dp=8, sharding=Z2, replicas=2), 0),
    "hsdp zero3": (B8, Plan(dp=8, sharding=Z3, replicas=2), 0),
    "tp zero1": (B8, Plan(dp=4, tp=2, sharding=Z1), 0),
    "tp without sp": (B8, Plan(dp=2, tp=2, sp=False, sharding=Z1), 0),
    "ring": (B8, Plan(cp=4, dp=2, sharding=Z3), 0),
    "ring recomputed": (B8, Plan(cp=4, dp=2, sharding=Z3, recompute_layers=1), 0),
    "all-gather cp": (B8, Plan(cp=4, dp=2, cp_kind=GATHER, sharding=Z1), 0),
    "all-gather cp, tp, recomputed": (
        B8, Plan(cp=4, tp=2, dp=2, cp_kind=GATHER, sharding=Z3, recompute_layers=ALL_LAYERS), 0,
    ),
    "moe ddp": (MOE, Plan(dp=8, ep=4, sharding=DDP), 0),
    "moe zero1": (MOE, Plan(dp=8, ep=4, sharding=Z1), 0),
    "moe etp zero2": (MOE, Plan(dp=8, ep=4, tp=2, etp=2, sharding=Z2), 0),
    "moe etp recomputed": (
        MOE, Plan(dp=8, ep=4, tp=2, etp=2, sharding=Z3, recompute_layers=ALL_LAYERS), 0,
    ),
    "first of a pipeline": (B8_DEEP, Plan(pp=2, dp=2, sharding=Z1), 0),
    "last of a pipeline": (B8_DEEP, Plan(pp=2, dp=2, sharding=Z3), 1),
    "middle of a pipeline": (B8_DEEP, Plan(pp=4, dp=2, sharding=Z2), 1),
    "interleaved, tp": (
        B8_DEEP, Plan(pp=2, vp=2, dp=2, tp=2, schedule=Schedule.INTERLEAVED, sharding=Z1), 1,
    ),
    "a V without sp": (
        B8_DEEP, Plan(pp=2, vp=2, dp=2, tp=2, sp=False, schedule=Schedule.ZB_V, sharding=Z1), 0,
    ),
}  # fmt: skip
"""Name → (model and layers, plan, pipeline rank): every dimension, sharding and kind of stage."""


def counted(collectives):
    """Bytes by dimension and kind; sums of tokens and single numbers left out."""
    found = {}
    for c, n in collectives.items():
        if c.size_bytes >= 65536:
            found[c.dim, c.kind] = found.get((c.dim, c.kind), 0) + n * c.size_bytes
    return found


@pytest.mark.parametrize("name", TERMS)
def test_every_transfer_of_the_module_is_one_of_the_plan_to_the_byte(name):
    from meshplan.measure.memory.check import check_rank
    from meshplan.measure.memory.volumes import volumes

    (preset, layers), plan, rank = TERMS[name]
    model, work = with_layers(load_model(preset), layers), Workload(seq=2048, gbs=4 * plan.dp * plan.pp)
    seen = check_rank(model, work, plan, pipeline_rank=rank)
    said = volumes(model, work, plan, micro_batches=seen.micro_batches, pipeline_rank=rank)
    assert seen.micro_batches > 1
    assert counted(seen.collectives) == {(v.dim, v.kind): v.size_bytes for v in said}


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if c[3].sharding is Z3])
def test_transfers_of_the_large_cases_are_what_the_plan_says(name):
    from meshplan.measure.memory.volumes import volumes

    seen, _, model, work, plan = both(name)
    said = volumes(model, work, plan, micro_batches=seen.micro_batches)
    # FSDP pads rows that do not divide.
    rel = 1e-6 if plan.dp < 100 else 0.001
    expected = {(v.dim, v.kind): v.size_bytes for v in said}
    assert counted(seen.collectives) == pytest.approx(expected, rel=rel)


def timed_sizes(monkeypatch, model, work, plan):
    """(operation, ranks) → sizes that the cost model looks up, largest first."""
    import numpy as np

    from meshplan.cluster.presets import cluster_of
    from meshplan.cost.full.comm import Among, Links
    from meshplan.cost.full.model import FullModel
    from meshplan.measure.memory.compare import ENGINE
    from meshplan.plan.plans import Plans

    found, seconds, among = {}, Among.seconds, Links.among
    of = {}

    def started(self, group, span):
        made = among(self, group, span)
        of[id(made)] = made, int(np.max(group.size))
        return made

    def recorded(self, op, size_bytes):
        sizes = found.setdefault((op, of[id(self)][1]), set())
        sizes.update(float(x) for x in np.ravel(size_bytes))
        return seconds(self, op, size_bytes)

    monkeypatch.setattr(Links, "among", started)
    monkeypatch.setattr(Among, "seconds", recorded)
    FullModel(stack=replace(STACK, **ENGINE)).price(
        model, cluster_of("h100-sxm", plan.gpus), work, Plans.of(plan)
    )
    return found


@pytest.mark.parametrize(
    ("plan", "dim", "kind", "op", "ranks", "times"),
    [
        (Plan(dp=4, sharding=DDP), "replica", "all_reduce", "all_reduce", 4, 1),
        (Plan(dp=4, sharding=Z1), "shard", "reduce_scatter", "reduce_scatter", 4, 1),
        (Plan(dp=4, sharding=Z1), "shard", "all_gather", "all_gather", 4, 1),
        (Plan(dp=4, sharding=Z2), "shard", "reduce_scatter", "reduce_scatter", 4, 2),
        (Plan(dp=8, sharding=Z2, replicas=2), "replica", "all_reduce", "all_reduce", 2, 1),
        # 2 layers, 2 micro-batches, 3 hops; forward once and backward keys, values and gradients
        (Plan(cp=4, sharding=Z1), "cp", "send", "p2p", 4, 2 * 2 * 3 * 3),
        # gathered in forward and in backward
        (Plan(cp=4, cp_kind=GATHER, sharding=Z1), "cp", "all_gather", "all_gather", 4, 2 * 2 * 2),
        (Plan(cp=4, cp_kind=GATHER, sharding=Z1), "cp", "reduce_scatter", "reduce_scatter", 4, 2 * 2),
        (Plan(pp=2, dp=2, sharding=Z1), "pp", "send", "p2p", 2, 2),
        (Plan(pp=2, tp=2, sharding=Z1), "pp", "recv", "p2p", 2, 2),
        (Plan(pp=2, tp=2, sp=False, sharding=Z1), "pp", "recv", "p2p", 2, 2),
        # 2 micro-batches of 2 layers with 2 blocks, both ways; embedding and head, one way each
        (Plan(tp=8, dp=2, sharding=Z1), "tp", "all_gather", "all_gather", 8, 2 * (2 * 4 + 2)),
        (Plan(tp=8, dp=2, sharding=Z1), "tp", "reduce_scatter", "reduce_scatter", 8, 2 * (2 * 4 + 2)),
        (Plan(tp=8, dp=2, sp=False, sharding=Z1), "tp", "all_reduce", "all_reduce", 8, 2 * (2 * 4 + 2)),
    ],
)
def test_priced_bytes_are_the_sizes_that_the_cost_model_times(monkeypatch, plan, dim, kind, op, ranks, times):
    from meshplan.measure.memory.volumes import volumes

    model, work = with_layers(load_model("llama-3.1-8b"), 2), Workload(seq=4096, gbs=2 * plan.dp)
    (said,) = [v for v in volumes(model, work, plan, micro_batches=2) if (v.dim, v.kind) == (dim, kind)]
    sizes = timed_sizes(monkeypatch, model, work, plan)[op, ranks]
    assert any(said.priced_bytes == pytest.approx(times * size, rel=1e-9) for size in sizes)


def test_ring_attention_sends_keys_and_values_round():
    seen, _, model, work, plan = both("70b tp8 ring")
    assert plan.cp_kind is CpKind.RING
    att = model.layers[0].attention
    k_and_v = 2 * 2 * work.seq // plan.cp * att.kv_heads // plan.tp * att.head_dim
    hops = [(c.size_bytes, n) for c, n in seen.collectives.items() if (c.dim, c.kind) == ("cp", "send")]
    per_layer = seen.micro_batches * len(model.layers)
    # 3 hops forward and 3 backward in bf16; gradients go 4 hops in fp32 (twice the bytes)
    assert sorted(hops) == [(k_and_v, 6 * per_layer), (2 * k_and_v, 4 * per_layer)]


def test_pipeline_ranks_hold_the_micro_batches_in_flight():
    from meshplan.measure.memory.check import check_rank

    model = with_layers(load_model("llama-3.1-8b"), 8)
    plan, work = Plan(dp=2, pp=4, sharding=Z3), Workload(seq=8192, gbs=32)
    first = check_rank(model, work, plan, pipeline_rank=0)
    third = check_rank(model, work, plan, pipeline_rank=2)
    # 1F1B: rank r holds pp - r micro-batches (arXiv 2104.04473, 2.2)
    assert first.parts["activations"] == pytest.approx(4 * third.activations_bytes, rel=0.03)
    assert third.parts["activations"] == pytest.approx(2 * third.activations_bytes, rel=0.06)


def run(*args):
    return subprocess.run(
        [sys.executable, "-m", "meshplan", *args], capture_output=True, text=True, timeout=280, check=False
    )


def test_the_command_says_both_sides():
    done = run(
        "memory-check", "llama-3.1-8b", "--layers", "2", "--seq", "2048", "--plan", "tp2,dp4", "--json"
    )
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["plan"] == "tp2,dp4,zero3"
    (rank,) = data["ranks"]
    assert rank["parameters"]["off"] == 0
    assert {v["kind"] for v in data["volumes"]} == {"all_gather", "reduce_scatter"}
    assert all(abs(v["off"]) < 1e-6 for v in data["volumes"])


def test_both_ranks_of_a_pipeline_are_counted_in_one_process():
    line = (
        "memory-check",
        "llama-3.1-8b",
        "--layers",
        "4",
        "--seq",
        "2048",
        "--plan",
        "tp2,dp2,pp2,cp2,zero1",
    )
    done = run(*line, "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["volumes"]
    assert {v["off"] for v in rows} == {0.0}
    for rank in (0, 1):
        kinds = {(v["dim"], v["kind"]) for v in rows if v["pipeline_rank"] == rank}
        assert {("pp", "send"), ("pp", "recv"), ("cp", "send"), ("shard", "reduce_scatter")} <= kinds
    text = run(*line).stdout
    assert "rank  group  kind" in text
    assert "TransformerEngine's ring" in text


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("deepseek-v3", "--seq", "4096"), "latent attention"),
        (("llama-3.1-8b",), "--seq is missing"),
        (("llama-3.1-8b", "--seq", "4096", "--precision", "fp32"), "trains in bf16"),
        (("llama-3.1-8b", "--seq", "4096", "--stack", "megatron-core-2025"), "not of the torch family"),
        (("llama-3.1-8b", "--seq", "4096", "--plan", "zero4"), "did you mean zero"),
        (("llama-3.1-8b", "--seq", "4096", "--tp", "16"), "tp"),
        (("llama-3.1-8b", "--seq", "4096", "--layers", "99"), "has 32 layers"),
        (("llama-3.1-8b", "--seq", "4096", "--rank", "3"), "--rank"),
    ],
)
def test_what_cannot_be_run_is_one_sentence(args, words):
    done = run("memory-check", *args)
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
