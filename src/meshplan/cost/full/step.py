"""Seconds of a step by part: ranks' work, the pipeline that orders it, and what the step pays once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshplan.cost.costs import Bools, Floats
from meshplan.cost.full.alike import Likeness
from meshplan.cost.full.context import Context
from meshplan.cost.full.layer_time import PARTS
from meshplan.cost.full.layers import Priced
from meshplan.cost.full.narrow import added, flat, most, widest
from meshplan.cost.full.stages import LOOPED, PLACEMENT
from meshplan.cost.full.sync import Shards, Transfers, gradient_transfers, reductions
from meshplan.cost.full.topology import Group
from meshplan.cost.full.work import Paces, rank_work
from meshplan.plan.plans import Ints, Plans
from meshplan.schedule.closed_form import bubbles

BESIDE = 0.9
"""Share of the computing of a micro-batch that gradients and parameters move beside: assumed."""


def part_means(c: Context, priced: Priced) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Seconds of one micro-batch by part, and hidden transfers, averaged over pipeline ranks, for each
    plan: the whole model's layers over ``pp``, however they are split."""
    at, pp = priced.of_plan, c.plans.pp
    parts, hidden = _part_sums(c, priced)
    return {k: v[at] / pp for k, v in parts.items()}, {k: v[at] / pp for k, v in hidden.items()}


def _part_sums(c: Context, priced: Priced) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """The same of all pipeline ranks together, for each key."""
    ends = priced.ends

    def total(values: list[Floats]) -> Floats:
        return np.asarray(sum(n * v for n, v in zip(c.model.kind_counts, values, strict=True)))

    parts = {name: total([t.forward[name] + t.backward[name] for t in priced.times]) for name in PARTS}
    looked_up = ends.embedding_forward + ends.embedding_backward - ends.embedding_tp
    parts["elementwise"] = parts["elementwise"] + looked_up
    parts["head and loss"] = ends.head_forward + ends.head_backward - ends.head_tp
    parts["tp"] = parts["tp"] + ends.embedding_tp + ends.head_tp
    hidden = {name: total([t.hidden[name] for t in priced.times]) for name in ("tp", "cp", "ep")}
    hidden["tp"] = hidden["tp"] + ends.tp_hidden
    return parts, hidden


class Pipeline(NamedTuple):
    """Seconds of a step that micro-batches fill, for each plan: by part, hidden transfers, and how long
    the slowest rank's forward and backward of one micro-batch are."""

    time: dict[str, Floats]
    hidden: dict[str, Floats]
    forward: Floats
    backward: Floats
    scattering: Floats | None
    """Seconds of the latter's that FSDP gathers weights and scatters gradients; ``None``: nobody asks."""


def pipeline_parts(c: Context, priced: Priced, known: Paces, recomputed: Floats) -> Pipeline:
    """Everything but gradient sync and optimizer. Parts that ranks share are averages over ranks;
    ``imbalance`` is what the slowest rank has more."""
    p, m, at = c.plans, c.micro_batches, priced.of_plan
    work, gpu = rank_work(c, known, recomputed), known.gpu
    parts, hidden = _part_sums(c, priced)
    of_step = m / p.pp  # of what one micro-batch takes on all ranks together
    ranks = c.ranks

    def total(value: Floats) -> Floats:
        return np.asarray(np.einsum("pt,pt->p", value, ranks))

    def of_ranks(value: Floats | None) -> Floats:
        return np.zeros(len(p)) if value is None else of_step * total(value)

    slowest = widest(work.busy)
    row = slowest * len(p) + np.arange(len(p))
    busy_max, forward_max = flat(work.busy).take(row), flat(work.forward).take(row)
    weight_max = flat(gpu.weight).take(slowest * len(gpu.weight) + known.of_gpu)
    busy, forward, weight = total(work.busy), total(work.forward), gpu.weight_of_all.take(known.of_gpu)
    hop = known.hop.take(known.of_hop)
    stages = (forward_max, busy_max - forward_max - weight_max, weight_max)
    sums = (forward, busy - forward - weight, weight)
    bubble, waiting = bubbles(c.orders, p.pp, p.vp, m, *stages, *sums, hop, paired=c.stack.overlaps_experts)

    def each(values: dict[str, Floats]) -> dict[str, Floats]:
        """A step's seconds; of what no key has, nothing is gathered."""
        return {
            name: of_step * value.take(at) if value.any() else np.zeros(len(p))
            for name, value in values.items()
        }

    time = each(parts)
    time |= {
        "recompute": of_ranks(work.recompute),
        "host": of_ranks(work.host),
        "dp": of_ranks(work.gather),
    }
    # Of equal ranks the mean may round to above the largest; the step loses nothing by leaving that out.
    time["imbalance"] = np.maximum(m * busy_max - of_step * busy, 0.0)
    time["bubble"] = bubble
    time["pp"] = waiting
    if c.stack.p2p_blocking or not c.stack.p2p_overlap:
        held = (p.pp > 1) & ((p.vp > 1) | c.stack.p2p_blocking)
        time["pp"] = waiting + held * (2.0 * p.vp * hop * m)
    hidden = each(hidden)
    hidden["dp"] = np.zeros(len(p))
    scattering = None
    if known.units is not None:
        hidden["dp"] = of_step * known.units.of_all.take(known.of_units) - time["dp"]
        backward = known.units.backward
        if (p.replicas > 1).any():
            scattering = flat(backward).take(slowest * len(backward) + known.of_units)
    return Pipeline(
        time=time,
        hidden=hidden,
        forward=forward_max,
        backward=busy_max - forward_max,
        scattering=scattering,
    )


def shards_of(c: Context) -> Shards:
    """What the fullest rank of each plan reduces, and with whom."""
    return Shards(
        dense=most(c.dense_parameters) * c.copies,
        experts=most(c.expert_parameters) * c.copies,
        dense_group=_with_copies(c, c.shard_group),
        replica_group=c.replica_group,
        expert_group=_with_copies(c, c.expert_group),
        dense_span=c.spans["dp"],
        replica_span=c.spans["dp"] * (c.plans.dp // np.maximum(c.plans.replicas, 1)),
        expert_span=c.spans["edp"],
    )


def _with_copies(c: Context, group: Group) -> Group:
    """The group with the ranks that hold the stage's other copy, on other nodes unless there is but one."""
    together = np.where(c.plans.gpus <= c.domain, c.joined_copies, 1)
    return Group(size=group.size * c.joined_copies, per_node=group.per_node * together)


def shared_embedding(c: Context) -> Floats:
    """Seconds in which the first and the last stage add up the gradient of the vocabulary matrix that both
    hold (a tied head, or the embedding of multi-token prediction), after all other gradients
    (Megatron-LM, ``core/distributed/finalize_model_grads.py``). torch ties no weights across stages."""
    p = c.plans
    apart = (p.pp > 1) & (PLACEMENT.take(p.schedule) == LOOPED)  # else one rank has both stages
    shared = c.model.tied_embeddings or bool(c.model.mtp)
    if not shared or c.stack.family == "torch" or c.stack.vocabulary == "cut" or not apart.any():
        return np.zeros(len(p))
    reach = c.spans["pp"] * p.pp
    pair = Group(size=np.where(apart, 2, 1), per_node=np.where(apart & (reach <= c.domain), 2, 1))
    return c.links.seconds("all_reduce", c.stack.reduce_bytes * c.vocabulary_parameters, pair, reach // 2)


class Once(NamedTuple):
    """What a step pays once, for each kind of plan."""

    transfers: Transfers
    embedding: Floats
    """``shared_embedding``."""
    straggler: Floats
    """Share of all other time that the slowest of the GPUs adds."""


def once(kinds: Likeness) -> Once:
    """Gradient sync, optimizer and stragglers of every kind of plan."""
    c = kinds.sharded.question
    gpus = np.maximum(c.plans.gpus, 1)
    return Once(
        transfers=gradient_transfers(shards_of(c), c.plans.sharding, c.links, c.profile, c.stack),
        embedding=shared_embedding(c),
        straggler=c.stack.straggler * np.sqrt(2 * np.log(gpus)),
    )


def last_backwards(p: Plans, micro_batches: Ints | Floats) -> Floats:
    """How many micro-batches' computing a step's only reduction or gathering hides under: interleaved chunks
    finish their gradients one after the other while ``pp`` micro-batches drain."""
    rounds = np.minimum(p.pp, micro_batches) * ((p.vp - 1) / p.vp)
    return np.asarray(BESIDE * np.maximum(rounds, 1.0))


def reduction_window(every: Bools, pp: Ints, window: Floats, forward: Floats, backward: Floats) -> Floats:
    """Seconds of computing that one reduction of gradients hides under: a step's only one under ``window``
    last backwards; one of ``every`` micro-batch (ZeRO-2) under that micro-batch's own backward and, in a
    pipeline, the forward of another that comes next: the time until the next reduction is all there is."""
    if not every.any():
        return window * backward
    each = BESIDE * (backward + (pp > 1) * forward)
    return np.where(every, each, window * backward)


class Step(NamedTuple):
    """Seconds of a step, for each plan: by part, hidden transfers, and all parts together."""

    time: dict[str, Floats]
    hidden: dict[str, Floats]
    whole: Floats


def step_parts(
    c: Context, priced: Priced, kinds: Likeness, known: Paces, paid: Once, recomputed: Floats
) -> Step:
    """What the step of each plan takes."""
    p, m, at = c.plans, c.micro_batches, kinds.sharded.of
    pipeline = pipeline_parts(c, priced, known, recomputed)
    transfers = paid.transfers.gather(at)
    window = last_backwards(p, m)
    times = reductions(c.scatters_each, m)
    under = reduction_window(c.scatters_each, p.pp, window, pipeline.forward, pipeline.backward)
    exposed = transfers.exposed(c.stack, times, under, window * pipeline.forward)
    time, hidden = pipeline.time, pipeline.hidden
    once_a_step = 1.0 - c.gathers
    moved = once_a_step * (times * transfers.reduce + transfers.gathered) + transfers.replicas
    if c.gathers.any():
        alone = transfers.replicas
        if c.stack.dp_overlap and pipeline.scattering is not None:
            moving = pipeline.scattering * (window / BESIDE)
            alone = transfers.replicas_alone(window * pipeline.backward, moving)
        exposed = np.where(c.gathers, alone, exposed)
    hidden["dp"] = hidden["dp"] + moved - exposed
    time["dp"] = time["dp"] + exposed
    if paid.embedding.any():
        time["dp"] = time["dp"] + paid.embedding.take(at)
    time["optimizer"] = transfers.optimizer
    time["step overhead"] = np.full(len(p), c.stack.step_s)
    whole = added(time.values())
    if c.stack.straggler:
        time["straggler"] = paid.straggler.take(at) * whole
        whole += time["straggler"]
    return Step(time=time, hidden=hidden, whole=whole)
