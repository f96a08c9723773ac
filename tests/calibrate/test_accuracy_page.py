"""The measures of the page of results, on lists of known worth; and the terms that measuring called for."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from meshplan.calibrate.stack_fit import Case, prices
from meshplan.cluster.presets import cluster_of
from meshplan.cost.full.stack import load_stack
from meshplan.model.load import load_model
from meshplan.plan.kinds import Schedule, Sharding
from meshplan.plan.plans import DEFAULT_ORDER, Plan
from meshplan.plan.workload import Workload

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture
def worth(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(TOOLS), *sys.path])
    from accuracy_page import Worth

    return Worth


def test_error_pairs_regret_and_tau(worth):
    seen = [1.0, 1.1, 2.0, 4.0]
    same = worth.of(seen, seen)
    assert (same.error, same.pairs, same.right, same.regret, same.tau) == (0.0, 5, 5, 0.0, 1.0)
    back = worth.of(seen[::-1], seen)
    assert (back.right, back.regret, back.tau) == (0, 3.0, -1.0)
    # the two best are exchanged: 10 % apart, so no pair is lost, and the choice costs 10 %
    near = worth.of([1.1, 1.0, 2.0, 4.0], seen)
    assert (near.pairs, near.right) == (5, 5)
    assert near.regret == pytest.approx(0.1)
    assert near.tau == pytest.approx(4 / 6)
    assert worth.of([2 * x for x in seen], seen).error == pytest.approx(1.0)


def price(plan, *, order=DEFAULT_ORDER, **scalars):
    case = Case(
        model=load_model("llama-3.1-8b"), workload=Workload(seq=4096, gbs=32), plan=plan, order=order,
        label="x", step_s=1.0,
    )  # fmt: skip
    stack = replace(load_stack("torchtitan"), host_layer_s=0.0, **scalars)
    return float(prices([case], cluster_of("h100-sxm", 16), stack)[0])


def test_tp_across_nodes_is_slower_than_inside():
    plan = Plan(tp=8, dp=2, sharding=Sharding.ZERO1)
    inside = price(plan)
    across = price(plan, order=("dp", "cp", "ep", "tp", "pp"))
    # a ring over two nodes goes through 4 NICs instead of NVLink
    assert across > 1.15 * inside


def test_a_host_that_computes_itself_adds_what_it_launches():
    plan = Plan(dp=16, sharding=Sharding.ZERO1)
    free = price(plan)
    assert price(plan, host_micro_s=1e-3) == pytest.approx(free)  # launched beside the GPU's work
    # 2 micro-batches, forward and backward of both ends
    added = price(plan, host_micro_s=1e-3, synchronous=True) - free
    assert added == pytest.approx(2 * 1e-3, rel=0.01)


def test_backward_in_halves_costs_zero_bubble_schedules_alone():
    def ratio(plan):
        return price(plan, split_backward=1.5) / price(plan)

    assert ratio(Plan(pp=2, dp=8)) == pytest.approx(1.0)
    split = ratio(Plan(pp=2, vp=2, dp=8, schedule=Schedule.ZB_V))
    assert 1.2 < split < 1.5  # backward is two thirds of the work
