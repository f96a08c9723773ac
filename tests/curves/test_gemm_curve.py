"""Matrix multiplication: against printed measurements, physical bounds and hand calculation."""

from __future__ import annotations

import dataclasses
import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshplan.cluster.curves import (
    gemm_curve,
    gemm_seconds,
    grouped_gemm_seconds,
    membound_seconds,
    quantise_seconds,
)
from meshplan.cluster.profile import load_profile, profile_names
from meshplan.errors import UnknownNameError

SIZES = st.integers(1, 200_000)
GPUS = ("a100-80gb", "h100-sxm", "h200", "b200", "gb200", "h20", "mi300x", "v100-32gb", "gaudi2", "trn1")


# TFLOP/s as aiconfigurator 095f58a5 prints them: (n, k) → {m: TFLOP/s}; and the largest error allowed,
# about three times the mean error of the size class.
@pytest.mark.parametrize(
    ("gpu", "n", "k", "by_m", "within"),
    [
        ("a100-80gb", 8192, 8192, {1024: 252, 4096: 251, 16384: 257, 32768: 256}, 0.11),
        ("a100-80gb", 1024, 8192, {4096: 207, 8192: 252, 16384: 248}, 0.20),
        ("h100-sxm", 8192, 8192, {2048: 805, 4096: 805, 16384: 693, 32768: 721}, 0.10),
        ("h100-sxm", 1024, 8192, {2048: 718, 8192: 806, 32768: 783}, 0.12),
        ("h100-sxm", 8192, 1024, {2048: 650, 8192: 693, 32768: 643}, 0.12),
        ("h100-sxm", 16384, 4096, {2048: 778, 8192: 668, 32768: 729}, 0.15),
        ("b200", 8192, 8192, {2048: 1451, 8192: 1571, 32768: 1438}, 0.10),
        ("b200", 51200, 4096, {4096: 1585, 8192: 1542, 32768: 1414}, 0.10),
        ("gb200", 8192, 8192, {2048: 1582, 8192: 1584, 32768: 1386}, 0.10),
    ],
)
def test_printed_measurements(gpu: str, n: int, k: int, by_m: dict[int, int], within: float) -> None:
    m = np.array(list(by_m))
    seconds = gemm_seconds(load_profile(gpu), m, n, k, clock="burst")
    assert 2 * m * n * k / seconds / 1e12 == pytest.approx(list(by_m.values()), rel=within)


# Best of a shape search in torch (stas00 ml-engineering 744d01e, MAMF), TFLOP/s.
@pytest.mark.parametrize(
    ("gpu", "dtype", "best"),
    [
        ("a100-80gb", "bf16", 271),
        ("h100-sxm", "bf16", 794),
        ("b200", "bf16", 1745),
        ("gb200", "bf16", 1822),
        ("h100-sxm", "fp8", 1402),
        ("h200", "fp8", 1453),
    ],
)
def test_best_shape(gpu: str, dtype: str, best: float) -> None:
    m, n = (a.ravel() for a in np.meshgrid(np.arange(1024, 16385, 1024), np.arange(1024, 16385, 1024)))
    k = np.repeat([4096, 8192, 16384], len(m)).reshape(3, -1)
    seconds = gemm_seconds(load_profile(gpu), m, n, k, dtype=dtype, clock="burst")
    assert np.max(2 * m * n * k / seconds) / 1e12 == pytest.approx(best, rel=0.12)


def test_a_large_product_by_hand() -> None:
    """8192³ on H100: 64·32 tiles of 128 × 256 over 132 SMs, all terms but the tile loop negligible."""
    profile = load_profile("h100-sxm")
    c = profile.gemm["bf16"]
    share = 64 * 32 / 132
    waves = c.quantisation * 16 + (1 - c.quantisation) * share
    tile = 2 * 128 * 256 * (8192 + c.overhead_k) / (989e12 / 132 * c.efficiency * c.throttle)
    assert float(gemm_seconds(profile, 8192, 8192, 8192)) == pytest.approx(waves * tile, rel=0.01)


def test_a_thin_product_reads_its_weights() -> None:
    """One token through 8192 × 8192 bf16 weights: 134 MB at the fitted share of 3.35 TB/s."""
    profile = load_profile("h100-sxm")
    seconds = float(gemm_seconds(profile, 1, 8192, 8192))
    floor = 2 * 8192 * 8192 / (profile.gemm["bf16"].hbm_efficiency * 3.35e12)
    assert seconds == pytest.approx(floor + profile.gemm["bf16"].start_s, rel=0.02)


@given(gpu=st.sampled_from(GPUS), m=SIZES, n=SIZES, k=SIZES, burst=st.booleans())
@settings(max_examples=300, deadline=None)
def test_never_above_peak_or_memory(gpu: str, m: int, n: int, k: int, burst: bool) -> None:
    profile = load_profile(gpu)
    clock = "burst" if burst else "sustained"
    for dtype in profile.gemm:
        seconds = float(gemm_seconds(profile, m, n, k, dtype=dtype, clock=clock))
        curve, peak = gemm_curve(profile, dtype)
        assert math.isfinite(seconds)
        assert seconds >= 2 * m * n * k / peak
        traffic = curve.operand_bytes * k * (m + n) + 2 * m * n
        assert seconds >= traffic / profile.gpu.hbm_bandwidth


@given(
    gpu=st.sampled_from(GPUS),
    m=SIZES,
    n=SIZES,
    k=SIZES,
    more=st.tuples(st.integers(0, 5000), st.integers(0, 5000), st.integers(0, 5000)),
)
@settings(max_examples=300, deadline=None)
def test_rises_with_every_size(gpu: str, m: int, n: int, k: int, more: tuple[int, int, int]) -> None:
    profile = load_profile(gpu)
    small = gemm_seconds(profile, m, n, k)
    large = gemm_seconds(profile, m + more[0], n + more[1], k + more[2])
    assert large >= small * (1 - 1e-12)


def test_extremes_are_sane() -> None:
    profile = load_profile("h100-sxm")
    tiny = float(gemm_seconds(profile, 1, 1, 1))
    assert 1e-6 < tiny < 2e-5
    million = float(gemm_seconds(profile, 1e6, 8192, 8192))
    assert 2 * 1e6 * 8192**2 / million / 1e12 == pytest.approx(700, rel=0.05)  # as at 8192
    assert float(gemm_seconds(profile, 0, 0, 0)) == tiny


def test_sustained_is_slower_by_the_throttle() -> None:
    """Short, compute-bound product: the whole difference is the power limit."""
    profile = load_profile("b200")
    burst = float(gemm_seconds(profile, 4096, 4096, 4096, clock="burst"))
    sustained = float(gemm_seconds(profile, 4096, 4096, 4096))
    start = profile.gemm["bf16"].start_s
    assert (burst - start) / (sustained - start) == pytest.approx(profile.sustained, rel=0.02)


def test_shapes_broadcast() -> None:
    profile = load_profile("h100-sxm")
    seconds = gemm_seconds(profile, np.ones((3, 1)) * 512, np.arange(1, 5) * 256, 1024)
    assert seconds.shape == (3, 4)
    assert float(seconds[2, 1]) == float(gemm_seconds(profile, 512, 512, 1024))


def test_precisions() -> None:
    h100, b200, a100 = load_profile("h100-sxm"), load_profile("b200"), load_profile("a100-80gb")
    shape = (8192, 8192, 8192)
    assert float(gemm_seconds(h100, *shape, dtype="fp16")) == float(gemm_seconds(h100, *shape))
    speedup = float(gemm_seconds(h100, *shape) / gemm_seconds(h100, *shape, dtype="fp8"))
    assert 1.3 < speedup < 2.0  # not the 2 of the datasheet
    assert gemm_curve(b200, "mxfp8")[0] is b200.gemm["fp8"]
    assert gemm_curve(h100, "mxfp8")[0] is h100.gemm["fp8_block"]
    assert gemm_curve(h100, "tf32")[1] == pytest.approx(494e12)
    with pytest.raises(UnknownNameError, match="unknown precision on a100-80gb 'fp8'"):
        gemm_seconds(a100, *shape, dtype="fp8")
    with pytest.raises(UnknownNameError, match="nvfp4"):
        gemm_seconds(h100, *shape, dtype="nvfp4")


def test_casting_costs_only_where_there_is_a_cast() -> None:
    h100 = load_profile("h100-sxm")
    assert float(quantise_seconds(h100, 1e9, dtype="bf16")) == 0.0
    # 8192 × 8192: aiconfigurator's fp8 product with only 32 columns takes 147 µs, nearly all of it the cast
    assert float(quantise_seconds(h100, 8192 * 8192, dtype="fp8")) == pytest.approx(120e-6, rel=0.25)


def test_weight_gradients_of_experts_on_a100() -> None:
    """TransformerEngine on A100, weight gradient added to fp32, 40 experts of 616 tokens and 20 of 1,232:
    shares of 312 TFLOP/s measured by SimuMax (configs/system/a100_pcie.json), none of them fitted on."""
    profile = load_profile("a100-80gb")
    rows = np.array(
        [
            (40, 616, 3072, 5120, 0.520),
            (40, 616, 5120, 1536, 0.520),
            (20, 1232, 3072, 5120, 0.604),
            (20, 1232, 5120, 1536, 0.637),
        ]
    ).T
    experts, tokens, n, k, share = rows
    seconds = grouped_gemm_seconds(
        profile, tokens, experts, n, k, kernel="streams", weight_gradient=True, out_bytes=8.0
    )
    assert 2 * experts * tokens * n * k / seconds / 312e12 == pytest.approx(share, rel=0.12)


def test_few_tokens_an_expert_read_weights() -> None:
    """32 tokens for each of 256 experts of 6144 × 2048 on H100: 89 TFLOP/s, of which the weights alone
    (75 MB an expert at 3.35 TB/s) allow 107."""
    profile = load_profile("h100-sxm")
    seconds = float(
        grouped_gemm_seconds(profile, 32, 256, 4096, 6144)
        + grouped_gemm_seconds(profile, 32, 256, 6144, 2048)
    )
    assert 6 * 6144 * 2048 * 32 * 256 / seconds / 1e12 == pytest.approx(89, rel=0.1)


@given(gpu=st.sampled_from(GPUS), tokens=st.integers(1, 20000), experts=st.integers(1, 256), n=SIZES, k=SIZES)
@settings(max_examples=200, deadline=None)
def test_experts_bounds(gpu: str, tokens: int, experts: int, n: int, k: int) -> None:
    profile = load_profile(gpu)
    seconds = float(grouped_gemm_seconds(profile, tokens, experts, n, k))
    assert seconds >= 2.0 * tokens * experts * n * k / gemm_curve(profile, "bf16")[1]
    assert float(grouped_gemm_seconds(profile, tokens + 1, experts, n, k)) >= seconds
    assert float(grouped_gemm_seconds(profile, tokens, experts + 1, n, k)) >= seconds
    assert float(grouped_gemm_seconds(profile, tokens, experts, n, k, kernel="streams")) >= seconds


def test_h20_runs_near_its_peak() -> None:
    # cuBLAS, github.com/nideyongbao/CUDA_GEMM commit 609b4119d8: 1.0254 ms for 4096 cubed in bf16.
    assert float(gemm_seconds(load_profile("h20"), 4096, 4096, 4096)) == pytest.approx(1.0254e-3, rel=0.03)


def test_memory_bound_by_hand() -> None:
    profile = load_profile("h100-sxm")
    assert float(membound_seconds(profile, 3.35e9)) == pytest.approx(1e-3 / 0.8 + 3e-6)
    assert float(membound_seconds(profile, 0)) == profile.memory.launch_s
    assert membound_seconds(profile, [0, 3.35e9], kernels=[0, 2])[0] == 0
    assert float(membound_seconds(profile, 1e9, permute=True)) > float(membound_seconds(profile, 1e9))


def test_many_shapes_are_quick() -> None:
    """300,000 shapes in well under a second of processor time; 60 ms on the machine it was written on."""
    profile = load_profile("h100-sxm")
    m, n, k = np.random.default_rng(1).integers(1, 100_000, (3, 300_000))
    start = time.process_time()
    gemm_seconds(profile, m, n, k)
    assert time.process_time() - start < 1.0


@pytest.mark.parametrize("name", profile_names())
def test_every_profile_prices_every_precision(name: str) -> None:
    profile = load_profile(name)
    for dtype in (*profile.gemm, "fp16", "tf32"):
        assert 0 < float(gemm_seconds(profile, 4096, 4096, 4096, dtype=dtype)) < 0.1
        assert 0 < float(grouped_gemm_seconds(profile, 512, 8, 4096, 4096, dtype=dtype)) < 0.1


def test_the_tile_model_depends_on_what_it_says() -> None:
    """A curve with more overhead of k is slower for short k and no slower in the limit of long k."""
    profile = load_profile("h100-sxm")
    curve = dataclasses.replace(profile.gemm["bf16"], overhead_k=10 * profile.gemm["bf16"].overhead_k)
    other = dataclasses.replace(profile, gemm={"bf16": curve})
    short, long = (
        float(gemm_seconds(other, 8192, 8192, k) / gemm_seconds(profile, 8192, 8192, k)) for k in (512, 2**20)
    )
    assert short > 2
    assert long < 1.01
