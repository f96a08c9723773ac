"""What layers, embedding and head cost the rank that holds them, for the choice of a cut.

Where weights are gathered or gradients scattered with every micro-batch, a rank's transfers run beside all
its computing, and only what exceeds that is exposed (``gathering.gathering``, ``sync.Transfers``). That is no
sum over layers; but for ranks about as busy as the mean it is close to one: a layer costs its share of
such a rank, an end what it adds to the layers that are left beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshplan.cost.costs import Floats
from meshplan.cost.full.context import Context
from meshplan.cost.full.gathering import beside, gathered_bytes, unit_seconds
from meshplan.cost.full.layers import Priced
from meshplan.cost.full.stages import BOTH_WAYS, LOOPED, PLACEMENT
from meshplan.cost.full.step import BESIDE
from meshplan.cost.full.sync import beyond
from meshplan.plan.plans import Ints

ROUNDS = 3
"""How often the layers beside an end are counted anew: what the end costs depends on them a little."""


@dataclass(frozen=True, slots=True)
class LayerWork:
    """(keys, kinds + 2): seconds of one micro-batch of each layer kind, of the embedding, and of the head
    with the multi-token-prediction layers beside it."""

    forward: Floats
    backward: Floats

    def take(self, index: Ints) -> LayerWork:
        """Those of the keys ``index`` names."""
        return LayerWork(self.forward[index], self.backward[index])


def layer_work(c: Context, priced: Priced) -> LayerWork:
    """Computing of every key: the slower of GPU and host."""
    times, ends = priced.times, priced.ends
    forward = [np.maximum(t.forward_s, t.host) for t in times]
    again = c.stack.host_backward
    backward = [np.maximum(t.backward_s + t.selective, t.host * again) for t in times]
    return LayerWork(
        _with_ends(c, forward, ends.embedding_forward, ends.head_forward),
        _with_ends(c, backward, ends.embedding_backward, ends.head_backward),
    )


def _with_ends(c: Context, per_kind: list[Floats], embedding: Floats, head: Floats) -> Floats:
    for layer in c.model.mtp:  # multi-token-prediction layers sit with the head
        head = head + per_kind[c.kinds.index(layer)]
    return np.stack([*per_kind, embedding, head], axis=1)


def with_transfers(c: Context, work: LayerWork) -> Floats:
    """(plans, kinds + 2): seconds that layers and ends add to their rank, exposed transfers included, where
    all plans move weights or gradients with every micro-batch; ``work`` has a row for each of them."""
    p, kinds, usual = c.plans, len(c.kinds), c.usual_kind
    gather, back, scatter = _moved(c)
    layers, extra = len(c.model.layers), len(c.model.mtp)
    mean = layers / p.pp

    def busy(held: Floats) -> Floats:
        """Seconds of a rank that holds so much of each column."""
        forward, backward, gathered, returned, scattered = (
            np.asarray((held * each).sum(axis=1))
            for each in (work.forward, work.backward, gather, back, scatter)
        )
        units = np.maximum(held[:, :kinds].sum(axis=1) + extra * held[:, -1], 1.0)
        first = beside(c.stack, gathered, gathered / units, forward)
        last = beside(c.stack, returned, scattered / units, backward)
        window = BESIDE * (forward + backward)
        reduced = beyond(scattered, window) if c.stack.dp_overlap else scattered
        return np.asarray(forward + backward + np.where(c.gathers, first + last, reduced))

    def rank(count: Floats) -> Floats:
        held = np.zeros_like(work.forward)
        held[:, usual] = count
        return held

    alone = busy(rank(mean))
    each = alone / mean
    found = np.empty_like(work.forward)
    for k in range(kinds):
        held = rank(np.maximum(mean - 1.0, 0.0))
        held[:, k] += np.minimum(mean, 1.0)
        found[:, k] = each + (busy(held) - alone) / np.minimum(mean, 1.0)
    # Of a pipeline that is folded or fed from both ends one rank has both ends, all of them or half.
    shape = PLACEMENT.take(p.schedule)
    share = np.where(shape == BOTH_WAYS, 0.5, 1.0)
    total = (found[:, :kinds] * np.array(c.model.kind_counts)).sum(axis=1)
    lone = shape == LOOPED
    embedding, head, both = np.zeros(len(p)), np.zeros(len(p)), np.zeros(len(p))

    def end(columns: tuple[int, ...], least: Floats, now: Floats) -> Floats:
        """What ends add to as many layers as make their rank, whose ends cost ``now``, as busy as all."""
        count = np.clip((least - now) / each, 0.0, mean)
        held = rank(count)
        for column in columns:
            held[:, column] = share
        return np.asarray(np.maximum(busy(held) - count * each, 0.0))

    for _ in range(ROUNDS):
        ends = np.where(lone, embedding + head, both / share)
        least = (total + ends) / p.pp
        embedding, head = end((-2,), least, embedding), end((-1,), least, head)
        both = end((-2, -1), least, both)
    found[:, -2] = np.where(lone, embedding, 0.0)
    found[:, -1] = np.where(lone, head, both / share)
    return found


def _moved(c: Context) -> tuple[Floats, Floats, Floats]:
    """(plans, kinds + 2): seconds that transfers of each layer kind and end take in forward, in backward, and
    of the latter those of gradients."""
    tied = 0.0 if c.model.tied_embeddings else 1.0

    def columns(op: str, element_bytes: float) -> tuple[Floats, Floats]:
        per_kind, vocabulary = unit_seconds(c, op, element_bytes)
        return _with_ends(c, per_kind, vocabulary, vocabulary * tied), vocabulary * tied

    scatter, _ = columns("reduce_scatter", c.stack.reduce_bytes)
    if not c.gathers.any():
        nothing = np.zeros_like(scatter)
        return nothing, scatter, scatter * c.copies[:, None]
    gather, head = columns("all_gather", gathered_bytes(c))
    again = gather.copy()
    if c.stack.family == "torch":
        again[:, -1] -= head
    return gather, again + scatter, scatter * np.where(c.gathers, 1, c.copies)[:, None]
