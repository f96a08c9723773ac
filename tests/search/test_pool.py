"""What is kept of the plans that do not fit."""

from __future__ import annotations

import numpy as np
import pytest

from meshplan.cost.costs import Costs
from meshplan.plan.plans import Plan, Plans
from meshplan.search.pool import Pool, no_costs

LIMIT = 10.0


def costs(*rows: tuple[float, float]) -> Costs:
    """Plans with (memory, step)."""
    memory, step = (np.array(column) for column in zip(*rows, strict=True))
    return Costs(
        plans=Plans.of(*(Plan(tp=i + 1) for i in range(len(rows)))), step_s=step, memory_bytes=memory,
        memory_limit_bytes=LIMIT, mfu=1 / step, time={"matmul": step}, memory={"weights": memory},
    )  # fmt: skip


def pool() -> Pool:
    return Pool(100, no_costs(Plans.of(), LIMIT))


def test_the_miss_is_one_that_would_be_wanted() -> None:
    found = pool()
    found.add(costs((10.5, 5862.0), (12.0, 1.2), (13.0, 1.1), (9.0, 1.0)))
    assert found.miss is not None
    assert found.miss.costs.memory_bytes.tolist() == [12.0]


def test_where_nothing_fits_it_is_the_smallest() -> None:
    found = pool()
    found.add(costs((10.5, 5862.0), (12.0, 1.2)))
    assert found.miss is not None
    assert found.miss.excess_bytes == pytest.approx(0.5)
    assert pool().miss is None


def test_the_order_of_tables_does_not_matter() -> None:
    rng = np.random.default_rng(0)
    rows = [
        (float(m), float(s)) for m, s in zip(rng.uniform(8, 20, 900), rng.uniform(1, 9, 900), strict=True)
    ]
    whole, parts = pool(), pool()
    whole.add(costs(*rows))
    for start in range(900 - 30, -1, -30):
        parts.add(costs(*rows[start : start + 30]))
    assert whole.miss is not None
    assert parts.miss is not None
    assert whole.miss.costs.memory_bytes.tolist() == parts.miss.costs.memory_bytes.tolist()
    fastest = min(step for memory, step in rows if memory <= LIMIT)
    wanted = min(memory for memory, step in rows if memory > LIMIT and step <= 1.5 * fastest)
    assert whole.miss.costs.memory_bytes[0] <= wanted
