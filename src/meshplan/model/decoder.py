"""From a configuration of a known family to a ``Model``: sizes, then each layer's attention and MLP."""

from __future__ import annotations

from collections.abc import Sequence

from meshplan.model.families import Experts, Family, Switch
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
from meshplan.model.patterns import Window


def read_decoder(f: Fields, family: Family) -> Model:
    """The model of ``f``, whose ``model_type`` belongs to ``family``; its name is still empty."""
    hidden, count = hidden_size(f), layer_count(f)
    attentions = read_attentions(f, family, hidden, count)
    mlps = read_mlps(f, family, count)
    parallel = switch(f, family.parallel)
    norms = family.norms if switch(f, family.norms_if) else 2
    if parallel and not isinstance(family.parallel, bool):
        norms = 1
    layers = tuple(
        Layer(
            attention=attention,
            mlp=mlp,
            norms=norms,
            extra_norm=family.extra_norm,
            norm_bias=family.norm_bias,
            parallel=parallel,
        )
        for attention, mlp in zip(attentions, mlps, strict=True)
    )
    return Model(
        name="",
        hidden=hidden,
        vocab=f.integer("vocab_size", default=family.vocab, high=MAX_VOCAB),
        layers=layers,
        tied_embeddings=f.flag("tie_word_embeddings", default=family.tied),
        final_norm=family.final_norm,
        final_norm_bias=family.norm_bias,
        head_bias=switch(f, family.head_bias),
        mtp=(layers[-1],) * mtp_count(f),
        max_seq=f.optional("max_position_embeddings", high=MAX_TOKENS),
    )


def switch(f: Fields, value: Switch) -> bool:
    """A fact of the family, or the field that decides."""
    return value if isinstance(value, bool) else f.flag(value[0], default=value[1])


def hidden_size(f: Fields) -> int:
    """The width of the residual stream."""
    return f.integer("hidden_size", high=MAX_HIDDEN)


def layer_count(f: Fields) -> int:
    """Layers of the stack."""
    return f.integer("num_hidden_layers", "num_layers", high=MAX_LAYERS)


def mtp_count(f: Fields) -> int:
    """Multi-token-prediction modules beside the stack."""
    if f.has("num_mtp_modules") and f.flag("use_mtp", default=True):
        per_module = f.integer("mtp_transformer_layers", default=1, high=64)
        return f.integer("num_mtp_modules", low=0, high=64) * per_module
    return f.integer("num_nextn_predict_layers", "mtp_num_hidden_layers", default=0, low=0, high=64)


def head_sizes(f: Fields, hidden: int, family: Family, *, sliding: bool = False) -> tuple[int, int, int]:
    """Query heads, KV heads and the width of a head; Step-3.5 has other heads in its sliding layers."""
    heads = f.integer("num_attention_heads", default=family.heads, high=MAX_HEADS)
    if sliding and f.has("num_sliding_attention_heads"):
        heads = f.integer("num_sliding_attention_heads", high=MAX_HEADS)
    elif sliding and f.has("attention_other_setting"):
        heads = f.table("attention_other_setting").integer(
            "num_attention_heads", default=heads, high=MAX_HEADS
        )
    kv_heads = f.integer(
        "num_key_value_heads", "num_attention_groups", default=family.kv_heads or heads, high=MAX_HEADS
    )
    if heads % kv_heads:
        raise f.fail(f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}")
    head_dim = None if family.fixed_head_dim else f.optional("head_dim", high=MAX_HEADS)
    return heads, kv_heads, head_dim or family.head_dim or head_width(f, hidden, heads)


def head_width(f: Fields, hidden: int, heads: int) -> int:
    """The width of a head when the file does not say: hidden size over heads."""
    if hidden % heads:
        raise f.fail(
            f"num_attention_heads {heads} does not divide hidden_size {hidden} and there is no head_dim"
        )
    return hidden // heads


def read_attentions(f: Fields, family: Family, hidden: int, count: int) -> Sequence[Attention]:
    """The attention of each layer."""
    built: dict[tuple[int, Window], Attention] = {}
    found = []
    windows = family.windows(f, count)
    layers = _own_heads(f, [f.layer(i) for i in range(count)])
    for g, window in zip(layers, windows, strict=True):
        key = (id(g), window)
        if key not in built:
            built[key] = _attention(g, family, hidden, window)
        found.append(built[key])
    return found


def _own_heads(f: Fields, layers: list[Fields]) -> list[Fields]:
    """The fields of each layer, with its own number of heads if ``num_attention_heads_per_layer`` says so."""
    if not f.has("num_attention_heads_per_layer"):
        return layers
    f.items("num_attention_heads_per_layer", len(layers))
    heads = f.integers("num_attention_heads_per_layer", low=1, high=MAX_HEADS)
    built = {n: Fields({**f.data, "num_attention_heads": n}, f.where) for n in set(heads)}
    return [built[n] for n in heads]


def _attention(f: Fields, family: Family, hidden: int, window: Window) -> Attention:
    heads, kv_heads, head_dim = head_sizes(f, hidden, family, sliding=window is not None)
    return Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        window=window[0] if window else None,
        chunked=bool(window and window[1]),
        qkv_bias=switch(f, family.qkv_bias),
        out_bias=switch(f, family.out_bias),
        qk_norm=family.qk_norm if switch(f, family.qk_norm_if) else "none",
        qk_norm_bias=family.qk_norm_bias and switch(f, family.qk_norm_if),
        gate=family.gate,
        head_gate=family.head_gate,
        sinks=family.sinks,
    )


def read_mlps(f: Fields, family: Family, count: int) -> Sequence[Mlp | Moe]:
    """The block after attention of each layer: dense, or a mixture where the family has one."""
    experts = family.experts
    sparse: Sequence[bool] = [False] * count
    if experts is not None and f.data.get(experts.count[0]) != 0:
        sparse = experts.sparse(f, count)
    built: dict[tuple[int, bool], Mlp | Moe] = {}
    found = []
    layers = [f.layer(i) for i in range(count)]
    for g, is_moe in zip(layers, sparse, strict=True):
        key = (id(g), is_moe)
        if key not in built:
            built[key] = read_moe(g, experts, family.gated) if experts and is_moe else read_mlp(g, family)
        found.append(built[key])
    return found


def read_mlp(f: Fields, family: Family) -> Mlp:
    """The dense block."""
    return Mlp(width=f.integer(*family.width), gated=family.gated, bias=switch(f, family.mlp_bias))


def read_moe(f: Fields, experts: Experts, gated: bool) -> Moe:
    """The mixture of experts."""
    count = f.integer(*experts.count, high=MAX_EXPERTS)
    topk = _uniform(f, experts.topk, experts.topk_default, MAX_EXPERTS)
    if topk > count:
        raise f.fail(f"{experts.topk[0]} {topk} is more than the {count} experts there are")
    width = _uniform(f, experts.width, None, 1 << 24)
    shared = width if experts.shared_always else 0
    if experts.shared_count:
        shared = width * f.integer(experts.shared_count, default=0, low=0, high=1024)
    elif experts.shared_width:
        shared = f.integer(experts.shared_width, default=0, low=0)
    groups = f.integer("n_group", default=1, low=0, high=count) or 1
    return Moe(
        experts=count,
        topk=topk,
        groups=groups,
        groups_used=min(f.integer("topk_group", default=1, low=0, high=count) or 1, groups),
        width=width,
        gated=gated,
        bias=experts.bias,
        shared_width=shared,
        shared_gate=experts.shared_gate and shared > 0,
        router_bias=experts.router_bias,
        balance_bias=switch(f, experts.balance_bias),
    )


def _uniform(f: Fields, names: tuple[str, ...], default: int | None, high: int) -> int:
    """A whole number, or a list with the same one for every layer (Hunyuan)."""
    for name in names:
        if isinstance(f.data.get(name), list):
            values = set(f.integers(name, low=1, high=high))
            if len(values) != 1:
                raise f.fail(f"{name} differs from layer to layer, which is not known")
            return values.pop()
    return f.integer(*names, default=default, high=high)
