"""Data parallelism and the optimizer: what a step pays once, and what FSDP pays every micro-batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshplan.cluster.profile import Profile
from meshplan.cost.costs import Floats
from meshplan.cost.full.comm import Links
from meshplan.cost.full.stack import Stack
from meshplan.cost.full.topology import Group
from meshplan.plan.kinds import Sharding
from meshplan.plan.plans import Ints

OPTIMIZER_TRAFFIC = 30.0
"""Bytes Adam moves for a parameter: reads gradient, master and two moments (16), writes master and
moments (12) and the bf16 weight (2)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sync:
    """Seconds a step: transfers exposed and hidden, and the optimizer."""

    exposed: Floats
    hidden: Floats
    optimizer: Floats


@dataclass(frozen=True, kw_only=True, slots=True)
class Shards:
    """Where a rank's parameters are reduced: dense ones over dp · cp, experts over expert-dp."""

    dense: Floats
    """Dense parameters a rank holds."""
    experts: Floats
    dense_group: Group
    expert_group: Group
    dense_span: Ints
    expert_span: Ints


def gradient_sync(
    shards: Shards,
    sharding: Ints,
    links: Links,
    profile: Profile,
    stack: Stack,
    *,
    backward_window: Floats,
    forward_window: Floats,
) -> Sync:
    """DDP and ZeRO-1/2: one reduction and, where the optimizer is sharded, one gathering a step.

    The reduction hides under the last micro-batch's backward (``backward_window`` seconds), the
    gathering under the first one's forward; one bucket at each end does not hide.
    """
    z1 = sharding >= Sharding.ZERO1
    reduce_bytes = stack.reduce_bytes

    def both(op: str, per_parameter: float) -> Floats:
        return links.seconds(op, shards.dense * per_parameter, shards.dense_group, shards.dense_span) * (
            shards.dense_group.size > 1
        ) + links.seconds(op, shards.experts * per_parameter, shards.expert_group, shards.expert_span) * (
            (shards.expert_group.size > 1) & (shards.experts > 0)
        )

    scatter = both("reduce_scatter", reduce_bytes)
    gather = both("all_gather", stack.weight_bytes)
    whole = both("all_reduce", reduce_bytes)
    reduce = np.where(z1, scatter, whole)
    gather = np.where(z1, gather, 0.0)
    if stack.dp_overlap:
        bucket = 0.05
        exposed = np.maximum(reduce * bucket, reduce - backward_window) + np.maximum(
            gather * bucket, gather - forward_window
        )
    else:
        exposed = reduce + gather
    local = shards.dense + shards.experts
    owned = np.where(
        z1, shards.dense / shards.dense_group.size + shards.experts / shards.expert_group.size, local
    )
    traffic = OPTIMIZER_TRAFFIC * owned + 2.0 * stack.grad_bytes * local
    optimizer = traffic / (profile.gpu.hbm_bandwidth * profile.memory.efficiency * stack.memory_rate)
    return Sync(exposed=exposed, hidden=reduce + gather - exposed, optimizer=optimizer)
