from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshplan.errors import InputError
from meshplan.model.counts import layer_parameters, model_parameters, mtp_parameters, padded_vocab
from meshplan.model.layers import Attention, LatentAttention, Layer, Mlp, Moe
from meshplan.model.load import load_model
from meshplan.model.model import Model
from meshplan.model.presets import preset_names

GQA = Attention(heads=8, kv_heads=2, head_dim=16)
HIDDEN = 96


def test_a_layer_by_hand() -> None:
    """Hidden 96, 8 query and 2 key-value heads of 16, a gated MLP of 200: counted on paper."""
    parts = layer_parameters(Layer(attention=GQA, mlp=Mlp(width=200)), HIDDEN)
    assert parts.attention_sharded == 96 * 128 + 2 * 96 * 32 + 128 * 96
    assert parts.attention_replicated == 0
    assert parts.mlp == 3 * 96 * 200
    assert parts.norms == 2 * 96
    assert parts.total == parts.active == 30_720 + 57_600 + 192


def test_biases_norms_and_sinks_by_hand() -> None:
    attention = Attention(
        heads=8, kv_heads=2, head_dim=16, qkv_bias=True, out_bias=True, qk_norm="head", sinks=True
    )
    mlp = Mlp(width=200, gated=False, bias=True)
    parts = layer_parameters(Layer(attention=attention, mlp=mlp, norm_bias=True), HIDDEN)
    assert parts.attention_sharded == 30_720 + 128 + 32 + 32
    assert parts.attention_replicated == 96 + 2 * 16
    assert parts.sinks == 8
    assert parts.mlp == 2 * 96 * 200 + 200 + 96
    assert parts.norms == 4 * 96


def test_deepseek_v3_attention_by_hand() -> None:
    """r_q·(h + a(d_n+d_r) + 1) + r_kv·(h + a(d_n+d_v) + 1) + h·d_r + a·d_v·h, norms in the ones."""
    h, a, rq, rkv, dn, dr, dv = 7168, 128, 1536, 512, 128, 64, 128
    whole = rq * (h + a * (dn + dr) + 1) + rkv * (h + a * (dn + dv) + 1) + h * dr + a * dv * h
    attention = LatentAttention(heads=a, q_rank=rq, kv_rank=rkv, nope_dim=dn, rope_dim=dr, v_dim=dv)
    parts = layer_parameters(Layer(attention=attention, mlp=None), h)
    assert parts.attention == whole == 187_107_328
    assert parts.attention_replicated == h * (rq + rkv + dr) + rq + rkv


def test_a_mixture_by_hand() -> None:
    moe = Moe(experts=10, topk=3, width=50, shared_width=70, shared_gate=True, router_bias=True)
    parts = layer_parameters(Layer(attention=None, mlp=moe, norms=1), HIDDEN)
    assert parts.experts == 10 * 3 * 96 * 50
    assert parts.experts_active == 3 * 3 * 96 * 50
    assert parts.shared == 3 * 96 * 70
    assert parts.router == 10 * 96 + 10 + 96
    assert parts.total - parts.active == 7 * 3 * 96 * 50


def test_a_balancing_bias_is_a_buffer() -> None:
    plain, balanced = (Moe(experts=10, topk=3, width=50, balance_bias=b) for b in (False, True))
    sizes = {"name": "x", "hidden": 96, "vocab": 7}
    models = [Model(**sizes, layers=(Layer(attention=GQA, mlp=m),) * 2) for m in (plain, balanced)]
    without, with_bias = map(model_parameters, models)
    assert with_bias.total == without.total
    assert (without.buffers, with_bias.buffers) == (0, 20)


@pytest.mark.parametrize("name", preset_names())
def test_the_parts_sum_to_the_whole(name: str) -> None:
    model = load_model(name)
    counted = model_parameters(model)
    assert sum(counted.parts.values()) == counted.total
    assert sum(counted.active_parts.values()) == counted.active
    assert counted.active <= counted.active_with_embedding <= counted.total
    layers = [layer_parameters(layer, model.hidden) for layer in model.layers]
    inside = ("attention", "mlp", "shared", "router", "experts", "norms")
    assert sum(layer.total for layer in layers) == sum(counted.parts[part] for part in inside)


def test_a_dense_model_is_active_whole_and_a_mixture_without_its_input_table() -> None:
    dense = model_parameters(load_model("llama-3-8b"))
    assert dense.active == dense.total
    mixture = model_parameters(load_model("deepseek-v3"))
    assert mixture.active_with_embedding - mixture.active == 129_280 * 7168
    assert round(mixture.active / 1e9, 1) == 36.6


def test_a_tied_embedding_counts_once() -> None:
    counted = model_parameters(load_model("llama-3.2-1b"))
    assert counted.head == 0
    assert counted.total == 1_235_814_400


def test_multi_token_prediction_is_apart() -> None:
    model = load_model("deepseek-v3")
    counted = model_parameters(model)
    layer = layer_parameters(model.mtp[0], model.hidden).total
    assert counted.mtp == mtp_parameters(model.mtp[0], model.hidden) == layer + 2 * 7168**2 + 3 * 7168
    assert counted.total == 671_026_404_352
    # The report gives 685B for the main model with its one module, whose copies of embedding and head
    # (0.9B each) are stored as well.
    assert (counted.total + counted.mtp + 2 * 129_280 * 7168) / 1e9 == pytest.approx(684.5, abs=0.1)


def test_padding_the_vocabulary() -> None:
    assert padded_vocab(128_256, 8) == 129_024
    assert padded_vocab(50_257, 8, 128) == 51_200  # Megatron's GPT-3
    assert padded_vocab(128_256, 2) == 128_256
    model = load_model("gpt-3-175b")
    more = model_parameters(model, 51_200).total - model_parameters(model).total
    assert more == (51_200 - 50_257) * 12_288
    with pytest.raises(InputError):
        padded_vocab(0, 1)


@given(vocab=st.integers(1, 10**6), tp=st.integers(1, 64))
def test_padding_is_the_next_multiple(vocab: int, tp: int) -> None:
    padded = padded_vocab(vocab, tp)
    assert padded % (128 * tp) == 0
    assert 0 <= padded - vocab < 128 * tp


def test_every_field_of_a_layer_that_adds_weights_adds_them() -> None:
    """A switch that is forgotten in the counts would go unnoticed otherwise."""
    base = layer_parameters(Layer(attention=GQA, mlp=Mlp(width=200)), HIDDEN).total
    sizes = {"heads", "kv_heads", "head_dim", "v_head_dim", "window", "chunked"}
    silent = sizes | {"qk_norm_bias", "qk_norm"}
    for f in fields(Attention):
        if f.name in silent:
            continue
        changed = Attention(heads=8, kv_heads=2, head_dim=16, **{f.name: True})
        assert layer_parameters(Layer(attention=changed, mlp=Mlp(width=200)), HIDDEN).total != base, f.name
