"""What must wait for what in an order, and a sequence in which all of it can be computed.

The structure depends on the order only, not on durations, and is kept for the orders used last.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from meshplan.errors import InputError
from meshplan.schedule.order import LETTERS, B, F, I, Order, W

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Graph:
    """Dependencies of an order.

    An action waits for the one before it on its rank and for at most one on another rank:
    activations from the stage before, or gradients from the stage after.
    """

    feeds: Indices
    """For every action, the one on another rank it needs, by flat index; -1 for none."""
    sequence: Indices
    """All actions, by flat index, in computing order: each after those it needs."""
    before: list[int]
    """For each action in computing order, 1 + the place of the one before it on its rank; 0 for none."""
    fed_by: list[int]
    """For each action in computing order, 1 + the place of the one that feeds it; 0 for none."""


def check(order: Order) -> None:
    """Refuse an order that misses, repeats or misplaces an action; one sentence with the place."""
    stages, batches = order.stages, order.micro_batches
    kind, stage, batch, rank = order.kind, order.stage, order.micro_batch, order.rank
    bad = np.flatnonzero((stage < 0) | (stage >= stages) | (batch < 0) | (batch >= batches))
    if bad.size:
        i = int(bad[0])
        raise InputError(
            f"{_place(order, i)}: there are stages 0 to {stages - 1} and micro-batches 0 to {batches - 1}"
        )
    cell = stage.astype(np.int64) * batches + batch
    counts = np.stack([np.bincount(cell[kind == k], minlength=stages * batches) for k in range(4)])
    _complain_repeated(order, counts, cell)
    f, b, i, w = counts
    for missing, letter in ((f == 0, "F"), ((b == 0) & (i == 0), "B"), ((i == 1) & (w == 0), "W")):
        if missing.any():
            s, j = divmod(int(np.flatnonzero(missing)[0]), batches)
            also = " (or I and W)" if letter == "B" else ""
            raise InputError(f"order '{order.name}' misses {letter}{also} of stage {s}, micro-batch {j}")
    for letter, twice in (("I", (b == 1) & (i == 1)), ("W", (w == 1) & (i == 0))):
        if twice.any():
            s, j = divmod(int(np.flatnonzero(twice)[0]), batches)
            what = "both B and I" if letter == "I" else "W but no I"
            raise InputError(f"order '{order.name}' has {what} of stage {s}, micro-batch {j}")
    home = np.empty(stages * batches, np.int64)
    home[cell[kind == F]] = rank[kind == F]
    stray = np.flatnonzero(rank != home[cell])
    if stray.size:
        a = int(stray[0])
        raise InputError(
            f"{_place(order, a)}: its forward runs on rank {int(home[cell[a]])}, and a stage cannot move"
        )


def _complain_repeated(order: Order, counts: npt.NDArray[np.intp], cell: Indices) -> None:
    if (counts > 1).any():
        k, c = (int(x) for x in np.argwhere(counts > 1)[0])
        again = np.flatnonzero((order.kind == k) & (cell == c))
        raise InputError(f"{_place(order, int(again[1]))} is there twice")


def _place(order: Order, index: int) -> str:
    rank = int(np.searchsorted(order.first, index, side="right")) - 1
    position = index - int(order.first[rank])
    return f"order '{order.name}', rank {rank}, action {position} ({order.action(index)})"


@lru_cache(maxsize=64)
def graph(order: Order, *, together: bool = False) -> Graph:
    """The dependency graph; ``together`` runs each overlapped pair as one piece of work.

    Raises InputError if the order misses or repeats an action, or can never finish.
    """
    check(order)
    feeds, same_rank = _feeds(order)
    late = np.flatnonzero(same_rank >= np.arange(len(order)))
    if late.size:
        a = int(late[0])
        raise InputError(f"{_place(order, a)} comes before {order.action(int(same_rank[a]))}, which it needs")
    if together:
        # The forward of a pair ends with the backward after it: who needs the one waits for the other.
        ends_with = np.arange(len(order)) + order.paired
        feeds = np.where(feeds >= 0, ends_with[feeds], feeds)
    sequence = _sequence(order, feeds)
    place = np.zeros(len(order) + 1, dtype=np.int64)
    place[sequence] = np.arange(1, len(order) + 1)
    on_rank = np.arange(len(order)) - 1
    on_rank[order.first[:-1]] = -1
    return Graph(
        feeds=feeds,
        sequence=sequence,
        before=place[on_rank[sequence]].tolist(),
        fed_by=place[feeds[sequence]].tolist(),
    )


def _feeds(order: Order) -> tuple[Indices, Indices]:
    """For every action, what it needs from another rank and what it needs from its own (-1: nothing)."""
    stages, batches, n = order.stages, order.micro_batches, len(order)
    kind, stage, batch = order.kind, order.stage.astype(np.int64), order.micro_batch
    index = np.arange(n)
    # One row more on either side, so that stage -1 and stage S read "nothing".
    forward = np.full((stages + 2, batches), -1, np.int64)
    backward = np.full((stages + 2, batches), -1, np.int64)
    is_f, is_b = kind == F, (kind == B) | (kind == I)
    forward[stage[is_f] + 1, batch[is_f]] = index[is_f]
    backward[stage[is_b] + 1, batch[is_b]] = index[is_b]
    backward[stages + 1] = forward[stages]
    needs = np.where(is_f, forward[stage, batch], backward[stage + 2, batch])
    own = np.where(is_f, -1, np.where(kind == W, backward[stage + 1, batch], forward[stage + 1, batch]))
    needs[kind == W] = -1
    rank = order.rank
    local = (needs >= 0) & (rank[needs] == rank)
    return np.where(local, -1, needs), np.maximum(own, np.where(local, needs, -1))


def _sequence(order: Order, feeds: Indices) -> Indices:
    """A computing order: run every rank until it must wait, then go on with one that need not."""
    source, first = feeds.tolist(), order.first.tolist()
    # Ranks that wait for an action are a linked list: the last one, and for each rank the one before it.
    done, waiting, waits_too = [False] * len(order), [-1] * len(order), [-1] * order.ranks
    sequence: list[int] = []
    place, ready = first[:-1], list(range(order.ranks))[::-1]
    while ready:
        rank = ready.pop()
        at, stop = place[rank], first[rank + 1]
        while at < stop:
            needed = source[at]
            if needed >= 0 and not done[needed]:
                waits_too[rank], waiting[needed] = waiting[needed], rank
                break
            done[at] = True
            sequence.append(at)
            waiter = waiting[at]
            while waiter >= 0:
                ready.append(waiter)
                waiter = waits_too[waiter]
            at += 1
        place[rank] = at
    if len(sequence) < len(order):
        raise InputError(_deadlock(order, feeds, [p for r, p in enumerate(place) if p < first[r + 1]]))
    return np.array(sequence)


def _deadlock(order: Order, feeds: Indices, stuck: list[int]) -> str:
    """Name the circle of ranks that wait for each other."""
    waits = [(a, int(feeds[a])) for a in stuck]
    rank = order.rank
    shown = "; ".join(
        f"rank {rank[a]} waits at {order.action(a)} for {order.action(b)} of rank {rank[b]}"
        for a, b in waits[:3]
    )
    more = f" (and {len(waits) - 3} more ranks)" if len(waits) > 3 else ""
    return f"order '{order.name}' can never finish: {shown}{more}"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Levels:
    """The actions level after level, those of one level needing only earlier ones."""

    sequence: Indices
    """Actions by flat index, level after level."""
    blocks: list[tuple[int, int]]
    """Where each level starts and ends in ``sequence``."""
    before: Indices
    fed_by: Indices
    """As in ``Graph``, but 1 + the place in this ``sequence``."""
    place: Indices
    """1 + the place in ``sequence`` of every action by flat index."""


@lru_cache(maxsize=16)
def levels(graph: Graph) -> Levels:
    """The levels of a graph: what can be computed at once when many runs are."""
    depth = [-1]
    push = depth.append
    for a, b in zip(graph.before, graph.fed_by, strict=True):
        x, y = depth[a], depth[b]
        push((x if x > y else y) + 1)
    level = np.array(depth[1:])
    by_level = np.argsort(level, kind="stable")
    moved = np.zeros(len(level) + 1, dtype=np.int64)
    moved[by_level + 1] = np.arange(1, len(level) + 1)
    place = np.empty(len(level), dtype=np.int64)
    place[graph.sequence] = moved[1:]
    return Levels(
        sequence=graph.sequence[by_level],
        blocks=list(itertools.pairwise(np.append(0, np.cumsum(np.bincount(level))).tolist())),
        before=moved[np.array(graph.before)[by_level]],
        fed_by=moved[np.array(graph.fed_by)[by_level]],
        place=place,
    )


def described(order: Order, index: int) -> str:
    """An action with its rank, for people: ``rank 3: F of stage 3, micro-batch 0``."""
    rank = int(np.searchsorted(order.first, index, side="right")) - 1
    return (
        f"rank {rank}: {LETTERS[order.kind[index]]} of stage {order.stage[index]}, "
        f"micro-batch {order.micro_batch[index]}"
    )
