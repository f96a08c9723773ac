"""What Megatron-LM's code refuses, and what it has no flag for. Megatron-Bridge builds on it."""

from __future__ import annotations

import numpy as np

from meshplan.plan.kinds import CpKind, Recompute, Schedule, Sharding
from meshplan.plan.plans import Plan, Plans
from meshplan.plan.rules.facts import (
    batches,
    divide,
    every,
    has_latent,
    is_any,
    kv_heads,
    listed,
    micro_batches,
    moes,
)
from meshplan.plan.rules.rule import Bools, Rule, Setting, Source

_CONFIG = "megatron/core/transformer/transformer_config.py, TransformerConfig.__post_init__"
_STATE = "megatron/core/parallel_state.py, initialize_model_parallel"
ORDERS = (("tp", "cp", "dp", "pp"), ("tp", "cp", "pp", "dp"))
"""Its own, and with --use-tp-pp-dp-mapping (ep left out: it regroups dp)."""


def _megatron(where: str) -> tuple[Source, ...]:
    return (Source("megatron", where),)


def _flat(order: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dim for dim in order if dim != "ep")


def _interleaved(s: Setting, p: Plans) -> Bools:
    return np.asarray(
        (p.vp == 1) | (p.pp == 1) | (micro_batches(s, p) % p.pp == 0) & (micro_batches(s, p) > 0)
    )


def _interleaved_words(s: Setting, p: Plan) -> str:
    return f"interleaved stages need micro-batches in multiples of pp {p.pp}, and there are {batches(s, p)}"


def _hierarchy(s: Setting, p: Plans) -> Bools:
    """Whether cp is a product of an all-to-all inside a node that divides the heads, and a ring."""
    keys = p.tp * (1 << 24) + p.cp
    unique, index, of_row = np.unique(keys, return_index=True, return_inverse=True)
    found = [_splits(s, int(p.tp[i]), int(p.cp[i])) for i in index]
    return np.array(found, dtype=np.bool_)[of_row] if len(unique) else every(p, True)


def _splits(s: Setting, tp: int, cp: int) -> bool:
    counts = {
        n // tp
        for layer in s.model.layers
        if layer.attention is not None
        for n in (layer.attention.heads, layer.attention.kv_heads)
    }
    node = min(s.cluster.gpu.gpus_per_host, s.cluster.gpus_per_node)
    room = max(1, node // tp)
    return any(cp % n == 0 and all(c % n == 0 for c in counts) for n in range(2, min(cp, room + 1)))


def _order(s: Setting, p: Plans) -> Bools:
    if _flat(p.order) == ORDERS[0]:
        return every(p, True)
    if _flat(p.order) == ORDERS[1]:
        return np.asarray((p.pp == 1) | (p.edp == p.dp) | (not moes(s)))
    return np.asarray((p.tp > 1).astype(int) + (p.cp > 1) + (p.dp > 1) + (p.pp > 1) <= 1)


MEGATRON_MOE_SP = Rule(
    id="megatron-moe-needs-sp",
    title="MoE layers with tensor parallelism need sequence parallelism",
    columns=("tp", "sp"),
    passes=lambda s, p: np.asarray((p.tp == 1) | (p.sp == 1) | (not moes(s))),
    words=lambda s, p: f"MoE layers with tp {p.tp} need sequence parallelism",
    fix="sp",
    sources=_megatron("megatron/core/transformer/moe/moe_layer.py, MoELayer.forward"),
)
MEGATRON_INTERLEAVED = Rule(
    id="megatron-interleaved-batches",
    title="interleaved stages take micro-batches in multiples of pp",
    columns=("pp", "vp", "dp", "mbs"),
    passes=_interleaved,
    words=_interleaved_words,
    fix="vp",
    sources=(
        Source(
            "megatron",
            "megatron/core/pipeline_parallel/schedules.py, forward_backward_pipelining_with_interleaving"
            " (with the default group of pp micro-batches)",
        ),
        Source("paddle", "ppfleetx/models/language_model/utils.py, process_model_configs"),
    ),
)
MEGATRON_SCHEDULES = Rule(
    id="megatron-schedules",
    title="1F1B and its interleaved form",
    columns=("pp", "schedule"),
    passes=lambda s, p: (p.pp == 1) | is_any(p.schedule, (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED)),
    words=lambda s, p: f"Megatron has 1f1b and interleaved only, no {p.schedule.label}",
    written=True,
    sources=_megatron("megatron/core/pipeline_parallel/schedules.py, get_forward_backward_func"),
)
MEGATRON_ULYSSES_KV = Rule(
    id="megatron-ulysses-kv-heads",
    title="Ulysses: cp divides the KV heads of a tp rank",
    columns=("tp", "cp", "cp_kind"),
    passes=lambda s, p: (p.cp_kind != CpKind.ULYSSES) | (p.cp == 1) | divide(kv_heads(s), p.tp * p.cp),
    words=lambda s, p: (
        f"Ulysses in TransformerEngine: tp {p.tp} × cp {p.cp} does not divide {listed(kv_heads(s))} KV heads"
    ),
    fix="cp",
    sources=_megatron("transformer_engine/pytorch, context_parallel.py, cp_comm_type a2a"),
)
MEGATRON_HIERARCHY = Rule(
    id="megatron-hierarchical-cp",
    title="hierarchical context parallelism: an inner size in the node that divides the heads of a tp rank",
    columns=("tp", "cp", "cp_kind"),
    passes=lambda s, p: (p.cp_kind != CpKind.HIERARCHICAL) | (p.cp == 1) | _hierarchy(s, p),
    words=lambda s, p: (
        f"no two sizes, one inside a node and dividing the heads of a tp rank, multiply to cp {p.cp}"
    ),
    fix="cp",
    written=True,
    sources=_megatron("megatron/training/arguments.py, --hierarchical-context-parallel-sizes; a2a+p2p"),
)
MEGATRON_LATENT_CP = Rule(
    id="megatron-latent-cp",
    title="latent attention is not gathered over cp",
    columns=("cp", "cp_kind"),
    passes=lambda s, p: (p.cp_kind != CpKind.ALL_GATHER) | (p.cp == 1) | (not has_latent(s)),
    words=lambda s, p: "Megatron gathers no keys and values of latent attention over cp; use ring",
    written=True,
    sources=_megatron("megatron/core/transformer/multi_latent_attention.py"),
)
MEGATRON_INSTANCES = Rule(
    id="megatron-optimizer-instances",
    title="replicas divide dp and the experts' dp",
    columns=("tp", "cp", "dp", "ep", "etp", "replicas"),
    passes=lambda s, p: np.asarray(
        (p.dp % np.maximum(p.replicas, 1) == 0) & ((p.edp % np.maximum(p.replicas, 1) == 0) | (not moes(s)))
    ),
    words=lambda s, p: f"replicas {p.replicas} must divide dp {p.dp} and the experts' dp {p.edp}",
    fix="replicas",
    sources=_megatron(f"{_STATE} (num_distributed_optimizer_instances)"),
)
MEGATRON_RECOMPUTE_ONE = Rule(
    id="megatron-recompute-one",
    title="whole layers or modules are recomputed, not both",
    columns=("recompute_layers", "recompute_modules"),
    passes=lambda s, p: np.asarray((p.recompute_layers == 0) | (p.recompute_modules == 0)),
    words=lambda s, p: "Megatron recomputes whole layers (full) or modules (selective), not both",
    written=True,
    sources=_megatron(_CONFIG),
)
MEGATRON_MODULES = Rule(
    id="megatron-recompute-modules",
    title="modules that Megatron can recompute by themselves",
    columns=("recompute_modules",),
    passes=lambda s, p: np.asarray((p.recompute_modules & int(Recompute.OPERATORS | Recompute.MLP_ACT)) == 0),
    words=lambda s, p: "Megatron has no recompute by operator (torch's) and none of a dense MLP's activation",
    written=True,
    sources=_megatron(f"{_CONFIG} (allowed_modules)"),
)
MEGATRON_MODULE_LATENT = Rule(
    id="megatron-recompute-latent",
    title="mla-up-proj is recomputed in latent attention only",
    columns=("recompute_modules",),
    passes=lambda s, p: np.asarray(((p.recompute_modules & int(Recompute.MLA_UP_PROJ)) == 0) | has_latent(s)),
    words=lambda s, p: f"mla-up-proj is a part of latent attention, and {s.model.name} has none",
    written=True,
    sources=_megatron(_CONFIG),
)
MEGATRON_MOE_BIAS = Rule(
    id="megatron-moe-bias",
    title="experts with biases are not split (etp 1)",
    columns=("etp",),
    passes=lambda s, p: np.asarray((p.etp == 1) | (not any(moe.bias for moe in moes(s)))),
    words=lambda s, p: f"{s.model.name}'s experts have biases, which Megatron supports with etp 1 only",
    fix="etp",
    sources=_megatron(f"{_CONFIG} (add_bias_linear)"),
)
MEGATRON_ORDER = Rule(
    id="megatron-order",
    title="tp-cp-ep-dp-pp, or tp-cp-ep-pp-dp where attention and experts have the same dp",
    columns=("tp", "cp", "pp", "dp", "ep", "etp"),
    passes=_order,
    words=lambda s, p: (
        "Megatron has the orders tp-cp-ep-dp-pp and, where attention and experts have the same dp,"
        " tp-cp-ep-pp-dp"
    ),
    written=True,
    sources=_megatron(_STATE),
)
MEGATRON_FSDP_PIPELINE = Rule(
    id="megatron-fsdp-order",
    title="Megatron-FSDP shards in the order tp-cp-ep-dp-pp",
    columns=("sharding",),
    passes=lambda s, p: (p.sharding < Sharding.ZERO2) | every(p, _flat(p.order) == ORDERS[0]),
    words=lambda s, p: f"{p.sharding.label} is Megatron-FSDP, which has one order: tp-cp-ep-dp-pp",
    written=True,
    sources=_megatron("megatron/core/distributed/fsdp/mcore_fsdp_adapter.py"),
)
RULES = (
    MEGATRON_MOE_SP, MEGATRON_INTERLEAVED, MEGATRON_SCHEDULES, MEGATRON_ULYSSES_KV, MEGATRON_HIERARCHY,
    MEGATRON_LATENT_CP, MEGATRON_INSTANCES, MEGATRON_RECOMPUTE_ONE, MEGATRON_MODULES, MEGATRON_MODULE_LATENT,
    MEGATRON_MOE_BIAS, MEGATRON_ORDER, MEGATRON_FSDP_PIPELINE,
)  # fmt: skip
