"""Zero-bubble orders made for given durations and a memory limit (ZB-1p, ZB-2p and between).

The heuristic of the zero-bubble paper (arXiv 2401.10241, section 3.1): as many forwards first as the
memory allows, then backwards as they arrive, forwards when there is room, weight gradients into the
gaps and when memory runs out. It has two switches; all four settings are tried and the best is kept.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshplan.errors import InputError
from meshplan.schedule.order import F, I, Order, W, assemble, program
from meshplan.schedule.simulate import simulate

_EPS = 1e-9


def automatic_zero_bubble(
    *,
    ranks: int,
    micro_batches: int,
    forward: Any,
    backward_input: Any,
    weight: Any,
    p2p: float = 0.0,
    limit: float,
    freed_by_input: float = 0.5,
) -> Order:
    """The best order found with at most ``limit`` micro-batches' activations alive on a rank.

    Durations are one number or one a rank, in seconds; ``freed_by_input`` is the share of its
    activations an input gradient frees. ``limit = ranks`` is ZB-1p, ``2 · ranks`` ZB-2p. Best is the
    shortest time of the slowest rank from its own start: ranks need not end together.
    """
    if ranks < 1 or micro_batches < 1:
        raise InputError(f"there must be ranks and micro-batches, not {ranks} and {micro_batches}")
    if not limit >= 1:
        raise InputError(f"the limit must be at least 1 micro-batch, not {limit}")
    work = [
        np.broadcast_to(np.asarray(x, dtype=np.float64), (ranks,)) for x in (forward, backward_input, weight)
    ]
    times = [w.tolist() for w in work]
    best: tuple[float, Order] | None = None
    for overfill in (False, True):
        for eager in (False, True):
            maker = _Maker(times, p2p, micro_batches, limit, freed_by_input, overfill=overfill, eager=eager)
            order = maker.order()
            run = simulate(order, forward=work[0], backward_input=work[1], weight=work[2], p2p=p2p)
            longest = float(run.span.max())
            if best is None or longest < best[0]:
                best = (longest, order)
    assert best is not None
    return best[1]


class _Maker:
    """Plays the pipeline through in time; what each rank chooses becomes its order."""

    def __init__(
        self,
        times: Sequence[list[float]],
        p2p: float,
        micro_batches: int,
        limit: float,
        freed_by_input: float,
        *,
        overfill: bool,
        eager: bool,
    ) -> None:
        self.times, self.p2p, self.micro_batches, self.limit = times, p2p, micro_batches, limit
        self.freed = freed_by_input
        self.overfill, self.eager = overfill, eager
        ranks = self.ranks = len(times[0])
        # How many each rank has done, by kind; when inputs arrived; activations alive; when it is free.
        self.done = {kind: [0] * ranks for kind in (F, I, W)}
        self.arrived: dict[int, list[list[float]]] = {
            F: [[] for _ in range(ranks)],
            I: [[] for _ in range(ranks)],
        }
        self.arrived[F][0] = [0.0] * micro_batches
        self.alive, self.free = [0.0] * ranks, [0.0] * ranks
        self.forward_is_next = [False] * ranks
        self.rows: list[list[tuple[int, int, int]]] = [[] for _ in range(ranks)]
        down = sum(times[F]) + (ranks - 1) * p2p
        # Indices into ``times``: 0 forward, 1 input gradient, 2 weight gradient.
        self.first_gradient = [down + sum(times[1][r + 1 :]) + (ranks - 1 - r) * p2p for r in range(ranks)]

    def order(self) -> Order:
        events = [(0.0, rank) for rank in range(self.ranks)]
        while events:
            now, rank = heapq.heappop(events)
            if now < self.free[rank] - _EPS or self.done[W][rank] == self.micro_batches:
                continue
            kind = self._choose(rank, now)
            if kind is None:
                later = [t for t in self._next_inputs(rank) if t > now + _EPS]
                if later:
                    heapq.heappush(events, (min(later), rank))
                continue
            for event in self._run(rank, kind, now):
                heapq.heappush(events, event)
        programs = [program(rows) for rows in self.rows]
        return assemble("zb-auto", stages=self.ranks, micro_batches=self.micro_batches, programs=programs)

    def _next_inputs(self, rank: int) -> list[float]:
        times = []
        for kind in (F, I):
            done = self.done[kind][rank]
            if done < len(self.arrived[kind][rank]):
                times.append(self.arrived[kind][rank][done])
        return times

    def _ready(self, rank: int, kind: int, now: float) -> bool:
        done, arrived = self.done[kind][rank], self.arrived[kind][rank]
        return done < len(arrived) and arrived[done] <= now + _EPS

    def _choose(self, rank: int, now: float) -> int | None:
        """Gradient and forward in turn, the gradient first; else a weight gradient; None to wait."""
        room = self.alive[rank] + 1 <= self.limit + _EPS
        forward = room and self._ready(rank, F, now)
        if self._ready(rank, I, now) and not (forward and self.forward_is_next[rank]):
            return I
        if forward:
            # Before the first gradient comes, a forward that would delay it only if ``overfill``.
            warming = not self.done[I][rank] and self.done[F][rank] >= self.ranks - rank
            delays = now + self.times[0][rank] > self.first_gradient[rank] + _EPS
            if self.overfill or not (warming and delays):
                return F
        if self.done[W][rank] < self.done[I][rank]:
            gaps = [t - now for t in self._next_inputs(rank)]
            if self.eager or not room or not gaps or min(gaps) >= self.times[2][rank] - _EPS:
                return W
        return None

    def _run(self, rank: int, kind: int, now: float) -> list[tuple[float, int]]:
        """Note an action and what it sends; the moments at which ranks may choose again."""
        end = now + self.times[(F, I, W).index(kind)][rank]
        batch = self.done[kind][rank]
        self.rows[rank].append((kind, rank, batch))
        self.done[kind][rank] += 1
        self.free[rank] = end
        self.forward_is_next[rank] = kind == I or (kind == W and self.forward_is_next[rank])
        self.alive[rank] += {F: 1.0, I: -self.freed, W: self.freed - 1.0}[kind]
        events = [(end, rank)]
        to = rank + 1 if kind == F else rank - 1
        if kind == F and rank == self.ranks - 1:
            self.arrived[I][rank].append(end)
        elif kind != W and to >= 0:
            self.arrived[kind][to].append(end + self.p2p)
            events.append((end + self.p2p, to))
        return events
