"""GPT-2 and its kin: stacks of equal layers with LayerNorms, each family with its own field names.

Each function reads the fields of one ``model_type`` (or a few) as the class of that name in
``transformers`` does.
"""

from __future__ import annotations

from dataclasses import replace

from meshplan.model.decoder import head_width, hidden_size, layer_count
from meshplan.model.fields import MAX_HEADS, MAX_HIDDEN, MAX_LAYERS, MAX_TOKENS, MAX_VOCAB, Fields
from meshplan.model.layers import Attention, Layer, Mlp
from meshplan.model.model import Model


def _gpt(
    f: Fields,
    *,
    hidden: int,
    attention: Attention,
    mlp: Mlp,
    count: int,
    norms: int = 2,
    norm_bias: bool = True,
    parallel: bool = False,
    tied: bool = True,
    positions: int = 0,
    head_bias: bool = False,
    embedding_norm: bool = False,
    final_norm: bool = True,
    max_seq: int | None = None,
) -> Model:
    """A stack of equal layers with LayerNorms."""
    layer = Layer(attention=attention, mlp=mlp, norms=norms, norm_bias=norm_bias, parallel=parallel)
    return Model(
        name="",
        hidden=hidden,
        vocab=f.integer("vocab_size", high=MAX_VOCAB),
        layers=(layer,) * count,
        tied_embeddings=f.flag("tie_word_embeddings", default=tied),
        positions=positions,
        final_norm=final_norm,
        final_norm_bias=norm_bias,
        embedding_norm=embedding_norm,
        head_bias=head_bias,
        max_seq=max_seq or positions or f.optional("max_position_embeddings", "n_positions", high=MAX_TOKENS),
    )


def _mha(
    f: Fields, hidden: int, *names: str, kv_heads: int | None = None, bias: bool, out_bias: bool
) -> Attention:
    heads = f.integer(*names, high=MAX_HEADS)
    head_dim = head_width(f, hidden, heads)
    kv_heads = heads if kv_heads is None else kv_heads
    if heads % kv_heads:
        raise f.fail(f"{heads} query heads are not a multiple of {kv_heads} key and value heads")
    return Attention(heads=heads, kv_heads=kv_heads, head_dim=head_dim, qkv_bias=bias, out_bias=out_bias)


def read_gpt2(f: Fields, *, multi_query: bool = False) -> Model:
    """GPT-2: learned positions, biases everywhere; one KV head if ``multi_query`` (GPT-BigCode)."""
    if f.flag("add_cross_attention", default=False):
        raise f.fail("cross-attention layers are not known (add_cross_attention)")
    hidden = f.integer("n_embd", "hidden_size", high=MAX_HIDDEN)
    kv_heads = 1 if multi_query and f.flag("multi_query", default=True) else None
    return _gpt(
        f,
        hidden=hidden,
        attention=_mha(
            f, hidden, "n_head", "num_attention_heads", kv_heads=kv_heads, bias=True, out_bias=True
        ),
        mlp=Mlp(width=f.integer("n_inner", default=4 * hidden), gated=False, bias=True),
        count=f.integer("n_layer", "num_hidden_layers", high=MAX_LAYERS),
        positions=f.integer("n_positions", "max_position_embeddings", default=1024, high=MAX_TOKENS),
    )


def read_gpt_bigcode(f: Fields) -> Model:
    """GPT-BigCode (StarCoder 1): GPT-2 with one KV head."""
    return read_gpt2(f, multi_query=True)


def read_gpt_neo(f: Fields) -> Model:
    """GPT-Neo: layers with full attention and layers with windows, in ``attention_types``."""
    hidden, count = hidden_size(f), layer_count(f)
    full = _mha(f, hidden, "num_heads", "num_attention_heads", bias=False, out_bias=True)
    local = replace(full, window=f.integer("window_size", default=256, high=MAX_TOKENS))
    kinds = [local if kind == "local" else full for kind in _neo_kinds(f, count)]
    mlp = Mlp(width=f.integer("intermediate_size", default=4 * hidden), gated=False, bias=True)
    positions = f.integer("max_position_embeddings", default=2048, high=MAX_TOKENS)
    model = _gpt(f, hidden=hidden, attention=full, mlp=mlp, count=count, positions=positions)
    layers = zip(model.layers, kinds, strict=True)
    return replace(model, layers=tuple(replace(layer, attention=kind) for layer, kind in layers))


def _neo_kinds(f: Fields, count: int) -> list[str]:
    """``[[["global", "local"], 12]]`` spelt out."""
    kinds: list[str] = []
    groups = f.items("attention_types") if f.has("attention_types") else [[["global", "local"], count // 2]]
    for group in groups:
        match group:
            case [list(names), int(times)] if 0 <= times <= count and set(map(str, names)) <= {
                "global",
                "local",
            }:
                kinds += names * times
            case _:
                raise f.fail('attention_types must list groups like [["global", "local"], 12]')
    if len(kinds) != count:
        raise f.fail(f"attention_types describes {len(kinds)} layers, not {count}")
    return kinds


def read_gptj(f: Fields) -> Model:
    """GPT-J and CodeGen: attention and MLP in parallel under one norm, a bias on the head."""
    hidden = f.integer("n_embd", "hidden_size", high=MAX_HIDDEN)
    return _gpt(
        f,
        hidden=hidden,
        attention=_mha(f, hidden, "n_head", "num_attention_heads", bias=False, out_bias=False),
        mlp=Mlp(width=f.integer("n_inner", default=4 * hidden), gated=False, bias=True),
        count=f.integer("n_layer", "num_hidden_layers", high=MAX_LAYERS),
        norms=1,
        parallel=True,
        tied=False,
        head_bias=True,
    )


def read_gpt_neox(f: Fields) -> Model:
    """GPT-NeoX and Pythia: attention and MLP in parallel, each under its norm."""
    hidden = hidden_size(f)
    bias = f.flag("attention_bias", default=True)
    return _gpt(
        f,
        hidden=hidden,
        attention=_mha(f, hidden, "num_attention_heads", bias=bias, out_bias=bias),
        mlp=Mlp(width=f.integer("intermediate_size"), gated=False, bias=True),
        count=layer_count(f),
        parallel=f.flag("use_parallel_residual", default=True),
        tied=False,
    )


def read_bloom(f: Fields) -> Model:
    """BLOOM: ALiBi, a norm right after the embedding."""
    hidden = f.integer("n_embed", "hidden_size", high=MAX_HIDDEN)
    return _gpt(
        f,
        hidden=hidden,
        attention=_mha(f, hidden, "n_head", "num_attention_heads", bias=True, out_bias=True),
        mlp=Mlp(width=4 * hidden, gated=False, bias=True),
        count=f.integer("n_layer", "num_hidden_layers", high=MAX_LAYERS),
        embedding_norm=True,
        max_seq=f.optional("seq_length", high=MAX_TOKENS),
    )


def read_mpt(f: Fields) -> Model:
    """MPT: ALiBi, no biases."""
    hidden = f.integer("d_model", "hidden_size", high=MAX_HIDDEN)
    attention = f.table("attn_config")
    if not f.flag("no_bias", default=True):
        raise f.fail("an MPT with biases (no_bias false) is not known")
    if not attention.flag("alibi", default=True) or attention.flag("qk_ln", default=False):
        raise f.fail("an MPT without ALiBi or with normed queries and keys is not known (attn_config)")
    if attention.word("attn_type", default="multihead_attention") != "multihead_attention":
        raise f.fail("an MPT with grouped or multi-query attention is not known (attn_config)")
    if f.has("expansion_ratio") and f.number("expansion_ratio", low=1, high=64) != 4:
        raise f.fail("an MPT with another MLP width than 4 times the model's is not known (expansion_ratio)")
    return _gpt(
        f,
        hidden=hidden,
        attention=_mha(f, hidden, "n_heads", "num_attention_heads", bias=False, out_bias=False),
        mlp=Mlp(width=4 * hidden, gated=False),
        count=f.integer("n_layers", "num_hidden_layers", high=MAX_LAYERS),
        norm_bias=False,
        max_seq=f.optional("max_seq_len", high=MAX_TOKENS),
    )


def read_falcon(f: Fields) -> Model:
    """Falcon 7B, 40B, 180B and RW: one, few or all KV heads, one or two norms a layer."""
    hidden = f.integer("n_embed", "hidden_size", high=MAX_HIDDEN)
    new = f.flag("new_decoder_architecture", default=False)
    one_kv = f.flag("multi_query", default=True) and not new
    kv_heads = f.optional("num_kv_heads", "n_head_kv", high=MAX_HEADS) if new else 1 if one_kv else None
    bias = f.flag("bias", default=False)
    parallel = f.flag("parallel_attn", default=True)
    norms = f.integer("num_ln_in_parallel_attn", default=2 if new else 1, high=2) if new or parallel else 2
    return _gpt(
        f,
        hidden=hidden,
        attention=_mha(
            f,
            hidden,
            "num_attention_heads",
            "n_head",
            kv_heads=1 if one_kv else kv_heads,
            bias=bias,
            out_bias=bias,
        ),
        mlp=Mlp(width=f.integer("ffn_hidden_size", default=4 * hidden), gated=False, bias=bias),
        count=f.integer("num_hidden_layers", "n_layer", high=MAX_LAYERS),
        norms=norms,
        parallel=parallel,
    )


def read_opt(f: Fields) -> Model:
    """OPT: learned positions, two rows more than the longest sequence."""
    hidden = hidden_size(f)
    if f.integer("word_embed_proj_dim", default=hidden, high=MAX_HIDDEN) != hidden:
        raise f.fail("an embedding of another width than the model is not known (word_embed_proj_dim)")
    bias, norm = f.flag("enable_bias", default=True), f.flag("layer_norm_elementwise_affine", default=True)
    last = f.flag("do_layer_norm_before", default=True) and not f.flag(
        "_remove_final_layer_norm", default=False
    )
    positions = f.integer("max_position_embeddings", default=2048, high=MAX_TOKENS)
    return _gpt(
        f,
        hidden=hidden,
        attention=_mha(f, hidden, "num_attention_heads", bias=bias, out_bias=bias),
        mlp=Mlp(width=f.integer("ffn_dim"), gated=False, bias=bias),
        count=layer_count(f),
        norms=2 * norm,
        final_norm=norm and last,
        positions=positions + 2,
        max_seq=positions,
    )
