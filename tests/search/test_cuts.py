"""Cuts that plans leave open: the least busy busiest rank, and of equal ones the one that holds least."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from meshplan.cluster.presets import cluster_of
from meshplan.cost.full.cut import best_cut, least_busiest
from meshplan.cost.full.model import FullModel
from meshplan.cost.full.stages import BOTH_WAYS, FOLDED, LOOPED
from meshplan.model.load import load_model
from meshplan.plan.kinds import Schedule
from meshplan.plan.plans import AUTO_LAYOUT, Plan, Plans
from meshplan.plan.workload import Workload

FULL = FullModel.of()
DENSE, MOE = 10, 16  # sixteenths of a layer


def busiest(cut: tuple[int, ...], layers: list[int], head: int, home: list[int]) -> int:
    bounds = [0, *itertools.accumulate(cut)]
    loads = [sum(layers[a:b]) for a, b in itertools.pairwise(bounds)]
    loads[-1] += head
    ranks = [0] * (max(home) + 1)
    for load, rank in zip(loads, home, strict=True):
        ranks[rank] += load
    return max(ranks)


def test_llama_3_405b_spares_the_first_stage_for_its_memory() -> None:
    """Any stage but the last could lack the other layer; on the first most micro-batches are alive."""
    assert best_cut((16, 0, 11), (0,) * 126, 16, 1, LOOPED) == (7, *[8] * 14, 7)


def test_deepseek_v3() -> None:
    """3 dense and 58 MoE layers over 16 ranks, MTP block and head worth 28 sixteenths of a layer."""
    kinds = (0,) * 3 + (1,) * 58
    cut = best_cut((DENSE, MOE, 0, 28), kinds, 16, 1, LOOPED)
    assert cut is not None
    layers = [DENSE] * 3 + [MOE] * 58
    # 986 sixteenths over 16 ranks are 61.6 each; ranks without ends cost multiples of 16 from rank 1 on.
    assert busiest(cut, layers, 28, list(range(16))) == 64
    assert cut == (3, *[4] * 14, 2)


def test_layers_that_divide_are_left_alone_unless_it_is_worth_it() -> None:
    assert best_cut((16, 0, 10), (0,) * 80, 8, 1, LOOPED) is None  # 10 layers and 0.6 against 11
    assert best_cut((16, 0, 70), (0,) * 32, 8, 1, LOOPED) == (3, 4, 5, 5, 5, 5, 5, 0)  # 5 against 8.4


def test_a_v_has_both_ends_on_one_rank() -> None:
    cut = best_cut((16, 0, 32), (0,) * 30, 4, 2, FOLDED)
    assert cut is not None
    assert busiest(cut, [16] * 30, 32, [0, 1, 2, 3, 3, 2, 1, 0]) == 8 * 16


def test_dualpipe_folds_over_half_the_ranks() -> None:
    cut = best_cut((16, 0, 32), (0,) * 30, 8, 1, BOTH_WAYS)
    assert cut is not None
    assert len(cut) == 8
    assert busiest(cut, [16] * 30, 32, [0, 1, 2, 3, 3, 2, 1, 0]) == 8 * 16
    assert best_cut((16, 0, 32), (0,) * 30, 7, 1, BOTH_WAYS) is None


def test_a_stage_a_layer_and_the_ends_alone() -> None:
    assert best_cut((16, 0, 11), (0,) * 126, 16, 8, LOOPED) == (0, *[1] * 126, 0)
    assert best_cut((16, 0, 11), (0,) * 125, 16, 8, LOOPED) is None  # too few


@pytest.mark.parametrize("seed", range(20))
def test_no_cut_is_less_busy_or_leaner(seed: int) -> None:
    """Against every contiguous cut of small problems: first the busiest rank, then micro-batches · layers."""
    rng = np.random.default_rng(seed)
    pp, count = int(rng.integers(2, 5)), int(rng.integers(5, 11))
    if count % pp == 0:
        count += 1
    kinds = tuple(int(k) for k in rng.integers(0, 2, count))
    costs = (DENSE, MOE, int(rng.integers(0, 3)), int(rng.integers(0, 40)))
    layers = [costs[k] for k in kinds]

    def rated(cut: tuple[int, ...]) -> tuple[int, int]:
        loads = [sum(layers[a:b]) for a, b in itertools.pairwise([0, *itertools.accumulate(cut)])]
        loads[0] += costs[2]
        loads[-1] += costs[3]
        return max(loads), max((pp - i) * n for i, n in enumerate(cut))

    found = best_cut(costs, kinds, pp, 1, LOOPED)
    assert found is not None
    every = []
    for cuts in itertools.combinations_with_replacement(range(count + 1), pp - 1):
        cut = tuple(b - a for a, b in itertools.pairwise((0, *cuts, count)))
        if min(cut[1:-1], default=1) >= 1:
            every.append(rated(cut))
    assert rated(found) == min(every)


def test_plans_of_a_table_get_their_own() -> None:
    plans = Plans.of(
        Plan(pp=16, tp=8, dp=8),
        Plan(pp=16, tp=8, dp=8, vp=8, schedule=Schedule.INTERLEAVED),
        Plan(pp=14, tp=8, dp=8),
        Plan(pp=1, tp=8, dp=128),
        Plan(pp=4, tp=8, dp=32, layout=(30, 32, 32, 32)),
    )
    open_ = plans.replace(layout=np.where(plans.layout < 0, AUTO_LAYOUT, plans.layout))
    model, cluster = load_model("llama-3.1-405b"), cluster_of("h100-sxm", 1024)
    costs = FULL.price(model, cluster, Workload(seq=8192, gbs=1024), open_)
    assert [p.layout for p in costs.plans] == [
        (7, *[8] * 14, 7), (0, *[1] * 126, 0), None, None, (30, 32, 32, 32)
    ]  # fmt: skip


SMALL = [(6, 3, 1), (7, 3, 1), (8, 4, 1), (6, 2, 2), (7, 2, 2), (8, 2, 2)]


@pytest.mark.parametrize(("layers", "pp", "vp"), SMALL)
@pytest.mark.parametrize("ends", [(0, 0), (0, 6), (2, 18), (0, 40)])
def test_no_cut_has_a_less_busy_busiest_rank_than_is_taken_for_possible(layers, pp, vp, ends):
    """Every cut of a few layers, counted out, against the bound that ends the search for a better one."""
    embedding, head = ends
    home = [stage % pp for stage in range(pp * vp)]
    found = []
    for cut in itertools.product(range(layers + 1), repeat=pp * vp):
        if sum(cut) != layers:
            continue
        busy = [0] * pp
        for rank, count in zip(home, cut, strict=True):
            busy[rank] += 16 * count
        busy[home[0]] += embedding
        busy[home[-1]] += head
        found.append(max(busy))
    ideal = (16 * layers + embedding + head) / pp
    bound = least_busiest([16.0] * layers, ideal, home, embedding, head)
    assert ideal <= bound <= min(found)
    assert bound == min(found)  # and no lower than it need be
