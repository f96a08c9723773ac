"""Stretches of an order in which all ranks do the same again and again, micro-batch after micro-batch.

Once every action of such a stretch comes exactly one shift later than its counterpart a period
before, so do all that follow: what an action waits for has moved by the same shift. A simulation can
then leave the rest of the stretch out.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]

_FEWEST = 2
"""Periods below which a stretch is not worth it."""


class Repeat(NamedTuple):
    """Places in computing order ``start`` to ``stop`` repeat every ``period`` places."""

    start: int
    stop: int
    period: int
    reach: int
    """How many places back the actions of the stretch look."""
    back: int
    """How many places before ``stop`` the actions after the stretch look."""


def find_repeats(
    site: Indices, before: Indices, fed_by: Indices, batches: int, ranks: int, stages: int
) -> list[Repeat]:
    """The longest stretches; arrays are in computing order, ``before`` and ``fed_by`` places back.

    Actions of equal ``site`` take the same time. Periods tried are those of a few micro-batches, and
    of as many as there are ranks; last those of one and two micro-batches with whole backwards, where
    others of the order are split.
    """
    n = len(site)
    found: list[Repeat] = []
    counts = dict.fromkeys((1, ranks, 2, *range(3, 9), 2 * ranks))
    periods = [n * several // batches for several in counts if not n * several % batches]
    for period in (*periods, 2 * stages, 4 * stages):
        if n < _FEWEST * period:
            continue
        same = (
            (site[period:] == site[:-period])
            & (before[period:] == before[:-period])
            & (fed_by[period:] == fed_by[:-period])
        )
        edges = np.concatenate([[-1], np.flatnonzero(~same), [len(same)]])
        lengths = np.diff(edges) - 1
        for k in np.flatnonzero(lengths >= (_FEWEST - 1) * period).tolist():
            start, stop = int(edges[k]) + 1, int(edges[k] + 1 + lengths[k]) + period
            repeat = _repeat(start, stop, period, np.maximum(before, fed_by))
            if repeat.back <= (stop - start) // 2:
                found.append(repeat)
        if max((r.stop - r.start for r in found), default=0) > n // 2:
            break
    apart: list[Repeat] = []
    for repeat in sorted(found, key=lambda r: r.start - r.stop):
        if all(repeat.stop <= other.start or repeat.start >= other.stop for other in apart):
            apart.append(repeat)
    return sorted(apart)


def _repeat(start: int, stop: int, period: int, looks_back: Indices) -> Repeat:
    reach = int(looks_back[start:stop].max())
    beyond = looks_back[stop:] - np.arange(len(looks_back) - stop)
    return Repeat(start, stop, period, reach, int(beyond.max(initial=0)))
