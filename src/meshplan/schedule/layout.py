"""Which layers go on which stage: the split with the smallest bottleneck.

A split is contiguous: stages in model order, each with the next few layers. The embedding sits on
the first stage, head and loss on the last, an MTP block on one stage after the last layer.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from meshplan.errors import InputError

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryLimit:
    """What stages may hold, in bytes.

    A stage needs ``fixed + Σ layers (states + in_flight · activations)``. ``states`` and
    ``activations`` are one a layer (an MTP block, if any, last), ``fixed`` and ``in_flight`` one a
    stage; ``limit`` is what a rank may hold, over all its stages.
    """

    states: Sequence[float]
    activations: Sequence[float]
    in_flight: Sequence[float]
    fixed: Sequence[float]
    limit: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """Layers on each stage, in model order, and what they cost."""

    counts: tuple[int, ...]
    mtp_stage: int | None
    """The stage of the MTP block, if there is one."""
    bottleneck: float
    """Cost of the busiest rank."""
    rank_costs: tuple[float, ...]
    exact: bool
    """Whether no split has a smaller bottleneck, proven."""


def best_split(
    costs: Sequence[float],
    *,
    ranks: int,
    vp: int = 1,
    v_shaped: bool = False,
    embedding: float = 0.0,
    head: float = 0.0,
    mtp: float | None = None,
    memory: MemoryLimit | None = None,
    least: int = 1,
) -> Split | None:
    """The split of layers over ``ranks · vp`` stages with the smallest cost of the busiest rank.

    ``costs`` are one a layer, in model order, in any one unit; ``embedding``, ``head`` and ``mtp`` in
    the same. Every stage gets at least ``least`` layers (an MTP block counts as one). Of several best
    splits an even one is taken.

    Exact for one stage a rank, and for more if all layers cost the same (without memory limit and MTP
    block); otherwise a local search, and ``Split.exact`` says whether it met the lower bound. ``None``
    if no split fits the memory. Raises InputError if there are too few layers, or a cost is not a number.
    """
    items = [float(c) for c in costs] + ([] if mtp is None else [mtp])
    if not all(0 <= c < np.inf for c in (*items, embedding, head)):
        raise InputError("layer costs must be 0 or more, none of them NaN or infinite")
    stages = ranks * vp
    if len(items) < stages * least:
        raise InputError(
            f"{len(costs)} layers cannot put {least} on each of {stages} stages: "
            f"use at most {len(items) // least} stages"
        )
    fill = _Fill(items, stages, embedding, head, least, memory)
    equal = memory is None and mtp is None and len(set(items)) == 1
    if vp == 1:
        bounds = fill.best()
    elif equal:
        bounds = _equal_layers(fill, ranks, v_shaped)
    else:
        bounds = _searched(fill, ranks, v_shaped, memory)
    if bounds is None:
        return None
    home = rank_of_stage(stages, ranks, v_shaped=v_shaped)
    rank_costs = np.bincount(home, weights=fill.loads(np.array(bounds)), minlength=ranks)
    floor = max(rank_costs.sum() / ranks, max(items, default=0.0), embedding, head)
    return Split(
        counts=tuple(np.diff(np.minimum(bounds, len(costs))).tolist()),
        mtp_stage=None if mtp is None else bisect_right(bounds, len(costs)) - 1,
        bottleneck=float(rank_costs.max()),
        rank_costs=tuple(rank_costs.tolist()),
        exact=bool(vp == 1 or equal or rank_costs.max() <= floor * (1 + 1e-12)),
    )


def rank_of_stage(stages: int, ranks: int, *, v_shaped: bool) -> npt.NDArray[np.int64]:
    """The rank of every stage, looped or on a V."""
    turn, place = np.divmod(np.arange(stages), ranks)
    return np.where(v_shaped & (turn % 2 == 1), ranks - 1 - place, place)


class _Fill:
    """Fills stages one after the other as far as a bound on a stage's cost and the memory allow.

    Bounds of a split are the first item of every stage, and the end. Filling as far as possible is
    optimal: what a stage takes, the later ones need not.
    """

    def __init__(
        self,
        items: list[float],
        stages: int,
        first: float,
        last: float,
        least: int,
        memory: MemoryLimit | None,
    ) -> None:
        self.count, self.stages, self.least = len(items), stages, least
        self.total = [0.0, *accumulate(items)]
        self.extra = [0.0] * stages
        self.extra[0] += first
        self.extra[-1] += last
        self.slack = 1e-12 * (self.total[-1] + first + last)
        self.kept: list[list[float]] | None = None
        if memory is not None:
            states, activations = (np.append(0.0, np.cumsum(x)) for x in (memory.states, memory.activations))
            self.kept = (states + np.multiply.outer(np.asarray(memory.in_flight), activations)).tolist()
            self.room = [memory.limit - fixed for fixed in memory.fixed]

    def loads(self, bounds: npt.NDArray[np.int64]) -> Floats:
        """Cost of every stage; ``bounds`` has shape (…, stages + 1)."""
        loads: Floats = np.diff(np.asarray(self.total)[bounds], axis=-1) + self.extra
        return loads

    def stop(self, stage: int, start: int, bound: float) -> int:
        """How far a stage can go from ``start``; below ``start`` if its fixed part alone is too much."""
        at = bisect_right(self.total, self.total[start] + bound - self.extra[stage] + self.slack) - 1
        if self.kept is not None:
            kept = self.kept[stage]
            at = min(at, bisect_right(kept, kept[start] + self.room[stage]) - 1)
        return min(at, self.count - self.least * (self.stages - 1 - stage))

    def start(self, stage: int, stop: int, bound: float) -> int:
        """How early a stage that ends at ``stop`` can begin."""
        at = bisect_left(self.total, self.total[stop] - bound + self.extra[stage] - self.slack)
        if self.kept is not None:
            kept = self.kept[stage]
            at = max(at, bisect_left(kept, kept[stop] - self.room[stage]))
        return max(at, self.least * stage)

    def forward(self, bound: float) -> tuple[bool, float]:
        """Whether a split within ``bound`` exists; and the least larger bound that lets a stage take more."""
        at, larger = 0, np.inf
        for stage in range(self.stages):
            stop = self.stop(stage, at, bound)
            taken = max(stop, at)
            more = self.total[min(taken + 1, self.count)] - self.total[at] + self.extra[stage]
            if more > bound + self.slack:
                larger = min(larger, more)
            if stop < at + self.least:
                if self.extra[stage] > bound:
                    larger = min(larger, self.extra[stage])
                return False, larger
            at = stop
        return at == self.count, larger

    def best(self) -> list[int] | None:
        """Bounds with the smallest bottleneck, as even as that leaves room for."""
        low = (self.total[-1] + sum(self.extra)) / self.stages
        high = self.total[-1] + sum(self.extra)
        if not self.forward(high)[0]:
            return None
        while low < high - self.slack:
            fits, larger = self.forward(low)
            if fits:
                high = low
                break
            low = min(larger, high)
            middle = (low + high) / 2
            fits, larger = self.forward(middle)
            if fits:
                high = middle
            else:
                low = min(larger, high)
        return self.evened(high)

    def evened(self, bound: float) -> list[int]:
        """A split within ``bound`` (which must be possible) whose stages cost about the same."""
        earliest = [self.count] * (self.stages + 1)
        for stage in range(self.stages - 1, -1, -1):
            earliest[stage] = max(self.start(stage, earliest[stage + 1], bound), 0)
        share = (self.total[-1] + sum(self.extra)) / self.stages
        bounds = [0]
        for stage in range(self.stages - 1):
            aim = share * (stage + 1) - self.extra[0]
            low = max(earliest[stage + 1], bounds[-1] + self.least)
            high = self.stop(stage, bounds[-1], bound)
            at = bisect_left(self.total, aim, low, high)
            if at > low and aim - self.total[at - 1] <= self.total[at] - aim:
                at -= 1
            bounds.append(at)
        return [*bounds, self.count]


def _equal_layers(fill: _Fill, ranks: int, v_shaped: bool) -> list[int]:
    """Layers of equal cost: each goes to the rank that has least with it, then evenly over its stages."""
    stages, cost = fill.stages, fill.total[1]
    home = rank_of_stage(stages, ranks, v_shaped=v_shaped)
    counts = np.full(stages, fill.least)
    rank_cost = np.bincount(home, weights=fill.extra + counts * cost, minlength=ranks)
    stage_cost = fill.extra + counts * cost
    for _ in range(fill.count - int(counts.sum())):
        # Of equally loaded ranks a middle one: the first and the last hold the ends and most activations.
        least = np.flatnonzero(rank_cost <= rank_cost.min() + fill.slack)
        rank = int(least[len(least) // 2])
        own = np.flatnonzero(home == rank)
        stage = int(own[stage_cost[own].argmin()])
        counts[stage] += 1
        rank_cost[rank] += cost
        stage_cost[stage] += cost
    return np.append(0, np.cumsum(counts)).tolist()


def _searched(fill: _Fill, ranks: int, v_shaped: bool, memory: MemoryLimit | None) -> list[int] | None:
    """Move layers between stages while the busiest rank gains; from an even and from the best stage split."""
    onto = np.eye(ranks)[rank_of_stage(fill.stages, ranks, v_shaped=v_shaped)]
    moves = _moves(fill.stages)

    def rated(many: npt.NDArray[np.int64]) -> Floats:
        """(…, 3): bytes over the limit, cost of the busiest rank, unevenness; all small, in this order."""
        cost = fill.loads(many) @ onto
        over = np.zeros(cost.shape[:-1])
        if memory is not None:
            states, activations = (np.append(0.0, np.cumsum(x)) for x in (memory.states, memory.activations))
            held = np.diff(states[many], axis=-1) + np.diff(activations[many], axis=-1) * memory.in_flight
            over = np.maximum((held + memory.fixed) @ onto - memory.limit, 0.0).sum(axis=-1)
        return np.stack([over, cost.max(axis=-1), (cost**2).sum(axis=-1)], axis=-1)

    def improved(bounds: npt.NDArray[np.int64]) -> tuple[tuple[float, ...], list[int]]:
        now = tuple(rated(bounds).tolist())
        while True:
            tried = bounds + moves
            tried = tried[(np.diff(tried, axis=1) >= fill.least).all(axis=1)]
            if not len(tried):
                return now, bounds.tolist()
            ratings = rated(tried)
            best = int(np.lexsort(ratings.T[::-1])[0])
            rating = tuple(ratings[best].tolist())
            if not rating < tuple(x * (1 - 1e-12) for x in now):
                return now, bounds.tolist()
            bounds, now = tried[best], rating

    starts = [np.linspace(0, fill.count, fill.stages + 1).astype(np.int64)]
    by_stage = fill.best()
    if by_stage is not None:
        starts.append(np.array(by_stage))
    (over, *_), bounds = min(improved(start) for start in starts)
    return None if over > 0 else bounds


def _moves(stages: int) -> npt.NDArray[np.int64]:
    """Changes of the bounds that move one layer's worth from one stage to another, those between shifting."""
    rows = []
    for low in range(1, stages):
        for high in range(low, stages):
            row = np.zeros(stages + 1, dtype=np.int64)
            row[low : high + 1] = 1
            rows += [row, -row]
    return np.array(rows)
