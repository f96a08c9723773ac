"""The matrix multiplications of a layer's forward pass on one rank."""

from __future__ import annotations

from typing import Any, NamedTuple

from meshplan.cost.costs import Floats
from meshplan.cost.full.keys import LayerKeys
from meshplan.cost.full.stack import Stack
from meshplan.model.layers import LatentAttention, Layer, Mlp
from meshplan.plan.plans import Ints


class Gemm(NamedTuple):
    """One product of an (m × k) and a (k × n) matrix; ``batch`` of them in one grouped kernel."""

    name: str
    m: Any
    n: Any
    k: Any
    batch: Any = 1
    high_precision: bool = False
    """Runs in bf16 even when the layer trains in fp8 (router)."""
    shares_input: bool = False
    """Reads what the product before it reads, too."""


def attention_gemms(layer: Layer, hidden: int, keys: LayerKeys, stack: Stack) -> list[Gemm]:
    """Projections before and after attention."""
    att = layer.attention
    if att is None:
        return []
    tokens, t = keys.tokens, keys.tp
    held = tokens * keys.stream_share
    if isinstance(att, LatentAttention):
        up = att.heads * (att.nope_dim + att.v_dim)
        gemms = [Gemm(name="kv down", m=held, n=att.kv_rank + att.rope_dim, k=hidden)]
        if att.q_rank is None:
            gemms.append(Gemm(name="q", m=tokens, n=att.q_width / t, k=hidden))
        else:
            gemms.append(Gemm(name="q down", m=held, n=att.q_rank, k=hidden))
            gemms.append(Gemm(name="q up", m=tokens, n=att.q_width / t, k=att.q_rank))
        gemms.append(Gemm(name="kv up", m=tokens, n=up / t, k=att.kv_rank))
    else:
        widths = (att.q_width * (2 if att.gate else 1), att.k_width, att.v_width)
        gemms = apart("qkv", tokens, widths, t, hidden, joined=stack.joined_products != "none")
    gemms.append(Gemm(name="attention out", m=tokens, n=hidden, k=att.out_width / t))
    return gemms


def apart(
    name: str, tokens: Floats, widths: tuple[int, ...], t: Ints, hidden: int, *, joined: bool
) -> list[Gemm]:
    """Column-parallel products of one input, as one product where they are ``joined``."""
    if joined:
        return [Gemm(name=name, m=tokens, n=sum(widths) / t, k=hidden)]
    return [
        Gemm(name=f"{name} {i}" if i else name, m=tokens, n=width / t, k=hidden, shares_input=i > 0)
        for i, width in enumerate(widths)
    ]


def mlp_gemms(layer: Layer, hidden: int, keys: LayerKeys, stack: Stack) -> list[Gemm]:
    """The dense block, or router, routed and shared experts."""
    mlp = layer.mlp
    if mlp is None:
        return []
    tokens, t = keys.tokens, keys.tp
    if isinstance(mlp, Mlp):
        widths = (mlp.width,) * (2 if mlp.gated else 1)
        return [
            *apart("fc1", tokens, widths, t, hidden, joined=stack.joined_products == "all"),
            Gemm(name="fc2", m=tokens, n=hidden, k=mlp.width / t),
        ]
    up = (2 if mlp.gated else 1) * mlp.width
    held = tokens * keys.stream_share
    local = mlp.experts / keys.ep
    per_expert = held * keys.etp * mlp.topk * stack.moe_imbalance * keys.ep / mlp.experts
    gemms = [
        Gemm(name="router", m=held, n=mlp.experts, k=hidden, high_precision=True),
        Gemm(name="experts fc1", m=per_expert, n=up / keys.etp, k=hidden, batch=local),
        Gemm(name="experts fc2", m=per_expert, n=hidden, k=mlp.width / keys.etp, batch=local),
    ]
    if mlp.shared_width:
        shared = (2 if mlp.gated else 1) * mlp.shared_width
        gemms.append(Gemm(name="shared fc1", m=tokens, n=shared / t, k=hidden))
        gemms.append(Gemm(name="shared fc2", m=tokens, n=hidden, k=mlp.shared_width / t))
    return gemms
