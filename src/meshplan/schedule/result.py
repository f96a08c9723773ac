"""What a simulated order did: times, idle shares, the critical path, activations alive."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from meshplan.errors import InputError
from meshplan.schedule.durations import Durations, Spent
from meshplan.schedule.graph import Graph
from meshplan.schedule.order import LETTERS, B, F, I, Order, W
from meshplan.schedule.times import Times

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]


class Moment(NamedTuple):
    """One action of the critical path, in seconds from the start of the step."""

    rank: int
    kind: str
    stage: int
    micro_batch: int
    start: float
    end: float

    def __str__(self) -> str:
        return f"rank {self.rank}: {self.stage}{self.kind}{self.micro_batch}"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Memory:
    """Activations alive on every rank, in the unit they were given in."""

    after: Floats
    """(actions,): alive on the action's rank once the action is done."""
    during: Floats
    """(actions,): alive while the action runs."""
    peak: Floats
    """(ranks,)"""


def alive(order: Order, each: Floats, *, freed_by_input: float = 0.0) -> Memory:
    """Activations alive along an order, which no duration changes; see ``Simulation.memory``.

    ``each`` is a number, one a stage, or (stages, runs); arrays then have a last axis of runs.
    """
    change = np.empty(4)
    change[[F, B, I, W]] = 1.0, -1.0, -freed_by_input, freed_by_input - 1.0
    kinds = change[order.kind].reshape(-1, *([1] * (each.ndim - 1)))
    delta = kinds * (each[order.stage] if each.ndim else each)
    total = np.cumsum(delta, axis=0)
    after = total - np.repeat((total - delta)[order.first[:-1]], np.diff(order.first), axis=0)
    during = after - np.minimum(delta, 0.0)
    return Memory(after=after, during=during, peak=np.maximum.reduceat(during, order.first[:-1], axis=0))


@dataclass(frozen=True, kw_only=True, eq=False)
class Simulation:
    """Times of one run of an order, in seconds from the start of the step, by flat action index.

    ``begin`` is when an action could start, ``work`` what it computes, ``release`` when its rank goes
    on (after a send that holds it). A pair that runs together has all its work in its backward.
    """

    order: Order
    links: Graph
    durations: Durations
    times: Times
    tail: Floats
    """(ranks,): work after a rank's last action."""

    @property
    def together(self) -> bool:
        """Whether overlapped pairs start and end together."""
        return self.durations.pair_share is not None

    @property
    def feeds(self) -> Indices:
        """(actions,): the action on another rank each one needs; -1 for none."""
        return self.links.feeds

    @cached_property
    def _spent(self) -> Spent:
        return self.durations.at(self.order, self.links, np.arange(len(self.order)))

    @property
    def work(self) -> Floats:
        """(actions,)"""
        return self._spent.work

    @cached_property
    def release(self) -> Floats:
        """(actions,)"""
        return self.times.all()[self.links.place]

    @cached_property
    def begin(self) -> Floats:
        """(actions,)"""
        begin = np.append(0.0, self.release[:-1])
        begin[self.order.first[:-1]] = 0.0
        fed = np.flatnonzero(self.feeds >= 0)
        arrival = self.release[self.feeds[fed]] + self._spent.hop[fed]
        begin[fed] = np.maximum(begin[fed], arrival)
        return begin

    @property
    def start(self) -> Floats:
        """(actions,): when each action starts; both of an overlapped pair at once."""
        return self._pairs(self.begin)

    @property
    def end(self) -> Floats:
        """(actions,): when each action ends; both of an overlapped pair at once."""
        return self._pairs(self.begin + self.work)

    def _pairs(self, times: Floats) -> Floats:
        if not self.together:
            return times
        forward = np.flatnonzero(self.order.paired)
        shown = times.copy()
        shown[forward] = times[forward + 1]
        return shown

    @property
    def pipeline_end(self) -> Floats:
        """(ranks,): when each rank is done with its last action."""
        return self.times.at(self.links.place[self.order.first[1:] - 1])

    @property
    def finish(self) -> Floats:
        """(ranks,): when each rank is done, its tail included."""
        return self.pipeline_end + self.tail

    @property
    def step(self) -> float:
        """Seconds until the last rank is done."""
        return float(self.finish.max())

    @property
    def busy(self) -> Floats:
        """(ranks,): seconds of work, the tail included."""
        if self.durations.by_micro_batch:
            return np.add.reduceat(self.work, self.order.first[:-1]) + self.tail
        sites = self.links.sites
        each = self.durations.at(self.order, self.links, sites.example).work
        return np.bincount(sites.rank, weights=each * sites.count, minlength=self.order.ranks) + self.tail

    @property
    def idle(self) -> Floats:
        """(ranks,): seconds of the step without work: fill, waits, held sends and drain."""
        return self.step - self.busy

    @property
    def wait(self) -> Floats:
        """(ranks,): idle seconds between a rank's first and last action."""
        return self.pipeline_end - self.begin[self.order.first[:-1]] - (self.busy - self.tail)

    @property
    def span(self) -> Floats:
        """(ranks,): seconds from a rank's first action to its end."""
        return self.finish - self.begin[self.order.first[:-1]]

    @property
    def bubble(self) -> float:
        """Idle share of all ranks over the step, 0 to 1."""
        return max(float(1.0 - self.busy.mean() / self.step), 0.0) if self.step > 0 else 0.0

    def memory(self, activation: Any = 1.0, *, freed_by_input: float = 0.0) -> Memory:
        """Activations alive if one micro-batch of a stage takes ``activation``: a number or one a stage.

        A forward takes them when it starts; a full backward frees them when it ends. Of a split
        backward the input gradient frees the share ``freed_by_input``, the weight gradient the rest
        (the gradients it must keep until then counted against that share).
        """
        each = np.asarray(activation, dtype=np.float64)
        if each.ndim > 1 or (each.ndim == 1 and len(each) != self.order.stages):
            raise InputError(
                f"activations are one number or {self.order.stages}, one a stage, not {each.size}"
            )
        if not 0.0 <= freed_by_input <= 1.0:
            raise InputError(f"the share an input gradient frees is from 0 to 1, not {freed_by_input}")
        return alive(self.order, each, freed_by_input=freed_by_input)

    @property
    def peak_in_flight(self) -> npt.NDArray[np.int64]:
        """(ranks,): most activations alive at once, one for each stage and micro-batch."""
        return np.rint(self.memory().peak).astype(np.int64)

    def critical_path(self) -> list[Moment]:
        """The chain of actions, first to last, none of which could have started earlier."""
        order, step = self.order, self.step
        rank_of, first = order.rank, order.first
        tolerance = 1e-9 * step
        at = int(first[int(self.finish.argmax()) + 1]) - 1
        path: list[Moment] = []
        start, end = self.start, self.end
        while True:
            rank = int(rank_of[at])
            path.append(
                Moment(
                    rank, LETTERS[order.kind[at]], int(order.stage[at]), int(order.micro_batch[at]),
                    float(start[at]), float(end[at]),
                )
            )  # fmt: skip
            is_first = at == first[rank]
            free = 0.0 if is_first else float(self.release[at - 1])
            if self.feeds[at] >= 0 and self.begin[at] > free + tolerance:
                at = int(self.feeds[at])
            elif is_first:
                return path[::-1]
            else:
                at -= 1
