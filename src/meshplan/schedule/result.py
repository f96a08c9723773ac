"""What a simulated order did: times, idle shares, the critical path, activations alive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from meshplan.errors import InputError
from meshplan.schedule.order import LETTERS, B, F, I, Order, W

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


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Simulation:
    """Times of one run of an order, in seconds from the start of the step, by flat action index.

    ``begin`` is when an action could start, ``work`` what it computes, ``release`` when its rank goes
    on (after a send that holds it). A pair that runs together has all its work in its backward.
    """

    order: Order
    begin: Floats
    work: Floats
    release: Floats
    feeds: Indices
    together: bool
    tail: Floats
    """(ranks,): work after a rank's last action."""

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
        return self.release[self.order.first[1:] - 1]

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
        return np.add.reduceat(self.work, self.order.first[:-1]) + self.tail

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
        return float(1.0 - self.busy.mean() / self.step) if self.step > 0 else 0.0

    def memory(self, activation: Any = 1.0, *, freed_by_input: float = 0.0) -> Memory:
        """Activations alive if one micro-batch of a stage takes ``activation``: a number or one a stage.

        A forward takes them when it starts; a full backward frees them when it ends. Of a split
        backward the input gradient frees the share ``freed_by_input``, the weight gradient the rest
        (the gradients it must keep until then counted against that share).
        """
        order = self.order
        each = np.asarray(activation, dtype=np.float64)
        if each.ndim > 1 or (each.ndim == 1 and len(each) != order.stages):
            raise InputError(f"activations are one number or {order.stages}, one a stage, not {each.size}")
        if not 0.0 <= freed_by_input <= 1.0:
            raise InputError(f"the share an input gradient frees is from 0 to 1, not {freed_by_input}")
        change = np.empty(4)
        change[[F, B, I, W]] = 1.0, -1.0, -freed_by_input, freed_by_input - 1.0
        delta = change[order.kind] * (each[order.stage] if each.ndim else each)
        total = np.cumsum(delta)
        after = total - np.repeat((total - delta)[order.first[:-1]], np.diff(order.first))
        during = after - np.minimum(delta, 0.0)
        return Memory(after=after, during=during, peak=np.maximum.reduceat(during, order.first[:-1]))

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
