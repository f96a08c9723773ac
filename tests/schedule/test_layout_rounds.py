"""Splits for looped schedules: against enumeration, and their pace against the simulation."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest

from meshplan.errors import InputError
from meshplan.schedule.layout import best_split
from meshplan.schedule.layout_rounds import best_rounds, pace
from meshplan.schedule.steady import pipeline_ends


def largest_a_round(
    costs: list[float], counts: tuple[int, ...], ranks: int, first: float, last: float
) -> float:
    """The largest stage of every round, added up."""
    bounds = [0, *itertools.accumulate(counts)]
    loads = [sum(costs[a:b]) for a, b in itertools.pairwise(bounds)]
    loads[0] += first
    loads[-1] += last
    return sum(max(loads[k : k + ranks]) for k in range(0, len(loads), ranks))


@pytest.mark.parametrize("seed", range(60))
def test_no_split_has_smaller_rounds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ranks, vp = [(2, 2), (3, 2), (2, 3), (2, 4)][seed % 4]
    stages, least = ranks * vp, int(rng.integers(0, 2))
    layers = stages + int(rng.integers(-2 if least == 0 else 0, 5))
    costs = (rng.choice([1.0, 1.7, 0.6], layers) if seed % 3 else rng.random(layers)).tolist()
    first, last = (rng.random(2) * (seed % 3)).tolist()
    split = best_rounds(costs, ranks=ranks, vp=vp, embedding=first, head=last, least_ends=least)
    assert sum(split.counts) == layers
    assert min(split.counts[1:-1]) >= 1
    assert min(split.counts[0], split.counts[-1]) >= least
    best = np.inf
    for cuts in itertools.combinations(range(least, layers + 1 - least), stages - 1):
        counts = tuple(b - a for a, b in itertools.pairwise((0, *cuts, layers)))
        if min(counts[1:-1]) >= 1 and min(counts[0], counts[-1]) >= least:
            best = min(best, largest_a_round(costs, counts, ranks, first, last))
    found = largest_a_round(costs, split.counts, ranks, first, last)
    assert split.bottleneck == pytest.approx(found)
    if split.exact:
        assert found == pytest.approx(best)


def test_too_few_layers_or_rounds() -> None:
    with pytest.raises(InputError, match="3 layers are too few for 4 stages: use at most 3 stages"):
        best_rounds([1.0] * 3, ranks=2, vp=2)
    with pytest.raises(InputError, match="2 or more stages a rank"):
        best_rounds([1.0] * 3, ranks=3, vp=1)


def steady(loads: np.ndarray, ranks: int, vp: int) -> float:
    """Seconds of one micro-batch in the steady state of an interleaved pipeline, by simulation."""
    third = np.tile(loads / 3, (2, 1))
    few, many = 20 * ranks, 40 * ranks
    ends = pipeline_ends(
        "interleaved", ranks=ranks, vp=vp, micro_batches=[few, many], forward=third, backward_input=third,
        weight=third,
    ).max(axis=1)  # fmt: skip
    return float(ends[1] - ends[0]) / (many - few)


def test_pace_bounds_the_simulation() -> None:
    """The pace lies between the simulated one and a quarter above; for equal stages it is exact."""
    rng = np.random.default_rng(2)
    for _ in range(40):
        ranks, vp = int(rng.choice([2, 4, 8])), int(rng.integers(2, 5))
        loads = rng.choice([0.0, 1.0, 2.0, 3.0], ranks * vp, p=[0.05, 0.15, 0.6, 0.2])
        real, guess = steady(loads, ranks, vp), pace(loads.tolist(), ranks=ranks)
        assert real <= guess * (1 + 1e-9)
        assert guess <= 1.25 * real
        assert real >= loads.reshape(vp, ranks).sum(axis=0).max() * (1 - 1e-9)
    assert pace([2.0] * 12, ranks=4) == pytest.approx(6.0) == steady(np.full(12, 2.0), 4, 3)


def test_equal_ranks_are_not_enough() -> None:
    """Two splits of 32 layers over 8 ranks: every rank has 4 either way, and one is a third slower."""
    even = np.full(16, 2.0)
    uneven = np.array([3.0, 1.0] * 4 + [1.0, 3.0] * 4)
    assert uneven.reshape(2, 8).sum(axis=0).tolist() == even.reshape(2, 8).sum(axis=0).tolist()
    assert steady(even, 8, 2) == pytest.approx(4.0)
    assert steady(uneven, 8, 2) > 5.0


def test_rounds_where_stages_do_not_come_out_even() -> None:
    """DeepSeek-V3's 61 layers over 16 ranks of 3 stages: one layer a stage in two rounds, two in the last."""
    costs, head = [0.6] * 3 + [1.0] * 58, 1.7
    by_rounds = best_rounds(costs, ranks=16, vp=3, head=head, least_ends=0)
    by_rank = best_split(costs, ranks=16, vp=3, head=head, least_ends=0)
    assert by_rank is not None

    def paced(counts: tuple[int, ...]) -> float:
        loads = np.diff(np.append(0.0, np.cumsum(costs))[np.append(0, np.cumsum(counts))])
        loads[-1] += head
        return steady(loads, 16, 3)

    assert by_rounds.bottleneck == pytest.approx(4.0)
    assert paced(by_rounds.counts) < 0.95 * paced(by_rank.counts)


def test_fast_enough_for_a_search() -> None:
    began = time.process_time()
    for _ in range(5):
        best_rounds([1.0] * 126, ranks=16, vp=4, head=0.66, least_ends=0)
    assert (time.process_time() - began) / 5 < 0.1
