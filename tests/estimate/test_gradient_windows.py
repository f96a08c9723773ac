"""What a step moves of its gradients: no more hides than there is computing, and DualPipe sums two copies."""

import numpy as np
import pytest

from meshplan.cluster.presets import cluster_of
from meshplan.cost.full.model import FullModel
from meshplan.cost.full.stack import load_stack
from meshplan.cost.full.sync import Transfers
from meshplan.model.load import load_model
from meshplan.plan.kinds import Schedule, Sharding
from meshplan.plan.plans import Plan, Plans
from meshplan.plan.workload import Workload


def priced(plan: Plan, *, stack: str = "megatron-core-2025", model: str = "llama-3.1-70b", **cluster):
    full = FullModel(stack=load_stack(stack))
    workload = Workload(seq=4096, gbs=256)
    return full.price(
        load_model(model), cluster_of("h100-sxm", plan.gpus, **cluster), workload, Plans.of(plan)
    )


@pytest.mark.parametrize("nic", [50e9, 25e9, 8e9])
@pytest.mark.parametrize(
    ("schedule", "vp"),
    [
        (Schedule.ONE_F_ONE_B, 1),
        (Schedule.INTERLEAVED, 4),
        (Schedule.INTERLEAVED, 10),
        (Schedule.ZB_V, 2),
        (Schedule.DUALPIPE_V, 2),
    ],
)
def test_gradients_of_every_micro_batch_hide_under_no_more_than_the_step(schedule, vp, nic):
    """ZeRO-2 reduces with every micro-batch over one link: the step cannot be shorter than all of it."""
    plan = Plan(tp=8, pp=4, vp=vp, dp=4, schedule=schedule, sharding=Sharding.ZERO2)
    costs = priced(plan, nic=nic)
    step, exposed, hidden = (float(x[0]) for x in (costs.step_s, costs.time["dp"], costs.hidden["dp"]))
    assert hidden <= step - exposed


def test_dualpipe_sums_gradients_over_both_copies():
    """A rank holds two stages, and sums them with dp · 2 - 1 others: 2 · 15/16 of what a rank of 1F1B moves
    for each parameter of a stage, which is 7/8 with dp 8."""
    moved = {}
    for schedule in (Schedule.ONE_F_ONE_B, Schedule.DUALPIPE):
        plan = Plan(pp=4, dp=8, schedule=schedule, sharding=Sharding.ZERO1)
        costs = priced(plan, gpus_per_node=1)
        moved[schedule] = float(costs.time["dp"][0] + costs.hidden["dp"][0])
    assert moved[Schedule.DUALPIPE] / moved[Schedule.ONE_F_ONE_B] == pytest.approx(
        (2 * 15 / 16) / (7 / 8), rel=0.05
    )


@pytest.mark.parametrize(
    ("apart", "window", "left"),
    [  # 2 s inside a replica, 3 s between them; a twentieth of both comes after the last backward
        (False, 0.0, 5.0), (False, 4.0, 1.0), (False, 4.9, 0.25), (False, 60.0, 0.25),
        (True, 0.0, 3.0), (True, 2.5, 0.5), (True, 2.9, 0.25), (True, 60.0, 0.25),
    ],
)  # fmt: skip
def test_replicas_and_shards_share_the_last_backward(apart, window, left):
    """One after the other they need 5 s of it, on links of their own the longer's 3 s."""
    one = np.ones(1)
    transfers = Transfers(
        reduce=2 * one, gathered=0 * one, replicas=3 * one, apart=np.array([apart]), optimizer=0 * one
    )
    assert transfers.last_reduction(window * one) == pytest.approx(left)
    # Of four micro-batches that reduce each under 1 s, three leave 1 s each.
    found = transfers.exposed(load_stack("megatron-core-2025"), 4 * one, 1 * one, 0 * one)
    assert found == pytest.approx(3 * 1.0 + (2.0 if apart else 4.0))
    early = load_stack("megatron-2022")  # overlaps nothing
    assert transfers.exposed(early, 4 * one, 60 * one, 60 * one) == pytest.approx(4 * 2.0 + 3.0)


def test_fsdp_of_every_micro_batch_leaves_replicas_less_to_hide_under():
    one = np.ones(1)
    kinds = {
        apart: Transfers(
            reduce=0 * one, gathered=0 * one, replicas=3 * one, apart=np.array([apart]), optimizer=0 * one
        )
        for apart in (False, True)
    }
    # 4 s of backward, of which gathering and scattering fill 2.5 s on the same links
    assert kinds[False].replicas_alone(4 * one, 2.5 * one) == pytest.approx(1.5)
    assert kinds[False].replicas_alone(4 * one, 6.0 * one) == pytest.approx(3.0)
    assert kinds[True].replicas_alone(4 * one, 2.5 * one) == pytest.approx(0.15)


@pytest.mark.parametrize("nic", [100e9, 25e9, 8e9])
@pytest.mark.parametrize(
    ("stack", "sharding"),
    [("torchtitan-compile", Sharding.ZERO3), ("megatron-core-2025", Sharding.ZERO1)],
)
def test_hybrid_sharding_hides_no_more_than_there_is_computing(stack, sharding, nic):
    """One GPU a node, so that every transfer goes over one link; a step of one micro-batch cannot hide more
    than nine tenths of its computing."""
    full = FullModel(stack=load_stack(stack))
    plan = Plan(dp=8, replicas=2, sharding=sharding)
    costs = full.price(
        load_model("llama-3.1-8b"), cluster_of("h100-sxm", 8, gpus_per_node=1, nic=nic),
        Workload(seq=4096, gbs=8), Plans.of(plan),
    )  # fmt: skip
    apart = ("dp", "optimizer", "straggler", "step overhead")
    computing = sum(float(value[0]) for name, value in costs.time.items() if name not in apart)
    assert 0 < float(costs.hidden["dp"][0]) <= 0.9 * computing * (1 + 1e-9)


def test_zero2_under_torch_s_pipeline_is_zero3_that_never_reshards():
    """torch's schedules let FSDP reduce with the last micro-batch alone and keep weights in between
    (``torch/distributed/pipelining/stage.py``, ``backward_maybe_with_nosync``)."""
    plans = [
        Plan(tp=4, pp=4, dp=8, schedule=Schedule.ONE_F_ONE_B, sharding=s)
        for s in (Sharding.ZERO2, Sharding.ZERO3)
    ]
    full = FullModel(stack=load_stack("torchtitan"))
    costs = full.price(
        load_model("llama-3.1-70b"),
        cluster_of("h100-sxm", 128),
        Workload(seq=4096, gbs=256),
        Plans.of(*plans),
    )
    assert costs.step_s[0] == pytest.approx(costs.step_s[1], rel=1e-12)
    held = costs.memory_bytes - costs.memory["fragmentation"]
    assert held[0] == pytest.approx(held[1], rel=1e-12)
