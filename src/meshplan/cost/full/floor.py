"""Lower bounds of a plan's price before its pipeline and its details are chosen.

Computing and the transfers of layers take the same time on average over ranks whatever the schedule,
the cut of layers over stages, the sharding and the recomputation; bubbles, imbalance, recomputing,
gradient sync and optimizer only add to it. States divide over pipeline ranks, and the fullest rank holds
no less than the mean. What is left out (activations, bubbles) makes the bounds loose, never wrong.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from meshplan.cost.costs import Floats
from meshplan.cost.full.context import Context
from meshplan.cost.full.layers import Priced, price_layers
from meshplan.cost.full.memory import COMMUNICATOR_BYTES, CONTEXT_BYTES
from meshplan.cost.full.states import states
from meshplan.cost.full.step import part_means

OPEN = ("dp", "optimizer", "recompute", "host", "straggler")
"""Parts of a step that sharding, its replicas and recomputation can still change, with the pipeline as
it is; ``straggler`` is a share of all others."""


def floors(c: Context) -> tuple[Floats, Floats]:
    """Seconds a step takes at least and bytes the fullest rank holds at least, for every plan that shares
    the degrees (``vp`` left out), the kind of context parallelism and the micro-batch with the given one,
    has the same ``sp`` or none, and is sharded no more, over no more ranks."""
    priced = price_layers(c)
    parts, _ = part_means(c, priced)
    step = c.micro_batches * np.asarray(sum(parts.values())) + c.stack.step_s
    return step * (1.0 + _spread(c)), np.maximum(_mean_states(c), _loss(c, priced)) + _context(c)


def least_step(c: Context, time: Mapping[str, Floats]) -> Floats:
    """Seconds a step takes at least with the pipeline that ``time`` was priced for, however its details
    (``sp``, sharding, replicas, recomputation) are chosen: ``time`` must be of a plan that recomputes
    nothing and does not gather weights every micro-batch."""
    return np.asarray(sum(v for name, v in time.items() if name not in OPEN)) * (1.0 + _spread(c))


def _spread(c: Context) -> Floats:
    return np.asarray(c.stack.straggler * np.sqrt(2 * np.log(np.maximum(c.plans.gpus, 1))))


def _mean_states(c: Context) -> Floats:
    """Bytes of weights, gradients and optimizer, averaged over pipeline ranks."""
    p, model = c.plans, c.model
    layers = (*model.layers, *model.mtp)
    counts = [float(sum(layer == kind for layer in layers)) for kind in c.kinds]
    dense, experts = np.zeros(len(p)), np.zeros(len(p))
    for n, q in zip(counts, c.parameters, strict=True):
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
