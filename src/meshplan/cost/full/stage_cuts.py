"""The same question asked of every stage, or of every rank, instead of types of rank that are alike.

Prices are written over *types* of rank. Taking each stage as a type gives the seconds of every stage by
the same equations; taking each rank gives the memory of every rank.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from meshplan.cost.costs import Floats
from meshplan.cost.full.context import Context
from meshplan.cost.full.distinct import distinct
from meshplan.cost.full.stages import BOTH_WAYS, FOLDED, PLACEMENT, Splits, even_layout
from meshplan.plan.plans import Ints
from meshplan.schedule.layout import rank_of_stage


@dataclass(frozen=True, kw_only=True)
class Cut(Context):
    """A context with splits of its own."""

    cut: Splits

    def take(self, index: Ints | slice) -> Cut:
        """The same question about the plans ``index`` selects."""
        gbs = None if self.gbs is None else self.gbs[index]
        cut = replace(self.cut, of_plan=self.cut.of_plan[index])
        return replace(self, plans=self.plans.take(index), gbs=gbs, cut=cut)

    @cached_property
    def splits(self) -> Splits:
        """The cut given."""
        return self.cut


@dataclass(frozen=True, kw_only=True, slots=True)
class Cuts:
    """A table of plans by stage and by rank. Both are padded to the longest pipeline."""

    stages: Cut
    ranks: Cut
    home: Ints
    """(plans, stages): the rank of each stage; of DualPipe's two, the one the first half of the
    micro-batches uses. -1 for padding."""


def cut_up(c: Context) -> Cuts:
    """The stages and ranks of every plan."""
    p = c.plans
    shape = PLACEMENT.take(p.schedule)
    first, of_plan = distinct((p.pp, p.vp, shape, p.layout + 2))
    extra = tuple(c.kinds.index(layer) for layer in c.model.mtp)
    rows, kinds = [], c.model.kind_ids
    for i in first.tolist():
        layout = None if p.layout[i] < 0 else p.layouts[int(p.layout[i])]
        rows.append(_one(kinds, len(c.kinds), int(p.pp[i]), int(p.vp[i]), int(shape[i]), layout, extra))
    held, home, by_rank, ends = (_padded([row[k] for row in rows]) for k in range(4))
    there = home >= 0
    number = np.arange(held.shape[1])
    last = number[None, :] == there.sum(axis=1, keepdims=True) - 1
    stages = Splits(
        of_plan=of_plan,
        layers=held,
        keeping=held,
        first=np.broadcast_to(number == 0, there.shape).astype(np.float64),
        last=last.astype(np.float64),
        ranks=there.astype(np.float64),
        earliest=np.maximum(home, 0.0),
    )
    counts = np.array([len(row[2]) for row in rows])
    position = np.arange(by_rank.shape[1], dtype=np.float64)
    real = position[None, :] < counts[:, None]
    ranks = Splits(
        of_plan=of_plan,
        layers=by_rank,
        keeping=by_rank,
        first=ends[:, :, 0] * real,
        last=ends[:, :, 1] * real,
        ranks=real.astype(np.float64),
        earliest=np.where(real, position[None, :], 0.0),
    )
    given = {name: getattr(c, name) for name in Context.__dataclass_fields__}
    return Cuts(
        stages=Cut(**given, cut=stages),
        ranks=Cut(**given, cut=ranks),
        home=home[of_plan].astype(np.int64),
    )


@lru_cache(maxsize=16384)
def _one(
    kinds: tuple[int, ...],
    kind_count: int,
    pp: int,
    vp: int,
    shape: int,
    layout: tuple[int, ...] | None,
    with_head: tuple[int, ...],
) -> tuple[Floats, Floats, Floats, Floats]:
    """Of one split: (stages, kinds) layers held, (stages,) their rank, (ranks, kinds) layers held, and
    (ranks, 2) shares of embedding and head."""
    stages = pp * vp
    sizes = layout if layout is not None else even_layout(len(kinds), stages)
    total = np.zeros((len(kinds) + 1, kind_count))
    total[1:] = np.cumsum(np.array(kinds)[:, None] == np.arange(kind_count), axis=0)
    held = np.diff(total[np.append(0, np.cumsum(sizes))], axis=0)
    for kind in with_head:
        held[-1, kind] += 1
    home = rank_of_stage(stages, pp, v_shaped=shape == FOLDED)
    by_rank, ends = np.zeros((pp, kind_count)), np.zeros((pp, 2))
    np.add.at(by_rank, home, held)
    ends[home[0], 0] = ends[home[-1], 1] = 1.0
    if shape == BOTH_WAYS:  # each rank has a stage of either copy, for half of the micro-batches
        by_rank, ends = (by_rank + by_rank[::-1]) / 2, (ends + ends[::-1]) / 2
    return held, home.astype(np.float64), by_rank, ends


def _padded(rows: list[Floats]) -> Floats:
    """Rows of different lengths in one array; ranks of stages that are not there are -1, layers 0."""
    longest = max(len(row) for row in rows)
    fill = -1.0 if rows[0].ndim == 1 else 0.0
    out = np.full((len(rows), longest, *rows[0].shape[1:]), fill)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return out
