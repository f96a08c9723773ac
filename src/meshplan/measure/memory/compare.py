"""What the cost model says of the same rank, part by part, and of the same collectives. Free of torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from meshplan.cluster.presets import cluster_of
from meshplan.cluster.profile import load_profile
from meshplan.cost.full.context import Context
from meshplan.cost.full.layers import price_layers
from meshplan.cost.full.memory import peak
from meshplan.cost.full.stack import Stack
from meshplan.model.counts import layer_parameters
from meshplan.model.layers import Attention, Layer, Mlp, Moe
from meshplan.model.model import Model
from meshplan.plan.kinds import Recompute, Sharding
from meshplan.plan.plans import DEFAULT_ORDER, Plan, Plans
from meshplan.plan.workload import Workload

GPU = "h100-sxm"
"""Any: bytes do not depend on it."""
UNSEEN = ("fragmentation", "context and NCCL")
"""Parts of the model's peak that a fake run cannot see."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Modelled:
    """The cost model's bytes for one pipeline rank; ``parts`` sum to ``peak_bytes``.

    ``parameters``: elements of the rank's optimizer shard. ``activations_bytes``: of one micro-batch.
    """

    parameters: float
    gradients_bytes: float
    optimizer_bytes: float
    activations_bytes: float
    peak_bytes: float
    parts: Mapping[str, float]


def modelled(
    model: Model, workload: Workload, plan: Plan, stack: Stack, *, pipeline_rank: int = 0,
    order: tuple[str, ...] = DEFAULT_ORDER,
) -> Modelled:  # fmt: skip
    """What the full cost model says that ``pipeline_rank`` holds; experts as in the reference engine."""
    stack = replace(stack, experts_apart=False, keeps_exchanged=False)
    cluster = cluster_of(GPU, plan.gpus, gpus_per_node=1)
    c = Context(
        model=model, cluster=cluster, workload=workload, plans=Plans.of(plan, order=order), stack=stack,
        profile=load_profile(GPU),
    )  # fmt: skip
    priced = price_layers(c)
    found = peak(c, priced)
    at = _type_of(c, pipeline_rank)
    parts = {name: float(v[0, at]) for name, v in found.parts.items() if name not in UNSEEN}
    shards = plan.dp * plan.cp // plan.replicas
    dense, experts = float(c.dense_parameters[0, at]), float(c.expert_parameters[0, at])
    z1 = plan.sharding >= Sharding.ZERO1
    elements = dense / shards + experts / plan.edp if z1 else dense + experts
    count = float(c.layers[0, at].sum())
    share = min(plan.recompute_layers / max(count, 1.0), 1.0)
    kept = float(c.per_rank([a.kept[priced.of_plan] for a in priced.activations])[0, at])
    inputs = float(c.per_rank([a.input[priced.of_plan] for a in priced.activations])[0, at])
    whole = float((2.0 * model.hidden * priced.keys.tokens)[priced.of_plan][0])
    own = whole * float(priced.keys.stream_share[priced.of_plan][0])
    # The final norm's input, and its output as the head reads it.
    ends = (own + whole) * float(c.last[0, at])
    return Modelled(
        parameters=elements,
        gradients_bytes=parts["gradients"],
        optimizer_bytes=parts["optimizer"],
        activations_bytes=kept * (1 - share) + inputs * share + ends,
        peak_bytes=sum(parts.values()),
        parts=parts,
    )


def _type_of(c: Context, rank: int) -> int:
    """The rank type that holds pipeline rank ``rank``: its own if it is an end, else the latest that starts
    at or before it."""
    types = [i for i in range(c.ranks.shape[1]) if c.ranks[0, i] > 0]
    starts = [(int(c.earliest[0, i]), i) for i in types]
    exact = [i for start, i in starts if start == rank]
    if exact:
        return exact[0]
    several = [(start, i) for start, i in starts if start <= rank and c.ranks[0, i] > 1]
    return max(several)[1]


# ── collectives ──────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True, slots=True)
class Volume:
    """Bytes of one rank's collectives of a kind over a dimension, all calls of a step together."""

    dim: str
    kind: str
    size_bytes: float


def volumes(model: Model, workload: Workload, plan: Plan, *, micro_batches: int) -> list[Volume]:
    """What one rank of a plan without a pipeline sends in a step, as the cost model counts it (torch's
    habits).

    TP with SP: every block gathers its input and scatters its output, forward and backward (arXiv
    2205.05198, 4.2.2); embedding and head likewise. Without SP an all-reduce for each. FSDP: every unit
    gathered before forward and backward of each micro-batch, its gradient scattered in fp32. EP: dispatch
    and combine, forward and backward. Scalars of the loss and norms' gradients are left out.
    """
    found: dict[tuple[str, str], float] = {}

    def add(dim: str, kind: str, size: float) -> None:
        found[dim, kind] = found.get((dim, kind), 0.0) + size

    m, tokens = micro_batches, workload.seq * plan.mbs / plan.cp
    element = 4.0 if workload.precision == "fp32" else 2.0
    stream = element * model.hidden * tokens
    chosen = Recompute.OPERATORS in plan.recompute_modules
    for index, layer in enumerate(model.layers):
        again = chosen or index < plan.recompute_layers
        if plan.tp > 1:
            _tensor(add, stream * m, _blocks(layer), sp=plan.sp, again=again, scattered_kept=chosen)
        if isinstance(layer.mlp, Moe) and plan.ep > 1:
            held = tokens / (plan.tp if plan.sp else 1)
            routed = element * model.hidden * held * layer.mlp.topk * m
            add("ep", "all_to_all", routed * (6 if again else 4))
    if plan.tp > 1:
        if plan.sp:  # the embedding scatters its sum, the head gathers its input; backward reversed
            add("tp", "reduce_scatter", 2 * stream * m)
            add("tp", "all_gather", 2 * stream * m)
        else:
            add("tp", "all_reduce", 2 * stream * m)
    if plan.sharding is Sharding.ZERO3:
        _sharded(add, model, plan, m, element)
    return [Volume(dim=d, kind=k, size_bytes=v) for (d, k), v in found.items()]


def _blocks(layer: Layer) -> int:
    """Tensor-parallel blocks of a layer: attention, and an MLP or shared experts."""
    mlp = layer.mlp
    dense = isinstance(mlp, Mlp) or (isinstance(mlp, Moe) and mlp.shared_width > 0)
    return int(isinstance(layer.attention, Attention)) + int(dense)


def _tensor(
    add: object, stream: float, blocks: int, *, sp: bool, again: bool, scattered_kept: bool
) -> None:  # fmt: skip
    put = add
    assert callable(put)
    if not sp:
        put("tp", "all_reduce", (2 + again) * blocks * stream)
        return
    put("tp", "all_gather", (2 + again) * blocks * stream)
    # What is recomputed stops at the last tensor that backward needs: the last product's output is not.
    scattered = 0 if scattered_kept else again * (blocks - 1)
    put("tp", "reduce_scatter", (2 * blocks + scattered) * stream)


def _sharded(add: object, model: Model, plan: Plan, m: int, element: float) -> None:
    """Gathers in ``element`` bytes (2 of bf16), scatters in fp32 (4). The head's unit is not resharded in
    between."""
    put = add
    assert callable(put)
    shards = plan.dp * plan.cp // plan.replicas
    for layer in model.layers:
        q = layer_parameters(layer, model.hidden)
        whole = q.attention_replicated + q.router + q.norms
        dense = (q.dense - whole) / plan.tp + whole
        if shards > 1:
            put("shard", "all_gather", 2 * element * dense * m)
            put("shard", "reduce_scatter", 4.0 * dense * m)
        if q.experts and plan.edp > 1:
            held = q.experts / (plan.ep * plan.etp)
            put("edp", "all_gather", 2 * element * held * m)
            put("edp", "reduce_scatter", 4.0 * held * m)
    if shards > 1:
        vocab = float(model.vocab * model.hidden / plan.tp)
        put("shard", "all_gather", element * (2 * vocab + vocab + model.hidden) * m)
        put("shard", "reduce_scatter", 4.0 * (2 * vocab + model.hidden) * m)


def relative(seen: float, said: float) -> float:
    """How far ``said`` is from ``seen``; 0 where both are 0."""
    if seen == said:
        return 0.0
    return float(np.inf) if seen == 0 else said / seen - 1.0
