"""Seconds of a step by part: ranks' work, the pipeline that orders it, and what the step pays once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshplan.cost.costs import Floats
from meshplan.cost.full.context import Context
from meshplan.cost.full.distinct import distinct
from meshplan.cost.full.layer_time import PARTS
from meshplan.cost.full.layers import Priced
from meshplan.cost.full.sync import Shards, gradient_transfers
from meshplan.cost.full.topology import group
from meshplan.plan.plans import Ints
from meshplan.schedule.closed_form import step_time


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """Seconds one micro-batch costs each rank type, (plans, types), by part, and forward and weight
    gradients apart."""

    parts: dict[str, Floats]
    forward: Floats
    weight: Floats
    hidden: Floats
    """Of FSDP's transfers."""

    @property
    def busy(self) -> Floats:
        """All parts."""
        return np.asarray(sum(self.parts.values()))


def rank_work(c: Context, priced: Priced, recomputed: Floats) -> Work:
    """Work of every rank type; ``recomputed``: share of its layers computed twice."""
    at, ends = priced.of_plan, priced.ends
    parts = {
        name: c.per_rank([t.forward[name][at] + t.backward[name][at] for t in priced.times]) for name in PARTS
    }
    embedding = (ends.embedding_forward + ends.embedding_backward)[at][:, None] * c.first
    parts["elementwise"] = parts["elementwise"] + embedding
    parts["head and loss"] = (ends.head_forward + ends.head_backward)[at][:, None] * c.last
    whole = c.per_rank([t.whole[at] for t in priced.times])
    selective = c.per_rank([t.selective[at] for t in priced.times])
    parts["recompute"] = whole * recomputed + selective * (1 - recomputed)
    forward = c.per_rank([t.forward_s[at] for t in priced.times])
    forward = (
        forward + (ends.head_forward[at][:, None] * c.last) + ends.embedding_forward[at][:, None] * c.first
    )
    host_f, host_b = host_seconds(c, priced, recomputed)
    gpu = np.asarray(sum(parts.values()))
    waits_f, waits_b = np.maximum(host_f - forward, 0.0), np.maximum(host_b - (gpu - forward), 0.0)
    parts["host"] = waits_f + waits_b
    forward = forward + waits_f
    weight = c.per_rank([t.weight[at] for t in priced.times]) + ends.head_weight[at][:, None] * c.last
    busy = np.asarray(sum(parts.values()))
    gather_f, gather_b, hidden = gathering(c, forward, busy - forward)
    parts["dp"] = gather_f + gather_b
    return Work(
        parts=parts, forward=forward + gather_f, weight=np.minimum(weight, busy - forward), hidden=hidden
    )


def host_seconds(c: Context, priced: Priced, recomputed: Floats) -> tuple[Floats, Floats]:
    """(plans, types): seconds the host needs to launch a micro-batch forward, and backward with what is
    recomputed. The slower of host and GPU sets the pace, in each direction apart."""
    per_layer = c.per_rank([t.host[priced.of_plan] for t in priced.times])
    ends = np.where(c.first + c.last > 0, c.stack.host_micro_s / 2, 0.0)
    return per_layer + ends, per_layer * (c.stack.host_backward + recomputed) + ends


def gathering(c: Context, forward: Floats, backward: Floats) -> tuple[Floats, Floats, Floats]:
    """FSDP's exposed seconds in forward and backward of one micro-batch, and the hidden ones.

    Gather forward, gather backward, scatter gradients: each unit's transfer runs beside the computing
    of its neighbour, so what exceeds computing is exposed; the first unit's gathering and the last
    one's scattering always are.
    """
    zero = np.zeros_like(forward)
    if not c.gathers.any():
        return zero, zero, zero

    def transfer(op: str, element_bytes: float) -> Floats:
        per_kind = []
        for q in c.parameters:
            seconds = c.links.seconds(op, q.dense / c.plans.tp * element_bytes, c.dense_group, c.spans["dp"])
            if q.experts:
                size = q.experts / (c.plans.ep * c.plans.etp) * element_bytes
                seconds = seconds + c.links.seconds(op, size, c.expert_group, c.spans["edp"])
            per_kind.append(seconds)
        vocab = c.links.seconds(op, c.vocabulary_parameters * element_bytes, c.dense_group, c.spans["dp"])
        copies = c.first * 1.0 + c.last * (0.0 if c.model.tied_embeddings else 1.0)
        return c.per_rank(per_kind) + vocab[:, None] * copies

    on = c.gathers[:, None]
    units = np.maximum(c.layers.sum(axis=2), 1.0)
    gather = np.where(on, transfer("all_gather", 2.0), 0.0)
    scatter = np.where(on, transfer("reduce_scatter", c.stack.reduce_bytes), 0.0)
    ahead = c.stack.fsdp_overlap
    exposed_f = np.maximum(gather - ahead * forward, gather / units)
    exposed_b = np.maximum(gather + scatter - ahead * backward, scatter / units)
    return exposed_f, exposed_b, 2 * gather + scatter - exposed_f - exposed_b


def hop_seconds(c: Context, priced: Priced) -> Floats:
    """Seconds the activations of one micro-batch take to the next stage, for each plan. Each of the tp
    ranks sends its share over its own NIC: the shard under SP, a slice that is gathered on the other side
    without (arXiv 2104.04473, 4.1)."""
    keys, at = priced.keys, priced.of_plan
    size = (2.0 * c.model.hidden * keys.tokens / keys.tp)[at]
    pair = group(np.minimum(c.plans.pp, 2), c.spans["pp"], c.domain)
    return np.where(c.plans.pp > 1, c.links.seconds("p2p", size, pair, c.spans["pp"]), 0.0)


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
            time={k: v[rows] for k, v in self.time.items()}, hidden={k: v[rows] for k, v in self.hidden.items()},
            forward=self.forward[rows], backward=self.backward[rows],
        )  # fmt: skip


def pipeline_parts(c: Context, priced: Priced, recomputed: Floats) -> Pipeline:
    """Everything but gradient sync and optimizer. Parts that ranks share are averages over ranks;
    ``imbalance`` is what the slowest rank has more."""
    p, m = c.plans, c.micro_batches
    work = rank_work(c, priced, recomputed)
    busy, rows = work.busy, np.arange(len(p))

    def mean(value: Floats) -> Floats:
        return np.asarray(np.einsum("pt,pt->p", value, c.ranks) / p.pp)

    slowest = np.argmax(np.where(c.ranks > 0, busy, -1.0), axis=1)
    busy_max, forward_max = busy[rows, slowest], work.forward[rows, slowest]
    weight_max = work.weight[rows, slowest]
    hop = hop_seconds(c, priced)
    stages = (
        forward_max, busy_max - forward_max - weight_max, weight_max,
        mean(work.forward) * p.pp, mean(busy - work.forward - work.weight) * p.pp, mean(work.weight) * p.pp,
    )  # fmt: skip
    _, bubble = step_time(p.schedule, p.pp, p.vp, m, *stages, 0.0)
    _, waiting = step_time(p.schedule, p.pp, p.vp, m, *stages, hop)
    time = {name: m * mean(value) for name, value in work.parts.items()}
    time["imbalance"] = m * (busy_max - mean(busy))
    time["bubble"] = np.where(p.pp > 1, bubble, 0.0)
    steady = np.where((p.vp > 1) & ~np.bool_(c.stack.p2p_overlap), 2.0 * p.vp * hop * m, 0.0)
    time["pp"] = np.where(p.pp > 1, waiting - bubble + steady, 0.0)
    hidden = {
        name: m * mean(c.per_rank([t.hidden[name][priced.of_plan] for t in priced.times]))
        for name in ("tp", "cp", "ep")
    }
    hidden["dp"] = m * mean(work.hidden)
    return Pipeline(time=time, hidden=hidden, forward=forward_max, backward=busy_max - forward_max)


def shards_of(c: Context) -> Shards:
    """What the fullest rank of each plan reduces, and with whom."""
    return Shards(
        dense=c.dense_parameters.max(axis=1), experts=c.expert_parameters.max(axis=1), dense_group=c.dense_group,
        expert_group=c.expert_group, dense_span=c.spans["dp"], expert_span=c.spans["edp"],
    )  # fmt: skip


def step_parts(c: Context, priced: Priced, recompute_layers: Ints) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Seconds of a step by part, and the hidden transfers, for each plan."""
    p, m = c.plans, c.micro_batches
    split, dp_if = c.splits.of_plan, np.where(c.gathers, p.dp, 0)
    first, of = distinct((priced.of_plan, split, recompute_layers, p.schedule, p.dp, dp_if, c.sequences))
    some = c.take(first)
    held = np.maximum(some.layers.sum(axis=2), 1)
    recomputed = np.minimum(np.maximum(recompute_layers[first], 0)[:, None] / held, 1.0)
    pipeline = pipeline_parts(some, priced.take(first), recomputed).gather(of)
    first, of = distinct((split, p.tp, p.cp, p.dp, p.ep, p.etp, p.sharding, p.schedule))
    some = c.take(first)
    transfers = gradient_transfers(shards_of(some), some.plans.sharding, c.links, c.profile, c.stack).gather(of)
    # Interleaved chunks finish their gradients one after the other while pp micro-batches drain.
    rounds = np.where(p.vp > 1, np.minimum(p.pp, m) * (p.vp - 1) / p.vp, 1.0)
    window = 0.9 * np.maximum(rounds, 1.0)
    exposed = transfers.exposed(c.stack, window * pipeline.backward, window * pipeline.forward)
    time, hidden = pipeline.time, pipeline.hidden
    time["dp"] = time["dp"] + np.where(c.gathers, 0.0, exposed)
    hidden["dp"] = hidden["dp"] + np.where(c.gathers, 0.0, transfers.reduce + transfers.gathered - exposed)
    time["optimizer"] = transfers.optimizer
    time["step overhead"] = np.full(len(p), c.stack.step_s)
    if c.stack.straggler:
        spread = c.stack.straggler * np.sqrt(2 * np.log(np.maximum(p.gpus, 1)))
        time["straggler"] = spread * np.asarray(sum(time.values()))
    return time, hidden
