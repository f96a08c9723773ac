"""What a step moves of its gradients: no more hides than there is computing, and DualPipe sums two copies."""

import pytest

from meshplan.cluster.presets import cluster_of
from meshplan.cost.full.model import FullModel
from meshplan.cost.full.stack import load_stack
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
