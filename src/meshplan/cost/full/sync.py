"""Data parallelism and the optimizer: what a step pays once, and what FSDP pays every micro-batch."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from meshplan.cluster.profile import Profile
from meshplan.cost.costs import Floats
from meshplan.cost.full.comm import Links
from meshplan.cost.full.stack import Stack
from meshplan.cost.full.topology import Group
from meshplan.plan.kinds import Sharding
from meshplan.plan.plans import Ints

BUCKET = 0.05
"""Share of a transfer that the first or last bucket is: assumed, of twenty buckets."""
OPTIMIZER_TRAFFIC = 30.0
"""Bytes Adam moves for a parameter: reads gradient, master and two moments (16), writes master and
moments (12) and the bf16 weight (2)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Transfers:
    """Seconds a step, for each plan: reducing gradients, gathering parameters, and the optimizer."""

    reduce: Floats
    gathered: Floats
    replicas: Floats
    """Adding up the gradient shards of HSDP's replicas, once a step."""
    optimizer: Floats

    def gather(self, rows: Ints) -> Transfers:
        """The same for the plans ``rows`` names."""
        return Transfers(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    def exposed(self, stack: Stack, times: Floats, backward_window: Floats, forward_window: Floats) -> Floats:
        """Seconds that no computing hides. A reduction (there are ``times``) hides under the backward of its
        micro-batch (``backward_window`` seconds), the gathering under the first one's forward; one bucket
        at each end, a twentieth, does not."""
        if not stack.dp_overlap:
            return times * self.reduce + self.gathered
        return times * beyond(self.reduce, backward_window) + beyond(self.gathered, forward_window)


def reductions(sharding: Ints, micro_batches: Ints | Floats) -> Floats:
    """How often a step reduces gradients: with every micro-batch where they are kept sharded (ZeRO-2, whose
    ranks have no room for whole ones; arXiv 1910.02054, 5.2), otherwise once."""
    return np.where(sharding == Sharding.ZERO2, micro_batches, 1).astype(np.float64)


def beyond(seconds: Floats, window: Floats) -> Floats:
    """What a transfer takes longer than the computing it hides under; the last bucket at least."""
    return np.maximum(seconds * BUCKET, seconds - window)


@dataclass(frozen=True, kw_only=True, slots=True)
class Shards:
    """Where a rank's parameters are reduced: dense ones over dp · cp, experts over expert-dp."""

    dense: Floats
    """Dense parameters a rank holds."""
    experts: Floats
    dense_group: Group
    """Of one replica, where there are several."""
    replica_group: Group
    expert_group: Group
    dense_span: Ints
    replica_span: Ints
    expert_span: Ints


def gradient_transfers(
    shards: Shards, sharding: Ints, links: Links, profile: Profile, stack: Stack
) -> Transfers:
    """DDP: one all-reduce a step. ZeRO: one reduce-scatter and one all-gather (FSDP's, which come with
    every micro-batch, are priced with the ranks' work)."""
    z1 = sharding >= Sharding.ZERO1

    held, group, span = shards.dense, shards.dense_group, shards.dense_span
    if shards.experts.any():  # dense parameters and experts at once
        held, span = np.stack([held, shards.experts]), np.stack([span, shards.expert_span])
        group = group.beside(shards.expert_group)

    def both(op: str, per_parameter: float) -> Floats:
        seconds = links.seconds(op, held * per_parameter, group, span)
        return seconds if seconds.ndim == 1 else np.asarray(seconds[0] + seconds[1])

    whole = np.zeros(len(sharding))
    if not z1.all():
        whole = both("all_reduce", stack.reduce_bytes)
    reduce = np.where(z1, both("reduce_scatter", stack.reduce_bytes), whole) if z1.any() else whole
    gathered = (
        np.where(z1, both("all_gather", stack.weight_bytes), 0.0) if z1.any() else np.zeros(len(sharding))
    )
    local = shards.dense + shards.experts
    owned = np.where(
        z1, shards.dense / shards.dense_group.size + shards.experts / shards.expert_group.size, local
    )
    traffic = OPTIMIZER_TRAFFIC * (1 - stack.offloaded) * owned + 2.0 * stack.grad_bytes * local
    rate = profile.gpu.hbm_bandwidth * profile.memory.efficiency * stack.memory_rate
    shard = shards.dense / shards.dense_group.size * stack.reduce_bytes
    replicas = links.seconds("all_reduce", shard, shards.replica_group, shards.replica_span)
    optimizer = traffic / rate + offload_seconds(stack.offloaded * owned, profile, stack)
    return Transfers(reduce=reduce, gathered=gathered, replicas=replicas, optimizer=optimizer)


def offload_seconds(parameters: Floats, profile: Profile, stack: Stack) -> Floats:
    """Seconds the host takes to step ``parameters`` of each GPU: gradients down and weights up over the GPU's
    link, and Adam's traffic through the memory that all GPUs of a host share. One after the other, and after
    the last backward: what a pipelined offload hides is left out."""
    gpu = profile.gpu
    moved = (stack.reduce_bytes + stack.weight_bytes) / gpu.host_bandwidth
    stepped = (OPTIMIZER_TRAFFIC - 2.0) * gpu.gpus_per_host / stack.host_memory
    return np.asarray(parameters * (moved + stepped))
