"""Which layers go on which stage when a rank's stages take turns: splits for looped schedules.

An interleaved pipeline sends a group of micro-batches through the ranks' first stages, then through
their second ones, and so on. All ranks work on the same round at about the same time, so that its slowest
stage sets the pace, and what a rank saves in another round comes too late: an equal sum over a rank's
stages is not enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from meshplan.errors import InputError
from meshplan.schedule.layout import Fill, Split, rank_of_stage

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_MOST_BOUNDS = 300
"""Different costs of a stage that are tried; with more, those near the average, in equal steps."""


def pace(loads: Sequence[float], *, ranks: int, forward: float = 1 / 3) -> float:
    """What a micro-batch costs an interleaved pipeline in its steady state, from the cost of every stage.

    Rank r is 2 (p - r - 1) + (v - 1) p steps ahead with forwards; at every step it does a forward of one
    round and a backward of another, and the slowest rank of the step holds up all. ``forward`` is the
    share of the forward. An upper bound: buffers hide some of it.
    """
    table = np.asarray(loads, dtype=np.float64)
    forwards, backwards = _at_once(len(table) // ranks, ranks)
    each = forward * table[forwards] + (1 - forward) * table[backwards]
    return float(each.max(axis=0).sum() / ranks)


@lru_cache(maxsize=256)
def _at_once(rounds: int, ranks: int) -> tuple[Ints, Ints]:
    """(ranks, steps): the stages whose forward and whose backward a rank does at every step of ``pace``."""
    rank, step = np.arange(ranks)[:, None], np.arange(rounds * ranks)
    ahead = 2 * (ranks - rank - 1) + (rounds - 1) * ranks
    forwards = (step - rank) // ranks % rounds
    backwards = rounds - 1 - (step - rank - ahead) // ranks % rounds
    return forwards * ranks + rank, backwards * ranks + rank


def best_rounds(
    costs: Sequence[float],
    *,
    ranks: int,
    vp: int,
    embedding: float = 0.0,
    head: float = 0.0,
    least_ends: int = 1,
) -> Split:
    """The split of layers over ``vp`` rounds of ``ranks`` stages whose largest stages, one a round, cost
    least together.

    ``costs`` are one a layer, in model order. Every stage gets a layer, the first and the last at least
    ``least_ends`` (0 or 1). ``Split.bottleneck`` is that sum; within it rounds and stages are as even as
    they can be. Raises InputError if there are too few layers.
    """
    layers, stages = len(costs), ranks * vp
    if vp < 2:
        raise InputError(f"rounds need 2 or more stages a rank, not {vp}")
    if layers < stages - 2 * (1 - least_ends):
        raise InputError(f"{layers} layers are too few for {stages} stages: use at most {layers} stages")
    search = _Rounds(np.asarray(costs, dtype=np.float64), ranks, vp, embedding, head, 1 - least_ends)
    counts = search.counts()
    total = np.append(0.0, np.cumsum(costs))
    loads = np.diff(total[np.append(0, np.cumsum(counts))])
    loads[0] += embedding
    loads[-1] += head
    by_rank = np.bincount(rank_of_stage(stages, ranks, v_shaped=False), weights=loads, minlength=ranks)
    return Split(
        counts=counts,
        mtp_stage=None,
        bottleneck=float(loads.reshape(vp, ranks).max(axis=1).sum()),
        rank_costs=tuple(by_rank.tolist()),
        exact=search.exact,
    )


class _Rounds:
    """Dynamic programming over rounds: the cuts between them with the least sum of largest stages."""

    def __init__(self, costs: Floats, ranks: int, vp: int, first: float, last: float, free: int) -> None:
        self.costs, self.ranks, self.vp, self.free = costs, ranks, vp, free
        self.ends = (first, last)
        self.total = np.append(0.0, np.cumsum(costs))
        self.slack = 1e-12 * (self.total[-1] + first + last)
        self.exact = True
        self.bounds = self._bounds()

    def counts(self) -> tuple[int, ...]:
        """Layers of every stage."""
        found: list[int] = []
        for turn, (low, high, bound) in enumerate(self._rounds()):
            first = self.ends[0] if turn == 0 else 0.0
            last = self.ends[1] if turn == self.vp - 1 else 0.0
            fewest = [1] * self.ranks
            fewest[0] -= self.free * (turn == 0)
            fewest[-1] -= self.free * (turn == self.vp - 1)
            fill = Fill(self.costs[low:high].tolist(), self.ranks, first, last, fewest, None)
            found += [b - a for a, b in pairwise(fill.evened(bound))]
        return tuple(found)

    def _bounds(self) -> Floats:
        """What the largest stage of a round can cost: sums of neighbouring layers, with the ends."""
        first, last = self.ends
        stages = self.ranks * self.vp
        fewest = [1] * stages
        fewest[0] = fewest[-1] = 1 - self.free
        even = Fill(self.costs.tolist(), stages, first, last, fewest, None)
        usual = even.best()
        assert usual is not None  # without a memory limit there is always a split
        # Were all rounds alike: no round of a better split can cost more than this leaves.
        alike = self.vp * float(even.loads(np.array(usual)).max())
        most = alike - (self.vp - 1) * float(self.costs.min(initial=0.0))
        sums = (self.total[None, :] - self.total[:, None]).ravel()
        sums = np.sort(sums[(sums >= 0) & (sums <= most + self.slack)])
        sums = sums[np.append(sums[1:] > sums[:-1], True)]
        sums = np.concatenate([sums, sums + first, sums + last])
        sums = np.sort(sums[sums <= most + self.slack])
        # The largest of those that are one but for rounding.
        sums = sums[np.append(sums[1:] - sums[:-1] > self.slack, True)]
        if len(sums) > _MOST_BOUNDS:
            self.exact = False
            average, largest = alike / self.vp, float(self.costs.max())
            sums = sums[(sums >= average - 2 * largest) & (sums <= average + 2 * largest)]
            sums = sums[np.unique(np.linspace(0, len(sums) - 1, _MOST_BOUNDS).astype(int))]
        return np.asarray(sums)

    def _tables(self) -> tuple[Floats, Floats, Floats]:
        """The least bound of a round from layer a to layer b, (layers + 1, layers + 1); of the first round
        to b, with the embedding; of the last round from a, with the head."""
        first, last = self.ends
        end = len(self.costs)
        step = np.searchsorted(self.total, self.total + self.bounds[:, None] + self.slack, side="right") - 1
        # How far a round gets from every layer with each bound: with one stage less, and with all.
        place = np.arange(end + 1)
        row = np.arange(len(step))[:, None] * (end + 1)
        step += row  # places in the flat table, so that following one step after the other is one look-up
        short = far = place + row
        for _ in range(self.ranks):
            short, far = far, step.take(far)
        short, far = short - row, far - row
        bounds, beyond = np.append(self.bounds, np.inf), len(self.bounds)
        # How many bounds get less far than to b, for every a and b: those that get to b - 1 at most.
        reach = np.bincount((far + place * (end + 1)).ravel(), minlength=(end + 1) ** 2)
        less = np.cumsum(reach.reshape(end + 1, end + 1), axis=1)
        middle = np.full((end + 1, end + 1), bounds[0])
        middle[:, 1:] = bounds[less[:, :-1]]
        begun = np.searchsorted(self.total, self.bounds - first + self.slack, side="right") - 1
        reached = np.where(begun >= 1 - self.free, short[np.arange(beyond), np.maximum(begun, 0)], -1)
        opening = bounds[np.searchsorted(reached, place)]
        rest = np.searchsorted(self.total, self.total[-1] - (self.bounds - last) - self.slack)
        fits = (rest <= end - 1 + self.free) & (self.bounds >= last - self.slack)
        closes = fits[:, None] & (short >= np.minimum(rest, end)[:, None])
        closing = bounds[np.where(closes.any(axis=0), closes.argmax(axis=0), beyond)]
        return middle, opening, closing

    def _rounds(self) -> list[tuple[int, int, float]]:
        """Every round: its first layer, the one after its last, and the bound on its stages."""
        middle, opening, closing = self._tables()
        end, ranks = len(self.costs), self.ranks
        place = np.arange(end + 1)
        middle = np.where(place[None, :] - place[:, None] >= ranks, middle, np.inf)
        cost = np.where(place >= ranks - self.free, opening, np.inf)
        came: list[Ints] = []
        share = self.total / self.total[-1] if self.total[-1] > 0 else place / max(end, 1)
        for turn in range(1, self.vp):
            # Of equally quick splits one whose rounds are about even.
            cost = cost + 1e-9 * self.total[-1] * (share - turn / self.vp) ** 2
            if turn == self.vp - 1:
                break
            value = cost[:, None] + middle
            came.append(value.argmin(axis=0))
            cost = value.min(axis=0)
        last = np.where(end - place >= ranks - self.free, cost + closing, np.inf)
        cuts = [int(last.argmin())]
        for back in reversed(came):
            cuts.append(int(back[cuts[-1]]))
        cuts.append(0)
        cuts.reverse()
        bounds = [opening[cuts[1]], *(middle[a, b] for a, b in pairwise(cuts[1:])), closing[cuts[-1]]]
        return [(a, b, float(bound)) for (a, b), bound in zip(pairwise([*cuts, end]), bounds, strict=True)]
