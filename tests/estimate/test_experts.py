"""What experts cost: the all-to-all as measured, who is sent a copy, the order of tokens, the host."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from meshplan.cluster.presets import cluster_of
from meshplan.cluster.profile import profile_of
from meshplan.cost.full.comm import Links, expert_parallel, nodes_reached
from meshplan.cost.full.keys import LayerKeys
from meshplan.cost.full.model import FullModel
from meshplan.cost.full.stack import load_stack
from meshplan.cost.full.topology import group
from meshplan.model.layers import Moe
from meshplan.model.load import load_model
from meshplan.plan.plans import Plan, Plans
from meshplan.plan.workload import Workload

EP = np.array([8, 16, 32, 64])


@pytest.mark.parametrize(
    ("gpu", "dispatcher", "microseconds"),
    [  # arXiv 2603.07685, table 7: dispatch of DeepSeek-V3's 4,096 tokens a rank in bf16
        ("h100-sxm", "all-to-all", (1265, 5774, 8059, 9164)),
        ("h100-sxm", "dedup", (661, 1485, 3064, 4626)),
        ("gb200", "all-to-all", (735, 743, 769, 930)),
        ("gb200", "dedup", (391, 578, 612, 675)),
    ],
)
def test_dispatch_as_measured(gpu, dispatcher, microseconds):
    model, cluster = load_model("deepseek-v3"), cluster_of(gpu, 64)
    layer = next(kind for kind in model.kinds if isinstance(kind.mlp, Moe))
    one = np.ones_like(EP)
    keys = LayerKeys(
        tp=one,
        sp=one > 1,
        cp=one,
        cp_kind=0 * one,
        ep=EP,
        etp=one,
        mbs=one,
        modules=0 * one,
        seq=4096,
        precision="bf16",
    )
    links = Links(
        cluster=cluster,
        profile=profile_of(cluster.gpu),
        network_rate=1.0,
        scaleup_rate=1.0,
        all_to_all_rate=1.0,
    )
    stack = replace(load_stack("megatron-core-2025"), dispatcher=dispatcher, ep_exposed=1.0)
    domain = cluster.gpus_per_node
    both, hidden = expert_parallel(
        layer, model.hidden, keys, links, group(EP, one, domain), group(one, one, domain), stack
    )
    assert both / 2 * 1e6 == pytest.approx(microseconds, rel=0.16)
    assert not hidden.any()


def test_routing_limited_to_groups_reaches_fewer_nodes():
    """Held against all choices of 2 of 4 groups on 2 nodes, and of one expert of two on each."""
    free = Moe(experts=8, topk=1, width=1)
    limited = Moe(experts=8, topk=8, width=1, groups=4, groups_used=2)
    nodes = np.array([2.0])
    assert nodes_reached(free, nodes) == pytest.approx(1.0)
    pairs = [set(c) for c in product(range(4), repeat=2) if len(set(c)) == 2]
    spread = np.mean([len({g // 2 for g in pair}) for pair in pairs])
    assert nodes_reached(limited, nodes) == pytest.approx(spread, rel=0.03)


def test_deepseek_v3_sends_a_token_to_at_most_four_of_eight_nodes():
    """arXiv 2412.19437, 2.1.2 and 3.2.2: at most 4 nodes, 3.2 experts on each were still free."""
    moe = next(kind.mlp for kind in load_model("deepseek-v3").kinds if isinstance(kind.mlp, Moe))
    assert 3.2 < float(nodes_reached(moe, np.array([8.0]))[0]) <= 4.0


def priced(**switches):
    model, cluster = load_model("qwen3-30b-a3b"), cluster_of("h100-sxm", 8)
    stack = replace(load_stack("megatron-core-2025"), **switches)
    plans = Plans.of(Plan(dp=8, ep=8, mbs=2))
    return FullModel(stack=stack).price(model, cluster, Workload(seq=4096, gbs=64), plans)


def test_rows_are_put_in_order_at_their_own_rate():
    """Four passes over 8 · 2,048 features of 2 · 4,096 tokens, read and written, forward and backward, in 48
    layers: 2 · 4 · 4 bytes · 1.34e8 · 48 = 206 GB of 3.35 TB/s for each of 4 micro-batches."""
    slow, fast = (priced(permute_rate=rate, cuda_graph="full") for rate in (0.25, 0.5))
    more = float(slow.time["elementwise"][0] - fast.time["elementwise"][0])
    seconds = 4 * 2 * 4 * 4 * 8 * 2048 * 8192 * 48 / 3.35e12
    assert more == pytest.approx(seconds * (1 / 0.25 - 1 / 0.5), rel=0.01)


def test_overlap_costs_the_host():
    slow = {"host_moe_s": 0.05, "host_overlap": 1.5}
    plain, cut = (priced(overlaps_experts=on, **slow).time["host"][0] for on in (False, True))
    assert plain > 0
    assert cut > plain


def test_one_kernel_for_the_block_of_experts_saves_its_activation_and_two_of_four_casts():
    """Qwen3-30B's layer, 4,096 tokens on one rank of eight: 32,768 rows. SwiGLU of 768 features moves 6 bytes
    of each forward and 10 backward, casts to fp8 read 2 bytes and write at least 1 of fc2's input (768) and
    of the gradient of fc1's output (1,536)."""
    model = load_model("qwen3-30b-a3b")
    model = replace(model, layers=model.layers[:1])
    cluster, work = cluster_of("gb200", 8), Workload(seq=4096, gbs=8, precision="mxfp8")
    plan = Plans.of(Plan(dp=8, ep=8, mbs=1))

    def elementwise(grouped):
        full = FullModel(stack=replace(load_stack("megatron-bridge"), grouped=grouped))
        return float(full.price(model, cluster, work, plan).time["elementwise"][0])

    saved = elementwise("fused") - elementwise("block")
    least = 32768 * (768 * 16 + 3 * (768 + 1536)) / 8e12
    assert least < saved < 3 * least
