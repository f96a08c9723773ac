"""What the cost model says of the same rank, part by part. Free of torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from meshplan.cluster.presets import cluster_of
from meshplan.cluster.profile import load_profile
from meshplan.cost.full.context import Context
from meshplan.cost.full.layers import price_layers
from meshplan.cost.full.memory import peak
from meshplan.cost.full.stack import Stack
from meshplan.model.model import Model
from meshplan.plan.kinds import Sharding
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


ENGINE: Mapping[str, Any] = {"fused_norms": True, "ring": "hops", "repeats_kv": False}
"""Habits of the reference engine's modules, where those of a stack may be others."""


def modelled(
    model: Model, workload: Workload, plan: Plan, stack: Stack, *, pipeline_rank: int = 0,
    order: tuple[str, ...] = DEFAULT_ORDER,
) -> Modelled:  # fmt: skip
    """What the full cost model says that ``pipeline_rank`` holds; experts, norms and rings as in the
    reference engine."""
    stack = replace(stack, experts_apart=False, keeps_exchanged=False, **ENGINE)
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


def relative(seen: float, said: float) -> float:
    """How far ``said`` is from ``seen``; 0 where both are 0."""
    if seen == said:
        return 0.0
    return float(np.inf) if seen == 0 else said / seen - 1.0
