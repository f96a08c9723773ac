"""Weights, gradients and optimizer states of one rank, from the parameters its stage holds.

Bytes a parameter (Megatron-LM docs, ``dist_optimizer.md``; torchtitan ``docs/fsdp.md``): bf16 weight
2, gradient 4 (or 2), master weight and Adam moments 12. ZeRO-1 shards the last over the gradient's
group, ZeRO-2 the gradient too, ZeRO-3 and FSDP the weight as well. Experts are sharded over the ranks
that hold the same expert, everything else over dp · cp.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshplan.cost.costs import Floats
from meshplan.cost.full.stack import Stack
from meshplan.plan.kinds import Sharding
from meshplan.plan.plans import Ints


class States(NamedTuple):
    """Bytes that stay on a rank all step long."""

    weights: Floats
    gradients: Floats
    optimizer: Floats


def states(
    dense: Floats, experts: Floats, dense_shards: Ints, expert_shards: Ints, sharding: Ints, stack: Stack
) -> States:
    """States of a rank that holds ``dense`` and ``experts`` parameters (already divided by tp, pp and
    ep); arrays broadcast (plans × stages)."""
    z1 = sharding >= Sharding.ZERO1
    z2 = sharding >= Sharding.ZERO2
    z3 = sharding >= Sharding.ZERO3
    whole = dense + experts
    sharded = dense / dense_shards + experts / expert_shards
    if stack.family == "torch":
        # The fp32 shard is weight and master in one; the bf16 copy is whole unless resharded.
        weights = np.where(z3, 0.0, 2.0 * whole)
        gradients = np.where(z2, sharded, whole) * stack.grad_bytes
        optimizer = np.where(z1, sharded, whole) * stack.optimizer_bytes * (1 - stack.offloaded)
        return States(weights=weights, gradients=gradients, optimizer=optimizer)
    weights = stack.weight_bytes * np.where(z3, sharded, whole)
    gradients = stack.grad_bytes * np.where(z2, sharded, whole)
    if stack.family == "deepspeed":  # ZeRO-Offload keeps the shard of gradients beside the states it steps
        gradients = gradients * np.where(z2, 1 - stack.offloaded, 1.0)
    if stack.zero2_whole_gradients:
        gradients = gradients + stack.grad_bytes * np.where(z2 & ~z3, whole, 0.0)
    optimizer = stack.optimizer_bytes * (1 - stack.offloaded) * np.where(z1, sharded, whole)
    return States(weights=weights, gradients=gradients, optimizer=optimizer)
