"""The columnar model against a plain loop written from the equations (``benchmarks/scalar_handbook.py``)."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshplan.cli.handbook import rank
from meshplan.cost.handbook import Handbook
from meshplan.cost.scenarios import LLAMA_8B, LLAMA_70B, SCENARIOS, Scenario
from meshplan.errors import InputError
from meshplan.model.counts import model_parameters
from meshplan.model.layers import Moe
from meshplan.plan.kinds import Recompute, Schedule, Sharding
from meshplan.plan.plans import ALL_LAYERS, AUTO_LAYERS, Plan, Plans
from meshplan.plan.workload import Workload

PARTS = ("compute", "recompute", "imbalance", "tp", "cp", "pp", "bubble", "dp")


def _load(name: str) -> ModuleType:
    file = Path(__file__).parents[2] / "benchmarks" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


scalar = _load("scalar_handbook")


def _llm(scenario: Scenario) -> object:
    return scalar.LLAMA_8B if scenario.model is LLAMA_8B else scalar.LLAMA_70B


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.id)
def test_every_plan_in_the_same_order(scenario: Scenario) -> None:
    run = scalar.Run(scenario.gpus, scenario.workload.seq, scenario.workload.gbs)
    expected = scalar.search(_llm(scenario), run)
    ranking = rank(scenario)
    assert [(p.tp, p.cp, p.pp, p.dp) for p in ranking] == [plan for plan, _ in expected]
    for i, (_, priced) in enumerate(expected):
        costs = ranking.costs
        assert costs.step_s[i] == pytest.approx(priced["step_s"], rel=1e-12)
        assert costs.mfu[i] == pytest.approx(priced["mfu"], rel=1e-12)
        assert costs.memory_bytes[i] == pytest.approx(priced["memory_bytes"], rel=1e-12)
        assert costs.plans.recompute_layers[i] == priced["recomputed"]
        for part in PARTS:
            assert costs.time[part][i] == pytest.approx(priced[part], rel=1e-9, abs=1e-9), part


degrees = st.sampled_from([1, 2, 4, 8])


@settings(deadline=None)
@given(
    tp=degrees,
    cp=degrees,
    pp=st.sampled_from([1, 2, 4, 5, 8, 10, 16, 20]),
    dp=st.integers(1, 40),
    mbs=st.integers(1, 4),
    micro_batches=st.integers(1, 64),
    seq=st.sampled_from([4096, 32768, 131072, 1000000]),
)
def test_any_plan_costs_what_the_loop_says(
    tp: int, cp: int, pp: int, dp: int, mbs: int, micro_batches: int, seq: int
) -> None:
    gpus = tp * cp * pp * dp
    cluster = SCENARIOS[3].cluster.with_gpus(8 * -(-gpus // 8))
    gbs = dp * mbs * micro_batches
    expected = scalar.price(scalar.LLAMA_70B, scalar.Run(cluster.gpus, seq, gbs), tp, cp, pp, dp, mbs)
    plan = Plan(tp=tp, cp=cp, pp=pp, dp=dp, mbs=mbs, recompute_layers=AUTO_LAYERS)
    costs = Handbook(parameters=70.6e9).price(LLAMA_70B, cluster, Workload(seq=seq, gbs=gbs), Plans.of(plan))
    assert bool(costs.fits[0]) == (expected is not None)
    assert sum(v[0] for v in costs.memory.values()) == pytest.approx(costs.memory_bytes[0], rel=1e-12)
    assert sum(v[0] for v in costs.time.values()) == pytest.approx(costs.step_s[0], rel=1e-12)
    if expected is None:  # even with all layers recomputed
        assert costs.plans.recompute_layers[0] == 80 // pp
        return
    assert costs.step_s[0] == pytest.approx(expected["step_s"], rel=1e-12)
    assert costs.memory_bytes[0] == pytest.approx(expected["memory_bytes"], rel=1e-12)
    assert costs.plans.recompute_layers[0] == expected["recomputed"]


def test_the_fewest_layers_are_recomputed_even_at_the_edge() -> None:
    # A limit that is met exactly by some number of layers: that number, not one more.
    scenario = SCENARIOS[1]
    table = Plans.from_columns({"tp": 8, "cp": 4, "pp": 2, "recompute_layers": np.arange(41)})
    memory = scenario.cost_model.price(
        scenario.model, scenario.cluster, scenario.workload, table
    ).memory_bytes
    auto = Plans.of(Plan(tp=8, cp=4, pp=2, recompute_layers=AUTO_LAYERS))
    for layers in range(41):
        gpu = replace(scenario.cluster.gpu, hbm_bytes=memory[layers], usable_hbm_bytes=memory[layers])
        edge = replace(scenario.cluster, gpu=gpu, memory_fraction=1.0)
        costs = scenario.cost_model.price(scenario.model, edge, scenario.workload, auto)
        assert costs.fits[0]
        assert costs.plans.recompute_layers[0] == layers


def test_layers_can_be_asked_for() -> None:
    scenario = SCENARIOS[0]
    table = Plans.from_columns(
        {"tp": 4, "cp": 2, "pp": 4, "dp": 2, "recompute_layers": [0, 5, 20, ALL_LAYERS]}
    )
    costs = scenario.cost_model.price(scenario.model, scenario.cluster, scenario.workload, table)
    assert costs.plans.recompute_layers.tolist() == [0, 5, 20, 20]
    assert (np.diff(costs.memory_bytes[:3]) < 0).all()
    assert (np.diff(costs.step_s[:3]) > 0).all()
    assert costs.step_s[2] == costs.step_s[3]


def test_parameters_are_the_models_own_unless_given() -> None:
    scenario = SCENARIOS[2]
    table = Plans.of(Plan(tp=2, dp=4))
    own, given_ = (
        model.price(scenario.model, scenario.cluster, scenario.workload, table)
        for model in (Handbook(), scenario.cost_model)
    )
    assert own.memory["weights_and_gradients"][0] == 4 * model_parameters(LLAMA_8B).total / 2
    assert given_.memory["weights_and_gradients"][0] == 4 * 8.03e9 / 2


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (Plan(schedule=Schedule.INTERLEAVED), "the 1f1b schedule only"),
        (Plan(vp=2), "vp 1 only"),
        (Plan(sharding=Sharding.ZERO3), "zero1 sharding only"),
        (Plan(ep=2), "ep 1 only"),
        (Plan(recompute_modules=Recompute.MLP), "recomputation of whole layers only"),
        (Plan(layout=(40, 40), pp=2), "equal stages only"),
        (Plan(pp=3), "equal stages only: 80 layers, pp 3"),
    ],
)
def test_what_the_equations_do_not_know_is_refused(plan: Plan, words: str) -> None:
    scenario = SCENARIOS[0]
    with pytest.raises(InputError, match=words):
        scenario.cost_model.price(scenario.model, scenario.cluster, scenario.workload, Plans.of(plan))


def test_models_and_precisions_outside_the_equations_are_refused() -> None:
    scenario = SCENARIOS[0]
    table = Plans.of(Plan(tp=8, dp=8))
    moe = replace(LLAMA_70B.layers[0], mlp=Moe(experts=8, topk=2, width=4096))
    with pytest.raises(InputError, match="dense models only; llama-70b has experts"):
        Handbook().price(replace(LLAMA_70B, layers=(moe,) * 80), scenario.cluster, scenario.workload, table)
    with pytest.raises(InputError, match="bf16 and fp16 only, not fp8"):
        Handbook().price(LLAMA_70B, scenario.cluster, Workload(seq=8192, gbs=8, precision="fp8"), table)


def test_the_bench_agrees_with_itself() -> None:
    bench = _load("bench_handbook")
    bench.EACH = 500
    tables = [bench.plans_of(scenario) for scenario in SCENARIOS]
    rows = [np.stack([getattr(t, c) for c in bench.DEGREES], axis=1).tolist() for t in tables]
    bench.agree(bench.columns(tables), bench.loop(rows))
