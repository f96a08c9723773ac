"""The exact time of an order: every action starts as soon as its rank and its inputs allow.

``simulate`` runs one set of durations, ``simulate_batch`` many over the same order at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from meshplan.schedule.durations import Durations, checked
from meshplan.schedule.graph import Graph, graph
from meshplan.schedule.order import Order
from meshplan.schedule.repeats import Repeat
from meshplan.schedule.result import Simulation, Times

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

SAME_SHIFT = 1e-12
"""Shifts of a period may differ by rounding, relative to the time reached."""


def simulate(
    order: Order,
    *,
    forward: Any,
    backward_input: Any,
    weight: Any,
    p2p: Any = 0.0,
    overlap_p2p: bool = True,
    tail: Any = 0.0,
    pair_share: float | None = None,
) -> Simulation:
    """Run an order with these durations, in seconds.

    ``forward``, ``backward_input`` and ``weight``: a number, one a stage (stages,), or one a stage and
    micro-batch (stages, micro_batches). A full backward takes ``backward_input + weight``. ``p2p``: a
    number or one a boundary (stages - 1,), the time until a result of one stage is at the next, if that
    is on another rank. With ``overlap_p2p`` the sender goes on computing meanwhile; without, it is held.
    ``tail``: a number or one a rank, work after a rank's last action (gradient synchronisation).
    ``pair_share``: what an overlapped forward-backward pair takes, as a share of both run one after
    the other; both then start and end together. ``None`` runs them one after the other.

    Raises InputError for negative or NaN durations, wrong shapes, and orders that cannot finish.
    """
    links = graph(order, together=pair_share is not None)
    durations = Durations.of(order, (), forward, backward_input, weight, p2p, overlap_p2p, pair_share)
    after = np.broadcast_to(checked("tail", tail, (order.ranks,)), (order.ranks,))
    row: Indices | None = None
    if durations.by_micro_batch:
        entries, row, repeats = np.arange(len(order)), links.sequence, []
    else:
        # Actions of one site take the same time: look up one of each.
        entries, repeats = links.sites.example, links.repeats
    spent = durations.at(order, links, entries)
    times = _play(links, spent.work + spent.held, spent.hop, row, repeats)
    return Simulation(order=order, links=links, durations=durations, times=times, tail=after)


class Player:
    """Plays actions one after the other; ``ends`` says when their ranks go on, from place 1.

    ``row`` says where the times of every place are in ``taken`` and ``hop``; left out, they are those of
    its site.
    """

    def __init__(
        self,
        links: Graph,
        taken: Floats,
        hop: Floats,
        *,
        row: Indices | None = None,
        ends: list[float] | None = None,
    ) -> None:
        self.before, self.fed_by, self.row = looks_back(links)
        if row is not None:
            self.row = row.tolist()
        self.taken, self.hop = taken.tolist(), hop.tolist()
        self.waits = bool(hop.any())
        self.ends = [0.0] if ends is None else ends

    def run(self, low: int, high: int) -> None:
        """Play the actions at these places in computing order, whatever was played before."""
        ends, taken, hop = self.ends, self.taken, self.hop
        push = ends.append
        steps = zip(self.before[low:high], self.fed_by[low:high], self.row[low:high], strict=True)
        if self.waits:
            for before, fed_by, at in steps:
                free, arrival = ends[before], ends[fed_by] + hop[at]
                push((free if free > arrival else arrival) + taken[at])
            return
        for before, fed_by, at in steps:
            free, arrival = ends[before], ends[fed_by]
            push((free if free > arrival else arrival) + taken[at])

    def settled(self, period: int, window: int, played: int) -> tuple[int, float] | None:
        """After how many periods (1 or 2) everything comes the same time later, and that time; ``None`` if
        not yet. ``played``: actions of the stretch so far."""
        for several in (1, 2):
            if played >= several * period + window:
                shift = self.shift(several * period, window)
                if shift is not None:
                    return several, shift
        return None

    def shift(self, period: int, window: int) -> float | None:
        """By how much all of the last ``window`` actions come later than those a period before; ``None``
        if not all by the same."""
        ends = self.ends
        most, shift = SAME_SHIFT * ends[-1], ends[-1] - ends[-1 - period]
        for back in range(1, window, max(window // 12, 1)):  # most that have not settled fail here
            if abs(ends[-back] - ends[-back - period] - shift) > most:
                return None
        recent = np.array(ends[-window - period :])
        shifts = recent[period:] - recent[:-period]
        return float(shifts[-1]) if np.ptp(shifts) <= most else None


@lru_cache(maxsize=16)
def looks_back(links: Graph) -> tuple[list[int], list[int], list[int]]:
    """For every place in computing order: how far back its rank's last action is and the one that feeds
    it, as indices from the end of a list; and its site."""
    row = links.sites.of[links.sequence]
    return (-links.before).tolist(), (-links.fed_by).tolist(), row.tolist()


def _play(links: Graph, taken: Floats, hop: Floats, row: Indices | None, repeats: list[Repeat]) -> Times:
    """When every action's rank goes on; ``row`` as for ``Player``."""
    count = len(links.sequence)
    times = Times(count)
    player = Player(links, taken, hop, row=row, ends=times.ends)
    at = 0
    for repeat in repeats:
        period, window = repeat.period, max(repeat.period, repeat.reach)
        more = repeat.start + period + window - at
        while at + more + period <= repeat.stop - period:
            player.run(at, at + more)
            at += more
            found = player.settled(period, window, at - repeat.start)
            if found is not None:
                several, shift = found
                long = several * period
                again = repeat._replace(period=long)
                at += times.skip(again, (repeat.stop - period - at) // long, shift)
                break
            more = period * max(1, _SOME // period)  # not settled yet: try again soon
    player.run(at, count)
    return times


_SOME = 200
"""Actions played before it is tried again whether a schedule has settled."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class BatchResult:
    """Times of many runs of one order, in seconds, one row a run."""

    step: Floats
    """(batch,)"""
    finish: Floats
    """(batch, ranks): when each rank is done, its tail included."""
    busy: Floats
    """(batch, ranks): what each rank computes, its tail included."""

    @property
    def bubble(self) -> Floats:
        """(batch,): idle share of all ranks."""
        idle: Floats = 1.0 - self.busy.mean(axis=1) / np.maximum(self.step, np.finfo(np.float64).tiny)
        return idle


def simulate_batch(
    order: Order,
    *,
    forward: Any,
    backward_input: Any,
    weight: Any,
    p2p: Any = 0.0,
    overlap_p2p: bool = True,
    tail: Any = 0.0,
    pair_share: float | None = None,
) -> BatchResult:
    """``simulate`` for many sets of durations at once: every array has a leading batch axis.

    Durations are (batch, stages) or (batch, stages, micro_batches), ``p2p`` is a number, (batch, 1)
    or (batch, stages - 1), ``tail`` a number, (batch, 1) or (batch, ranks).
    """
    links = graph(order, together=pair_share is not None)

    def last_axis(value: Any) -> Any:
        return np.moveaxis(np.asarray(value), 0, -1) if np.ndim(value) > 1 else value

    # The batch is the last axis from here on: a row is one action in every run.
    f, i, w = last_axis(forward), last_axis(backward_input), last_axis(weight)
    batch = (max(np.shape(x)[-1] if np.ndim(x) > 1 else 1 for x in (f, i, w)),)
    durations = Durations.of(order, batch, f, i, w, last_axis(p2p), overlap_p2p, pair_share)
    if durations.by_micro_batch:
        entries, row = np.arange(len(order)), links.sequence
        on_rank, count = order.rank.astype(np.int64), np.ones((len(order), 1), dtype=np.int64)
    else:
        entries, row = links.sites.example, links.sites.of[links.sequence]
        on_rank, count = links.sites.rank, links.sites.count[:, None]
    spent = durations.at(order, links, entries)
    ends = play_batch(links, spent.work + spent.held, spent.hop, row)
    after = np.broadcast_to(checked("tail", tail, (*batch, order.ranks)), (*batch, order.ranks))
    finish = ends[links.place[order.first[1:] - 1]].T + after
    each = (on_rank == np.arange(order.ranks)[:, None]).astype(float)
    busy = (each @ (count * spent.work)).T + after
    return BatchResult(step=finish.max(axis=1), finish=finish, busy=busy)


def play_batch(links: Graph, taken: Floats, hop: Floats, row: Indices) -> Floats:
    """(actions + 1, batch): when every action's rank goes on, in computing order from place 1 on."""
    here = np.arange(1, len(row) + 1)
    before, fed_by = here - links.before, here - links.fed_by
    ends = np.zeros((len(row) + 1, taken.shape[1]))
    for low, high in links.depths:
        arrival = ends.take(fed_by[low:high], axis=0)
        arrival += hop[row[low:high]]
        block = ends[low + 1 : high + 1]
        ends.take(before[low:high], axis=0, out=block, mode="clip")
        np.maximum(block, arrival, out=block)
        block += taken[row[low:high]]
    return ends
