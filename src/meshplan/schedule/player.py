"""Plays an order's actions one after the other, and leaves out what repeats.

In a stretch that repeats (``repeats``) every action comes, sooner or later, the same time later than its
counterpart a period before, each its own time as long as no rank starts to wait for another than before.
How long that lasts is known from how far the two inputs of every action are apart, so that a run jumps
to the next change at once, however many periods away it is.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from meshplan.schedule.graph import Graph
from meshplan.schedule.repeats import Repeat
from meshplan.schedule.times import Times

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

SAME_SHIFT = 1e-12
"""Shifts may differ by rounding, relative to the time reached."""
_FEWEST = 3
"""Periods below which a jump is not worth it."""
_SOME = 400
"""Actions played at least before it is tried again to jump."""
_SHORT = 600
"""Actions of a period below which a look at a few of them is worth it before all are looked at."""


@lru_cache(maxsize=64)
def looks_back(links: Graph) -> tuple[list[int], list[int], list[int]]:
    """For every place in computing order: how far back its rank's last action is and the one that feeds
    it, as indices from the end of a list; and its site."""
    row = links.sites.of[links.sequence]
    return (-links.before).tolist(), (-links.fed_by).tolist(), row.tolist()


class Player:
    """One run of an order. ``taken`` and ``hop`` are one a site, or, with ``row``, one a row.

    ``row``: for every place, where its times are in ``taken`` and ``hop``.
    """

    def __init__(self, links: Graph, taken: Floats, hop: Floats, *, row: Indices | None = None) -> None:
        self.links, self.hops = links, hop
        self.before, self.fed_by, self.row = looks_back(links)
        if row is not None:
            self.row = row.tolist()
        self.taken, self.hop = taken.tolist(), hop.tolist()
        self.waits = bool(hop.any())
        self.ends = [0.0]

    def play(self, repeats: list[Repeat], more: int = 0) -> Times:
        """When every action's rank goes on. ``more``: the only repeat has so many periods more than in the
        order; places after it are then as much later."""
        longer = sum(repeat.period for repeat in repeats) * more
        times = Times(len(self.links.sequence) + longer, self.ends)
        at = 0
        for repeat in repeats:
            self._run(at, repeat.start)
            self._repeat(repeat, times, repeat.stop - repeat.start + more * repeat.period)
            at = repeat.stop
        self._run(at, len(self.links.sequence))
        return times

    def _repeat(self, repeat: Repeat, times: Times, left: int) -> None:
        """Play the ``left`` places of a stretch, or jump over them."""
        start, stop, period, reach, back = repeat
        at, wait = start, max(period, _SOME // period * period)
        first = len(self.ends)
        fresh = 1  # of what lies before the last jump only the end is there to be looked at

        def on(places: int) -> None:
            nonlocal at, left
            while places:
                at = stop - period if at == stop else at
                some = min(places, stop - at)
                self._run(at, at + some)
                at, left, places = at + some, left - some, places - some

        on(min(left, period))
        while left:
            there = len(self.ends) - fresh
            several = self._turn(period, len(self.ends) - max(first, fresh))
            long = several * period
            found: tuple[float, Floats] | None = None
            if there >= long + reach and (shift := self._uniform(long, reach)) is not None:
                found = np.inf, np.full(long, shift)
            elif there >= max(long, reach) + long and (several > 1 or self._calm(period)):
                found = self._linear(at, repeat, several)
            if found is None:
                on(min(left, wait))
                wait += wait // 4 // period * period  # the longer it takes, the less often it is tried
                continue
            periods, shifts = found
            places = left if periods * long >= left else int(periods) * long
            kept = back if places == left else max(long, reach) + long
            if places > max(kept, 2 * long):
                times.skip(long, places, shifts, kept)
                left, fresh = left - places, len(self.ends) - min(kept, places)
            if left:
                on(min(left, 2 * period))

    def _run(self, low: int, high: int) -> None:
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

    def _uniform(self, period: int, reach: int) -> float | None:
        """By how much all that the next actions look at comes later than a period before; ``None`` if not
        all by the same, which it then does for ever."""
        ends = self.ends
        most, shift = SAME_SHIFT * ends[-1], ends[-1] - ends[-1 - period]
        for now, then in zip(ends[-reach:], ends[-reach - period : -period], strict=True):
            if abs(now - then - shift) > most:
                return None
        return shift

    def _turn(self, period: int, places: int) -> int:
        """After how many periods the last ``places`` seem to do the same again: 1F1B, say, after as many as
        micro-batches are under way, if what it waits for is their way there and back."""
        marks = np.array(self.ends[-1 : -places - 1 : -period])
        steps = marks[:-1] - marks[1:]
        most = 4 * SAME_SHIFT * self.ends[-1]
        for turn in (1 + np.flatnonzero(np.abs(steps[1:] - steps[:1]) <= most)).tolist():
            if 2 * turn > len(steps):
                break
            if (np.abs(steps[:turn] - steps[turn : 2 * turn]) <= most).all():
                return int(turn)
        return 1

    def _calm(self, period: int) -> bool:
        """Whether some actions came as much later than a period before as those before theirs."""
        ends = self.ends
        if period > _SHORT:
            return True
        if len(ends) <= 3 * period:
            return False
        most = SAME_SHIFT * ends[-1]
        for back in range(1, period + 1, max(period // 12, 1)):
            now, then = ends[-back], ends[-back - period]
            if abs(now - 2 * then + ends[-back - 2 * period]) > 4 * most:
                return False
        return True

    def _linear(self, at: int, repeat: Repeat, several: int) -> tuple[float, Floats] | None:
        """For how many periods every action goes on coming its own time later than the one a period before,
        and these times for the last period; ``None`` if not even for the next few.

        With both inputs of an action at x and y, moving by s and t a period, the action itself moves by the
        larger of x + n s and y + n t; that is a straight line until the steeper of the two takes over.
        """
        period = several * repeat.period
        long = max(period, repeat.reach)
        ends = np.array(self.ends[-long - period :])
        shifts = ends[period:] - ends[:-period]
        most = SAME_SHIFT * ends[-1]
        if long > period and (np.abs(shifts[period:] - shifts[:-period]) > most).any():
            return None
        own = shifts[-period:]
        # Places of the last period played, in the stretch and, from its first copies on, among ``ends``.
        last = np.arange(at - repeat.period, at)
        if several > 1:
            last = np.tile(last, several)
        here = np.arange(long, long + period)
        inputs, moves = [], []
        for looks in (self.links.before[last], self.links.fed_by[last]):
            index = here - looks
            inputs.append(ends[index])
            moves.append(shifts[np.where(index >= period, index - period, index)])
        x, y = inputs[0], inputs[1] + self.hops[self.links.sites.of[self.links.sequence[last]]]
        start = np.maximum(x, y)
        if (np.abs(np.maximum(x + moves[0], y + moves[1]) - start - own) > most).any():
            return None
        periods = np.inf
        for place, move in ((x, moves[0]), (y, moves[1])):
            faster = move - own
            rows = np.flatnonzero(faster > 2 * most)
            if len(rows):
                periods = min(periods, float(((start - place)[rows] / faster[rows]).min()))
        periods = np.floor(periods)
        return (float(periods), own) if periods >= _FEWEST else None
