"""DualPipe: pairs of forward and backward run as one, and a rank keeps what both of its stages keep."""

from dataclasses import replace

import numpy as np
import pytest

from meshplan.cluster.presets import cluster_of
from meshplan.cost.full.explain import explain
from meshplan.cost.full.model import FullModel
from meshplan.cost.full.stack import load_stack
from meshplan.model.load import load_model
from meshplan.plan.kinds import Schedule
from meshplan.plan.plans import Plan, Plans
from meshplan.plan.workload import Workload

STACK = replace(load_stack("deepseek-v3"), straggler=0.0)
QWEN = load_model("qwen3-30b-a3b")  # 48 layers of experts
SMALL_ENDS = replace(QWEN, vocab=128)  # so that all stages are alike
FULL = FullModel(stack=STACK)
CLUSTER, WORK = cluster_of("h800", 64), Workload(seq=4096, gbs=64 * 8)
PLAN = Plan(pp=8, dp=8, ep=8, schedule=Schedule.DUALPIPE)


def test_the_bubble_is_the_published_one():
    """arXiv 2412.19437, table 2: (PP/2 - 1)(F&B + B - 3W). Here a pair takes what its forward and backward
    take with the all-to-all hidden."""
    costs = FULL.price(SMALL_ENDS, CLUSTER, WORK, Plans.of(PLAN))
    pipes = FULL.pipelines(SMALL_ENDS, CLUSTER, WORK, costs.plans)
    forward, backward, weight = (
        float(x[0, 3]) for x in (pipes.forward, pipes.backward_input + pipes.weight, pipes.weight)
    )
    pair = forward + backward
    expected = 3 * (pair + backward - 3 * weight)
    assert float(costs.time["bubble"][0]) == pytest.approx(expected, rel=0.02)
    simulated = pipes.simulated(costs, np.array([0]))
    assert float(simulated.time["bubble"][0]) == pytest.approx(expected, rel=0.15)
    assert float(simulated.step_s[0]) == pytest.approx(float(costs.step_s[0]), rel=0.01)
    # One after the other a rank goes on with a forward while its backward waits, and the other way round.
    apart = FullModel(stack=replace(STACK, overlaps_experts=False))
    assert float(apart.price(SMALL_ENDS, CLUSTER, WORK, Plans.of(PLAN)).time["bubble"][0]) < 0.7 * expected


def test_what_a_pair_sends_travels_while_it_runs():
    """arXiv 2412.19437, 3.2.1. A slow network between stages is waited for in the ramps alone: no more than
    5 p / 2 hops, where 64 micro-batches have 64 of them."""
    slow = cluster_of("h800", 64, gpus_per_node=8, nic=5e9)
    plan = Plan(tp=8, sp=False, pp=8, dp=1, schedule=Schedule.DUALPIPE)
    work = Workload(seq=4096, gbs=64)
    pipes = FULL.pipelines(SMALL_ENDS, slow, work, Plans.of(plan))
    hop = float(pipes.hop[0])
    found = pipes.simulated(FULL.price(SMALL_ENDS, slow, work, Plans.of(plan)), np.array([0]))
    assert 0 < float(found.time["pp"][0]) < 20 * hop


@pytest.mark.parametrize("layout", [(12, 12, 12, 12), (8, 14, 14, 12), (6, 12, 16, 14)])
def test_a_rank_keeps_p_minus_i_of_its_own_stage_and_the_rest_of_the_other(layout):
    """Rank i of 4 keeps 4 - i micro-batches of stage i and i + 1 of stage 3 - i alive; beside them the outer
    ranks keep the head's input and the final norm's, for one micro-batch."""
    plan = replace(PLAN, pp=4, dp=16, layout=layout)
    stages = explain(FULL, QWEN, CLUSTER, WORK, plan).stages
    tokens = 4096
    one = replace(QWEN, layers=QWEN.layers[:3])
    few, more = (
        explain(FULL, model, cluster_of("h800", 8), Workload(seq=4096, gbs=8), Plan(dp=8, ep=8)).stages[0]
        for model in (one, replace(one, layers=QWEN.layers[:4]))
    )
    layer = more.memory["activations"] - few.memory["activations"]
    ends = 2 * 2 * QWEN.hidden * tokens
    alive = [4 * layout[0] + layout[3], 3 * layout[1] + 2 * layout[2]]
    expected = [alive[0] * layer + ends, alive[1] * layer]
    assert [s.memory["activations"] for s in stages] == pytest.approx(expected, rel=1e-9)


def test_estimated_memory_is_the_simulated():
    model, machine = load_model("deepseek-v3"), cluster_of("h800", 2048)
    work = Workload(seq=4096, gbs=15360, precision="fp8")
    plan = Plan(pp=16, schedule=Schedule.DUALPIPE, dp=128, ep=64)
    costs = FULL.price(model, machine, work, Plans.of(plan))
    found = FULL.pipelines(model, machine, work, costs.plans).simulated(costs, np.array([0]))
    assert float(costs.memory_bytes[0]) == pytest.approx(float(found.memory_bytes[0]), rel=1e-9)
