"""Optimizer states in host memory: off the GPU, and paid for by the link and the host's memory."""

from dataclasses import replace

import pytest

from meshplan.cluster.presets import cluster_of
from meshplan.cost.full.model import FullModel
from meshplan.cost.full.stack import load_stack
from meshplan.errors import InputError
from meshplan.model.load import load_model
from meshplan.plan.plans import Plan, Plans
from meshplan.plan.workload import Workload


def priced(share):
    stack = replace(load_stack("megatron-core-2025"), offloaded=share)
    plans = Plans.of(Plan(dp=8, mbs=1, sharding=1))
    model, cluster = load_model("llama-2-7b"), cluster_of("h100-sxm", 8)
    return FullModel(stack=stack).price(model, cluster, Workload(seq=4096, gbs=64), plans)


def test_states_leave_the_gpu():
    whole, half, none = (float(priced(share).memory["optimizer"][0]) for share in (0.0, 0.5, 1.0))
    assert whole == pytest.approx(12 * 6_738_415_616 / 8, rel=0.001)
    assert half == pytest.approx(whole / 2)
    assert none == 0


def test_the_host_is_paid_for():
    """842 M parameters a GPU: 6 bytes each over PCIe 5 x16 (63 GB/s) are 80 ms, and 28 bytes each of eight
    GPUs through 200 GB/s are 943 ms; what the GPU itself no longer moves, 30 bytes each, is 11 ms at most."""
    before, after = (float(priced(share).time["optimizer"][0]) for share in (0.0, 1.0))
    assert after - before == pytest.approx(0.080 + 0.943, abs=0.015)


def test_a_share_is_a_share():
    with pytest.raises(InputError, match="offloaded must be between 0 and 1"):
        replace(load_stack("megatron-core-2025"), offloaded=1.5)
