"""Sets of moments as sorted disjoint intervals: union, what is left of one outside another, lengths."""

from __future__ import annotations

from array import array

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Spans = npt.NDArray[np.float64]
"""(intervals, 2): starts and ends, ascending, disjoint."""

EMPTY: Spans = np.zeros((0, 2))


class Cover:
    """A union that grows: intervals are merged now and then, so that memory follows what they cover."""

    def __init__(self) -> None:
        self._starts, self._ends = array("d"), array("d")
        self._limit = 1 << 16

    def add(self, start: float, end: float) -> None:
        """One more interval."""
        if end > start:
            self._starts.append(start)
            self._ends.append(end)
            if len(self._starts) >= self._limit:
                self._merge()

    def _merge(self) -> None:
        spans = self.spans()
        self._starts, self._ends = array("d", spans[:, 0]), array("d", spans[:, 1])
        self._limit = max(1 << 16, 2 * len(spans))

    def spans(self) -> Spans:
        """The union."""
        return union(np.stack([np.array(self._starts), np.array(self._ends)], axis=1))


def union(spans: Spans) -> Spans:
    """Sorted disjoint intervals that cover the same moments."""
    if not len(spans):
        return EMPTY
    ordered = spans[np.argsort(spans[:, 0], kind="stable")]
    reach = np.maximum.accumulate(ordered[:, 1])
    new = np.ones(len(ordered), dtype=bool)
    new[1:] = ordered[1:, 0] > reach[:-1]
    first = np.flatnonzero(new)
    last = np.append(first[1:] - 1, len(ordered) - 1)
    return np.stack([ordered[first, 0], reach[last]], axis=1)


def both(a: Spans, b: Spans) -> Spans:
    """Moments in both."""
    if not len(a) or not len(b):
        return EMPTY
    low = np.searchsorted(b[:, 1], a[:, 0], side="right")
    high = np.searchsorted(b[:, 0], a[:, 1], side="left")
    counts = np.maximum(high - low, 0)
    at = np.repeat(np.arange(len(a)), counts)
    offset = np.arange(len(at)) - np.repeat(np.cumsum(counts) - counts, counts)
    other = low[at] + offset
    return np.stack([np.maximum(a[at, 0], b[other, 0]), np.minimum(a[at, 1], b[other, 1])], axis=1)


def without(a: Spans, b: Spans) -> Spans:
    """Moments of ``a`` outside ``b``."""
    if not len(a) or not len(b):
        return a
    gaps = np.stack([np.append(-np.inf, b[:, 1]), np.append(b[:, 0], np.inf)], axis=1)
    found = both(a, gaps)
    return found[found[:, 1] > found[:, 0]]


def length(spans: Spans) -> float:
    """Moments in all."""
    return float((spans[:, 1] - spans[:, 0]).sum()) if len(spans) else 0.0


def clip(spans: Spans, start: float, end: float) -> Spans:
    """What lies between two moments."""
    return both(spans, np.array([[start, end]]))
