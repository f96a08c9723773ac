"""Durations as callers give them: checked, and looked up for actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from meshplan.errors import InputError
from meshplan.schedule.graph import Graph
from meshplan.schedule.order import F, Order

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]


class Spent(NamedTuple):
    """Seconds of some actions, each of shape (actions, *batch)."""

    work: Floats
    """What it computes; an overlapped pair has all its work in its backward."""
    held: Floats
    """How long its rank is then held for sending."""
    hop: Floats
    """How long its input travels from another rank."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Durations:
    """Durations of one order, as ``simulate`` takes them; the batch, if any, is the last axis."""

    work: Floats
    """(4, stages, *batch) by kind, or (4, stages, micro_batches, *batch)."""
    p2p: Floats
    """(stages - 1, *batch)"""
    by_micro_batch: bool
    overlap_p2p: bool
    pair_share: float | None

    @classmethod
    def of(
        cls,
        order: Order,
        batch: tuple[int, ...],
        forward: Any,
        backward_input: Any,
        weight: Any,
        p2p: Any,
        overlap_p2p: bool,
        pair_share: float | None,
    ) -> Durations:
        """Check and broadcast; raises InputError for values and shapes that make no sense."""
        stages, batches = order.stages, order.micro_batches
        given = {"forward": forward, "backward_input": backward_input, "weight": weight}
        tables = [checked(n, x, (stages, *batch), (stages, batches, *batch)) for n, x in given.items()]
        fine = any(t.ndim == 2 + len(batch) for t in tables)
        shape = (stages, batches, *batch) if fine else (stages, *batch)
        f, i, w = (
            np.broadcast_to(t[:, None] if fine and 0 < t.ndim < len(shape) else t, shape) for t in tables
        )
        if pair_share is not None and not 0 < pair_share < np.inf:
            raise InputError(f"pair_share must be above 0, not {pair_share}")
        return cls(
            work=np.stack([f, i + w, i, w]),
            p2p=np.broadcast_to(checked("p2p", p2p, (stages - 1, *batch)), (stages - 1, *batch)),
            by_micro_batch=fine,
            overlap_p2p=overlap_p2p,
            pair_share=pair_share,
        )

    def at(self, order: Order, links: Graph, actions: Indices) -> Spent:
        """The seconds of these actions, given by flat index."""
        work = self._work(order, actions)
        if self.pair_share is not None:
            first = order.paired[actions]
            second = np.flatnonzero((actions > 0) & order.paired[actions - 1])
            both = self._work(order, actions[second] - 1) + work[second]
            work[second] = self.pair_share * both
            work[first] = 0.0
        held, hop = np.zeros((2, *work.shape))
        if not self.p2p.any():
            return Spent(work, held, hop)
        # Boundary s lies between stages s and s + 1.
        stage, forward = order.stage[actions], order.kind[actions] == F
        if self.overlap_p2p:
            fed = (links.feeds[actions] >= 0) & ~links.beside[actions]
            hop[fed] = self.p2p[stage[fed] - forward[fed]]
            return Spent(work, held, hop)
        # The sender is held instead, so its result is there when it goes on. The backward of a pair
        # sends for its forward, the action before it.
        on, back = links.sends_on[actions], links.sends_back[actions]
        held[on] += self.p2p[np.where(forward, stage, order.stage[actions - 1])[on]]
        held[back] += self.p2p[stage[back] - 1]
        return Spent(work, held, hop)

    def _work(self, order: Order, actions: Indices) -> Floats:
        where = (order.kind[actions], order.stage[actions])
        return self.work[(*where, order.micro_batch[actions])] if self.by_micro_batch else self.work[where]


def checked(name: str, value: Any, *shapes: tuple[int, ...]) -> Floats:
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
