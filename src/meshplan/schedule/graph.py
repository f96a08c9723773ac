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
from meshplan.schedule.order import B, F, I, Order, W
from meshplan.schedule.repeats import Repeat, find_repeats

Indices = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Sites:
    """Actions that take the same time if durations are one a stage: one entry a site."""

    example: Indices
    """An action of the site, by flat index."""
    of: Indices
    """The site of every action."""
    rank: Indices
    count: Indices


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Graph:
    """Dependencies of an order.

    An action waits for the one before it on its rank and for at most one on another rank:
    activations from the stage before, or gradients from the stage after. Computing order is by
    depth: every action comes after those it needs, and those of one depth need none of each other.
    """

    feeds: Indices
    """For every action, the one on another rank it needs, by flat index; -1 for none."""
    beside: Flags
    """Whether that is a pair that runs as one piece of work, and its result has travelled by its end."""
    sends_on: Flags
    sends_back: Flags
    """Whether another rank needs an action's result, for the next stage or for the one before."""
    sites: Sites
    sequence: Indices
    """All actions, by flat index, in computing order."""
    place: Indices
    """1 + the place in computing order of every action."""
    before: Indices
    """For each action in computing order, how many places back the one before it on its rank is; for
    a rank's first action, how many to the start of all (place 0)."""
    fed_by: Indices
    """How many places back the one that feeds it is; as ``before`` if none does."""
    depths: list[tuple[int, int]]
    """Where each depth starts and ends in ``sequence``."""
    repeats: list[Repeat]


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


@lru_cache(maxsize=32)
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
    beside = np.zeros(len(order), dtype=bool)
    if together:
        # The forward of a pair ends with the backward after it: who needs the one waits for the other.
        ends_with = np.arange(len(order)) + order.paired
        feeds = np.where(feeds >= 0, ends_with[feeds], feeds)
        # What a pair sends, it sends while it runs.
        in_pair = order.paired | np.append([False], order.paired[:-1])
        beside = np.asarray((feeds >= 0) & in_pair[feeds])
    depth = _depths(order, feeds)
    # Ranks lie one after the other and depth grows along each, so equal depths stay sorted by rank.
    sequence = np.argsort(depth, kind="stable")
    place = np.empty(len(order) + 1, dtype=np.int64)
    place[sequence], place[-1] = np.arange(1, len(order) + 1), 0
    on_rank = np.arange(len(order)) - 1
    on_rank[order.first[:-1]] = -1
    here = np.arange(1, len(order) + 1)
    before = here - place[on_rank[sequence]]
    fed_by = np.where(feeds[sequence] >= 0, here - place[feeds[sequence]], before)
    fed = np.flatnonzero(feeds >= 0)
    onward = order.kind[fed] == F
    sends_on, sends_back = np.zeros((2, len(order)), dtype=bool)
    sends_on[feeds[fed[onward]]] = True
    sends_back[feeds[fed[~onward]]] = True
    sites = _sites(order, (feeds >= 0, sends_on, sends_back, beside))
    return Graph(
        feeds=feeds,
        beside=beside,
        sends_on=sends_on,
        sends_back=sends_back,
        sites=sites,
        sequence=sequence,
        place=place[:-1],
        before=before,
        fed_by=fed_by,
        depths=list(itertools.pairwise(np.append(0, np.cumsum(np.bincount(depth))).tolist())),
        repeats=find_repeats(
            sites.of[sequence], before, fed_by, order.micro_batches, order.ranks, order.stages
        ),
    )


def _sites(order: Order, links: tuple[Flags, ...]) -> Sites:
    """Group the actions by all that their times depend on but the micro-batch."""
    rank = order.rank.astype(np.int64)
    partner = np.zeros(len(order), dtype=np.int64)
    first = np.flatnonzero(order.paired)
    partner[first], partner[first + 1] = 1 + order.stage[first + 1], 1 + order.stage[first]
    key = rank * order.stages + order.stage
    key = (key * 4 + order.kind) * (order.stages + 1) + partner
    for flag in links:
        key = key * 2 + flag
    _, example, of, count = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
    return Sites(example=example, of=of.ravel(), rank=rank[example], count=count)


def _feeds(order: Order) -> tuple[Indices, Indices]:
    """For every action, what it needs from another rank and what it needs from its own (-1: nothing)."""
    stages, batches, kind = order.stages, order.micro_batches, order.kind
    # One row more on either side, so that stage -1 and stage S read "nothing".
    cell = (order.stage.astype(np.int64) + 1) * batches + order.micro_batch
    forward, backward = np.full((2, (stages + 2) * batches), -1, np.int64)
    is_f, is_b = kind == F, (kind == B) | (kind == I)
    forward[cell[is_f]] = np.flatnonzero(is_f)
    backward[cell[is_b]] = np.flatnonzero(is_b)
    backward[-batches:] = forward[-2 * batches : -batches]
    needs = np.where(is_f, forward[cell - batches], backward[cell + batches])
    own = np.where(is_f, -1, np.where(kind == W, backward[cell], forward[cell]))
    needs[kind == W] = -1
    rank = order.rank
    local = (needs >= 0) & (rank[needs] == rank)
    return np.where(local, -1, needs), np.maximum(own, np.where(local, needs, -1))


def _depths(order: Order, feeds: Indices) -> Indices:
    """How many actions lie before each on the longest chain: all ranks take a step at a time, if they can.

    A place at the end of every rank stands for an action that never gets its input, so that no rank goes on.
    """
    rank, n = order.rank.astype(np.int64), len(order)
    never = n + order.ranks
    index = np.arange(n) + rank
    wide = np.full(never, never)
    wide[index] = np.where(feeds >= 0, index[feeds], never + 1)
    source, heads = wide.tolist(), (order.first[:-1] + np.arange(order.ranks)).tolist()
    depths = [never] * (never + 1) + [-1]
    ranks, level, moved = range(order.ranks), 0, 0
    while moved == level:
        for r in ranks:
            at = heads[r]
            if depths[source[at]] < level:
                depths[at] = level
                heads[r] = at + 1
                moved = level + 1
        level += 1
    places = np.array(heads) - np.arange(order.ranks)
    stuck = places[places < order.first[1:]]
    if len(stuck):
        raise InputError(_deadlock(order, feeds, stuck.tolist()))
    found: Indices = np.array(depths[:never])[index]
    return found


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
