"""The order of plans by time, in which times that agree but for rounding are equal."""

from __future__ import annotations

import numpy as np

from meshplan.cost.costs import Floats
from meshplan.plan.plans import Ints

TIE = 1e-9
"""Step times that differ by less, relatively, count as equal."""


def by_time(step_s: Floats, places: Ints) -> Ints:
    """Indices by step time; among ties by place (in the enumeration)."""
    order = np.argsort(step_s, kind="stable")
    times = step_s[order]
    group = np.zeros(len(times), dtype=np.int64)
    group[1:] = np.cumsum(np.diff(times) > TIE * times[:-1])
    return np.asarray(order[np.lexsort((places[order], group))])
