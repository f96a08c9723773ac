"""Seconds of a step by part: ranks' work, the pipeline that orders it, and what the step pays once."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from meshplan.cost.costs import Floats
from meshplan.cost.full.context import Context
from meshplan.cost.full.distinct import distinct
from meshplan.cost.full.layer_time import PARTS
from meshplan.cost.full.layers import Priced
from meshplan.cost.full.memory import recomputed_share
from meshplan.cost.full.narrow import most
from meshplan.cost.full.sync import Shards, beyond, gradient_transfers, reductions
from meshplan.cost.full.topology import group
from meshplan.model.layers import Moe
from meshplan.plan.kinds import Schedule
from meshplan.plan.plans import Ints
from meshplan.schedule.closed_form import step_time

SPLIT_BACKWARD = (Schedule.ZB_H1, Schedule.ZB_V, Schedule.DUALPIPE_V)
"""Schedules that compute weight gradients apart from those of inputs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """Seconds one micro-batch costs each rank type, (plans, types)."""

    busy: Floats
    """All of it."""
    forward: Floats
    weight: Floats
    """What only weight gradients need."""
    recompute: Floats
    host: Floats
    """How long the GPU waits for the host."""
    gather: Floats
    """Exposed transfers of FSDP, and the hidden ones."""
    gather_hidden: Floats


@dataclass(frozen=True, kw_only=True, slots=True)
class _GpuTime:
    """What layers and split alone decide, (pairs of them, types): GPU seconds of one micro-batch with
    nothing recomputed, what recomputing adds, and the host's seconds for the layers' forward pass."""

    forward: Floats
    both: Floats
    weight: Floats
    whole: Floats
    selective: Floats
    host: Floats

    def gather(self, rows: Ints) -> _GpuTime:
        return _GpuTime(**{f.name: getattr(self, f.name).take(rows, axis=0) for f in fields(self)})


def _gpu_time(c: Context, priced: Priced) -> _GpuTime:
    at, ends = priced.of_plan, priced.ends
    first, last = c.first, c.last
    head_b, embed_b = ends.head_backward[at][:, None], ends.embedding_backward[at][:, None]
    forward = c.per_rank([t.forward_s[at] for t in priced.times])
    forward = forward + ends.head_forward[at][:, None] * last + ends.embedding_forward[at][:, None] * first
    backward = c.per_rank([t.backward_s[at] for t in priced.times]) + head_b * last + embed_b * first
    return _GpuTime(
        forward=forward,
        both=forward + backward,
        weight=c.per_rank([t.weight[at] for t in priced.times]) + ends.head_weight[at][:, None] * last,
        whole=c.per_rank([t.whole[at] for t in priced.times]),
        selective=c.per_rank([t.selective[at] for t in priced.times]),
        host=c.per_rank([t.host[at] for t in priced.times]),
    )


def runs_ahead(c: Context) -> bool:
    """Whether the host may launch the next direction while the GPU is busy with this one, so that a
    micro-batch takes the longer of both in all. Counts of routed tokens, which every MoE layer reads back,
    stop it."""
    return not c.stack.synchronous and not any(isinstance(kind.mlp, Moe) for kind in c.kinds)


def rank_work(c: Context, priced: Priced, recomputed: Floats) -> Work:
    """Work of every rank type; ``recomputed``: share of its layers computed twice.

    The host launches forward, and backward with what is recomputed; the slower of host and GPU sets
    the pace, of both directions together where the host runs ahead, otherwise of each.
    """
    first, of = distinct((priced.of_plan, c.splits.of_plan))
    gpu = _gpu_time(c.take(first), priced.take(first)).gather(of)
    recompute = gpu.selective + (gpu.whole - gpu.selective) * recomputed
    both, host = gpu.both + recompute, np.zeros_like(gpu.both)
    forward = gpu.forward
    if gpu.host.any() or c.stack.host_micro_s:
        ends = np.where(c.first + c.last > 0, c.stack.host_micro_s / 2, 0.0)
        beside = 0.0 if c.stack.synchronous else 1.0
        waits = np.maximum(gpu.host + ends - beside * forward, 0.0)
        launching = gpu.host * (c.stack.host_backward + recomputed) + ends
        host = waits + np.maximum(launching - beside * (both - forward), 0.0)
        if runs_ahead(c):
            host = np.minimum(host, np.maximum(gpu.host + ends + launching - both, 0.0))
            waits = np.minimum(waits, host)
        forward = forward + waits
        both = both + host
    if c.stack.split_backward > 1.0:
        zero_bubble = np.isin(c.plans.schedule, SPLIT_BACKWARD)[:, None]
        apart = np.where(zero_bubble, (c.stack.split_backward - 1.0) * (both - forward), 0.0)
        host, both = host + apart, both + apart
    weight = np.minimum(gpu.weight, both - forward)
    gather_f, gather_b, hidden = gathering(c, forward, both - forward)
    return Work(
        busy=both + gather_f + gather_b,
        forward=forward + gather_f,
        weight=weight,
        recompute=recompute,
        host=host,
        gather=gather_f + gather_b,
        gather_hidden=hidden,
    )


def part_means(c: Context, priced: Priced) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Seconds of one micro-batch by part, and hidden transfers, averaged over pipeline ranks, for each
    plan: the whole model's layers over ``pp``, however they are split."""
    counts = [float(sum(layer == kind for layer in (*c.model.layers, *c.model.mtp))) for kind in c.kinds]
    ends, pp = priced.ends, c.plans.pp

    def total(values: list[Floats]) -> Floats:
        return np.asarray(sum(n * v for n, v in zip(counts, values, strict=True)))

    parts = {name: total([t.forward[name] + t.backward[name] for t in priced.times]) for name in PARTS}
    parts["elementwise"] = parts["elementwise"] + ends.embedding_forward + ends.embedding_backward
    parts["head and loss"] = ends.head_forward + ends.head_backward
    hidden = {name: total([t.hidden[name] for t in priced.times]) for name in ("tp", "cp", "ep")}
    at = priced.of_plan
    return {k: v[at] / pp for k, v in parts.items()}, {k: v[at] / pp for k, v in hidden.items()}


def gathering(c: Context, forward: Floats, backward: Floats) -> tuple[Floats, Floats, Floats]:
    """FSDP's exposed seconds in forward and backward of one micro-batch, and the hidden ones.

    Gather forward, gather backward, scatter gradients: each unit's transfer runs beside the computing
    of its neighbour, so what exceeds computing is exposed; the first unit's gathering and the last
    one's scattering always are.
    """
    exposed_f, exposed_b, hidden = (np.zeros_like(forward) for _ in range(3))
    rows = np.flatnonzero(c.gathers)
    if not len(rows):
        return exposed_f, exposed_b, hidden
    some = c if len(rows) == len(c.plans) else c.take(rows)
    p = some.plans
    first, of = distinct((p.tp, p.cp, p.dp, p.ep, p.etp, p.replicas, p.pp, some.splits.of_plan))
    units = some.take(first)

    def transfer(op: str, element_bytes: float) -> Floats:
        links, u = c.links, units.plans
        per_kind = []
        for q in c.parameters:
            seconds = links.seconds(op, q.dense / u.tp * element_bytes, units.shard_group, units.spans["dp"])
            if q.experts:
                size = q.experts / (u.ep * u.etp) * element_bytes
                seconds = seconds + links.seconds(op, size, units.expert_group, units.spans["edp"])
            per_kind.append(seconds)
        vocab = links.seconds(
            op, units.vocabulary_parameters * element_bytes, units.shard_group, units.spans["dp"]
        )
        copies = units.first + units.last * (0.0 if c.model.tied_embeddings else 1.0)
        return units.per_rank(per_kind) + vocab[:, None] * copies

    layers = np.maximum(units.held_layers, 1.0)
    gather = transfer("all_gather", 4.0 if c.workload.precision == "fp32" else 2.0)
    scatter = transfer("reduce_scatter", c.stack.reduce_bytes)
    ahead = c.stack.fsdp_overlap

    def each(of_unit: Floats) -> Floats:
        return np.asarray(of_unit.take(of, axis=0))

    first_gather = np.maximum(each(gather) - ahead * forward.take(rows, axis=0), each(gather / layers))
    last_scatter = np.maximum(
        each(gather + scatter) - ahead * backward.take(rows, axis=0), each(scatter / layers)
    )
    exposed_f[rows], exposed_b[rows] = first_gather, last_scatter
    hidden[rows] = each(2 * gather + scatter) - first_gather - last_scatter
    return exposed_f, exposed_b, hidden


def hop_seconds(c: Context, priced: Priced) -> Floats:
    """Seconds the activations of one micro-batch take to the next stage, for each plan. Each of the tp
    ranks sends its share over its own NIC: the shard under SP, a slice that is gathered on the other side
    without (arXiv 2104.04473, 4.1)."""
    keys, at = priced.keys, priced.of_plan
    sizes = keys.element_bytes * c.model.hidden * keys.tokens / keys.tp
    _, of_size = np.unique(sizes, return_inverse=True)
    ranks, span = np.minimum(c.plans.pp, 2), c.spans["pp"]
    first, of = distinct((np.ravel(of_size)[at], ranks, span))
    ranks, span = ranks[first], span[first]
    seconds = c.links.seconds("p2p", sizes[at[first]], group(ranks, span, c.domain), span)
    return np.where(ranks > 1, seconds, 0.0)[of]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pipeline:
    """Seconds of a step that micro-batches fill, for each plan: by part, hidden transfers, and how long
    the slowest rank's forward and backward of one micro-batch are."""

    time: dict[str, Floats]
    hidden: dict[str, Floats]
    forward: Floats
    backward: Floats

    def gather(self, rows: Ints) -> Pipeline:
        """The same for the plans ``rows`` names."""
        return Pipeline(
            time={k: v[rows] for k, v in self.time.items()},
            hidden={k: v[rows] for k, v in self.hidden.items()},
            forward=self.forward[rows],
            backward=self.backward[rows],
        )


def pipeline_parts(c: Context, priced: Priced, recomputed: Floats) -> Pipeline:
    """Everything but gradient sync and optimizer. Parts that ranks share are averages over ranks;
    ``imbalance`` is what the slowest rank has more."""
    p, m = c.plans, c.micro_batches
    work = rank_work(c, priced, recomputed)
    parts, hidden = part_means(c, priced)
    rows = np.arange(len(p))

    def mean(value: Floats) -> Floats:
        return np.asarray(np.einsum("pt,pt->p", value, c.ranks) / p.pp)

    slowest = np.argmax(np.where(c.ranks > 0, work.busy, -1.0), axis=1)
    busy_max, forward_max = work.busy[rows, slowest], work.forward[rows, slowest]
    weight_max = work.weight[rows, slowest]
    busy, forward, weight = mean(work.busy), mean(work.forward), mean(work.weight)
    hop = hop_seconds(c, priced)
    stages = (
        forward_max,
        busy_max - forward_max - weight_max,
        weight_max,
        forward * p.pp,
        (busy - forward - weight) * p.pp,
        weight * p.pp,
    )
    _, bubble = step_time(p.schedule, p.pp, p.vp, m, *stages, 0.0)
    _, waiting = step_time(p.schedule, p.pp, p.vp, m, *stages, hop)
    parts |= {"recompute": mean(work.recompute), "host": mean(work.host), "dp": mean(work.gather)}
    time = {name: m * value for name, value in parts.items()}
    # Of equal ranks the mean may round to above the largest; the step loses nothing by leaving that out.
    time["imbalance"] = m * np.maximum(busy_max - busy, 0.0)
    time["bubble"] = np.where(p.pp > 1, bubble, 0.0)
    steady = np.where((p.vp > 1) & ~np.bool_(c.stack.p2p_overlap), 2.0 * p.vp * hop * m, 0.0)
    time["pp"] = np.where(p.pp > 1, waiting - bubble + steady, 0.0)
    hidden = {name: m * value for name, value in hidden.items()} | {"dp": m * mean(work.gather_hidden)}
    return Pipeline(time=time, hidden=hidden, forward=forward_max, backward=busy_max - forward_max)


def shards_of(c: Context) -> Shards:
    """What the fullest rank of each plan reduces, and with whom."""
    return Shards(
        dense=most(c.dense_parameters),
        experts=most(c.expert_parameters),
        dense_group=c.shard_group,
        replica_group=c.replica_group,
        expert_group=c.expert_group,
        dense_span=c.spans["dp"],
        replica_span=c.spans["dp"] * (c.plans.dp // np.maximum(c.plans.replicas, 1)),
        expert_span=c.spans["edp"],
    )


def step_parts(
    c: Context, priced: Priced, recompute_layers: Ints
) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Seconds of a step by part, and the hidden transfers, for each plan."""
    p, m = c.plans, c.micro_batches
    split, dp_if = c.splits.of_plan, np.where(c.gathers, p.dp, 0)
    # More layers than there are are all of them.
    again = np.minimum(recompute_layers, len(c.model.layers) + len(c.model.mtp))
    first, of = distinct((priced.of_plan, split, again, p.schedule, p.dp, dp_if, c.sequences))
    some = c.take(first)
    recomputed = recomputed_share(again[first][:, None], some.held_layers)
    pipeline = pipeline_parts(some, priced.take(first), recomputed).gather(of)
    first, of = distinct((split, p.tp, p.cp, p.dp, p.ep, p.etp, p.sharding, p.replicas, p.schedule))
    some = c.take(first)
    transfers = gradient_transfers(shards_of(some), some.plans.sharding, c.links, c.profile, c.stack).gather(
        of
    )
    # Interleaved chunks finish their gradients one after the other while pp micro-batches drain.
    rounds = np.where(p.vp > 1, np.minimum(p.pp, m) * (p.vp - 1) / p.vp, 1.0)
    window = 0.9 * np.maximum(rounds, 1.0)
    times = reductions(p.sharding, m)
    exposed = transfers.exposed(c.stack, times, window * pipeline.backward, window * pipeline.forward)
    time, hidden = pipeline.time, pipeline.hidden
    once = np.where(c.gathers, 0.0, times * transfers.reduce + transfers.gathered) + transfers.replicas
    exposed = np.where(c.gathers, 0.0, exposed) + beyond(transfers.replicas, window * pipeline.backward)
    time["dp"] = time["dp"] + exposed
    hidden["dp"] = hidden["dp"] + once - exposed
    time["optimizer"] = transfers.optimizer
    time["step overhead"] = np.full(len(p), c.stack.step_s)
    if c.stack.straggler:
        spread = c.stack.straggler * np.sqrt(2 * np.log(np.maximum(p.gpus, 1)))
        time["straggler"] = spread * np.asarray(sum(time.values()))
    return time, hidden
