"""The exact time of an order: every action starts as soon as its rank and its inputs allow.

``simulate`` runs one set of durations, ``simulate_batch`` many over the same order at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from meshplan.schedule.durations import Durations, checked
from meshplan.schedule.graph import Graph, graph
from meshplan.schedule.order import Order
from meshplan.schedule.player import Player
from meshplan.schedule.result import Simulation

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]


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
    the other; both then start and end together, and what they send travels meanwhile (arXiv 2412.19437,
    3.2.1). ``None`` runs them one after the other.

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
    times = Player(links, spent.work + spent.held, spent.hop, row=row).play(repeats)
    return Simulation(order=order, links=links, durations=durations, times=times, tail=after)


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
