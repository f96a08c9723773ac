"""What a step pays once besides its transfers: traffic of Adam, of the norm and of the gradients held."""

import pytest

from meshplan.cluster.presets import cluster_of
from meshplan.cost.full.model import FullModel
from meshplan.cost.full.stack import load_stack
from meshplan.model.load import load_model
from meshplan.plan.kinds import Recompute, Schedule, Sharding
from meshplan.plan.plans import Plan, Plans
from meshplan.plan.workload import Workload


def priced(model, gpu, stack, plan, *, seq=4096, gbs=512, precision="bf16"):
    cluster = cluster_of(gpu, plan.gpus)
    workload = Workload(seq=seq, gbs=gbs, precision=precision)
    return FullModel(stack=load_stack(stack)).price(load_model(model), cluster, workload, Plans.of(plan))


def rate(stack):
    """Bytes/s: 3.35 TB/s of an H100, what its curve reaches of them, what the stack sustains."""
    model = FullModel(stack=load_stack(stack))
    costs = priced("llama-2-7b", "h100-sxm", stack, Plan(dp=1))
    moved = 6.738e9 * (30 + 4 + (8 if model.stack.family == "torch" else 12))
    return moved / float(costs.time["optimizer"][0])


@pytest.mark.parametrize(
    ("stack", "plan", "held", "owned", "of_held", "of_owned"),
    [
        # Llama-3 70B over tp 4, pp 4, dp 8: 4.5 B parameters on the fullest rank, an eighth of them owned.
        ("megatron-core-2025", Plan(tp=4, sp=True, pp=4, dp=8, sharding=Sharding.ZERO1), 4.54e9, 8, 12, 34),
        # The same over 32 under FSDP: nothing but the shard is there.
        ("torchtitan", Plan(dp=32, sharding=Sharding.ZERO3), 70.55e9, 32, 0, 42),
    ],
)
def test_traffic_by_hand(stack, plan, held, owned, of_held, of_owned):
    """30 bytes of Adam and 4 of the norm for what a rank owns; Megatron's zeroing and scaling of fp32
    gradients, 12 for what it holds; torch's scaling, 8 for what it owns."""
    costs = priced("llama-3-70b", "h100-sxm", stack, plan)
    by_hand = held * (of_owned / owned + of_held) / rate(stack)
    assert float(costs.time["optimizer"][0]) == pytest.approx(by_hand, rel=0.06)


def test_deepseek_v3_pays_for_its_gradients_outside_the_pipeline():
    """arXiv 2505.09343, table 4: 0.29 s beside the pipeline's parts, said to be the optimizer."""
    plan = Plan(
        pp=16,
        schedule=Schedule.DUALPIPE,
        dp=128,
        ep=64,
        recompute_modules=Recompute.NORM | Recompute.MLA_UP_PROJ,
    )
    costs = priced("deepseek-v3", "h800", "deepseek-v3", plan, gbs=15360, precision="fp8")
    once = float(costs.time["optimizer"][0] + costs.time["dp"][0])
    assert once == pytest.approx(0.29, rel=0.25)
