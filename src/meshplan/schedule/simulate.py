"""The exact time of an order: every action starts as soon as its rank and its inputs allow.

``simulate`` runs one set of durations, ``simulate_batch`` many over the same order at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from meshplan.errors import InputError
from meshplan.schedule.graph import Graph, graph, levels
from meshplan.schedule.order import F, Order
from meshplan.schedule.result import Simulation

Floats = npt.NDArray[np.float64]


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
    together = pair_share is not None
    links = graph(order, together=together)
    own, held, hop = _durations(
        order, links, (), (forward, backward_input, weight), p2p, overlap_p2p, pair_share
    )
    taken = own + held
    length, offset, delay = _node_times(links, taken, hop)
    # Ends of the nodes in computing order; entry 0 is the start of the step.
    ends = [0.0]
    push = ends.append
    steps = zip(links.before, links.fed_by, delay.tolist(), length.tolist(), strict=True)
    for before, fed_by, wait, work in steps:
        free, arrival = ends[before], ends[fed_by] + wait
        push((free if free > arrival else arrival) + work)
    end = np.array(ends)
    start_of_run = np.empty(len(length))
    start_of_run[links.sequence] = np.maximum(end[links.before], end[links.fed_by] + delay)
    begin = start_of_run[links.run] + offset
    after = np.broadcast_to(_checked("tail", tail, (order.ranks,)), (order.ranks,))
    return Simulation(
        order=order,
        begin=begin,
        work=own,
        release=begin + taken,
        feeds=links.feeds,
        together=together,
        tail=after,
    )


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
    work = (forward, backward_input, weight)
    batch = (max(np.shape(x)[0] if np.ndim(x) > 1 else 1 for x in work),)
    own, held, hop = _durations(order, links, batch, work, p2p, overlap_p2p, pair_share)
    length, _, delay = _node_times(links, own + held, hop)
    nodes, starts = levels(links)
    # Renumber the nodes level after level, so that a level writes one block of rows.
    place = np.zeros(len(nodes) + 1, dtype=np.int64)
    place[nodes + 1] = np.arange(1, len(nodes) + 1)
    before, fed_by = (place[np.array(x)[nodes]] for x in (links.before, links.fed_by))
    length, delay = (np.ascontiguousarray(x.T[nodes]) for x in (length, delay))
    ends = np.zeros((len(nodes) + 1, *batch))
    for low, high in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        free, arrival = ends.take(before[low:high], axis=0), ends.take(fed_by[low:high], axis=0)
        arrival += delay[low:high]
        np.maximum(free, arrival, out=free)
        np.add(free, length[low:high], out=ends[low + 1 : high + 1])
    computed = np.empty(len(nodes), dtype=np.int64)
    computed[links.sequence] = np.arange(len(nodes))
    last = place[computed[links.run[order.first[1:] - 1]] + 1]
    after = np.broadcast_to(_checked("tail", tail, (*batch, order.ranks)), (*batch, order.ranks))
    finish = ends[last].T + after
    busy = np.add.reduceat(own, order.first[:-1], axis=-1) + after
    return BatchResult(step=finish.max(axis=1), finish=finish, busy=busy)


def _durations(
    order: Order,
    links: Graph,
    batch: tuple[int, ...],
    work: tuple[Any, Any, Any],
    p2p: Any,
    overlap_p2p: bool,
    pair_share: float | None,
) -> tuple[Floats, Floats, Floats]:
    """For every action: its own time, the time it holds its rank for sending, its input's transfer time."""
    stages, batches = order.stages, order.micro_batches
    names = ("forward", "backward_input", "weight")
    tables = [
        _checked(n, w, (*batch, stages), (*batch, stages, batches)) for n, w in zip(names, work, strict=True)
    ]
    fine = any(t.ndim == len(batch) + 2 for t in tables)
    if fine:
        tables = [
            t if t.ndim == len(batch) + 2 else t[..., None] if t.ndim > len(batch) else t for t in tables
        ]
    shape = (*batch, stages, batches) if fine else (*batch, stages)
    f, i, w = (np.broadcast_to(t, shape) for t in tables)
    by_kind = np.stack([f, i + w, i, w], axis=len(batch)).reshape(*batch, -1)
    cell = order.kind.astype(np.int64) * stages + order.stage
    own = by_kind.take(cell * batches + order.micro_batch if fine else cell, axis=-1)
    if pair_share is not None:
        if not 0 < pair_share < np.inf:
            raise InputError(f"pair_share must be above 0, not {pair_share}")
        first = np.flatnonzero(order.paired)
        own[..., first + 1] = pair_share * (own[..., first] + own[..., first + 1])
        own[..., first] = 0.0
    hops = _checked("p2p", p2p, (*batch, stages - 1))
    if stages < 2 or not hops.any():
        return own, np.zeros_like(own), np.zeros_like(own)
    hops = np.broadcast_to(hops, (*batch, stages - 1))
    # Boundary s lies between stages s and s + 1: a forward's input crosses boundary stage - 1.
    boundary = np.where(order.kind == F, order.stage - 1, order.stage).clip(0, stages - 2)
    hop = np.where(links.feeds >= 0, hops[..., boundary], 0.0)
    if overlap_p2p:
        return own, np.zeros_like(own), hop
    # The sender is held instead, so its result is there when it goes on.
    held = np.zeros_like(own)
    fed = np.flatnonzero(links.feeds >= 0)
    np.add.at(held.T, links.feeds[fed], hop.T[fed])
    return own, held, np.zeros_like(own)


def _node_times(links: Graph, taken: Floats, hop: Floats) -> tuple[Floats, Floats, Floats]:
    """Length of every node and delay of its input, in computing order; offset of every action in its node.

    The delay counts from the end of the node that sends: the transfer less what that node does
    after sending.
    """
    if len(links.heads) == taken.shape[-1]:
        return taken[..., links.sequence], np.zeros(()), hop[..., links.sequence]
    total = np.add.reduceat(taken, links.heads, axis=-1)
    until = np.cumsum(taken, axis=-1)
    offset = until - taken - (until[..., links.heads] - taken[..., links.heads])[..., links.run]
    after_sending = (total[..., links.run] - offset - taken)[..., links.feeds[links.heads]]
    delay = hop[..., links.heads] - np.where(links.feeds[links.heads] >= 0, after_sending, 0.0)
    return total[..., links.sequence], offset, delay[..., links.sequence]


def _checked(name: str, value: Any, *shapes: tuple[int, ...]) -> Floats:
    """``value`` as floats that broadcast to one of ``shapes``; none negative, NaN or infinite."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be numbers, not {value!r}") from None
    bad = np.argwhere(~((array >= 0) & (array < np.inf)))
    if len(bad):
        where = f" at {', '.join(map(str, bad[0]))}" if array.ndim else ""
        raise InputError(f"{name} must be 0 or more seconds, not {array[tuple(bad[0])]}{where}")
    if array.ndim and not any(_fits(array.shape, shape) for shape in shapes):
        wanted = " or ".join(" × ".join(map(str, shape)) for shape in shapes)
        raise InputError(
            f"{name} has {' × '.join(map(str, array.shape))} values; it needs one number or {wanted}"
        )
    return array


def _fits(given: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    return len(given) == len(wanted) and all(g in (1, w) for g, w in zip(given, wanted, strict=True))
