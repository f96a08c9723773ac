from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshplan.errors import InputError, UnknownNameError
from meshplan.model.counts import model_parameters
from meshplan.model.flops import (
    CONVENTIONS,
    flop_per_token,
    forward_flops,
    layer_flops,
    mtp_flops,
    visible_tokens,
)
from meshplan.model.layers import Attention
from meshplan.model.load import load_model
from meshplan.model.presets import preset_names

# GFLOP a token, forward and backward, of the same model counted by four conventions. The first column agrees
# with Megatron-Bridge's published runs of the 405B (827 TFLOP/s at 328 tokens/s on a GPU is 2.521e12).
TABLE = [
    ("llama-3-8b", 8192, 51.5, 57.9, 61.1, 48.2),
    ("llama-3-70b", 8192, 449, 481, 488, 423),
    ("llama-3.1-405b", 8192, 2524, 2625, 2638, 2435),
    ("llama-3-8b", 131_072, 148, 251, 254, 48),
    ("llama-3.1-405b", 131_072, 4046, 5670, 5682, 2435),
    ("deepseek-v3", 4096, 250, 281, None, 220),
]


@pytest.mark.parametrize(("name", "seq", "causal", "full", "palm", "sixn"), TABLE)
def test_the_four_conventions_print_as_published(
    name: str, seq: int, causal: float, full: float, palm: float | None, sixn: float
) -> None:
    model = load_model(name)
    for convention, printed in zip(CONVENTIONS, (causal, full, palm, sixn), strict=True):
        if printed is not None:
            digits = 1 if isinstance(printed, float) else 0
            assert round(flop_per_token(model, seq, convention) / 1e9, digits) == printed


def test_deepseek_v3_with_its_prediction_module() -> None:
    assert round(flop_per_token(load_model("deepseek-v3"), 4096, mtp=True) / 1e9) == 260


def test_narayanan_formula_for_gpt_3() -> None:
    """72·s·L·h²·(1 + s/6h + V/12hL) a sequence (2104.04473, eq. 3, no recompute): full attention."""
    h, layers, s, vocab = 12_288, 96, 2048, 51_200
    expected = 72 * layers * h**2 * (1 + s / (6 * h) + vocab / (12 * h * layers))
    model = load_model("gpt-3-175b")
    counted = 3 * forward_flops(model, s, causal=False, vocab=vocab).total
    assert counted == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", preset_names())
def test_linear_flops_are_twice_the_weights(name: str) -> None:
    """Every matrix of n weights costs 2n: what is left of the active parameters are norms and biases."""
    model = load_model(name)
    forward = forward_flops(model, 1)
    counted = model_parameters(model)
    weights = counted.active_with_embedding - counted.positions
    weights -= 0 if counted.tied else counted.embedding
    assert 0 <= weights - (forward.linear + forward.head) / 2 < 0.002 * weights


def test_the_parts_sum_to_the_whole() -> None:
    forward = forward_flops(load_model("deepseek-v3"), 4096)
    parts = [getattr(forward, name) for name in forward.__slots__]
    assert sum(parts) == pytest.approx(forward.total, rel=1e-12)
    assert forward.linear + forward.attention_core + forward.head == pytest.approx(forward.total, rel=1e-12)


def test_mla_attention_by_hand() -> None:
    """DeepSeek-V3: 2·a·s̄·((d_n+d_r)+d_v) a layer and token, s̄ = s/2."""
    model = load_model("deepseek-v3")
    assert layer_flops(model.layers[0], 7168, 4096).attention_core == 2 * 128 * 2048 * (192 + 128)


def _mean_by_counting(seq: int, window: int, *, chunked: bool) -> float:
    """Keys each query meets, half a key off for its own: the sequence's mean, one query at a time."""
    seen = [i % window + 1 if chunked else min(i + 1, window) for i in range(seq)]
    return sum(seen) / seq


@given(seq=st.integers(1, 400), window=st.integers(1, 400), chunked=st.booleans())
def test_windows_see_what_counting_says(seq: int, window: int, chunked: bool) -> None:
    attention = Attention(heads=1, kv_heads=1, head_dim=1, window=window, chunked=chunked)
    seen = visible_tokens(attention, seq)
    counted = _mean_by_counting(seq, window, chunked=chunked)
    if window < seq and not chunked:
        assert seen == pytest.approx(counted)
    else:
        assert seen == pytest.approx(counted - 0.5)  # the s/2 convention leaves the diagonal out
    assert visible_tokens(attention, seq, causal=False) == seq  # torchtitan's formula knows no windows


def test_a_window_caps_the_cost_of_long_sequences() -> None:
    gemma = load_model("gemma-3-27b")
    windowed = flop_per_token(gemma, 131_072)
    dense = flop_per_token(load_model("gemma-2-27b"), 131_072)
    assert windowed < dense


def test_prediction_modules_cost_a_layer_a_projection_and_a_head() -> None:
    model = load_model("deepseek-v3")
    one = mtp_flops(model, 4096)
    layer = layer_flops(model.mtp[0], 7168, 4096)
    assert one.total == layer.total + 4 * 7168**2 + 2 * 7168 * 129_280
    assert mtp_flops(load_model("llama-3-8b"), 4096).total == 0


def test_bad_arguments() -> None:
    model = load_model("llama-3-8b")
    with pytest.raises(InputError, match="seq"):
        flop_per_token(model, 0)
    with pytest.raises(UnknownNameError, match="causal"):
        flop_per_token(model, 4096, "causl")  # type: ignore[arg-type]
