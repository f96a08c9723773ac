"""What tensor parallelism sends at both ends of a model: embedding, head and loss, counted by hand.

Which collectives there are is read in Megatron-LM (``core/tensor_parallel/layers.py``, ``cross_entropy.py``,
``core/transformer/multi_token_prediction.py``) and torch (``distributed/tensor/parallel/loss.py``). How long
one takes is the collectives' own business, and is asked of them here.
"""

from dataclasses import replace

import numpy as np
import pytest

from meshplan.cluster.collectives import collective_seconds
from meshplan.cluster.presets import cluster_of
from meshplan.cluster.profile import profile_of
from meshplan.cost.full.model import FullModel
from meshplan.cost.full.stack import load_stack
from meshplan.model.load import load_model
from meshplan.plan.kinds import Schedule, Sharding
from meshplan.plan.plans import Plan, Plans
from meshplan.plan.workload import Workload

SEQ, MICRO_BATCHES = 4096, 6
LLAMA = load_model("llama-3.1-8b")  # 128,256 columns divide by 4
# Nothing slower than the curves say, and columns that are the same with and without transfers.
MEGATRON = replace(
    load_stack("megatron-core-2025"), vocabulary="uneven", network_rate=1.0, scaleup_rate=1.0, straggler=0.0
)
TORCH = replace(
    load_stack("torchtitan"), vocabulary="uneven", network_rate=1.0, scaleup_rate=1.0, straggler=0.0
)


def price(stack, plan, model=LLAMA, what="price"):
    full = FullModel(stack=stack)
    work = Workload(seq=SEQ, gbs=MICRO_BATCHES * plan.dp * plan.mbs)
    return getattr(full, what)(model, cluster_of("h100-sxm", plan.gpus), work, Plans.of(plan))


def ends(stack, plan, model=LLAMA):
    """Exposed and hidden seconds of a micro-batch that stacks do not have whose ranks keep to their cut."""
    with_, without = price(stack, plan, model), price(replace(stack, vocabulary="cut"), plan, model)
    for part in with_.time:
        if part not in ("tp", "bubble", "imbalance", "host"):
            assert with_.time[part] == pytest.approx(without.time[part], rel=1e-9, abs=1e-12), part
    return tuple(
        float(getattr(with_, kind)["tp"][0] - getattr(without, kind)["tp"][0]) / MICRO_BATCHES
        for kind in ("time", "hidden")
    )


def takes(op, size, tp=4):
    profile = profile_of(cluster_of("h100-sxm", 8).gpu)
    return float(collective_seconds(profile, op, size, ranks=tp, ranks_per_node=tp))


STREAM = 2 * 4096 * SEQ  # bf16, hidden 4,096
ROWS = 4 * SEQ  # fp32, one number a token: largest logit, own logit, sum of exponentials
PLAN = Plan(tp=4, sp=True, dp=2)


def test_with_sp_megatron_scatters_gathers_and_reduces_three_rows():
    exposed, hidden = ends(MEGATRON, PLAN)
    gather, scatter = takes("all_gather", STREAM), takes("reduce_scatter", STREAM)
    # The head's reduce-scatter runs beside the weights' product: 4,096 x 32,064 x 4,096 take 2 ms, it 0.1.
    assert exposed == pytest.approx(2 * gather + scatter + 3 * takes("all_reduce", ROWS), rel=1e-6)
    assert hidden == pytest.approx(scatter, rel=1e-6)


def test_without_sp_the_embedding_is_reduced_forward_and_the_head_backward():
    exposed, hidden = ends(MEGATRON, replace(PLAN, sp=False))
    reduce = takes("all_reduce", STREAM)
    assert exposed == pytest.approx(reduce + 3 * takes("all_reduce", ROWS), rel=1e-6)
    assert hidden == pytest.approx(reduce, rel=1e-6)
    early = replace(MEGATRON, head_overlap=False)  # Megatron-LM before September 2021
    assert sum(ends(early, replace(PLAN, sp=False))) == pytest.approx(exposed + hidden, rel=1e-6)
    assert ends(early, replace(PLAN, sp=False))[1] == pytest.approx(0.0, abs=1e-12)


def test_torch_waits_for_the_gradient_of_the_head_s_input():
    exposed, hidden = ends(TORCH, PLAN)
    both = takes("all_gather", STREAM) + takes("reduce_scatter", STREAM)
    assert exposed == pytest.approx(2 * both + 3 * takes("all_reduce", ROWS), rel=1e-6)
    assert hidden == pytest.approx(0.0, abs=1e-12)


def test_megatron_adds_a_table_of_positions_to_the_whole_stream():
    model = replace(LLAMA, positions=SEQ)
    exposed, _ = ends(MEGATRON, PLAN, model)
    gather = takes("all_gather", STREAM)
    assert exposed == pytest.approx(
        takes("all_reduce", STREAM) + 2 * gather + 3 * takes("all_reduce", ROWS), rel=1e-6
    )


def test_a_layer_of_multi_token_prediction_looks_up_projects_and_predicts_again():
    one, _ = ends(MEGATRON, PLAN)
    model = replace(LLAMA, mtp=LLAMA.layers[:1])
    two, _ = ends(MEGATRON, PLAN, model)
    gather, scatter = takes("all_gather", STREAM), takes("reduce_scatter", STREAM)
    again = 2 * gather + scatter + 3 * takes("all_reduce", ROWS)
    # The projection gathers both of its inputs and its output's columns; back, it gathers what was cut
    # along tokens and scatters the gradients of its inputs.
    projection = 2 * gather + gather + gather + 2 * scatter
    assert two - one == pytest.approx(again + projection, rel=1e-6)


def test_one_rank_of_tp_sends_nothing():
    assert ends(MEGATRON, Plan(tp=1, dp=8)) == pytest.approx((0.0, 0.0), abs=1e-12)


@pytest.mark.parametrize("layout", [None, (3,) + (4,) * 6 + (5,)])
def test_the_first_and_the_last_stage_pay(layout):
    plan = Plan(
        tp=4, sp=True, pp=8, dp=1, schedule=Schedule.ONE_F_ONE_B, layout=layout, sharding=Sharding.ZERO1
    )
    stages = [price(replace(MEGATRON, vocabulary=how), plan, what="pipelines") for how in ("uneven", "cut")]
    forward, backward = (
        getattr(stages[0], name)[0] - getattr(stages[1], name)[0] for name in ("forward", "backward_input")
    )
    gather, scatter = takes("all_gather", STREAM), takes("reduce_scatter", STREAM)
    rows = 3 * takes("all_reduce", ROWS)
    assert forward == pytest.approx([scatter, *[0.0] * 6, gather + rows], rel=1e-6, abs=1e-9)
    assert backward == pytest.approx([gather, *[0.0] * 7], rel=1e-6, abs=1e-9)
    # Of the whole step: the busiest rank alone decides, the rest is imbalance of others.
    ends_only = ends(MEGATRON, plan)[0] * plan.pp
    assert ends_only == pytest.approx(2 * gather + scatter + rows, rel=1e-6)


def test_a_table_of_plans_prices_each_as_alone():
    plans = [PLAN, replace(PLAN, sp=False), Plan(tp=8, sp=True), Plan(dp=8), Plan(tp=2, sp=True, pp=2, dp=2)]
    full = FullModel(stack=MEGATRON)
    work = Workload(seq=SEQ, gbs=16)
    machine = cluster_of("h100-sxm", 8)
    table = full.price(LLAMA, machine, work, Plans.of(*plans))
    alone = [full.price(LLAMA, machine, work, Plans.of(plan)).time["tp"][0] for plan in plans]
    assert np.asarray(table.time["tp"]) == pytest.approx(alone, rel=1e-12)


@pytest.mark.parametrize(
    ("plan", "nodes"),
    [
        (Plan(pp=2, dp=1, sharding=Sharding.DDP), 1),
        (Plan(tp=4, sp=True, pp=4, dp=1, sharding=Sharding.DDP), 2),
    ],
)
def test_stages_that_share_the_embedding_add_up_its_gradient(plan, nodes):
    """Once a step, in fp32 and after everything else; without data parallelism there is nothing else
    (Megatron-LM, ``core/distributed/finalize_model_grads.py``)."""
    model = replace(LLAMA, tied_embeddings=True)
    size = 4 * 128_256 * 4096 / plan.tp
    profile = profile_of(cluster_of("h100-sxm", 16).gpu)
    expected = float(
        collective_seconds(
            profile, "all_reduce", size, ranks=2, ranks_per_node=2 // nodes, network_bandwidth=50e9
        )
    )
    costs = price(MEGATRON, plan, model)
    assert float(costs.time["dp"][0]) == pytest.approx(expected, rel=1e-6)
    simulated = price(MEGATRON, plan, model, "pipelines").simulated(costs, np.array([0]))
    assert float(simulated.time["dp"][0]) == pytest.approx(expected, rel=1e-6)
    # A head of its own shares nothing, nor do ends on one rank, nor torch's pipelines, which refuse ties.
    assert float(price(MEGATRON, plan).time["dp"][0]) == 0
    folded = replace(plan, schedule=Schedule.ZB_V, vp=2)
    assert float(price(MEGATRON, folded, model).time["dp"][0]) == 0
    assert float(price(TORCH, plan, model).time["dp"][0]) == 0
