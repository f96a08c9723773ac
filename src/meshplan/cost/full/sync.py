"""Data parallelism and the optimizer: what a step pays once, and what FSDP pays every micro-batch."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from meshplan.cluster.profile import Profile
from meshplan.cost.costs import Bools, Floats
from meshplan.cost.full.comm import Links
from meshplan.cost.full.stack import Stack
from meshplan.cost.full.topology import Group
from meshplan.plan.kinds import Sharding
from meshplan.plan.plans import Ints

BUCKET = 0.05
"""Share of a transfer that the first or last bucket is: assumed, of twenty buckets."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Transfers:
    """Seconds a step, for each plan: reducing gradients, gathering parameters, and the optimizer."""

    reduce: Floats
    gathered: Floats
    replicas: Floats
    """Adding up the gradient shards of HSDP's replicas, once a step."""
    apart: Bools
    """Whether that runs beside the reduction inside a replica, on links of its own, and not after it."""
    optimizer: Floats

    def gather(self, rows: Ints) -> Transfers:
        """The same for the plans ``rows`` names."""
        return Transfers(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    def exposed(self, stack: Stack, times: Floats, backward_window: Floats, forward_window: Floats) -> Floats:
        """Seconds that no computing hides. A reduction (there are ``times``) hides under the backward of its
        micro-batch (``backward_window`` seconds), adding up replicas under the last one's, the gathering
        under the first one's forward; one bucket at each end, a twentieth, does not."""
        if not stack.dp_overlap:
            return times * self.reduce + self.replicas + self.gathered
        found = self.last_reduction(backward_window) + beyond(self.gathered, forward_window)
        if (times > 1).any():
            found += (times - 1) * beyond(self.reduce, backward_window)
        return found

    def last_reduction(self, window: Floats) -> Floats:
        """What of the last reduction, replicas included, ``window`` seconds of backward do not hide. Both are
        ready to go unit by unit and share the window: one after the other, or the longer of two that run
        beside each other."""
        if not self.replicas.any():
            return beyond(self.reduce, window)
        both = self.reduce + self.replicas
        longer = np.where(self.apart, np.maximum(self.reduce, self.replicas), both)
        return np.maximum(BUCKET * both, longer - window)

    def replicas_alone(self, window: Floats, moving: Floats) -> Floats:
        """What of adding up replicas is not hidden where every micro-batch moves parameters and gradients of
        its own for ``moving`` seconds of the same backward (FSDP)."""
        return beyond(self.replicas, np.where(self.apart, window, np.maximum(window - moving, 0.0)))


def reductions(every: Bools, micro_batches: Ints | Floats) -> Floats:
    """How often a step reduces gradients: with every micro-batch where they are kept sharded (``every``:
    ZeRO-2, whose ranks have no room for whole ones; arXiv 1910.02054, 5.2), otherwise once."""
    return np.where(every, micro_batches, 1.0) if every.any() else np.ones(len(every))


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

    among = links.among(group, span)

    def both(op: str, per_parameter: float) -> Floats:
        seconds = among.seconds(op, held * per_parameter)
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
    traffic = _optimizer_bytes(stack, owned, np.where(sharding >= Sharding.ZERO2, owned, local))
    rate = profile.gpu.hbm_bandwidth * profile.memory.efficiency * stack.memory_rate
    shard = shards.dense / shards.dense_group.size * stack.reduce_bytes
    replicas = links.seconds("all_reduce", shard, shards.replica_group, shards.replica_span)
    optimizer = traffic / rate + offload_seconds(stack.offloaded * owned, profile, stack)
    apart = _apart(shards, stack)
    return Transfers(reduce=reduce, gathered=gathered, replicas=replicas, apart=apart, optimizer=optimizer)


def _apart(shards: Shards, stack: Stack) -> Bools:
    """Whether replicas are added up beside the reduction inside them. torch does so on a stream of its own,
    one unit behind (``_fsdp_collectives.py``); two transfers that both cross nodes, or both stay inside one,
    share their links all the same. Megatron has one stream for both (``param_and_grad_buffer.py``)."""
    inside, across = (g.size <= g.per_node for g in (shards.dense_group, shards.replica_group))
    return np.asarray((inside != across) & (stack.family == "torch"))


def adam_bytes(stack: Stack) -> float:
    """Bytes Adam moves for a parameter: reads the fp32 gradient (4), reads and writes master weight and
    moments, writes the weight that computing reads (2)."""
    return 6.0 + 2.0 * stack.optimizer_bytes


def _optimizer_bytes(stack: Stack, owned: Floats, gradients: Floats) -> Floats:
    """Bytes of memory traffic a step costs besides its transfers: Adam on the parameters a rank owns and what
    it does to the gradients it holds.

    Megatron zeroes them (a write) and scales them by 1/dp before they are reduced (a read and a write);
    torch lets the collective average them and drops them. The global norm reads the gradient of what a rank
    owns; where gradients are not fp32 it is copied to fp32 first (``Float16OptimizerWithFloat16Params``,
    ``clip_grads.py`` of Megatron-LM). torch scales by the norm's coefficient every step.
    """
    torch = stack.family == "torch"
    norm = 4.0 if stack.clips else 0.0
    clip = 8.0 if stack.clips and torch else 0.0
    copy = 4.0 + stack.grad_bytes if stack.clips and not torch and stack.grad_bytes < 4.0 else 0.0
    held = 0.0 if torch else 3.0 * stack.grad_bytes
    return (adam_bytes(stack) * (1 - stack.offloaded) + norm + clip + copy) * owned + held * gradients


def offload_seconds(parameters: Floats, profile: Profile, stack: Stack) -> Floats:
    """Seconds the host takes to step ``parameters`` of each GPU: gradients down and weights up over the GPU's
    link, and Adam's traffic through the memory that all GPUs of a host share. One after the other, and after
    the last backward: what a pipelined offload hides is left out."""
    gpu = profile.gpu
    moved = (stack.reduce_bytes + stack.weight_bytes) / gpu.host_bandwidth
    stepped = (adam_bytes(stack) - 2.0) * gpu.gpus_per_host / stack.host_memory
    return np.asarray(parameters * (moved + stepped))
