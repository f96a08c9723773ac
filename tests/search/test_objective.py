"""What ranks plans: ties within the band, simplicity, the Pareto front."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshplan.cluster.presets import cluster_of
from meshplan.model.load import load_model
from meshplan.plan.kinds import CpKind, Recompute, Schedule, Sharding
from meshplan.plan.plans import Plan, Plans
from meshplan.plan.space import Space
from meshplan.plan.workload import Workload
from meshplan.search.band import error_band
from meshplan.search.objective import complexity, front, tied
from meshplan.search.search import search

SETTING = (load_model("llama-3.1-8b"), cluster_of("h100-sxm", 16), Workload(seq=8192, gbs=64))


@pytest.mark.parametrize(
    ("plan", "count"),
    [
        (Plan(dp=8), 0),
        (Plan(dp=8, sharding=Sharding.ZERO3), 1),
        (Plan(tp=2), 1),
        (Plan(tp=16), 2),  # beyond the node
        (Plan(pp=2), 1),
        (Plan(pp=2, vp=2, schedule=Schedule.INTERLEAVED), 2),
        (Plan(pp=2, schedule=Schedule.ZB_H1), 3),
        (Plan(pp=2, layout=(15, 17)), 2),
        (Plan(cp=2), 1),
        (Plan(cp=2, cp_kind=CpKind.ULYSSES), 2),
        (Plan(ep=2, etp=2), 2),
        (Plan(dp=8, sharding=Sharding.ZERO3, replicas=2), 2),
        (Plan(recompute_layers=4, recompute_modules=Recompute.NORM), 2),
    ],
)
def test_what_a_plan_needs(plan: Plan, count: int) -> None:
    assert complexity(Plans.of(plan), 8).tolist() == [count]


@given(st.lists(st.tuples(*[st.integers(0, 6)] * 3), min_size=1, max_size=30))
@settings(max_examples=100, deadline=None)
def test_the_front_is_what_nothing_beats(rows: list[tuple[int, ...]]) -> None:
    def beats(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
        return all(x <= y for x, y in zip(a, b, strict=True)) and a != b

    by_hand = [not any(beats(other, row) for other in rows) for row in rows]
    assert front(*np.array(rows, dtype=np.float64).T).tolist() == by_hand


def test_ties_are_within_the_band_of_the_fastest() -> None:
    assert tied(np.array([1.05, 1.0, 1.051]), 0.05).tolist() == [True, True, False]
    assert tied(np.array([]), 0.05).tolist() == []


def test_the_simplest_of_the_tied_stands_first() -> None:
    space = Space.of("small", SETTING[0])
    plain = search(*SETTING, space=space)
    ranking = search(*SETTING, space=space, band=0.05)
    ties = ranking.tied
    assert ranking.complexity[0] == ranking.complexity[ties].min()
    best = ranking.complexity[ties] == ranking.complexity[0]
    assert ranking.costs.step_s[0] == ranking.costs.step_s[ties][best].min()
    # All others stay in their order.
    assert (np.diff(ranking.costs.step_s[1:]) >= -1e-9).all()
    assert sorted(map(repr, plain)) == sorted(map(repr, ranking))


def test_without_a_band_the_fastest_stands_first() -> None:
    ranking = search(*SETTING, space=Space.of("small", SETTING[0]))
    assert ranking.costs.step_s.argmin() == 0


@pytest.mark.parametrize("objective", ["step", "mfu", "cost"])
def test_on_one_cluster_these_are_one(objective: str) -> None:
    found = search(*SETTING, objective=objective)  # type: ignore[arg-type]
    assert list(found) == list(search(*SETTING))


def test_least_memory_and_most_simplicity() -> None:
    space = Space.of("small", SETTING[0])
    lean = search(*SETTING, space=space, objective="memory")
    assert (np.diff(lean.costs.memory_bytes) >= -1e-9 * lean.costs.memory_bytes[0]).all()
    simple = search(*SETTING, space=space, objective="simplicity")
    assert (np.diff(simple.complexity) >= 0).all()
    same = np.diff(simple.complexity) == 0
    assert (np.diff(simple.costs.step_s)[same] >= -1e-9).all()  # among equally simple ones the fastest
    assert set(map(repr, lean)) == set(map(repr, simple))


def test_pareto_of_a_ranking() -> None:
    ranking = search(*SETTING, space=Space.of("small", SETTING[0]))
    kept = ranking.take(np.flatnonzero(ranking.pareto))
    assert 1 < len(kept) < len(ranking)
    assert kept.best == ranking.best
    assert kept.pareto.all()
    assert kept.costs.memory_bytes.min() == ranking.costs.memory_bytes.min()
    assert kept.complexity.min() == ranking.complexity.min()


def test_the_band_is_of_the_kind_of_model() -> None:
    dense, moe = (error_band("full", load_model(name)) for name in ("llama-3.1-8b", "deepseek-v3"))
    assert dense is not None
    assert moe is not None
    assert (dense.kind, moe.kind) == ("dense", "moe")
    assert 0 < dense.share < moe.share < 0.2
    assert dense.runs > moe.runs >= 8
    assert error_band("flat", load_model("llama-3.1-8b")) is None
