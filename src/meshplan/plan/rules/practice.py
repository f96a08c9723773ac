"""Warnings: plans that run and are rarely wise."""

from __future__ import annotations

import numpy as np

from meshplan.plan.kinds import Recompute, Schedule, Sharding
from meshplan.plan.plans import ALL_LAYERS, DEFAULT_ORDER, Plan, Plans
from meshplan.plan.rules.facts import batches, every, has_dense, has_latent, micro_batches, moes
from meshplan.plan.rules.rule import Bools, Rule, Setting, Source

EVERYWHERE = ("megatron", "torchtitan", "pytorch", "deepspeed", "accelerate", "mindspeed", "paddle")


def _sources(where: str, frameworks: tuple[str, ...] = EVERYWHERE) -> tuple[Source, ...]:
    return tuple(Source(name, where) for name in ("any", *frameworks))


def _expert_span(p: Plans) -> np.ndarray:
    """Ranks from the first to the last of an all-to-all between experts, when ep stands where the order
    puts it."""
    inner = np.ones(len(p), dtype=np.int64)
    sizes = {"tp": p.etp, "dp": p.edp, "pp": p.pp}
    order = p.order if "ep" in p.order else DEFAULT_ORDER
    for dim in order[: order.index("ep")]:
        inner = inner * sizes.get(dim, 1)
    return np.asarray(inner * p.ep)


def _fewer(s: Setting, p: Plans) -> Bools:
    """Zero-bubble-free schedules with fewer micro-batches than stages idle more than they work."""
    return np.asarray((p.pp == 1) | (micro_batches(s, p) >= p.pp))


def _available(s: Setting) -> Recompute:
    found = Recompute.CORE_ATTN | Recompute.NORM | Recompute.OPERATORS
    found |= Recompute.MLP | Recompute.MLP_ACT if has_dense(s) else Recompute.NONE
    found |= Recompute.MOE | Recompute.MOE_ACT if moes(s) else Recompute.NONE
    found |= Recompute.SHARED_EXPERTS if any(moe.shared_width for moe in moes(s)) else Recompute.NONE
    found |= Recompute.MLA_UP_PROJ if has_latent(s) else Recompute.NONE
    return found


def _absent_words(s: Setting, p: Plan) -> str:
    absent = p.recompute_modules & ~_available(s)
    names = " and ".join(m.name.lower().replace("_", "-") for m in Recompute if m & absent and m.name)
    return f"recompute {names}: {s.model.name} has no such module"


def _stage_layers(s: Setting, p: Plans) -> np.ndarray:
    """The most layers that a rank holds, where the split is even."""
    return np.asarray(-(-len(s.model.layers) // p.pp))


TP_IN_NODE = Rule(
    id="tp-in-node",
    title="tp stays inside a node",
    columns=("tp",),
    passes=lambda s, p: np.asarray(p.tp <= s.cluster.gpus_per_node),
    words=lambda s, p: f"tp {p.tp} crosses nodes of {s.cluster.gpus_per_node} GPUs",
    fix="tp",
    severity="warning",
    sources=_sources("four transfers a layer wait for the slowest link (arXiv 2104.04473, takeaway 1)"),
)
CP_MIN_TOKENS = Rule(
    id="cp-min-tokens",
    title="every cp rank keeps 4,096 tokens or more",
    columns=("cp",),
    passes=lambda s, p: np.asarray((p.cp == 1) | (s.workload.seq >= 4096 * p.cp)),
    words=lambda s, p: f"cp {p.cp} leaves {s.workload.seq / p.cp:,.0f} tokens a rank, fewer than 4,096",
    fix="cp",
    severity="warning",
    sources=_sources("below, the ring's transfers outlast attention", ("megatron", "torchtitan", "pytorch")),
)
EP_IN_DOMAIN = Rule(
    id="ep-in-domain",
    title="ep × etp stays inside the scale-up domain",
    columns=("tp", "cp", "dp", "ep", "etp"),
    passes=lambda s, p: np.asarray((p.ep == 1) | (_expert_span(p) <= s.cluster.gpus_per_node)),
    words=lambda s, p: (
        f"ep {p.ep} × etp {p.etp} reaches beyond the scale-up domain of {s.cluster.gpus_per_node} GPUs:"
        " its all-to-alls cross the network"
    ),
    fix="ep",
    severity="warning",
    sources=_sources(
        "topk copies of every token travel twice a layer (arXiv 2504.14960, section 3)",
        ("megatron", "torchtitan", "pytorch", "deepspeed", "mindspeed"),
    ),
)
FEW_MICRO_BATCHES = Rule(
    id="few-micro-batches",
    title="there is a micro-batch for every stage",
    columns=("pp", "dp", "mbs"),
    passes=_fewer,
    words=lambda s, p: (
        f"fewer micro-batches ({batches(s, p)}) than pp {p.pp} stages: the pipeline never fills"
    ),
    severity="warning",
    sources=(
        *_sources("the bubble is (pp - 1) / micro-batches (arXiv 2104.04473, section 2.2)", ("deepspeed",)),
        Source("megatron", "the bubble is (pp - 1) / micro-batches (arXiv 2104.04473, section 2.2)"),
        Source("torchtitan", "torchtitan/distributed/pipeline_parallel.py, _build_pipeline_schedule"),
        Source("pytorch", "the bubble is (pp - 1) / micro-batches (arXiv 2104.04473, section 2.2)"),
    ),
)
SHARDED_PIPELINE = Rule(
    id="sharded-pipeline",
    title="a pipeline shards no more than optimizer states",
    columns=("pp", "sharding"),
    passes=lambda s, p: np.asarray((p.pp == 1) | (p.sharding < Sharding.ZERO3)),
    words=lambda s, p: f"{p.sharding.label} with pp {p.pp} gathers every weight again for each micro-batch",
    fix="pp",
    severity="warning",
    sources=(
        Source("any", "a stage's weights are gathered once a micro-batch (arXiv 2407.21783, section 3.3.2)"),
        Source("torchtitan", "docs/fsdp.md: reshard_after_forward is off by default with a pipeline"),
        Source("pytorch", "FSDP gathers a unit in each forward"),
        Source("megatron", "Megatron-FSDP gathers a unit in each forward"),
    ),
)
PP_INSIDE_DP = Rule(
    id="pp-outside",
    title="pp or dp is the outermost dimension",
    columns=("tp", "cp", "pp", "dp"),
    passes=lambda s, p: every(p, p.order[-1] in ("pp", "dp")) | (p.tp * p.cp == 1),
    words=lambda s, p: (
        "the outermost dimension talks over the slowest links, and tp and cp talk most: put pp or dp there"
    ),
    severity="warning",
    sources=_sources("communication volume by dimension (arXiv 2407.21783, section 3.3.2)"),
)
RECOMPUTE_ABSENT = Rule(
    id="recompute-fits-model",
    title="recomputed modules are there",
    columns=("recompute_modules",),
    passes=lambda s, p: np.asarray((p.recompute_modules & ~int(_available(s))) == 0),
    words=_absent_words,
    severity="warning",
    sources=(
        *_sources("recomputing what the model does not have saves nothing", ("mindspeed",)),
        Source(
            "megatron",
            "megatron/core/transformer/transformer_config.py (mla_up_proj without MLA: an error)",
        ),
    ),
)
RECOMPUTE_MORE = Rule(
    id="recompute-in-stage",
    title="a stage recomputes no more layers than it has",
    columns=("pp", "recompute_layers"),
    passes=lambda s, p: (p.recompute_layers <= _stage_layers(s, p)) | (p.recompute_layers == ALL_LAYERS),
    words=lambda s, p: (
        f"{p.recompute_layers} layers to recompute are more than the"
        f" {int(_stage_layers(s, Plans.of(p))[0])} of a stage of pp {p.pp}"
    ),
    severity="warning",
    sources=_sources("what is not there cannot be recomputed", ("megatron",)),
)
FLASH_CORE = Rule(
    id="recompute-core-attention",
    title="the attention core is not recomputed under FlashAttention",
    columns=("recompute_modules",),
    passes=lambda s, p: np.asarray((p.recompute_modules & int(Recompute.CORE_ATTN)) == 0),
    words=lambda s, p: (
        "recomputing core-attn saves nothing under FlashAttention, which keeps no scores"
        " (arXiv 2205.14135); it costs the attention again"
    ),
    severity="warning",
    sources=_sources("arXiv 2205.14135; NVIDIA-NeMo/Megatron-Bridge pull request 3880", ("megatron",)),
)
SEQ_BEYOND_MODEL = Rule(
    id="seq-beyond-model",
    title="the sequence is no longer than the model was made for",
    columns=(),
    passes=lambda s, p: every(p, s.model.max_seq is None or s.workload.seq <= s.model.max_seq),
    words=lambda s, p: (
        f"seq {s.workload.seq:,} is longer than the {s.model.max_seq or 0:,} positions that"
        f" {s.model.name} was made for"
    ),
    severity="warning",
    sources=(
        *_sources("max_position_embeddings of the configuration", ("torchtitan", "deepspeed", "accelerate")),
        Source("megatron", "megatron/training/arguments.py, validate_args (max_position_embeddings)"),
    ),
)
GPIPE_MEMORY = Rule(
    id="gpipe-keeps-all",
    title="a schedule that keeps the activations of every micro-batch has few of them",
    columns=("pp", "dp", "mbs", "schedule"),
    passes=lambda s, p: np.asarray(
        (p.pp == 1)
        | ~np.isin(p.schedule, [int(Schedule.GPIPE), int(Schedule.LOOPED_BFS)])
        | (micro_batches(s, p) <= 2 * p.pp)
    ),
    words=lambda s, p: (
        f"{p.schedule.label} keeps the activations of all {batches(s, p)} micro-batches;"
        f" 1f1b keeps those of {p.pp}"
    ),
    severity="warning",
    sources=_sources("arXiv 2104.04473, section 2.2.1", ("torchtitan", "pytorch")),
)
