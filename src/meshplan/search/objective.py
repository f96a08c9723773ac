"""What plans are ranked by, and when two of them are as good.

The simpler of two plans is the one in which fewer things must work: see ``complexity``.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from meshplan.cost.costs import Bools, Costs, Floats
from meshplan.plan.kinds import CpKind, Schedule, Sharding
from meshplan.plan.plans import Ints, Plans

Objective = Literal["step", "mfu", "memory", "cost", "simplicity"]
OBJECTIVES: tuple[Objective, ...] = ("step", "mfu", "memory", "cost", "simplicity")
BY_TIME: tuple[Objective, ...] = ("step", "mfu", "cost")
"""Those that the step time alone decides on one cluster."""
TIE = 1e-9
"""Values that differ by less, relatively, count as equal."""
ROOMY = 0.95
"""Share of the memory beyond which a plan may run out of it, estimates being a little off."""
_PLAIN = (Schedule.GPIPE, Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED)


def complexity(plans: Plans, gpus_per_node: int) -> Ints:
    """How many things a plan needs besides data parallelism, for each plan.

    One for each of: tensor, context, pipeline and expert parallelism; tensor parallelism of experts;
    tensor parallelism beyond a node; virtual stages; stages of unequal layers; sharding of gradients or
    weights; replicas of shards; whole layers recomputed; modules recomputed; a kind of context parallelism
    other than ring or all-gather. Two for a schedule that few frameworks have.
    """
    p = plans
    count = np.zeros(len(p), dtype=np.int64)
    for name in ("tp", "cp", "pp", "ep", "etp", "vp", "replicas"):
        count += getattr(p, name) > 1
    count += p.tp > gpus_per_node
    count += p.layout >= 0
    count += p.sharding >= Sharding.ZERO2
    count += p.recompute_layers != 0
    count += p.recompute_modules != 0
    count += (p.cp > 1) & (p.cp_kind >= CpKind.ULYSSES)
    return np.asarray(count + 2 * ((p.pp > 1) & ~np.isin(p.schedule, [int(s) for s in _PLAIN])))


def values(costs: Costs, objective: Objective, gpus_per_node: int) -> Floats:
    """What each plan is ranked by, smallest first. On one cluster MFU and the cost of a step follow from
    its time."""
    match objective:
        case "memory":
            return costs.memory_bytes
        case "simplicity":
            return complexity(costs.plans, gpus_per_node).astype(np.float64)
        case _:
            return costs.step_s


def tied(step_s: Floats, band: float) -> Bools:
    """Plans that are as good as the fastest within ``band`` of its step time."""
    if not len(step_s):
        return np.zeros(0, dtype=np.bool_)
    return np.asarray(step_s <= step_s.min() * (1 + max(band, TIE)))


def order(first: Floats, second: Floats, places: Ints) -> npt.NDArray[np.intp]:
    """Indices by ``first``, then ``second``, then ``places``; values that agree to one part in 10^9 are
    equal."""
    return np.lexsort((places, ranks(second), ranks(first)))


def ranks(values: Floats) -> Ints:
    """The place of every value among the distinct ones."""
    by_value = np.argsort(values, kind="stable")
    found = values[by_value]
    group = np.zeros(len(found), dtype=np.int64)
    group[1:] = np.cumsum(np.diff(found) > TIE * np.abs(found[:-1]))
    out = np.empty(len(found), dtype=np.int64)
    out[by_value] = group
    return out


def front(*columns: Floats) -> Bools:
    """Rows that no other row is at least as good as in every column and better in one; smaller is better.

    >>> front(np.array([1.0, 2.0, 3.0]), np.array([3.0, 1.0, 2.0])).tolist()
    [True, True, False]
    """
    table = np.stack(columns, axis=1)
    keep = np.zeros(len(table), dtype=np.bool_)
    left = np.lexsort(table.T[::-1])
    while len(left):
        row = table[left[0]]
        keep[left[0]] = True
        rest = left[1:]
        worse = (table[rest] >= row).all(axis=1) & (table[rest] > row).any(axis=1)
        same = (table[rest] == row).all(axis=1)
        keep[rest[same]] = True
        left = rest[~worse & ~same]
    return keep
