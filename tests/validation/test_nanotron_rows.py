"""How nanotron cuts a model into stages, and what its published runs say of that."""

from __future__ import annotations

import pytest

from meshplan.validation.cases import case_of
from meshplan.validation.layouts import cut_by_cost
from meshplan.validation.rows import OPTIONAL_NUMBERS, REQUIRED_NUMBERS, TEXT, Row
from meshplan.validation.run import price_cases

SMALL = {
    "layers": 16, "hidden": 2048, "heads": 32, "kv_heads": 32, "head_dim": 64, "ffn": 8192, "vocab": 131072,
    "gated": 1, "seq": 4096, "gpus_per_node": 8, "gbs": 256, "tp": 1, "cp": 1, "pp": 2,
}  # fmt: skip


def case(**numbers):
    text = dict.fromkeys(TEXT, "")
    text |= {
        "id": "a", "source": "nanotron", "release": "2025-02", "tier": "B", "model": "small", "gpu": "H100",
        "sharding": "zero1", "recompute": "none", "precision": "bf16",
    }  # fmt: skip
    number = dict.fromkeys((*REQUIRED_NUMBERS, *OPTIONAL_NUMBERS), None) | SMALL | numbers
    return case_of(Row(line=2, text=text, number=number))


def test_stages_by_cost_by_hand():
    # A layer is 4 · 2048² + 3 · 8192 · 2048 = 67.1 M, the head 131,072 · 2048 = 268.4 M: four layers. Half of
    # the twenty is ten, which is not more than half, so that the first stage takes an eleventh.
    assert cut_by_cost([67_108_864] * 16 + [268_435_456], 2) == (11, 5)
    # 80 layers of 973 M and a head of 1,074 M over 32 stages: 2.47 G each, passed by three layers, six, eight
    layout = cut_by_cost([972_881_920] * 80 + [1_073_741_824], 32)
    assert layout is not None
    assert layout[:3] == (3, 3, 2)
    assert sum(layout) == 80
    assert cut_by_cost([1, 1, 100], 3) is None


@pytest.mark.parametrize(
    ("gpus", "mbs", "measured_s", "measured_gb"),
    # docs/benchmark_summary.svg: MFU of 32.5, 38.4 and 44.3 % as step times, and memory
    [(64, 1, 0.493, 16.27), (32, 1, 0.834, 16.39), (8, 4, 2.890, 41.76)],
)
def test_small_models_with_the_head_on_a_stage_of_few_layers(gpus, mbs, measured_s, measured_gb):
    one = case(gpus=gpus, dp=gpus // 2, mbs=mbs, step_s=measured_s, peak_gib=measured_gb)
    assert one.plan.layout == (11, 5)
    (found,) = price_cases([one])
    assert found.step_s == pytest.approx(measured_s, rel=0.12)
    assert found.memory_bytes / 2**30 == pytest.approx(measured_gb, rel=0.05)
