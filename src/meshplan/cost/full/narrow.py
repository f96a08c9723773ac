"""Reductions over a short last axis: rank types or layer kinds, a handful for each of very many plans.

NumPy reduces such an axis row by row, which costs several times the arithmetic; here it is taken column by
column.
"""

from __future__ import annotations

import numpy as np

from meshplan.cost.costs import Floats


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
