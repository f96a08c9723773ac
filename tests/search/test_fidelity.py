"""The funnel from closed form to simulation: nothing faster is left out, and the parts still sum up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meshplan.cluster.cluster import Cluster
from meshplan.cluster.presets import cluster_of
from meshplan.cost.costs import Costs
from meshplan.cost.full.model import FullModel
from meshplan.cost.handbook import Handbook
from meshplan.errors import InputError
from meshplan.model.layers import Attention, Layer, Mlp, Moe
from meshplan.model.load import load_model
from meshplan.model.model import Model
from meshplan.plan.kinds import Recompute, Schedule, Sharding
from meshplan.plan.plans import AUTO_LAYERS, Plan, Plans
from meshplan.plan.rules import Setting
from meshplan.plan.space import Space
from meshplan.plan.workload import Workload
from meshplan.schedule.generate import make_order
from meshplan.search import fidelity
from meshplan.search.fidelity import refine, simulate_all
from meshplan.search.search import search

FULL = FullModel.of()
SCHEDULES = [s for s in Schedule if s is not Schedule.GPIPE]


def random_model(rng: np.random.Generator) -> Model:
    """A few dense, sparse or mixed layers, some counts that nothing divides, heads large and small."""
    hidden = int(rng.choice([1024, 2048, 4096]))
    attention = Attention(heads=hidden // 128, kv_heads=8, head_dim=128)
    dense = Layer(attention=attention, mlp=Mlp(width=4 * hidden))
    sparse = Layer(attention=attention, mlp=Moe(experts=8, topk=2, width=hidden))
    count, kind = int(rng.integers(9, 42)), int(rng.integers(3))
    first = int(rng.integers(1, 4))
    layers = [(dense,) * count, (sparse,) * count, (dense,) * first + (sparse,) * (count - first)][kind]
    return Model(
        name="random", hidden=hidden, vocab=int(rng.choice([32_000, 128_256])), layers=layers,
        tied_embeddings=bool(rng.integers(2)),
    )  # fmt: skip


def random_problem(seed: int) -> tuple[Setting, Space]:
    rng = np.random.default_rng(seed)
    cluster = cluster_of(str(rng.choice(["h100-sxm", "a100-sxm"])), int(rng.choice([8, 16, 32, 64])))
    workload = Workload(seq=int(rng.choice([2048, 8192])), gbs=int(rng.choice([64, 96, 128, 160])))
    pick = rng.choice(len(SCHEDULES), 3, replace=False)
    space = Space(
        tp=(1, int(rng.choice([2, 4]))),
        cp=(1,),
        ep=(1,),
        etp=(1,),
        pp=tuple(sorted(rng.choice([2, 4, 8], 2, replace=False).tolist())),
        vp=(1, 2),
        mbs=(1, 2),
        schedule=tuple(SCHEDULES[i] for i in pick),
        sharding=(Sharding.ZERO1, Sharding.ZERO3) if seed % 4 == 0 else (Sharding.ZERO1,),
        recompute=((AUTO_LAYERS, Recompute.NONE),),
    )
    return Setting(random_model(rng), cluster, workload), space


@pytest.mark.parametrize("start", range(0, 200, 20))
def test_the_plan_chosen_is_the_best_of_all_simulated(start: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """200 random problems; plans are simulated two at a time, so that stopping too early would show."""
    monkeypatch.setattr(fidelity, "AT_ONCE", 2)
    simulated = kept = 0
    for seed in range(start, start + 20):
        setting, space = random_problem(seed)
        ranking = search(*setting, space=space, cost_model=FULL, advise=False)
        if not len(ranking):
            continue
        sure = 1 + seed % 3
        costs, found = refine(FULL, setting, ranking.costs, sure=sure, auto=True)
        every = simulate_all(FULL, setting, ranking.costs, auto=True)
        fits = every.fits
        best = np.sort(every.step_s[fits])[:sure]
        assert costs.step_s[:sure] == pytest.approx(best, rel=1e-8)
        assert found.rows[: len(best)].all()
        assert costs.fits[: len(best)].all()
        assert (np.diff(costs.step_s) >= -1e-8 * costs.step_s[1:]).all()
        # A closed form that knew nothing must not hide the best plan either: the same in any order.
        mixed = ranking.costs.take(np.random.default_rng(seed).permutation(len(ranking)))
        assert refine(FULL, setting, mixed, sure=sure, auto=True)[0].step_s[:sure] == pytest.approx(
            best, rel=1e-8
        )
        assert found.left_open == 0
        assert len(costs.plans) + found.unfit == len(ranking)
        # No bound is above the simulation it bounds.
        floor = FULL.floor(ranking.costs)
        bounds = FULL.pipelines(*setting, ranking.costs.plans).bounds(ranking.costs)
        assert (floor <= every.step_s * (1 + 1e-7)).all()
        assert (bounds <= every.step_s * (1 + 1e-7)).all()
        simulated, kept = simulated + found.plans, kept + len(ranking)
    assert kept > 200
    assert simulated < 0.6 * kept


def one(model: str | Model = "llama-3.1-8b", gpus: int = 64, **plan: Any) -> tuple[Setting, Costs]:
    """One plan, priced in closed form."""
    loaded = load_model(model) if isinstance(model, str) else model
    setting = Setting(loaded, cluster_of("h100-sxm", gpus), Workload(seq=8192, gbs=256))
    found = Plan(**{"dp": gpus // plan.get("pp", 1) // plan.get("tp", 1), **plan})
    return setting, FULL.price(*setting, Plans.of(found))


@pytest.mark.parametrize("schedule", Schedule)
def test_parts_of_a_simulated_step_sum_to_it(schedule: Schedule) -> None:
    vp = 1 if schedule in (0, 1, 4, 5, 9) else 2
    setting, costs = one(pp=4, tp=2, vp=vp, schedule=schedule)
    found = simulate_all(FULL, setting, costs)
    assert sum(v[0] for v in found.time.values()) == pytest.approx(found.step_s[0])
    assert sum(v[0] for v in found.memory.values()) == pytest.approx(found.memory_bytes[0])
    assert min(v[0] for v in found.time.values()) >= -1e-9
    assert list(found.time) == list(costs.time)
    assert list(found.memory) == list(costs.memory)
    assert found.mfu[0] * found.step_s[0] == pytest.approx(costs.mfu[0] * costs.step_s[0])
    run = FULL.pipelines(*setting, costs.plans).simulation(0)
    once = found.time["optimizer"][0] + found.time["step overhead"][0] + found.time["straggler"][0]
    gathered = FULL.pipelines(*setting, costs.plans).gather[0]
    assert run.step + once + gathered == pytest.approx(found.step_s[0])


def test_stages_hold_the_work_of_the_model() -> None:
    """Without pipeline one stage has all; cut into stages it is the same work, only spread."""
    setting, alone = one(pp=1)
    whole = FULL.pipelines(*setting, alone.plans)
    cut = FULL.pipelines(*setting, one(pp=8, layout=(3, 4, 4, 4, 5, 4, 4, 4))[1].plans)
    for name in ("forward", "backward_input", "weight"):
        assert getattr(cut, name)[0].sum() == pytest.approx(getattr(whole, name)[0].sum(), rel=1e-6)
    assert cut.activations[0].sum() == pytest.approx(whole.activations[0].sum())
    # Stage 4 has five layers and nothing else, stage 1 four.
    work = cut.forward[0] + cut.backward_input[0] + cut.weight[0]
    assert work[4] / work[1] == pytest.approx(5 / 4)
    assert work[7] > work[1]  # with the head
    assert cut.layers_of(0) == (3, 4, 4, 4, 5, 4, 4, 4)


def test_without_pipeline_simulation_and_closed_form_agree() -> None:
    setting, costs = one(pp=1, tp=4)
    assert simulate_all(FULL, setting, costs).step_s == pytest.approx(costs.step_s, rel=1e-3)


def test_equal_stages_take_the_textbook_time() -> None:
    """1F1B of equal stages: (m + p - 1)(F + B), with transfers and reduction left out."""
    setting, costs = one(pp=8, layout=(4,) * 8)
    pipes = FULL.pipelines(*setting, costs.plans)
    equal = replace(
        pipes,
        forward=np.full((1, 8), 0.02),
        backward_input=np.full((1, 8), 0.02),
        weight=np.full((1, 8), 0.02),
        hop=np.zeros(1),
        tail=np.zeros((1, 8)),
    )
    m = 256 // 8
    assert equal.simulation(0).step == pytest.approx((m + 7) * 0.06)
    assert equal.simulated(costs, np.zeros(1, dtype=int)).time["bubble"][0] == pytest.approx(7 * 0.06)


def test_reduction_of_gradients_at_the_end_of_every_rank() -> None:
    """Only what a rank reduces after the last one is done makes the step longer."""
    setting, costs = one(pp=4)
    pipes = FULL.pipelines(*setting, costs.plans)
    run = pipes.simulation(0)
    slack = run.pipeline_end.max() - run.pipeline_end
    hidden = replace(pipes, tail=0.99 * slack[None])
    shown = replace(pipes, tail=slack[None] + np.array([[0, 0, 0.5, 0]]))
    rows = np.zeros(1, dtype=int)
    assert hidden.simulated(costs, rows).time["dp"][0] == pytest.approx(pipes.gather[0])
    assert shown.simulated(costs, rows).time["dp"][0] == pytest.approx(0.5 + pipes.gather[0])


@pytest.mark.parametrize("schedule", [Schedule.ZB_V, Schedule.INTERLEAVED, Schedule.DUALPIPE])
def test_memory_counts_every_stage_as_it_is(schedule: Schedule) -> None:
    """Peak activations of each rank, counted action by action with each stage's own bytes."""
    vp = 1 if schedule is Schedule.DUALPIPE else 2
    layout = (2, 7, 8, 15) if vp == 1 else (1, 5, 5, 5, 5, 5, 5, 1)
    setting, costs = one(pp=4, vp=vp, schedule=schedule, layout=layout)
    pipes = FULL.pipelines(*setting, costs.plans)
    kept = pipes.activations[0]
    order = make_order(schedule.label, ranks=4, micro_batches=256 // 16, vp=None if vp == 1 else 2)
    most = []
    for rank in range(4):
        now = peak = 0.0
        for action in order.of_rank(rank):
            now += {"F": 1, "B": -1, "I": 0, "W": -1}[action.kind] * kept[action.stage]
            peak = max(peak, now)
        most.append(peak)
    total = [pipes.rank_memory(0, np.array(most))[r] for r in range(4)]
    found = simulate_all(FULL, setting, costs)
    assert found.memory_bytes[0] == pytest.approx(max(total))
    assert found.memory["activations"][0] >= most[int(np.argmax(total))]


def test_more_layers_are_recomputed_where_the_closed_form_was_too_hopeful() -> None:
    """A V puts a first stage with many micro-batches alive beside a light last one: counting a rank's
    layers alike, the closed form lets the plan fit with fewer layers recomputed than it takes."""
    setting = Setting(load_model("deepseek-v3"), cluster_of("h100-sxm", 1024), Workload(seq=4096, gbs=4096))
    layout = (0, 2, 2, 2, 3, *[2] * 22, 1, 2, 2, 2, 1)
    plan = Plan(
        tp=2, pp=16, dp=32, ep=16, vp=2, schedule=Schedule.ZB_V, layout=layout, recompute_layers=AUTO_LAYERS
    )
    costs = FULL.price(*setting, Plans.of(plan))
    assert costs.fits[0]
    asked = simulate_all(FULL, setting, costs)
    freed = simulate_all(FULL, setting, costs, auto=True)
    assert not asked.fits[0]
    assert freed.fits[0]
    assert freed.plans.recompute_layers[0] > costs.plans.recompute_layers[0]
    assert freed.time["recompute"][0] > asked.time["recompute"][0]


class TestLayouts:
    def ranking(self, **space: Any) -> Any:
        setting = Setting(
            load_model("llama-3.1-405b"), cluster_of("h100-sxm", 1024), Workload(seq=8192, gbs=512)
        )
        return search(
            *setting,
            space=Space(tp=(8,), cp=(1,), mbs=(1,), **space),
            cost_model=FULL,
            fidelity="simulate",
        )

    def test_llama_3_405b_has_one_layer_less_at_the_ends(self) -> None:
        """arXiv 2407.21783, section 3.3.2, by itself."""
        best = self.ranking(pp=(16,)).best
        assert best is not None
        assert best.layout == (7, *[8] * 14, 7)

    def test_and_none_with_a_stage_a_layer(self) -> None:
        best = self.ranking(pp=(16,), vp=(8,), schedule=(Schedule.INTERLEAVED,)).best
        assert best is not None
        assert best.layout == (0, *[1] * 126, 0)

    def test_layers_that_divide_stay_even(self) -> None:
        best = self.ranking(pp=(2,), dp=(64,), recompute=((AUTO_LAYERS, Recompute.NONE),)).closest_miss
        assert best is not None
        assert best.plan.layout is None  # 63 and 63

    @pytest.mark.parametrize(("name", "layers"), [("deepseek-v3", 61), ("qwen3-235b-a22b", 94)])
    def test_counts_that_do_not_divide_are_not_refused(self, name: str, layers: int) -> None:
        setting = Setting(load_model(name), cluster_of("h100-sxm", 512), Workload(seq=4096, gbs=1024))
        ranking = search(
            *setting,
            space=Space(tp=(1,), cp=(1,), pp=(8,), ep=(8, 16), etp=(1,), mbs=(1,)),
            cost_model=FULL,
            advise=False,
        )
        plans = list(ranking) or [ranking.closest_miss.plan]  # type: ignore[union-attr]
        for plan in plans:
            assert plan.layout is not None
            assert sum(plan.layout) == layers
            assert len(plan.layout) == 8


class Flat:
    """A cost model whose plans cannot be simulated."""

    name = "flat"

    def price(self, model: Model, cluster: Cluster, workload: Workload, plans: Plans) -> Costs:
        return Handbook().price(model, cluster, workload, plans)


def test_a_cost_model_without_pipelines_says_so() -> None:
    setting, _ = one()
    with pytest.raises(InputError, match="plans of the flat cost model cannot be simulated; use"):
        search(*setting, cost_model=Flat(), fidelity="simulate")


def test_a_search_that_finds_nothing_simulates_nothing() -> None:
    setting = Setting(load_model("llama-3.1-70b"), cluster_of("h100-sxm", 8), Workload(seq=8192, gbs=8))
    ranking = search(
        *setting, space=Space(tp=(1,), cp=(1,), pp=(1,), recompute=((0, Recompute.NONE),)),
        cost_model=FULL, fidelity="simulate", advise=False,
    )  # fmt: skip
    assert len(ranking) == 0
    assert ranking.simulated is not None
    assert (ranking.simulated.plans, ranking.simulated.screened) == (0, 0)


def test_counts_stay_whole() -> None:
    """What does not fit as simulated moves from the feasible to those that lack memory."""
    setting = Setting(load_model("llama-3.1-70b"), cluster_of("h100-sxm", 64), Workload(seq=8192, gbs=512))
    space = Space(tp=(2, 4), cp=(1,), mbs=(1,), vp=(1, 2), schedule=(Schedule.ONE_F_ONE_B, Schedule.ZB_V))
    plain = search(*setting, space=space, cost_model=FULL)
    found = search(*setting, space=space, cost_model=FULL, fidelity="simulate")
    assert found.simulated is not None
    assert found.counts.candidates == plain.counts.candidates
    assert found.counts.feasible == plain.counts.feasible - found.simulated.unfit == len(found)
    assert found.counts.memory == plain.counts.memory + found.simulated.unfit
