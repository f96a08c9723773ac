"""How a stack of layers is cut over pipeline ranks, and which ranks are alike.

Ranks with the same layers and the same ends cost the same, so a split is kept as a few *types* of
rank: how many layers of each kind, whether it holds the embedding or the head, how many ranks are of
that type, and the earliest of them (the one with most micro-batches in flight).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from meshplan.cost.costs import Floats
from meshplan.cost.full.distinct import distinct
from meshplan.model.layers import Layer
from meshplan.model.model import Model
from meshplan.plan.kinds import Schedule
from meshplan.plan.plans import Ints, Plans
from meshplan.schedule.layout import rank_of_stage

V_SHAPED = (Schedule.ZB_V, Schedule.V_HALF, Schedule.V_MIN, Schedule.DUALPIPE_V)
LOOPED, FOLDED, BOTH_WAYS = range(3)
"""How stages lie on ranks: round after round, back and forth, or from both ends at once (DualPipe)."""
PLACEMENT = np.array(
    [BOTH_WAYS if s == Schedule.DUALPIPE else FOLDED if s in V_SHAPED else LOOPED for s in Schedule]
)
"""That of each schedule's code."""


def even_layout(layers: int, stages: int) -> tuple[int, ...]:
    """Layers in each stage, as even as possible; the ends, which also hold embedding and head, are the
    first to have one fewer (``126`` over 16: 7, 8 × 14, 7)."""
    base, extra = divmod(layers, stages)
    if not extra:
        return (base,) * stages
    order = sorted(range(stages), key=lambda s: (s in (0, stages - 1), s == stages - 1, s))
    more = set(order[:extra])
    return tuple(base + (s in more) for s in range(stages))


def held_by_ranks(counts: Sequence[int], ranks: int, schedule: Schedule) -> list[tuple[int, ...]]:
    """Layers of each stage that every pipeline rank holds, ``counts`` being those of all stages.

    >>> held_by_ranks((3, 4, 4, 2), 4, Schedule.DUALPIPE)
    [(3, 2), (4, 4), (4, 4), (2, 3)]
    >>> held_by_ranks((3, 4, 4, 2), 2, Schedule.ZB_V)
    [(3, 2), (4, 4)]
    """
    home = rank_of_stage(len(counts), ranks, v_shaped=schedule in V_SHAPED).tolist()
    held: list[tuple[int, ...]] = [()] * ranks
    for rank, count in zip(home, counts, strict=True):
        held[rank] += (int(count),)
    if schedule is Schedule.DUALPIPE and ranks > 1:  # a stage from either end
        return [mine + other for mine, other in zip(held, reversed(held), strict=True)]
    return held


@dataclass(frozen=True, slots=True)
class RankType:
    """Ranks of a pipeline that hold the same: ``layers`` of each kind, and perhaps an end."""

    layers: tuple[float, ...]
    first: float
    """1 with the embedding; 0.5 where both copies of a DualPipe rank share its time."""
    last: float
    ranks: int
    earliest: int
    keeping: tuple[float, ...]
    """``layers`` as micro-batches alive count them, which differ over a DualPipe rank's two stages."""


_Alike = tuple[tuple[float, ...], float, float, tuple[float, ...]]


def _both(held: list[list[int]]) -> list[_Alike]:
    """DualPipe's ranks, each with half the work of stage i and of stage p - 1 - i. Of the one, p - i
    micro-batches are alive, of the other i + 1, p + 1 together, as ``schedule.steady.peak_alive`` counts."""
    pp, found = len(held), []
    for i, (mine, other) in enumerate(zip(held, reversed(held), strict=True)):
        mean = tuple((x + y) / 2 for x, y in zip(mine, other, strict=True))
        alive = tuple(((pp - i) * x + (i + 1) * y) / (pp + 1) for x, y in zip(mine, other, strict=True))
        end = 0.5 * (i in (0, pp - 1))
        found.append((mean, end, end, alive))
    return found


@lru_cache(maxsize=65536)
def rank_types(
    kinds: tuple[int, ...],
    kind_count: int,
    pp: int,
    vp: int,
    placement: int,
    layout: tuple[int, ...] | None,
    with_head: tuple[int, ...] = (),
) -> tuple[RankType, ...]:
    """The types of rank of one split. ``placement``: 0 round after round, 1 back and forth (V), 2 both
    ways at once (DualPipe: rank i holds stages i and pp − 1 − i, each for half of the micro-batches)."""
    stages = pp * vp
    sizes = layout if layout is not None else even_layout(len(kinds), stages)
    held: list[list[int]] = [[0] * kind_count for _ in range(pp)]
    start = 0
    for stage, size in enumerate(sizes):
        turn, at = divmod(stage, pp)
        rank = pp - 1 - at if placement == 1 and turn % 2 else at
        for kind in kinds[start : start + size]:
            held[rank][kind] += 1
        start += size
    last_rank = 0 if placement == 1 and vp % 2 == 0 else pp - 1
    for kind in with_head:
        held[last_rank][kind] += 1
    if placement == 2 and pp > 1:
        alike = _both(held)
    else:
        counts = [tuple(map(float, layers)) for layers in held]
        alike = [(n, float(rank == 0), float(rank == last_rank), n) for rank, n in enumerate(counts)]
    found: dict[_Alike, list[int]] = {}
    for rank, key in enumerate(alike):
        found.setdefault(key, []).append(rank)
    return tuple(
        RankType(layers=layers, first=first, last=last, ranks=len(ranks), earliest=ranks[0], keeping=keeping)
        for (layers, first, last, keeping), ranks in found.items()
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Splits:
    """Distinct splits of a table of plans: arrays of shape (splits, types); unused types have no ranks."""

    of_plan: Ints
    """For each plan, its row here."""
    layers: Floats
    """(splits, types, kinds)."""
    keeping: Floats
    """The same as micro-batches alive count it; ``layers`` itself where no split is DualPipe's."""
    first: Floats
    last: Floats
    ranks: Floats
    earliest: Floats


def splits_of(plans: Plans, model: Model, layer_kinds: tuple[Layer, ...]) -> Splits:
    """The distinct splits of ``plans``; multi-token-prediction layers sit with the head."""
    kinds, kind_count = model.kind_ids, len(layer_kinds)
    extra = tuple(layer_kinds.index(layer) for layer in model.mtp)
    placement = PLACEMENT.take(plans.schedule)
    index, of_plan = distinct((plans.pp, plans.vp, placement, plans.layout))
    rows = [
        rank_types(
            kinds,
            kind_count,
            int(plans.pp[i]),
            int(plans.vp[i]),
            int(placement[i]),
            None if plans.layout[i] < 0 else plans.layouts[int(plans.layout[i])],
            extra,
        )
        for i in index.tolist()
    ]
    types = max(len(r) for r in rows)
    empty = (0.0,) * (2 * kind_count + 4)
    table = np.array(
        [
            [(*t.layers, *t.keeping, t.first, t.last, t.ranks, t.earliest) for t in row]
            + [empty] * (types - len(row))
            for row in rows
        ]
    )
    first, last, ranks, earliest = (table[:, :, 2 * kind_count + i].copy() for i in range(4))
    layers = table[:, :, :kind_count].copy()
    keeping = table[:, :, kind_count : 2 * kind_count].copy() if (placement == 2).any() else layers
    return Splits(
        of_plan=of_plan,
        layers=layers,
        keeping=keeping,
        first=first,
        last=last,
        ranks=ranks,
        earliest=earliest,
    )
