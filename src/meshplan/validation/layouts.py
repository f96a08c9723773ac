"""How frameworks cut a model into pipeline stages where nobody tells them."""

from __future__ import annotations

from itertools import accumulate

from meshplan.model.layers import LatentAttention, Mlp
from meshplan.model.model import Model


def cut_by_cost(costs: list[int], stages: int) -> tuple[int, ...] | None:
    """How many of the blocks of these costs each stage holds, as nanotron deals them out: a stage takes
    blocks until their sum, all before them included, is more than its share of the whole (``build_model`` of
    src/nanotron/models/base.py). The last block is the head and not counted. ``None`` where a stage would
    hold nothing.

    >>> cut_by_cost([67] * 16 + [268], 2)
    (11, 5)
    """
    whole, at, counts = sum(costs), 0, [0] * stages
    for done in accumulate(costs):
        counts[at] += 1
        if done * stages > whole * (at + 1) and at < stages - 1:
            at += 1
    counts[-1] -= 1
    return tuple(counts) if min(counts) > 0 and sum(counts) == len(costs) - 1 else None


def nanotron_layout(model: Model, stages: int) -> tuple[int, ...] | None:
    """Layers of each stage in nanotron, whose costs are the parameters of a layer's products as if every
    query head had a key and value head, and those of the head; ``None`` where it is not known."""
    costs = []
    for layer in model.layers:
        if layer.attention is None or isinstance(layer.attention, LatentAttention):
            return None
        if not isinstance(layer.mlp, Mlp):
            return None
        costs.append(4 * layer.attention.q_width * model.hidden + 3 * layer.mlp.width * model.hidden)
    return cut_by_cost([*costs, model.vocab * model.hidden], stages)
