"""Lower bounds of a plan's price before its pipeline and its details are chosen.

Computing and the transfers of layers take the same time on average over ranks whatever the schedule,
the cut of layers over stages, the sharding and the recomputation; bubbles, imbalance, recomputing,
gradient sync and optimizer only add to it. States divide over pipeline ranks, and the fullest rank holds
no less than the mean. What is left out (activations, bubbles) makes the bounds loose, never wrong.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshplan.cost.costs import Floats
from meshplan.cost.full.context import Context
from meshplan.cost.full.cut import choose_layouts
from meshplan.cost.full.distinct import distinct
from meshplan.cost.full.layers import Priced, price_layers
from meshplan.cost.full.memory import COMMUNICATOR_BYTES, CONTEXT_BYTES
from meshplan.cost.full.stages import V_SHAPED
from meshplan.cost.full.states import states
from meshplan.cost.full.step import part_means, pipeline_parts
from meshplan.cost.full.work import hop_seconds, paces
from meshplan.plan.plans import Plans
from meshplan.schedule.closed_form import step_time

GRAIN = 8
"""Layers are cut here with costs in this part of a layer: the bound needs no closer cut, and a large search
makes thousands."""
SLACK = 0.02
"""A layout is chosen with rounded costs, and for plans that recompute no modules: others may find one that
is better for them by about as much."""
OPEN = ("dp", "recompute", "host")
"""Parts of a pipeline's time that sharding, its replicas and recomputation can still change."""


def floors(c: Context) -> tuple[Floats, Floats]:
    """Seconds a step takes at least and bytes the fullest rank holds at least, for every plan that shares
    the degrees (``vp`` left out), the kind of context parallelism and the micro-batch with the given one,
    has the same ``sp`` or none, and is sharded no more, over no more ranks."""
    priced = price_layers(c)
    parts, _ = part_means(c, priced)
    step = c.micro_batches * np.asarray(sum(parts.values())) + c.stack.step_s
    return step * (1.0 + _spread(c)), np.maximum(_mean_states(c), _loss(c, priced)) + _context(c)


def pipeline_floors(c: Context, bar: float) -> tuple[Floats, Plans]:
    """Seconds a step takes at least with the schedule and the stages of each plan (layouts that are open are
    cut as they are for pricing), however its sharding, replicas and recomputation are chosen; and the plans
    with those layouts. They must recompute no modules and gather no weights every micro-batch.

    Plans that take longer than ``bar`` even with stages of equal work get that bound, and no layout.
    """
    priced = price_layers(c)
    folded = np.isin(c.plans.schedule, [int(s) for s in V_SHAPED])
    # On a V, stages of unequal work can fit together a little better than equal ones.
    slack = np.where(folded, 1 - SLACK, 1.0)
    step = (_balanced(c, priced) * slack + c.stack.step_s) * (1.0 + _spread(c))
    rows = np.flatnonzero(step <= bar)
    if not len(rows):
        return step, c.plans
    near = replace(c, plans=c.plans.take(rows))
    plans = choose_layouts(near, priced.take(rows), GRAIN)
    near = replace(near, plans=plans)
    first, of = distinct((priced.of_plan[rows], near.splits.of_plan, plans.schedule, plans.dp))
    some = near.take(first)
    prices = priced.take(rows[first])
    time = pipeline_parts(some, prices, paces(some, prices), np.zeros(some.ranks.shape)).time
    least = np.asarray(sum(value for name, value in time.items() if name not in OPEN))
    cut = (least[of] + c.stack.step_s) * (1.0 + _spread(near)) * (1 - SLACK)
    step[rows] = np.maximum(step[rows], cut)
    layout = c.plans.layout.copy()
    layout[rows] = plans.layout
    return step, replace(c.plans, layout=layout, layouts=plans.layouts)


def _balanced(c: Context, priced: Priced) -> Floats:
    """Seconds of the pipeline if every rank had the mean of the work."""
    p, at, ends = c.plans, priced.of_plan, priced.ends

    def total(values: list[Floats], end: Floats) -> Floats:
        return np.asarray((sum(n * v for n, v in zip(c.model.kind_counts, values, strict=True)) + end)[at])

    forward = total([t.forward_s for t in priced.times], ends.head_forward + ends.embedding_forward)
    backward = total([t.backward_s for t in priced.times], ends.head_backward + ends.embedding_backward)
    weight = np.minimum(total([t.weight for t in priced.times], ends.head_weight), backward)
    inputs, pp, hop = backward - weight, p.pp, hop_seconds(c, priced)
    each = forward / pp, inputs / pp, weight / pp
    whole, _ = step_time(c.orders, pp, p.vp, c.micro_batches, *each, forward, inputs, weight, hop)
    return np.where(p.pp > 1, whole, c.micro_batches * (forward + backward))


def _spread(c: Context) -> Floats:
    return np.asarray(c.stack.straggler * np.sqrt(2 * np.log(np.maximum(c.plans.gpus, 1))))


def _mean_states(c: Context) -> Floats:
    """Bytes of weights, gradients and optimizer, averaged over pipeline ranks."""
    p, model = c.plans, c.model
    dense, experts = np.zeros(len(p)), np.zeros(len(p))
    for n, q in zip(model.kind_counts, c.parameters, strict=True):
        split = q.attention_sharded + q.sinks + q.mlp + q.shared
        dense += n * (split / p.tp + q.attention_replicated + q.router + q.norms)
        experts += n * float(q.experts) / (p.ep * p.etp)
    dense += c.vocabulary_parameters * (1.0 if model.tied_embeddings else 2.0)
    shards = p.dp * p.cp // np.maximum(p.replicas, 1)
    st = states(dense / p.pp, experts / p.pp, shards, p.edp, p.sharding, c.stack)
    return np.asarray(st.weights + st.gradients + st.optimizer)


def _loss(c: Context, priced: Priced) -> Floats:
    """Bytes of logits at the loss, on the last rank."""
    logits = priced.ends.logits[priced.of_plan]
    return np.asarray(c.stack.loss_bytes * logits * (1.0 + len(c.model.mtp)))


def _context(c: Context) -> Floats:
    groups = np.zeros(len(c.plans))
    for name in ("tp", "cp", "dp", "pp", "ep", "edp"):
        groups = groups + (getattr(c.plans, name) > 1)
    return np.asarray(CONTEXT_BYTES + COMMUNICATOR_BYTES * groups)
