"""What calibration times together, and what a CPU cannot hide."""

from dataclasses import replace

import pytest

from meshplan.calibrate.stack_fit import Case, prices
from meshplan.cluster.files import cluster_of_table
from meshplan.cluster.presets import load_gpu
from meshplan.cost.full.stack import load_stack
from meshplan.model.load import load_model
from meshplan.plan.kinds import Sharding
from meshplan.plan.plans import DEFAULT_ORDER, Plan
from meshplan.plan.workload import Workload


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ("aabb", [([[0, 1], [2, 3]], 2), ([[0, 2], [1, 3]], 1), ([[0, 1, 2, 3]], 2)]),
        ("ab", [([[0, 1]], 1)]),
        ("aaaa", [([[0, 1], [2, 3]], 2), ([[0, 1, 2, 3]], 4)]),
        (
            "aaaabbbb",
            [
                ([[0, 1], [2, 3], [4, 5], [6, 7]], 2),
                ([[0, 1, 2, 3], [4, 5, 6, 7]], 4),
                ([[0, 4], [1, 5], [2, 6], [3, 7]], 1),
                ([[0, 1, 4, 5], [2, 3, 6, 7]], 2),
                ([[0, 1, 2, 3, 4, 5, 6, 7]], 4),
            ],
        ),
        (
            "aaabbb",
            [
                ([[0, 1], [3, 4]], 2),
                ([[0, 3], [1, 4], [2, 5]], 1),
                ([[0, 1, 3, 4]], 2),
                ([[0, 1, 2, 3, 4, 5]], 3),
            ],
        ),
    ],
)  # fmt: skip
def test_groups_that_a_step_uses_at_once_are_timed_at_once(hosts, expected):
    pytest.importorskip("torch", reason="torch is not installed: pip install 'meshplan[measure]'")
    from meshplan.calibrate.bench.worker import groups

    assert list(groups(list(hosts))) == expected


def test_no_accelerator_is_taken_for_a_cpu():
    for name in ("h100-sxm", "a100-80gb", "v100-32gb", "mi300x", "rtx-4090", "gaudi3"):
        assert not load_gpu(name).is_cpu
    assert core(8).gpu.is_cpu


def core(gpus):
    rate = "0.1 TFLOP/s"
    gpu = {
        "like": "h100-sxm", "title": "cpu", "hbm": "16 GiB", "hbm_bandwidth": "10 GB/s",
        "nic_bandwidth": "0.1 GB/s", "gpus_per_host": 1,
        "peak_flops": {"bf16": rate, "fp32": rate, "tf32": rate},
    }  # fmt: skip
    tiers = [
        {"name": "host", "span": 1, "bandwidth": "10 GB/s"},
        {"name": "network", "bandwidth": "0.1 GB/s", "latency": "50 us"},
    ]
    return cluster_of_table({"name": "cores", "gpu": gpu, "gpus": gpus, "tiers": tiers}, where="cores")


@pytest.mark.parametrize("sharding", [Sharding.DDP, Sharding.ZERO1, Sharding.ZERO3])
def test_on_a_cpu_gradients_are_reduced_after_the_step_not_under_it(sharding):
    case = Case(
        model=load_model("llama-3.2-1b"), workload=Workload(seq=512, gbs=8, precision="fp32"),
        plan=Plan(dp=2, sharding=sharding), order=DEFAULT_ORDER, label="x", step_s=1.0,
    )  # fmt: skip
    stack = load_stack("torchtitan")
    one = replace(
        case, plan=Plan(dp=1, sharding=sharding), workload=Workload(seq=512, gbs=4, precision="fp32")
    )
    alone, both = float(prices([one], core(1), stack)[0]), float(prices([case], core(2), stack)[0])
    # 1.236e9 parameters: at the least each rank sends half of them twice in fp32 over 0.1 GB/s
    wire = 2 * 0.5 * 1.236e9 * 4 / 0.1e9
    assert both - alone > 0.95 * wire
