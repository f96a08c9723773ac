"""Which layers go on which stage: the split with the smallest bottleneck.

A split is contiguous: stages in model order, each with the next few layers. The embedding sits on
the first stage, head and loss on the last, an MTP block on one stage after the last layer.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
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
    least_ends: int | None = None,
) -> Split | None:
    """The split of layers over ``ranks · vp`` stages with the smallest cost of the busiest rank.

    ``costs`` are one a layer, in model order, in any one unit; ``embedding``, ``head`` and ``mtp`` in
    the same. Every stage gets at least ``least`` layers (an MTP block counts as one), the first and the
    last, which hold embedding and head, at least ``least_ends`` (``least`` if not given). Of several best
    splits an even one is taken.

    Exact for one stage a rank, and for more if all layers cost the same (without memory limit and MTP
    block); otherwise a local search, and ``Split.exact`` says whether it met a lower bound. ``None``
    if no split fits the memory. Raises InputError if there are too few layers, or a cost is not a number.
    """
    items = [float(c) for c in costs] + ([] if mtp is None else [mtp])
    if not all(0 <= c < np.inf for c in (*items, embedding, head)):
        raise InputError("layer costs must be 0 or more, none of them NaN or infinite")
    stages = ranks * vp
    fewest = [least] * stages
    fewest[0] = fewest[-1] = least if least_ends is None else least_ends
    if len(items) < sum(fewest):
        more = "" if least_ends is None else f", {least_ends} on the first and the last"
        most = (len(items) - sum(fewest)) // least + stages
        raise InputError(
            f"{len(costs)} layers cannot put {least} on each of {stages} stages{more}: "
            f"use at most {most} stages"
        )
    fill = Fill(items, stages, embedding, head, fewest, memory)
    equal = memory is None and mtp is None and len(set(items)) == 1
    home = rank_of_stage(stages, ranks, v_shaped=v_shaped)
    floor = 0.0
    if vp == 1:
        bounds = fill.best()
    elif equal:
        bounds = _equal_layers(fill, ranks, v_shaped)
    else:
        floor = _least_bottleneck(fill, home, ranks)
        bounds = _searched(fill, ranks, v_shaped, memory, floor)
    if bounds is None:
        return None
    rank_costs = np.bincount(home, weights=fill.loads(np.array(bounds)), minlength=ranks)
    return Split(
        counts=tuple(np.diff(np.minimum(bounds, len(costs))).tolist()),
        mtp_stage=None if mtp is None else bisect_right(bounds, len(costs)) - 1,
        bottleneck=float(rank_costs.max()),
        rank_costs=tuple(rank_costs.tolist()),
        exact=bool(vp == 1 or equal or rank_costs.max() <= floor * (1 + 1e-12)),
    )


@lru_cache(maxsize=1024)
def rank_of_stage(stages: int, ranks: int, *, v_shaped: bool) -> npt.NDArray[np.int64]:
    """The rank of every stage, looped or on a V; shared, and so not to be written to."""
    turn, place = np.divmod(np.arange(stages), ranks)
    found = np.where(v_shaped & (turn % 2 == 1), ranks - 1 - place, place)
    found.flags.writeable = False
    return found


class Fill:
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
        fewest: list[int],
        memory: MemoryLimit | None,
    ) -> None:
        self.count, self.stages, self.fewest = len(items), stages, fewest
        # Items that the stages before each one hold at least, and all from it on.
        self.before = [0, *accumulate(fewest)]
        self.items = items
        self.total = [0.0, *accumulate(items)]
        self.sums = np.array(self.total)
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
        ends = self.sums[bounds]
        return np.asarray(ends[..., 1:] - ends[..., :-1] + self.extra)

    def stop(self, stage: int, start: int, bound: float) -> int:
        """How far a stage can go from ``start``; below ``start`` if its fixed part alone is too much."""
        at = bisect_right(self.total, self.total[start] + bound - self.extra[stage] + self.slack) - 1
        if self.kept is not None:
            kept = self.kept[stage]
            at = min(at, bisect_right(kept, kept[start] + self.room[stage]) - 1)
        return min(at, self.count - self.before[-1] + self.before[stage + 1])

    def start(self, stage: int, stop: int, bound: float) -> int:
        """How early a stage that ends at ``stop`` can begin."""
        at = bisect_left(self.total, self.total[stop] - bound + self.extra[stage] - self.slack)
        if self.kept is not None:
            kept = self.kept[stage]
            at = max(at, bisect_left(kept, kept[stop] - self.room[stage]))
        return max(at, self.before[stage])

    def forward(self, bound: float) -> tuple[bool, float]:
        """Whether a split within ``bound`` exists; and the least larger bound that lets a stage take more."""
        # ``stop`` in line: a search of layouts spends most of its time here.
        total, count, within, kept = self.total, self.count, bound + self.slack, self.kept
        at, larger, spare = 0, np.inf, count - self.before[-1]
        for stage, (own, fewest) in enumerate(zip(self.extra, self.fewest, strict=True)):
            if kept is None:
                stop = bisect_right(total, total[at] + bound - own + self.slack) - 1
                stop = min(stop, spare + self.before[stage + 1])
            else:
                stop = self.stop(stage, at, bound)
            taken = stop if stop > at else at
            more = total[taken + 1 if taken < count else count] - total[at] + own
            if within < more < larger:
                larger = more
            if stop < at + fewest:
                return False, min(larger, own) if own > bound else larger
            at = stop
        return at == count, larger

    def best(self) -> list[int] | None:
        """Bounds with the smallest bottleneck, as even as that leaves room for."""
        if self.kept is not None or self.stages == 1:
            return self.best_anew()
        # Where ranks or rounds are to be balanced next, the same split of stages is asked for again.
        found = _best_of(tuple(self.items), self.extra[0], self.extra[-1], tuple(self.fewest))
        return None if found is None else [*found]

    def best_anew(self) -> list[int] | None:
        """The same, not remembered."""
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
            low = max(earliest[stage + 1], bounds[-1] + self.fewest[stage])
            high = self.stop(stage, bounds[-1], bound)
            at = bisect_left(self.total, aim, low, high)
            if at > low and aim - self.total[at - 1] <= self.total[at] - aim:
                at -= 1
            bounds.append(at)
        return [*bounds, self.count]


@lru_cache(maxsize=64)
def _best_of(
    items: tuple[float, ...], first: float, last: float, fewest: tuple[int, ...]
) -> list[int] | None:
    """``Fill.best`` of several stages without a memory limit."""
    return Fill([*items], len(fewest), first, last, [*fewest], None).best_anew()


def _equal_layers(fill: Fill, ranks: int, v_shaped: bool) -> list[int]:
    """Layers of equal cost: each goes to the rank that has least with it, then evenly over its stages."""
    stages, cost = fill.stages, fill.total[1]
    counts = list(fill.fewest)
    stage_cost = [extra + count * cost for extra, count in zip(fill.extra, counts, strict=True)]
    own: list[list[int]] = [[] for _ in range(ranks)]
    rank_cost = [0.0] * ranks
    for stage, rank in enumerate(rank_of_stage(stages, ranks, v_shaped=v_shaped).tolist()):
        own[rank].append(stage)
        rank_cost[rank] += stage_cost[stage]
    # Plain lists: a few ranks at a time are too little for arrays.
    for _ in range(fill.count - sum(counts)):
        # Of equally loaded ranks a middle one: the first and the last hold the ends and most activations.
        enough = min(rank_cost) + fill.slack
        least = [rank for rank, so_far in enumerate(rank_cost) if so_far <= enough]
        rank = least[len(least) // 2]
        stage = min(own[rank], key=stage_cost.__getitem__)
        counts[stage] += 1
        rank_cost[rank] += cost
        stage_cost[stage] += cost
    return [0, *accumulate(counts)]


def _searched(
    fill: Fill, ranks: int, v_shaped: bool, memory: MemoryLimit | None, enough: float
) -> list[int] | None:
    """Move layers between stages while the busiest rank gains, and until it costs ``enough``; from an
    even split, from one aimed at equal ranks and from the best split by stages."""
    home = rank_of_stage(fill.stages, ranks, v_shaped=v_shaped)
    local = _Local(fill, home, ranks, memory, enough)
    found: list[tuple[_Rating, list[int]]] = []
    for start in (_aimed(fill, home, ranks), _even(fill), fill.best()):
        if start is not None:
            found.append(local.improved(start))
            if found[-1][0][0] == 0 and found[-1][0][1] <= enough + fill.slack:
                break
    (over, *_), bounds = min(found)
    return None if over > 0 else bounds


_Rating = tuple[float, float, float]
"""Bytes over the limit, cost of the busiest rank, unevenness; all small, in this order."""


class _Local:
    """Splits next to a split: one layer's worth moves from one stage to another, those between shifting.

    Every bound that shifts takes one layer across, from one rank to another, so that what ranks cost after a
    move is what they cost before and a sum over its bounds, read off running sums over all bounds.
    """

    def __init__(
        self,
        fill: Fill,
        home: npt.NDArray[np.int64],
        ranks: int,
        memory: MemoryLimit | None,
        enough: float,
    ) -> None:
        self.fill, self.home, self.enough, self.memory = fill, home, enough, memory
        self.onto = np.eye(ranks)[home]
        self.across = self.onto[:-1] - self.onto[1:]
        """(bounds, ranks): what a layer's worth that goes back over a bound changes."""
        self.fewest = np.array(fill.fewest)
        self.costs = np.append(fill.items, 0.0)
        if memory is not None:
            self.states = np.append(memory.states, 0.0)
            self.activations = np.append(memory.activations, 0.0)
            self.alive = np.asarray(memory.in_flight)[:, None] * self.onto
            self.alive_across = self.alive[:-1] - self.alive[1:]
            self.fixed = np.asarray(memory.fixed) @ self.onto - memory.limit

    def improved(self, start: list[int]) -> tuple[_Rating, list[int]]:
        """The best split found from ``start``, and how good it is."""
        fill, bounds = self.fill, np.array(start)
        cost, over = fill.loads(bounds) @ self.onto, self._over(bounds)
        now = _rating(cost, over)
        while now[0] > 0 or now[1] > self.enough + fill.slack:
            busiest = None
            if fill.stages > _ALL_MOVES and self.memory is None:
                heavy = cost[self.home] >= cost.max() - fill.slack
                busiest = tuple(np.flatnonzero(heavy).tolist())
            low, high = _pairs(fill.stages, busiest)
            spare = bounds[1:] - bounds[:-1] > self.fewest
            back, forth = np.flatnonzero(spare[high]), np.flatnonzero(spare[low - 1])
            if not len(back) and not len(forth):
                break
            moves = [(1, low[back], high[back]), (-1, low[forth], high[forth])]
            tried = np.concatenate([self._moved(cost, bounds, *move) for move in moves])
            beyond = np.zeros(len(tried))
            if over is not None:
                held = np.concatenate([self._held_moved(over, bounds, *move) for move in moves])
                beyond = np.maximum(held, 0.0).sum(axis=1)
            best = _best(beyond, tried.max(axis=1), np.square(tried).sum(axis=1))
            sign, first, last = moves[0] if best < len(back) else moves[1]
            at = best if best < len(back) else best - len(back)
            then = bounds.copy()
            then[first[at] : last[at] + 1] += sign
            cost_then, over_then = fill.loads(then) @ self.onto, self._over(then)
            rating = _rating(cost_then, over_then)
            if not rating < tuple(x * (1 - 1e-12) for x in now):
                break
            bounds, cost, over, now = then, cost_then, over_then, rating
        return now, bounds.tolist()

    def _over(self, bounds: npt.NDArray[np.int64]) -> Floats | None:
        """Bytes that each rank holds over the limit."""
        if self.memory is None:
            return None
        states, activations = (np.append(0.0, np.cumsum(x[:-1])) for x in (self.states, self.activations))
        held = np.diff(states[bounds]) @ self.onto + np.diff(activations[bounds]) @ self.alive
        return np.asarray(held + self.fixed)

    def _moved(
        self,
        cost: Floats,
        bounds: npt.NDArray[np.int64],
        sign: int,
        low: npt.NDArray[np.int64],
        high: npt.NDArray[np.int64],
    ) -> Floats:
        """(moves, ranks): costs after bounds ``low`` to ``high`` moved by ``sign``."""
        shift = self.costs[self._crossing(bounds, sign), None] * self.across
        return cost + _summed(shift, sign, low, high)

    def _held_moved(
        self,
        over: Floats,
        bounds: npt.NDArray[np.int64],
        sign: int,
        low: npt.NDArray[np.int64],
        high: npt.NDArray[np.int64],
    ) -> Floats:
        """The same of the bytes over the limit."""
        at = self._crossing(bounds, sign)
        shift = self.states[at, None] * self.across + self.activations[at, None] * self.alive_across
        return over + _summed(shift, sign, low, high)

    @staticmethod
    def _crossing(bounds: npt.NDArray[np.int64], sign: int) -> npt.NDArray[np.int64]:
        """The item that crosses each bound; past the ends there is none, which costs nothing."""
        return bounds[1:-1] if sign > 0 else bounds[1:-1] - 1


def _summed(shift: Floats, sign: int, low: npt.NDArray[np.int64], high: npt.NDArray[np.int64]) -> Floats:
    """(moves, ranks): ``shift``, one row a bound, summed over the bounds of every move."""
    running = np.zeros((len(shift) + 1, shift.shape[1]))
    np.cumsum(sign * shift, axis=0, out=running[1:])
    return np.asarray(running.take(high, axis=0) - running.take(low - 1, axis=0))


def _rating(cost: Floats, over: Floats | None) -> _Rating:
    beyond = 0.0 if over is None else float(np.maximum(over, 0.0).sum())
    return beyond, float(cost.max()), float(np.square(cost).sum())


def _best(*ratings: Floats) -> int:
    """The first row with the least of the first rating, of those of the second, and so on."""
    rows = np.arange(len(ratings[0]))
    for rating in ratings:
        here = rating[rows]
        rows = rows[here == here.min()]
    return int(rows[0])


def _even(fill: Fill) -> list[int]:
    """As many layers on every stage, but no fewer than it must have."""
    cuts = np.linspace(0, fill.count, fill.stages + 1).astype(np.int64)
    return _allowed(fill, cuts.tolist())


def _aimed(fill: Fill, home: npt.NDArray[np.int64], ranks: int) -> list[int]:
    """Bounds next to where stages would end if layers could be cut: a rank's stages share evenly what its
    ends leave of an equal part of all."""
    extra = np.bincount(home, weights=fill.extra, minlength=ranks)
    stages = fill.stages // ranks
    whole = fill.total[-1]
    room = np.maximum((whole + extra.sum()) / ranks - extra, 0.0)
    ends = np.cumsum((room * whole / max(room.sum(), 1e-300) / stages)[home])
    total = np.array(fill.total)
    after = np.clip(np.searchsorted(total, ends), 1, fill.count)
    nearer = after - (ends - total[after - 1] <= total[after] - ends)
    return _allowed(fill, [0, *nearer[:-1].tolist(), fill.count])


def _allowed(fill: Fill, bounds: list[int]) -> list[int]:
    """The nearest bounds that leave every stage its fewest layers."""
    for stage in range(fill.stages):
        bounds[stage + 1] = max(bounds[stage + 1], bounds[stage] + fill.fewest[stage])
        most = fill.count - fill.before[-1] + fill.before[stage + 1]
        bounds[stage + 1] = min(bounds[stage + 1], most)
    return bounds


_ALL_MOVES = 40
"""Stages up to which every move is tried; beyond, those that touch the busiest rank."""


@lru_cache(maxsize=256)
def _pairs(
    stages: int, busiest: tuple[int, ...] | None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """First and last bound of every move: those between shift with them, so that a layer's worth goes from
    one stage to another. With ``busiest`` those from or to its stages only, and those of a single bound."""
    low, high = np.triu_indices(stages - 1)
    low, high = low + 1, high + 1
    if busiest is not None:
        # Bounds low to high lie between stages low - 1 and high.
        touches = np.isin(low - 1, busiest) | np.isin(high, busiest) | (low == high)
        low, high = low[touches], high[touches]
    return low, high


def _least_bottleneck(fill: Fill, home: npt.NDArray[np.int64], ranks: int) -> float:
    """A bound below which no split can get: of what ranks can hold, were layers not in order.

    With few kinds of layers a rank can cost only certain sums of them; the bound is the least cost for
    which the largest such sums, rank by rank, hold all layers.
    """
    items, extra = fill.items, np.bincount(home, weights=fill.extra, minlength=ranks)
    average = (fill.total[-1] + sum(fill.extra)) / ranks
    floor = max(average, max(items, default=0.0), *fill.extra)
    kinds = sorted({c for c in items if c > 0})
    most = floor + max(items, default=0.0)
    if not 0 < len(kinds) <= 4:
        return floor
    sums = np.zeros(1)
    for cost in kinds:
        counts = np.arange(min(items.count(cost), int(most / cost)) + 1)
        sums = np.add.outer(sums, counts * cost).ravel()
        sums = np.unique(np.round(sums[sums <= most + fill.slack], 12))
        if len(sums) > _MOST_SUMS:
            return floor
    bounds = np.unique(np.add.outer(sums, np.unique(extra)))
    bounds = bounds[bounds >= floor - fill.slack]
    low, high = 0, len(bounds)
    while low < high:
        middle = (low + high) // 2
        left = bounds[middle] - extra + fill.slack
        room = sums[np.maximum(np.searchsorted(sums, left, side="right") - 1, 0)]
        if (left >= 0).all() and room.sum() >= fill.total[-1] - fill.slack:
            high = middle
        else:
            low = middle + 1
    return float(bounds[low]) if low < len(bounds) else floor


_MOST_SUMS = 20_000
