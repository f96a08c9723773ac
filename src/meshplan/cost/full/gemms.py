"""The matrix multiplications and element-wise traffic of a layer's forward pass on one rank."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from meshplan.cost.costs import Floats
from meshplan.cost.full.keys import LayerKeys
from meshplan.cost.full.stack import Stack
from meshplan.model.layers import LatentAttention, Layer, Mlp, Moe


class Gemm(NamedTuple):
    """One product of an (m × k) and a (k × n) matrix; ``batch`` of them in one grouped kernel."""

    name: str
    m: Any
    n: Any
    k: Any
    batch: Any = 1
    high_precision: bool = False
    """Runs in bf16 even when the layer trains in fp8 (router)."""


def attention_gemms(layer: Layer, hidden: int, keys: LayerKeys) -> list[Gemm]:
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
        width = att.q_width * (2 if att.gate else 1) + att.k_width + att.v_width
        gemms = [Gemm(name="qkv", m=tokens, n=width / t, k=hidden)]
    gemms.append(Gemm(name="attention out", m=tokens, n=hidden, k=att.out_width / t))
    return gemms


def mlp_gemms(layer: Layer, hidden: int, keys: LayerKeys, stack: Stack) -> list[Gemm]:
    """The dense block, or router, routed and shared experts."""
    mlp = layer.mlp
    if mlp is None:
        return []
    tokens, t = keys.tokens, keys.tp
    if isinstance(mlp, Mlp):
        up = (2 if mlp.gated else 1) * mlp.width
        return [
            Gemm(name="fc1", m=tokens, n=up / t, k=hidden),
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


class Traffic(NamedTuple):
    """Bytes element-wise operators move through HBM for one micro-batch, and how many kernels they are."""

    forward: Floats
    backward: Floats
    reordered: Floats
    """Bytes each way of bringing a MoE layer's tokens in order, as if read at HBM's full rate."""
    kernels: float | Floats
    """Launched in forward; backward launches about twice as many."""


BIAS_FORWARD, BIAS_BACKWARD = 28.0, 36.0
"""Bytes a feature of a routed token costs where Megatron weighs the bias of the experts' second product by
the router's probabilities, expert by expert and in fp32 (``TEGroupedMLP._apply_bias`` of
Megatron-LM d98e8a6): the product is written (4), added to the output (10), the experts' rows are put together
(8) and cast (6); backward casts and splits (6 and 6), multiplies and sums for bias and probabilities (24)."""


def _bias_bytes(moe: Moe, hidden: int, routed: float | Floats, stack: Stack) -> tuple[Floats, Floats]:
    """Bytes a token that experts' biases cost forward and backward. They are added by the products, unless
    unfused; their gradient sums over rows; Megatron weighs the second one apart."""
    columns = np.asarray((2 if moe.gated else 1) * moe.width * routed + hidden * routed)
    forward = columns * (0.0 if stack.fused else 4.0)
    if stack.family != "megatron":
        return forward, 2.0 * columns
    return forward + BIAS_FORWARD * hidden * routed, 2.0 * columns + BIAS_BACKWARD * hidden * routed


def reordering(stack: Stack) -> float:
    """Bytes of HBM's time that a feature of a routed token costs, each way, to be put in order.

    An all-to-all permutes before sending, sorts by expert after it, and undoes both on the way back: four
    reads and writes of 2 bytes. DeepEP and HybridEP do the first while sending: two.
    """
    passes = 2.0 if stack.dispatcher == "dedup" else 4.0
    return passes * 4.0 / stack.permute_rate


def element_traffic(layer: Layer, hidden: int, keys: LayerKeys, stack: Stack) -> Traffic:
    """Norms, residual adds, rotary, activation function, routing; physics in bytes an element: a
    read or a write of bf16 is 2 bytes.

    Norm: read, write (4 forward; 6 backward). Residual add (with dropout's mask): 6. SwiGLU: reads two,
    writes one (6; backward 10); GeLU 4 and 6. Rotary: 4 a feature of q and k. MoE tokens are put in
    order for their experts and back (``reordering``). Unfused stacks run bias, activation, dropout and
    add apart and pass each tensor about once more for each.
    """
    tokens, t, sigma = keys.tokens, keys.tp.astype(np.float64), keys.stream_share
    extra = 0.0 if stack.fused else 1.0
    forward = np.zeros(len(keys))
    backward = np.zeros(len(keys))
    reordered = np.zeros(len(keys))
    each: float | Floats = 0.0
    drop = 1.0 if stack.dropout else 0.0
    norm_passes = layer.norms * hidden * sigma
    adds = (int(layer.attention is not None) + int(layer.mlp is not None)) * hidden * sigma
    forward += 4 * norm_passes * (1 + extra) + adds * (6 + drop + 8 * extra)
    backward += 6 * norm_passes * (1 + extra) + adds * (4 + drop + 6 * extra)
    att = layer.attention
    if att is not None:
        rotated = (att.q_width + att.k_width) / t
        if keys.rotary:
            forward += rotated * (4 + 4 * extra)
            backward += rotated * (4 + 4 * extra)
        if isinstance(att, LatentAttention):
            ranks = (att.q_rank or 0) + att.kv_rank
            forward += 4 * ranks * sigma + 4 * (att.k_width + att.v_width) / t
            backward += 6 * ranks * sigma + 4 * (att.k_width + att.v_width) / t
        elif att.qk_norm != "none":
            forward += 4 * rotated
            backward += 6 * rotated
    mlp = layer.mlp
    if isinstance(mlp, Mlp):
        wide = mlp.width / t
        forward += wide * ((6 if mlp.gated else 4) + 4 * extra)
        backward += wide * ((10 if mlp.gated else 6) + 4 * extra)
    elif isinstance(mlp, Moe):
        routed = mlp.topk * sigma * stack.moe_imbalance
        wide = mlp.width * routed * (stack.grouped != "block")  # which has the activation inside
        reordered += reordering(stack) * hidden * routed
        forward += wide * (6 if mlp.gated else 4) + 16 * mlp.experts * sigma
        backward += wide * (10 if mlp.gated else 6) + 16 * mlp.experts * sigma
        if keys.clamped:  # two clamps, a scale, a sigmoid and an addition more, each on its own where unfused
            forward += 20 * extra * wide
            backward += 22 * extra * wide
        if mlp.bias:
            bias_f, bias_b = _bias_bytes(mlp, hidden, routed, stack)
            forward, backward = forward + bias_f, backward + bias_b
            each = 3.0 * mlp.experts / keys.ep * (stack.family == "megatron")
        if mlp.shared_width:
            shared = mlp.shared_width / t
            forward += shared * (6 if mlp.gated else 4)
            backward += shared * (10 if mlp.gated else 6)
    kernels = layer.norms + 4.0 + (8.0 if isinstance(mlp, Moe) else 1.0) + 8.0 * extra + each
    wide_by = keys.element_bytes / 2.0
    scale = tokens * wide_by
    return Traffic(
        forward=forward * scale, backward=backward * scale, reordered=reordered * scale, kernels=kernels
    )
