"""FSDP: gathering weights and scattering gradients with every micro-batch, beside computing."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshplan.cost.costs import Floats
from meshplan.cost.full.context import Context
from meshplan.cost.full.distinct import alike
from meshplan.cost.full.narrow import rows
from meshplan.cost.full.stack import Stack
from meshplan.plan.plans import Ints


class Units(NamedTuple):
    """Seconds FSDP's transfers of one micro-batch take, (kinds of plans, types); 0 where there are none."""

    gather: Floats
    gather_unit: Floats
    """Gathering the first unit alone."""
    backward: Floats
    """Gathering again, and scattering gradients."""
    scatter_unit: Floats
    of_all: Floats
    """All of it on all ranks together, for each kind of plan."""


def unit_seconds(c: Context, op: str, element_bytes: float) -> tuple[list[Floats], Floats]:
    """Seconds that one transfer of each layer kind takes, and of a vocabulary matrix, for each plan: dense
    parameters among the ranks that share them, routed experts among theirs."""
    p = c.plans
    shards = c.links.among(c.shard_group, c.spans["dp"])
    dense = [q.dense / p.tp * element_bytes for q in c.parameters]
    *per_kind, vocabulary = shards.seconds(op, np.stack([*dense, c.vocabulary_parameters * element_bytes]))
    if any(q.experts for q in c.parameters):
        experts = c.links.among(c.expert_group, c.spans["edp"])
        sizes = np.stack([q.experts / (p.ep * p.etp) * element_bytes for q in c.parameters])
        more = experts.seconds(op, sizes)
        per_kind = [one + other for one, other in zip(per_kind, more, strict=True)]
    return per_kind, vocabulary


def gathered_bytes(c: Context) -> float:
    """Bytes of a parameter as it is gathered."""
    return 4.0 if c.workload.precision == "fp32" else 2.0


def units_of(c: Context) -> Units:
    """One pass: gather forward, gather backward, scatter gradients. torch does not give the head back in
    between, as backward begins with it."""
    whole = c.plans
    first, of = alike(whole.tp, whole.cp, whole.dp, whole.pp, whole.ep, whole.etp, whole.replicas)
    some = c.take(first)

    def transfer(op: str, element_bytes: float) -> tuple[Floats, Floats]:
        """All units, and of them the head's."""
        per_kind, head = unit_seconds(some, op, element_bytes)
        on = c.gathers[:, None]
        last = head[of][:, None] * c.last * (0.0 if c.model.tied_embeddings else 1.0)
        whole = c.per_rank([one[of] for one in per_kind]) + head[of][:, None] * c.first + last
        return np.asarray(whole * on), np.asarray(last * on)

    layers = np.maximum(c.held_layers, 1.0)
    gather, head = transfer("all_gather", gathered_bytes(c))
    again = gather - head if c.stack.family == "torch" else gather
    scatter, _ = transfer("reduce_scatter", c.stack.reduce_bytes)
    return Units(
        gather=gather,
        gather_unit=gather / layers,
        backward=again + scatter,
        scatter_unit=scatter / layers,
        of_all=np.einsum("pt,pt->p", gather + again + scatter, c.ranks),
    )


def gathering(c: Context, units: Units, at: Ints, forward: Floats, backward: Floats) -> tuple[Floats, Floats]:
    """FSDP's exposed seconds in forward and backward of one micro-batch; ``at`` says which of ``units`` a
    plan's are.

    Each unit's transfer runs beside the computing of its neighbour, so what exceeds computing is exposed; the
    first unit's gathering and the last one's scattering always are.
    """
    first = beside(c.stack, rows(units.gather, at), rows(units.gather_unit, at), forward)
    last = beside(c.stack, rows(units.backward, at), rows(units.scatter_unit, at), backward)
    return first, last


def beside(stack: Stack, moving: Floats, unit: Floats, computing: Floats) -> Floats:
    """What of ``moving`` seconds of units' transfers ``computing`` does not hide; one ``unit`` at least."""
    return np.maximum(moving - stack.fsdp_overlap * computing, unit)
