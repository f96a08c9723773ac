"""Cards on PCIe against rows of the tables that their curves were fitted on (aiconfigurator 095f58a5)."""

import pytest

from meshplan.cluster.collectives import collective_seconds
from meshplan.cluster.curves import attention_seconds, gemm_seconds
from meshplan.cluster.profile import load_profile

MIB = 1 << 20


@pytest.mark.parametrize(
    ("gpu", "m", "n", "k", "tflops", "within"),
    [  # torch.nn.functional.linear, bf16
        ("rtx-pro-6000", 2048, 4096, 4096, 369, 0.08),
        ("rtx-pro-6000", 4096, 4096, 4096, 398, 0.08),
        ("rtx-pro-6000", 4096, 12288, 4096, 394, 0.08),
        ("rtx-pro-6000", 8192, 4096, 12288, 403, 0.08),
        ("rtx-pro-6000", 8192, 8192, 8192, 390, 0.09),
        ("l40s", 2048, 4096, 4096, 251, 0.10),
        ("l40s", 4096, 12288, 4096, 224, 0.15),
    ],
)
def test_products(gpu, m, n, k, tflops, within):
    found = gemm_seconds(load_profile(gpu), m, n, k, clock="burst")
    assert 2 * m * n * k / float(found) == pytest.approx(tflops * 1e12, rel=within)


@pytest.mark.parametrize(
    ("gpu", "batch", "seq", "tflops"),
    [  # FlashAttention-2, causal, forward, 32 heads of 128 over 8 of keys
        ("rtx-pro-6000", 1, 4096, 251), ("rtx-pro-6000", 2, 4096, 260), ("rtx-pro-6000", 1, 16384, 301),
        ("l40s", 1, 4096, 177), ("l40s", 2, 4096, 176), ("l40s", 1, 16384, 186),
    ],
)  # fmt: skip
def test_attention(gpu, batch, seq, tflops):
    found = attention_seconds(
        load_profile(gpu), batch=batch, heads=32, kv_heads=8, head_dim=128, seq_q=seq, clock="burst"
    )
    assert 2 * batch * 32 * seq**2 * 128 / float(found.forward) == pytest.approx(tflops * 1e12, rel=0.08)


@pytest.mark.parametrize(
    ("ranks", "op", "mib", "milliseconds"),
    [
        (8, "all_reduce", 64, 4.927), (8, "all_gather", 256, 10.275), (8, "reduce_scatter", 256, 10.161),
        (8, "all_to_all", 128, 6.618),
    ],
)  # fmt: skip
def test_collectives_over_pcie(ranks, op, mib, milliseconds):
    found = collective_seconds(load_profile("rtx-pro-6000"), op, mib * MIB, ranks=ranks, ranks_per_node=8)
    assert float(found) == pytest.approx(milliseconds * 1e-3, rel=0.05)


def test_two_l40s_get_the_share_of_their_link_that_two_rtx_pro_6000_get():
    """Its own table holds 20.1 GB/s for two cards, 256 MiB; the curve comes from the other card."""
    found = collective_seconds(load_profile("l40s"), "all_reduce", 256 * MIB, ranks=2, ranks_per_node=8)
    assert 256 * MIB / float(found) == pytest.approx(20.1e9, rel=0.08)


def test_a_card_of_72_w_is_held_back_most():
    rates = {g: float(1 / gemm_seconds(load_profile(g), 8192, 8192, 8192)) for g in ("l4", "l40", "l40s")}
    peaks = {g: load_profile(g).gpu.peak("bf16") for g in rates}
    shares = {g: 2 * 8192**3 * rates[g] / peaks[g] for g in rates}
    assert shares["l4"] < shares["l40s"] < shares["l40"]
