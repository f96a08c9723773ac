"""Seconds one micro-batch costs each type of rank: the GPU, the host that launches its work, FSDP."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshplan.cost.costs import Bools, Floats
from meshplan.cost.full.alike import Likeness, likeness
from meshplan.cost.full.context import Context
from meshplan.cost.full.distinct import distinct
from meshplan.cost.full.gathering import Units, gathering, units_of
from meshplan.cost.full.layers import Priced
from meshplan.cost.full.narrow import rows
from meshplan.cost.full.topology import group
from meshplan.model.layers import Moe
from meshplan.plan.kinds import Schedule
from meshplan.plan.plans import Ints

SPLIT_BACKWARD = (Schedule.ZB_H1, Schedule.ZB_V, Schedule.DUALPIPE_V)
"""Schedules that compute weight gradients apart from those of inputs."""


class Work(NamedTuple):
    """Seconds one micro-batch costs each rank type, (plans, types)."""

    busy: Floats
    """All of it."""
    forward: Floats
    recompute: Floats
    host: Floats | None
    """How long the GPU waits for the host; ``None``: not at all."""
    gather: Floats | None
    """Exposed transfers of FSDP; ``None``: there are none."""


class _GpuTime(NamedTuple):
    """What layers and split alone decide, (kinds of plans, types): GPU seconds of one micro-batch with
    nothing recomputed, what recomputing adds, and the host's seconds for the layers' forward pass."""

    forward: Floats
    both: Floats
    weight: Floats
    """What only weight gradients need."""
    weight_of_all: Floats
    """The same of all ranks together, for each kind of plan."""
    selective: Floats | None
    """``None``: no plan recomputes modules."""
    whole: Floats
    """What recomputing all layers whole adds to that."""
    host: Floats
    host_ends: Floats
    """The host's seconds for embedding or head."""
    waits: Floats
    """How long the GPU waits for the host in forward, unless the host ran ahead."""
    launching: Floats
    """The host's seconds for backward with nothing recomputed."""
    alone: Floats
    """How long the GPU waits for the host in both directions where layers are timed one at a time."""
    waits_at_all: Bools
    """Kinds of plans whose GPUs may wait for the host."""


def _gpu_time(c: Context, priced: Priced) -> _GpuTime:
    at, ends = priced.of_plan, priced.ends
    first, last = c.first, c.last
    head_b, embed_b = ends.head_backward[at][:, None], ends.embedding_backward[at][:, None]
    forward = c.per_rank([t.forward_s[at] for t in priced.times])
    forward = forward + ends.head_forward[at][:, None] * last + ends.embedding_forward[at][:, None] * first
    backward = c.per_rank([t.backward_s[at] for t in priced.times]) + head_b * last + embed_b * first
    selective = c.per_rank([t.selective[at] for t in priced.times])
    host = c.per_rank([t.host[at] for t in priced.times])
    host_ends = np.where(first + last > 0, c.stack.host_micro_s / 2, 0.0)
    waits = np.maximum(host + host_ends - beside(c) * forward, 0.0)
    launching = host * c.stack.host_backward + host_ends
    late = (waits > 0) | (launching + host > beside(c) * backward)  # recomputing launches forward again
    weight = c.per_rank([t.weight[at] for t in priced.times]) + ends.head_weight[at][:, None] * last
    weight = np.minimum(weight, backward)
    return _GpuTime(
        forward=forward,
        both=forward + backward,
        weight=weight,
        weight_of_all=np.einsum("pt,pt->p", weight, c.ranks),
        selective=selective if selective.any() else None,
        whole=c.per_rank([t.whole[at] for t in priced.times]) - selective,
        host=host,
        host_ends=host_ends,
        waits=waits,
        launching=launching,
        alone=_waits_alone(c, priced) if c.stack.one_by_one else np.zeros_like(host),
        waits_at_all=np.asarray(late.any(axis=1)),
    )


def _waits_alone(c: Context, priced: Priced) -> Floats:
    """What the host needs beyond the GPU, layer by layer, for both directions together."""
    needs = [(1 + c.stack.host_backward) * t.host - t.forward_s - t.backward_s for t in priced.times]
    return c.per_rank([np.maximum(value, 0.0)[priced.of_plan] for value in needs])


def beside(c: Context) -> float:
    """Share of the GPU's seconds in which the host works too."""
    return 0.0 if c.stack.synchronous else 1.0


def runs_ahead(c: Context) -> bool:
    """Whether the host may launch the next direction while the GPU is busy with this one, so that a
    micro-batch takes the longer of both in all. Counts of routed tokens, which every MoE layer reads back,
    stop it."""
    return not c.stack.synchronous and not any(isinstance(kind.mlp, Moe) for kind in c.kinds)


class Paces(NamedTuple):
    """What the seconds of a table's plans are put together from, for each kind of plan."""

    gpu: _GpuTime
    of_gpu: Ints
    hop: Floats
    of_hop: Ints
    units: Units | None
    """None: no plan gathers weights every micro-batch."""
    of_units: Ints

    def take(self, rows: slice) -> Paces:
        """The same for some rows."""
        return self._replace(of_gpu=self.of_gpu[rows], of_hop=self.of_hop[rows], of_units=self.of_units[rows])


def paces(c: Context, priced: Priced, kinds: Likeness | None = None) -> Paces:
    """What every kind of plan takes."""
    kinds = likeness(c, priced) if kinds is None else kinds
    worked, held, sharded = kinds
    return Paces(
        gpu=_gpu_time(worked.question, priced.take(worked.first)),
        of_gpu=worked.of,
        hop=hop_seconds(held.question, priced.take(held.first)),
        of_hop=held.of,
        units=units_of(sharded.question) if c.gathers.any() else None,
        of_units=sharded.of,
    )


def rank_work(c: Context, known: Paces, recomputed: Floats) -> Work:
    """Work of every rank type; ``recomputed``: share of its layers computed twice.

    The host launches forward, and backward with what is recomputed; the slower of host and GPU sets
    the pace, of both directions together where the host runs ahead, otherwise of each.
    """
    gpu, at = known.gpu, known.of_gpu
    recompute = rows(gpu.whole, at) * recomputed
    if gpu.selective is not None:
        recompute += rows(gpu.selective, at)
    forward, both = rows(gpu.forward, at), rows(gpu.both, at) + recompute
    host = None
    if c.stack.one_by_one:
        # A third of the layers' waiting is forward's. No layer's work is left to hide head and loss under.
        alone, end = rows(gpu.alone, at), c.stack.host_micro_s * c.last
        forward, host = forward + (alone + end) / 3, alone * (1 + recomputed / 3) + end
        both = both + host
    elif gpu.waits_at_all.take(at).any():
        waits, own = rows(gpu.waits, at), rows(gpu.host, at)
        launching = own * recomputed + rows(gpu.launching, at)
        host = waits + np.maximum(launching - beside(c) * (both - forward), 0.0)
        if runs_ahead(c):
            all_of_it = own + rows(gpu.host_ends, at) + launching
            host = np.minimum(host, np.maximum(all_of_it - both, 0.0))
            waits = np.minimum(waits, host)
        forward, both = forward + waits, both + host
    if c.stack.split_backward > 1.0:
        zero_bubble = np.isin(c.plans.schedule, SPLIT_BACKWARD)[:, None]
        apart = zero_bubble * ((c.stack.split_backward - 1.0) * (both - forward))
        host, both = apart if host is None else host + apart, both + apart
    gather = None
    if known.units is not None and c.gathers.any():
        first, last = gathering(c, known.units, known.of_units, forward, both - forward)
        gather = first + last
        forward, both = forward + first, both + gather
    return Work(busy=both, forward=forward, recompute=recompute, host=host, gather=gather)


def hop_seconds(c: Context, priced: Priced) -> Floats:
    """Seconds the activations of one micro-batch take to the next stage, for each plan. Each of the tp
    ranks sends its share over its own NIC: the shard under SP, a slice that is gathered on the other side
    without (arXiv 2104.04473, 4.1). torch's pipeline sends a stage's output as it is, whole without SP."""
    keys, at = priced.keys, priced.of_plan
    split = keys.tp if c.stack.family != "torch" else np.where(keys.sp, keys.tp, 1)
    sizes = keys.element_bytes * c.model.hidden * keys.tokens / split
    _, of_size = np.unique(sizes, return_inverse=True)
    ranks, span = np.minimum(c.plans.pp, 2), c.spans["pp"]
    first, of = distinct((np.ravel(of_size)[at], ranks, span))
    ranks, span = ranks[first], span[first]
    seconds = c.links.seconds("p2p", sizes[at[first]], group(ranks, span, c.domain), span)
    return np.where(ranks > 1, seconds, 0.0)[of]
