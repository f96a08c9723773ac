"""Arithmetic over a short last axis: rank types or layer kinds, a handful for each of very many plans.

NumPy runs along the last axis of an array as it is usually kept, a handful of entries at a time, which
costs several times the arithmetic. Here such an array lies in memory column by column (Fortran order, which
NumPy's arithmetic then keeps), and is reduced column by column.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from meshplan.cost.costs import Floats
from meshplan.plan.plans import Ints


def rows(table: Floats, index: Ints) -> Floats:
    """The rows of a table that ``index`` names, column by column in memory."""
    return np.asarray(table.T.take(index, axis=-1).T)


def zeros(*shape: int) -> Floats:
    """An array of zeros, column by column in memory."""
    return np.zeros(shape, order="F")


def most(values: Floats) -> Floats:
    """The largest along the last axis, which has at least one entry."""
    largest = values[..., 0].copy()
    for column in range(1, values.shape[-1]):
        np.maximum(largest, values[..., column], out=largest)
    return np.asarray(largest)


def total(values: Floats) -> Floats:
    """The sum along the last axis, from the first entry on."""
    found = values[..., 0].copy()
    for column in range(1, values.shape[-1]):
        found += values[..., column]
    return np.asarray(found)


def added(columns: Iterable[Floats]) -> Floats:
    """The sum of at least one column, from the first on."""
    first, *others = columns
    found = first.copy()
    for column in others:
        found += column
    return found


def widest(values: Floats) -> Ints:
    """For each row, the first column that holds its largest value."""
    largest, at = values[:, 0].copy(), np.zeros(len(values), dtype=np.int64)
    for column in range(1, values.shape[1]):
        here = values[:, column]
        np.maximum(at, (here > largest) * column, out=at)  # a mask to assign by takes several times as long
        np.maximum(largest, here, out=largest)
    return at


def flat(table: Floats) -> Floats:
    """All entries of a table, one column after the other."""
    return np.asarray(table.T.ravel())
