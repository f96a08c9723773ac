"""Which layers go on which stage where a plan leaves it open: the cut with the least busy busiest rank.

What layers, embedding and head cost against each other depends on few things, so that one cut serves
all plans of the same pipeline whose costs agree: layers to a sixteenth, the ends to a hundredth of a rank's
work. Transfers that come with every micro-batch count with what computing does not hide of them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import accumulate, pairwise
from math import ceil
from typing import Any

import numpy as np

from meshplan.cost.full.context import Context
from meshplan.cost.full.cut_costs import layer_work, with_transfers
from meshplan.cost.full.distinct import distinct
from meshplan.cost.full.layers import Priced
from meshplan.cost.full.stages import BOTH_WAYS, LOOPED, PLACEMENT, even_layout
from meshplan.plan.plans import AUTO_LAYOUT, Ints, Plans
from meshplan.schedule.layout import Fill, MemoryLimit, best_split, rank_of_stage
from meshplan.schedule.layout_rounds import best_rounds, pace

GRAIN = 16
"""Parts of the most frequent layer in which costs of layers are compared."""
CLOSE = 0.02
"""Steps in which costs of embedding and head are compared, as a share of a rank's layers, rounded down to a
power of two of a layer: the busiest rank's work is off by no more than half of that."""
FINEST, COARSEST = 5, 3
"""Such steps are a layer over two to a power between these; a stage of many feels more than its rank does."""
WORTH = 0.02
"""An uneven cut of layers that divide must spare the busiest rank this share of its work: even stages
are simpler to launch, and their pipeline has no uneven chunks to wait for."""

Layout = tuple[int, ...]


def choose_layouts(c: Context, priced: Priced, grain: int = GRAIN) -> Plans:
    """The plans with every layout chosen that they leave open; costs are compared in parts of a layer, so
    that a coarser ``grain`` needs fewer cuts."""
    p = c.plans
    rows = np.flatnonzero(p.layout == AUTO_LAYOUT)
    if not len(rows):
        return p
    grains, key = _grains(c, priced, rows, grain)
    shape = PLACEMENT.take(p.schedule[rows])
    columns = (key, p.pp[rows], p.vp[rows], shape)
    first, of = distinct(columns)
    known = {layout: i for i, layout in enumerate(p.layouts)}
    chosen = np.full(len(first), -1, dtype=np.int64)
    kinds = c.model.kind_ids
    for i, row in enumerate(first.tolist()):
        if columns[1][row] == 1:
            continue
        costs = tuple(grains[key[row]].tolist())
        cut = best_cut(costs, kinds, *(int(column[row]) for column in columns[1:]))
        if cut is not None:
            chosen[i] = known.setdefault(cut, len(known))
    layout = p.layout.copy()
    layout[rows] = chosen[of]
    return replace(p, layout=layout, layouts=tuple(known))


@lru_cache(maxsize=65536)
def best_cut(costs: Layout, kinds: Layout, pp: int, vp: int, shape: int) -> Layout | None:
    """Layers of every stage; ``None``: even stages, which divide, are as good.

    ``costs`` are whole numbers in any unit: one for each layer kind, then embedding and head.
    """
    *of_kind, embedding, head = costs
    layers, stages = [float(of_kind[k]) for k in kinds], pp * vp
    if len(layers) < max(stages - 2, 1) or (shape == BOTH_WAYS and pp % 2):
        return None
    ranks, turns = (pp // 2, 2) if shape == BOTH_WAYS else (pp, vp)
    ends: dict[str, Any] = {"embedding": float(embedding), "head": float(head), "least_ends": 0}
    folded = shape != LOOPED

    before = [0.0, *accumulate(layers)]
    home = rank_of_stage(stages, ranks, v_shaped=folded).tolist()

    def cost(cut: Layout) -> float:
        loads = [before[b] - before[a] for a, b in pairwise((0, *accumulate(cut)))]
        loads[0] += embedding
        loads[-1] += head
        if turns > 1 and not folded:
            return pace(loads, ranks=ranks)
        busy = [0.0] * ranks
        for rank, load in zip(home, loads, strict=True):
            busy[rank] += load
        return max(busy)

    divides = len(layers) % stages == 0
    ideal = (sum(layers) + embedding + head) / ranks
    bound = least_busiest(layers, ideal, home, embedding, head)
    best: Layout | None = even_layout(len(layers), stages) if len(layers) >= stages else None
    least = np.inf if best is None else cost(best)
    even = best
    # From simple to involved: each must be worth it, and nothing beats equal ranks.
    for kind in ("stage", "rank", "rounds") if turns > 1 and not folded else ("rank",):
        gain = WORTH if divides and best is even else 1e-9
        if least <= ideal * (1 + WORTH / 2) or bound >= least * (1 - gain):
            break
        if kind == "stage":
            split = best_split(layers, ranks=stages, **ends)
        elif kind == "rank":
            split = best_split(layers, ranks=ranks, vp=turns, v_shaped=folded, **ends)
        else:
            split = best_rounds(layers, ranks=ranks, vp=turns, **ends)
        assert split is not None  # without a memory limit there is always one
        if (found := cost(split.counts)) < least * (1 - gain):
            best, least = split.counts, found
    if best is None or (divides and best is even):
        return None
    return _lean(layers, best, least, float(embedding), float(head)) if turns == 1 else best


def least_busiest(layers: list[float], ideal: float, home: list[int], embedding: float, head: float) -> float:
    """What no cut's busiest rank has less than: layers come whole, beside the ends on their ranks. The pace
    of a looped pipeline is no less than the work of any of its ranks either."""
    ends = [0.0] * (max(home) + 1)
    ends[home[0]] += embedding
    ends[home[-1]] += head
    bound = ideal
    for one in {*layers} - {0.0}:
        count = layers.count(one)

        def holds(most: float, one: float = one, count: int = count) -> bool:
            return sum(int((most - end) / one + 1e-9) for end in ends if end <= most) >= count

        if holds(bound):
            continue
        # Room for one more layer comes where a rank has whole layers beside its end.
        steps = (end + one * (k + ceil((bound - end) / one)) for end in {*ends} for k in range(3))
        bound = min((most for most in steps if most > bound and holds(most)), default=bound)
    return bound


def _lean(layers: list[float], cut: Layout, bound: float, embedding: float, head: float) -> Layout:
    """A cut within the same bound whose fullest rank holds least: rank i of p has p - i micro-batches alive
    (1F1B), so that early ranks had better have the fewer layers."""
    ranks = len(cut)
    alive = [float(ranks - i) for i in range(ranks)]
    fewest = [0, *[1] * (ranks - 2), 0]
    least, most = 1, int(max(a * n for a, n in zip(alive, cut, strict=True)))
    best = cut
    while least < most:
        middle = (least + most) // 2
        memory = MemoryLimit(
            states=[0.0] * len(layers), activations=[1.0] * len(layers), in_flight=alive,
            fixed=[0.0] * ranks, limit=middle,
        )  # fmt: skip
        fill = Fill(layers, ranks, embedding, head, fewest, memory)
        if fill.forward(bound)[0]:
            best, most = tuple(np.diff(fill.evened(bound)).tolist()), middle
        else:
            least = middle + 1
    return best


def _grains(c: Context, priced: Priced, rows: Ints, grain: int) -> tuple[Ints, Ints]:
    """(keys, kinds + 2): whole numbers that say what layer kinds, embedding and head cost; and the key of
    each of the plans ``rows``."""
    p, work, of = c.plans, layer_work(c, priced), priced.of_plan[rows]
    seconds = work.forward + work.backward
    moving = np.flatnonzero((c.gathers | c.scatters_each)[rows] & (p.pp[rows] > 1))
    if len(moving):
        which, at = rows[moving], of[moving]
        groups = (p.tp, p.cp, p.dp, p.pp, p.ep, p.etp, p.replicas, c.gathers.astype(np.int64))
        shape = PLACEMENT.take(p.schedule[which])
        first, kind = distinct((at, shape, *(column[which] for column in groups)))
        busy = with_transfers(c.take(which[first]), work.take(at[first]))
        of = of.copy()
        of[moving] = len(seconds) + kind
        seconds = np.concatenate([seconds, busy])
    first, kind = distinct((of, p.pp[rows]))
    seconds, layers = seconds[of[first]], len(c.model.layers) / p.pp[rows[first]]
    parts = seconds / seconds[:, c.usual_kind, None]
    step = 2.0 ** np.clip(np.floor(np.log2(CLOSE * layers)), -FINEST, -COARSEST)[:, None] * (GRAIN / grain)
    kinds, ends = np.rint(parts[:, :-2] * grain) / grain, np.rint(parts[:, -2:] / step) * step
    whole = np.rint(np.concatenate([kinds, ends], axis=1) * (1 << FINEST)).astype(np.int64)
    found, of_key = np.unique(whole, axis=0, return_inverse=True)
    return found, np.ravel(of_key)[kind]
