"""Distinct rows of a table: what many plans share is priced once and gathered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from meshplan.plan.plans import Ints, is_constant

_TABLE = 8
"""Codes up to this many times the rows are counted in a table instead of sorted."""


class Alike(NamedTuple):
    """Rows of a table that are alike in something: the first row of each kind, and for each row its kind."""

    first: Ints
    of: Ints


def alike(*columns: Ints) -> Alike:
    """Rows that agree in all columns."""
    return Alike(*distinct(columns))


def distinct(columns: Sequence[Ints]) -> tuple[Ints, Ints]:
    """First row of every distinct combination of columns, and for each row which combination it is.

    Columns are integers of equal length. Combinations are numbered in the order of their columns'
    values, so equal tables give equal numbers.
    """
    n = len(columns[0])
    limit = max(_TABLE * n, 1 << 12)
    packed, size = np.zeros(n, dtype=np.int64), 1
    for column in columns:
        if is_constant(column):
            continue
        low = int(column.min())
        span = int(column.max()) - low + 1
        if span == 1:
            continue
        codes = column - low
        if size * span > limit:
            packed, size = _dense(packed, size, limit)
            codes, span = _dense(codes, span, limit)
        packed = packed * span + codes
        size *= span
    of_row, size = _dense(packed, size, limit)
    first = np.empty(size, dtype=np.int64)
    first[of_row[::-1]] = np.arange(n - 1, -1, -1)
    return first, of_row


def _dense(codes: Ints, span: int, limit: int) -> tuple[Ints, int]:
    """The same codes renumbered without gaps, and how many there are."""
    if span > limit:
        values, renumbered = np.unique(codes, return_inverse=True)
        return renumbered, len(values)
    used = np.zeros(span, dtype=bool)
    used[codes] = True
    there = np.flatnonzero(used)
    numbers = np.empty(span, dtype=np.int64)
    numbers[there] = np.arange(len(there))
    return numbers[codes], len(there)
