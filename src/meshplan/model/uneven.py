"""Models whose layers differ in size from one to the next, beyond what ``families`` says.

Pruned models (Nemotron-NAS), Gemma 4, MiMo-V2-Flash, DBRX and Granite 4 without Mamba layers.
"""

from __future__ import annotations

from typing import Final

from meshplan.model.decoder import head_width, hidden_size, layer_count, mtp_count, read_decoder, read_mlps
from meshplan.model.families import FAMILIES, Experts, Family
from meshplan.model.fields import (
    MAX_EXPERTS,
    MAX_HEADS,
    MAX_HIDDEN,
    MAX_LAYERS,
    MAX_TOKENS,
    MAX_VOCAB,
    Fields,
)
from meshplan.model.layers import Attention, Layer, Mlp, Moe
from meshplan.model.model import Model
from meshplan.model.patterns import Window, every_nth_full, first_dense, mixed


def read_deci(f: Fields) -> Model:
    """Llama with blocks pruned or resized layer by layer (Nemotron-NAS, ``modeling_decilm.py``).

    A block that is left out takes its norm along. The MLP is ``2/3 · ffn_mult · hidden`` wide, rounded up
    to a multiple of 256.
    """
    hidden, count = hidden_size(f), layer_count(f)
    blocks = f.items("block_configs", count)
    heads = f.integer("num_attention_heads", high=MAX_HEADS)
    layers = tuple(_deci_layer(f, i, block, hidden, heads) for i, block in enumerate(blocks))
    return Model(
        name="",
        hidden=hidden,
        vocab=f.integer("vocab_size", high=MAX_VOCAB),
        layers=layers,
        tied_embeddings=f.flag("tie_word_embeddings", default=False),
        max_seq=f.optional("max_position_embeddings", high=MAX_TOKENS),
    )


def _deci_layer(f: Fields, i: int, block: object, hidden: int, heads: int) -> Layer:
    if not isinstance(block, dict):
        raise f.fail(f"block_configs[{i}] must be an object")
    parts = Fields(block, f"{f.where}, block_configs[{i}]")
    a, m = parts.table("attention"), parts.table("ffn")
    for part in (a, m):
        for odd in ("replace_with_linear", "sparsify", "num_sink_tokens", "unshifted_sink", "moe", "mamba"):
            if part.data.get(odd):
                raise part.fail(f"this kind of block is not known ({odd})")
    attention = mlp = None
    if not a.flag("no_op", default=False):
        group = a.integer("n_heads_in_group", high=MAX_HEADS)
        if heads % group:
            raise a.fail(f"n_heads_in_group {group} does not divide {heads} heads")
        bias = f.flag("attention_bias", default=False)
        attention = Attention(
            heads=heads,
            kv_heads=heads // group,
            head_dim=f.optional("head_dim", high=MAX_HEADS) or head_width(f, hidden, heads),
            window=a.optional("window_length"),
            qkv_bias=bias,
            out_bias=bias,
        )
    if not m.flag("no_op", default=False):
        mlp = Mlp(width=_deci_width(m, hidden), bias=f.flag("mlp_bias", default=False))
    return Layer(attention=attention, mlp=mlp, norms=(attention is not None) + (mlp is not None))


def _deci_width(m: Fields, hidden: int) -> int:
    if m.has("intermediate_size"):
        return m.integer("intermediate_size")
    width = int(2 * m.number("ffn_mult", low=1 / 1024, high=1024) * hidden / 3)
    return max(-(-width // 256) * 256, 256)


def read_gemma4(f: Fields) -> Model:
    """Gemma 4: wider heads and no value projection in global layers, an MLP beside the experts.

    The MLP runs on every token next to the routed experts, so it is counted as a shared expert.
    """
    for field, default in (("hidden_size_per_layer_input", 256), ("num_kv_shared_layers", 0)):
        if f.integer(field, default=default, low=0, high=MAX_HIDDEN):
            raise f.fail(f"per-layer embeddings and layers sharing keys and values are not known ({field})")
    hidden, count = hidden_size(f), layer_count(f)
    windows = _GEMMA4_WINDOWS(f, count)
    attentions = [_gemma4_attention(f.layer(i), window) for i, window in enumerate(windows)]
    layers = tuple(_gemma4_layer(f, hidden, attention) for attention in attentions)
    return Model(
        name="",
        hidden=hidden,
        vocab=f.integer("vocab_size", default=262144, high=MAX_VOCAB),
        layers=layers,
        tied_embeddings=f.flag("tie_word_embeddings", default=True),
        max_seq=f.optional("max_position_embeddings", high=MAX_TOKENS),
    )


_GEMMA4_WINDOWS: Final = every_nth_full(6, "_", 512, last_full=True)


def _gemma4_attention(f: Fields, window: Window) -> Attention:
    heads = f.integer("num_attention_heads", high=MAX_HEADS)
    kv_heads = f.integer("num_key_value_heads", high=MAX_HEADS)
    head_dim = f.integer("head_dim", default=256, high=MAX_HEADS)
    shared = False
    if window is None and f.has("per_layer_config"):
        shared = f.flag("attention_k_eq_v", default=False)
    elif window is None:
        head_dim = f.integer("global_head_dim", default=512, high=MAX_HEADS)
        shared = f.flag("attention_k_eq_v", default=False)
        kv_heads = (
            f.integer("num_global_key_value_heads", default=kv_heads, high=MAX_HEADS) if shared else kv_heads
        )
    if heads % kv_heads:
        raise f.fail(f"num_attention_heads {heads} is not a multiple of {kv_heads} key and value heads")
    bias = f.flag("attention_bias", default=False)
    return Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        window=window[0] if window else None,
        qkv_bias=bias,
        out_bias=bias,
        qk_norm="head",
        shared_kv=shared,
    )


def _gemma4_layer(f: Fields, hidden: int, attention: Attention) -> Layer:
    width = f.integer("intermediate_size")
    if not f.flag("enable_moe_block", default=False):
        return Layer(attention=attention, mlp=Mlp(width=width), norms=4)
    experts = f.integer("num_experts", high=MAX_EXPERTS)
    topk = f.integer("top_k_experts", high=MAX_EXPERTS)
    if topk > experts:
        raise f.fail(f"top_k_experts {topk} is more than the {experts} experts there are")
    moe = Moe(
        experts=experts,
        topk=topk,
        width=f.integer("moe_intermediate_size", "expert_intermediate_size"),
        shared_width=width,
        router_extra=hidden + experts,
    )
    return Layer(attention=attention, mlp=moe, norms=7)


def read_mimo_v2(f: Fields) -> Model:
    """MiMo-V2-Flash: sliding layers with their own heads and sinks, values narrower than keys."""
    count = layer_count(f)
    if f.has("hybrid_layer_pattern"):
        f.items("hybrid_layer_pattern", count)
        slides = [bool(x) for x in f.integers("hybrid_layer_pattern", high=1)]
    else:
        slides = [window is not None for window in _MIMO_WINDOWS(f, count)]
    kinds = {local: _mimo_attention(f, local=local) for local in set(slides)}
    mlps = read_mlps(f, _MIMO, count)
    layers = tuple(Layer(attention=kinds[local], mlp=mlp) for local, mlp in zip(slides, mlps, strict=True))
    return Model(
        name="",
        hidden=hidden_size(f),
        vocab=f.integer("vocab_size", high=MAX_VOCAB),
        layers=layers,
        tied_embeddings=f.flag("tie_word_embeddings", default=False),
        mtp=(layers[-1],) * mtp_count(f),
        max_seq=f.optional("max_position_embeddings", high=MAX_TOKENS),
    )


_MIMO: Final = Family(
    experts=Experts(
        count=("n_routed_experts", "num_local_experts"),
        shared_count="n_shared_experts",
        balance_bias=True,
        sparse=first_dense(default=1),
    )
)
_MIMO_WINDOWS: Final = mixed(
    lambda _, n: ["full_attention" if i == 0 or (i + 1) % 6 == 0 else "sliding_attention" for i in range(n)],
    128,
)


def _mimo_attention(f: Fields, *, local: bool) -> Attention:
    prefix = ("swa_",) if local else ()
    heads = f.integer(*(p + "num_attention_heads" for p in (*prefix, "")), high=MAX_HEADS)
    kv_heads = f.integer("num_key_value_heads", high=MAX_HEADS)
    if local:
        kv_heads = f.integer("swa_num_key_value_heads", default=2 * kv_heads, high=MAX_HEADS)
    if heads % kv_heads:
        raise f.fail(f"{heads} heads are not a multiple of {kv_heads} key and value heads")
    sinks = "add_swa_attention_sink_bias" if local else "add_full_attention_sink_bias"
    bias = f.flag("attention_bias", default=False)
    return Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=f.integer(*(p + "head_dim" for p in (*prefix, "")), default=192, high=MAX_HEADS),
        v_head_dim=f.integer(*(p + "v_head_dim" for p in (*prefix, "")), default=128, high=MAX_HEADS),
        window=_mimo_window(f) if local else None,
        qkv_bias=bias,
        sinks=f.flag(sinks, default=local),
    )


def _mimo_window(f: Fields) -> int:
    """``sliding_window_size`` counts the earlier tokens only, ``sliding_window`` the query's own as well."""
    if f.has("sliding_window_size"):
        return f.integer("sliding_window_size", high=MAX_TOKENS) + 1
    return f.integer("sliding_window", default=129, high=MAX_TOKENS)


def read_dbrx(f: Fields) -> Model:
    """DBRX: the sizes of attention and experts in nested objects, LayerNorms without biases."""
    hidden = f.integer("d_model", "hidden_size", high=MAX_HIDDEN)
    heads = f.integer("n_heads", "num_attention_heads", high=MAX_HEADS)
    kv_heads = f.table("attn_config").integer("kv_n_heads", default=1, high=MAX_HEADS)
    if heads % kv_heads:
        raise f.fail(f"n_heads {heads} is not a multiple of kv_n_heads {kv_heads}")
    ffn = f.table("ffn_config")
    experts = ffn.integer("moe_num_experts", high=MAX_EXPERTS)
    topk = ffn.integer("moe_top_k", high=MAX_EXPERTS)
    if topk > experts:
        raise f.fail(f"moe_top_k {topk} is more than the {experts} experts there are")
    layer = Layer(
        attention=Attention(heads=heads, kv_heads=kv_heads, head_dim=head_width(f, hidden, heads)),
        mlp=Moe(experts=experts, topk=topk, width=ffn.integer("ffn_hidden_size")),
    )
    return Model(
        name="",
        hidden=hidden,
        vocab=f.integer("vocab_size", high=MAX_VOCAB),
        layers=(layer,) * f.integer("n_layers", "num_hidden_layers", high=MAX_LAYERS),
        tied_embeddings=f.flag("tie_word_embeddings", default=False),
        max_seq=f.optional("max_seq_len", "max_position_embeddings", high=MAX_TOKENS),
    )


def read_granite_hybrid(f: Fields) -> Model:
    """Granite 4, where no layer is Mamba: attention, then a shared MLP and perhaps experts beside it."""
    count = layer_count(f)
    kinds = f.words("layer_types") if f.has("layer_types") else []
    if len(kinds) != count or set(kinds) - {"attention", "full_attention"}:
        raise f.fail("Mamba state-space layers are of a kind that is not known (layer_types)")
    shared = Mlp(width=f.integer("shared_intermediate_size"))
    if not f.integer("num_local_experts", default=8, low=0, high=MAX_EXPERTS):
        return read_decoder(
            Fields({**f.data, "intermediate_size": shared.width}, f.where), FAMILIES["granite"]
        )
    return read_decoder(f, FAMILIES["granitemoeshared"])
