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
    length, delay = taken[links.sequence], hop[links.sequence]
    # When each action's rank goes on, in computing order; entry 0 is the start of the step.
    ends = [0.0]
    push = ends.append
    steps = zip(links.before, links.fed_by, delay.tolist(), length.tolist(), strict=True)
    for before, fed_by, wait, work in steps:
        free, arrival = ends[before], ends[fed_by] + wait
        push((free if free > arrival else arrival) + work)
    release = np.empty(len(order))
    release[links.sequence] = ends[1:]
    begin = np.append(0.0, release[:-1])
    begin[order.first[:-1]] = 0.0
    fed = np.flatnonzero(links.feeds >= 0)
    begin[fed] = np.maximum(begin[fed], release[links.feeds[fed]] + hop[fed])
    after = np.broadcast_to(_checked("tail", tail, (order.ranks,)), (order.ranks,))
    return Simulation(
        order=order,
        begin=begin,
        work=own,
        release=release,
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
    # The batch is the last axis from here on: a row is one action in every run.
    work = tuple(
        np.moveaxis(np.asarray(x), 0, -1) if np.ndim(x) > 1 else x for x in (forward, backward_input, weight)
    )
    batch = (max(np.shape(x)[-1] if np.ndim(x) > 1 else 1 for x in work),)
    hops = np.asarray(p2p).T if np.ndim(p2p) > 1 else p2p
    own, held, hop = _durations(order, links, batch, work, hops, overlap_p2p, pair_share)
    plan = levels(links)
    length, delay = (own + held)[plan.sequence], hop[plan.sequence]
    ends = np.zeros((len(order) + 1, *batch))
    buffer = np.empty((order.ranks, *batch))
    for low, high in plan.blocks:
        arrival = ends.take(plan.fed_by[low:high], axis=0, out=buffer[: high - low], mode="clip")
        arrival += delay[low:high]
        block = ends[low + 1 : high + 1]
        ends.take(plan.before[low:high], axis=0, out=block, mode="clip")
        np.maximum(block, arrival, out=block)
        block += length[low:high]
    after = np.broadcast_to(_checked("tail", tail, (*batch, order.ranks)), (*batch, order.ranks))
    finish = ends[plan.place[order.first[1:] - 1]].T + after
    busy = np.add.reduceat(own, order.first[:-1], axis=0).T + after
    return BatchResult(step=finish.max(axis=1), finish=finish, busy=busy)


def _durations(
    order: Order,
    links: Graph,
    batch: tuple[int, ...],
    work: tuple[Any, ...],
    p2p: Any,
    overlap_p2p: bool,
    pair_share: float | None,
) -> tuple[Floats, Floats, Floats]:
    """For every action: its own time, the time it holds its rank for sending, its input's transfer time.

    All of shape (actions, *batch).
    """
    stages, batches = order.stages, order.micro_batches
    names = ("forward", "backward_input", "weight")
    tables = [
        _checked(n, w, (stages, *batch), (stages, batches, *batch)) for n, w in zip(names, work, strict=True)
    ]
    fine = any(t.ndim == 2 + len(batch) for t in tables)
    shape = (stages, batches, *batch) if fine else (stages, *batch)
    f, i, w = (np.broadcast_to(t[:, None] if fine and 0 < t.ndim < len(shape) else t, shape) for t in tables)
    by_kind = np.stack([f, i + w, i, w]).reshape(-1, *batch)
    cell = order.kind.astype(np.int64) * stages + order.stage
    own = by_kind[cell * batches + order.micro_batch if fine else cell]
    if pair_share is not None:
        if not 0 < pair_share < np.inf:
            raise InputError(f"pair_share must be above 0, not {pair_share}")
        first = np.flatnonzero(order.paired)
        own[first + 1] = pair_share * (own[first] + own[first + 1])
        own[first] = 0.0
    held, hop = np.zeros((2, *own.shape))
    hops = _checked("p2p", p2p, (stages - 1, *batch))
    if stages < 2 or not hops.any():
        return own, held, hop
    # Boundary s lies between stages s and s + 1: a forward's input crosses boundary stage - 1.
    fed = np.flatnonzero(links.feeds >= 0)
    boundary = order.stage[fed] - (order.kind[fed] == F)
    crossing = np.broadcast_to(hops, (stages - 1, *batch))[boundary]
    if overlap_p2p:
        hop[fed] = crossing
    else:
        # The sender is held instead, so its result is there when it goes on.
        np.add.at(held, links.feeds[fed], crossing)
    return own, held, hop


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
