"""Attention: against the papers' figures, brute-force pair counts and physical bounds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshplan.cluster.curves import attention_kernel, attention_pairs, attention_seconds
from meshplan.cluster.profile import load_profile, peak_flops, profile_names
from meshplan.errors import InputError, UnknownNameError

SEQ = np.array([512, 1024, 2048, 4096, 8192, 16384])


def rates(gpu: str, seq: np.ndarray, *, causal: bool, heads: int = 16, tokens: int = 16384, **more: object):
    """Forward and backward TFLOP/s with the causal half counted once and backward as 2.5 forwards."""
    d, d_v = int(more.pop("head_dim", 128)), int(more.pop("v_head_dim", 128))
    batch = np.maximum(tokens // seq, 1)
    times = attention_seconds(
        load_profile(gpu),
        batch=batch,
        heads=heads,
        head_dim=d,
        v_head_dim=d_v,
        seq_q=seq,
        causal=causal,
        **more,
    )
    flop = 2.0 * batch * heads * (d + d_v) * seq.astype(float) ** 2 * (0.5 if causal else 1.0)
    return flop / times.forward / 1e12, 2.5 * flop / times.backward / 1e12


def test_flash_attention_3_paper() -> None:
    """H100, head size 128, 16,384 tokens, 2,048 wide (arXiv 2407.08608, figures 5 and 6)."""
    full, backward = rates("h100-sxm", SEQ, causal=False, clock="burst")
    assert full == pytest.approx([467, 565, 625, 638, 646, 648], rel=0.12)
    assert backward == pytest.approx([316, 424, 501, 542, 559, 561], rel=0.12)
    causal, _ = rates("h100-sxm", SEQ, causal=True, clock="burst")
    assert causal == pytest.approx([292, 423, 521, 579, 602, 616], rel=0.18)
    assert causal[3:] == pytest.approx([579, 602, 616], rel=0.09)


def test_flash_attention_2_on_hopper() -> None:
    """The same paper's figures of FlashAttention-2 at both ends."""
    ends = SEQ[[0, -1]]
    causal, _ = rates("h100-sxm", ends, causal=True, kernel="fa2")
    full, backward = rates("h100-sxm", ends, causal=False, kernel="fa2")
    assert causal == pytest.approx([191, 335], rel=0.05)
    assert full == pytest.approx([309, 370], rel=0.05)
    assert backward == pytest.approx([214, 322], rel=0.05)


@pytest.mark.parametrize(
    ("kernel", "head_dim", "causal", "tflops"),
    [
        ("fa3", 64, False, 120.1), ("fa3", 64, True, 100.3),
        ("fa3", 128, False, 126.2), ("fa3", 128, True, 107.8),
        ("fa2", 64, False, 81.8), ("fa2", 64, True, 71.0),
        ("fa2", 128, False, 83.7), ("fa2", 128, True, 65.9),
    ],
)  # fmt: skip
def test_slow_matrix_units_wait_for_nothing(kernel: str, head_dim: int, causal: bool, tflops: float) -> None:
    # H20, 2 sequences of 2,048, model width 2,048: github.com/Dao-AILab/flash-attention issue 1310.
    heads = 2048 // head_dim
    found = attention_seconds(
        load_profile("h20"), batch=2, heads=heads, head_dim=head_dim, seq_q=2048, causal=causal, kernel=kernel
    )
    flops = 4 * 2 * heads * 2048**2 * head_dim * (0.5 if causal else 1)
    assert flops / float(found.forward) == pytest.approx(tflops * 1e12, rel=0.03)


def test_latent_attention_on_hopper() -> None:
    """DeepSeek-V3's heads (192 and 128) with cuDNN: 553/422 TFLOP/s at 4,096 and 638/523 at 16,384."""
    forward, backward = rates(
        "h100-sxm", np.array([4096, 16384]), causal=True, heads=128, tokens=1, head_dim=192, clock="burst"
    )
    assert forward == pytest.approx([553, 638], rel=0.10)
    assert backward == pytest.approx([422, 523], rel=0.10)


def test_few_heads_leave_sms_idle() -> None:
    """A100 in training, 4,096 tokens, one sequence: forward and backward by heads a GPU (SimuMax
    configs/system/a100_pcie.json; TFLOP/s with the causal half)."""
    measured = {64: (185, 157), 32: (177, 152), 16: (155, 138), 8: (121, 119)}
    for heads, (forward, backward) in measured.items():
        got = rates("a100-80gb", np.array([4096]), causal=True, heads=heads, tokens=1)
        assert float(got[0][0]) == pytest.approx(forward, rel=0.08)
        assert float(got[1][0]) == pytest.approx(backward, rel=0.08)


def test_blackwell_in_training() -> None:
    """B200 with cuDNN in training (SimuMax configs/system/b200_bf16_ceperm.json): forward, backward."""
    for heads, seq, forward, backward in (
        (64, 4096, 980, 821),
        (128, 4096, 1121, 936),
        (16, 32768, 1311, 981),
    ):
        got = rates("b200", np.array([seq]), causal=True, heads=heads, tokens=1)
        assert float(got[0][0]) == pytest.approx(forward, rel=0.13)
        assert float(got[1][0]) == pytest.approx(backward, rel=0.13)


def test_unfused_attention_of_2022() -> None:
    """Attention that selective recompute runs again in a 22B layer (arXiv 2205.05198, table 4): 13.2 − 11.9
    = 1.3 ms on A100, batch 4, 2,048 tokens, 8 of 64 heads of 96, with dropout; printed to 0.1 ms."""
    times = attention_seconds(
        load_profile("a100-80gb"), batch=4, heads=8, head_dim=96, seq_q=2048, kernel="unfused", dropout=True
    )
    assert float(times.forward) == pytest.approx(1.3e-3, abs=0.15e-3)
    without = attention_seconds(
        load_profile("a100-80gb"), batch=4, heads=8, head_dim=96, seq_q=2048, kernel="unfused"
    )
    assert float(without.forward) < float(times.forward)
    assert float(without.backward) > float(without.forward)


def brute_pairs(q: int, kv: int, causal: bool, window: int | None) -> float:
    """Row by row; the diagonal counts half, the convention of s²/2."""
    total = 0.0
    for row in range(q):
        sees = kv - q + row + 0.5 if causal else float(kv)
        total += sees if window is None else min(sees, window)
    return total


@given(
    q=st.integers(1, 40),
    more=st.integers(0, 40),
    causal=st.booleans(),
    window=st.none() | st.integers(1, 100),
)
def test_pairs_by_brute_force(q: int, more: int, causal: bool, window: int | None) -> None:
    kv = q + more
    got = float(attention_pairs(q, kv, causal=causal, window=window))
    assert got == pytest.approx(brute_pairs(q, kv, causal, window), abs=0.51)


def test_context_parallel_chunks_do_an_equal_share() -> None:
    """Zig-zag over 4 ranks: each computes a quarter of the pairs, in about a quarter of the time."""
    profile = load_profile("h100-sxm")
    whole = attention_seconds(profile, batch=1, heads=32, head_dim=128, seq_q=65536)
    part = attention_seconds(
        profile, batch=1, heads=32, head_dim=128, seq_q=16384, seq_kv=65536, pairs=65536**2 / 8
    )
    assert float(part.forward / whole.forward) == pytest.approx(0.25, rel=0.02)


@given(
    gpu=st.sampled_from(profile_names()),
    batch=st.integers(1, 64),
    heads=st.integers(1, 128),
    d=st.sampled_from([32, 64, 80, 96, 128, 160, 192, 256]),
    q=st.integers(1, 40000),
    causal=st.booleans(),
    kernel=st.sampled_from(["flash", "fa3", "fa2", "fa1", "cudnn", "unfused"]),
)
@settings(max_examples=300, deadline=None)
def test_bounds(gpu: str, batch: int, heads: int, d: int, q: int, causal: bool, kernel: str) -> None:
    profile = load_profile(gpu)
    times = attention_seconds(
        profile, batch=batch, heads=heads, head_dim=d, seq_q=q, causal=causal, kernel=kernel
    )
    flop = 4.0 * batch * heads * d * q * q * (0.5 if causal else 1.0)
    peak = peak_flops(profile.gpu, "bf16")
    assert peak is not None
    assert math.isfinite(float(times.forward))
    assert float(times.forward) >= flop / peak
    assert float(times.backward) >= 2.0 * flop / peak
    longer = attention_seconds(
        profile, batch=batch, heads=heads, head_dim=d, seq_q=q + 64, causal=causal, kernel=kernel
    )
    assert float(longer.forward) > float(times.forward)
    assert float(longer.backward) > float(times.backward)


def test_a_window_saves_time() -> None:
    profile = load_profile("h100-sxm")
    full = attention_seconds(profile, batch=1, heads=32, head_dim=128, seq_q=32768)
    windowed = attention_seconds(profile, batch=1, heads=32, head_dim=128, seq_q=32768, window=4096)
    assert 3 < float(full.forward / windowed.forward) < 5  # 16,384 keys a row on average, not 3,840


def test_kernels_by_name() -> None:
    a100, h100, b200, v100 = (load_profile(n) for n in ("a100-80gb", "h100-sxm", "b200", "v100-32gb"))
    assert attention_kernel(h100, "flash") == "fa3"
    assert attention_kernel(a100, "flash") == "fa2"
    assert attention_kernel(b200, "fa2") == "cudnn"  # does not have it: the next newer
    assert attention_kernel(a100, "fa3") == "fa2"  # nothing newer: its newest
    assert attention_kernel(v100, "flash") == "fa1"
    with pytest.raises(UnknownNameError, match="unknown attention kernel 'fa33'; did you mean 'fa3'"):
        attention_kernel(h100, "fa33")


def test_nonsense_is_refused() -> None:
    profile = load_profile("h100-sxm")
    with pytest.raises(InputError, match="window must be at least 1"):
        attention_seconds(profile, batch=1, heads=1, head_dim=64, seq_q=128, window=0)
    with pytest.raises(InputError, match="kv_heads must be at least 1"):
        attention_seconds(profile, batch=1, heads=1, kv_heads=0, head_dim=64, seq_q=128)


def test_small_heads_are_no_cheaper_than_their_exponentials() -> None:
    """Half the head size below the smallest measured saves nothing: one exponential a pair remains."""
    profile = load_profile("h100-sxm")
    t64, t32 = (
        float(attention_seconds(profile, batch=4, heads=32, head_dim=d, seq_q=8192).forward) for d in (64, 32)
    )
    assert t32 == pytest.approx(t64, rel=0.01)
