"""Bytes that the element-wise operators of a layer move through HBM for one micro-batch on one rank."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshplan.cost.costs import Floats
from meshplan.cost.full.keys import LayerKeys
from meshplan.cost.full.stack import Stack
from meshplan.model.layers import Attention, LatentAttention, Layer, Mlp, Moe


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


def _torch_bytes(layer: Layer, hidden: int, keys: LayerKeys, stack: Stack) -> tuple[Floats, Floats]:
    """Bytes a token that what torch does one after the other costs forward and backward.

    DTensor gathers and scatters along the sequence, the second dimension, and copies what arrives or leaves
    into order (torchtitan, pull request 437): a read and a write. Products of one input that are not one
    leave as many gradients of it, which are added up: two reads and a write, or a read more where that is one
    kernel with what comes next. Keys and values copied for every query head are written once more, and their
    gradients read.
    """
    forward, backward = np.zeros(len(keys)), np.zeros(len(keys))
    att, mlp = layer.attention, layer.mlp
    plain = isinstance(att, Attention)
    dense = isinstance(mlp, Mlp)
    if stack.family == "torch" and keys.sp.any():
        blocks = int(att is not None) + int(dense or bool(isinstance(mlp, Moe) and mlp.shared_width))
        gathered = 2.0 if stack.fp8_gathers and keys.precision == "fp8" else 4.0
        copies = np.where(keys.sp, (gathered + 4.0) * blocks * hidden, 0.0)
        forward, backward = forward + copies, backward + copies
    more = 2 * int(plain and stack.joined_products == "none")
    more += int(isinstance(mlp, Mlp) and mlp.gated and stack.joined_products != "all")
    backward = backward + (2.0 if stack.fused else 6.0) * more * hidden
    if stack.repeats_kv and isinstance(att, Attention):
        once = (att.k_width + att.v_width) / keys.tp
        copied = 2.0 * once * (1 + att.heads / att.kv_heads) * (att.heads > att.kv_heads)
        forward, backward = forward + copied, backward + copied
    return forward, backward


class Passes(NamedTuple):
    """Bytes an element that element-wise operators move, forward and backward."""

    norm: tuple[float, float]
    add: tuple[float, float]
    gate: tuple[float, float]
    """Of the width of a gated block: SwiGLU."""
    plain: tuple[float, float]
    """Of one that is not gated: GeLU."""
    rotary: tuple[float, float]
    """Of queries and keys."""
    assembled: tuple[float, float] | None = None
    """Of queries and keys, putting latent attention's together from what is rotated and what is not."""
    weighed: tuple[float, float] = (0.0, 0.0)
    """Of what experts return, where it is weighed in operators of its own (``Stack.experts_apart``)."""


def passes_of(stack: Stack) -> Passes:
    """A read or a write of bf16 is 2 bytes, of fp32 4.

    Fused: a norm reads and writes (backward reads its input too), an add reads two and writes one, SwiGLU
    reads two and writes one, rotary reads and writes. Megatron's unfused kernels pass each tensor about once
    more (bias, dropout, add). PyTorch's and Hugging Face's run operator by operator, and in fp32 where they
    cast: RMSNorm casts (6), squares (8), averages (4), scales (8), casts back (6) and weighs (6); SwiGLU is
    silu (4) and a product (6); rotary casts (6), turns (8) and casts back (6); torchtitan weighs what experts
    return in fp32 (6, 8 and 6). Backward is the same chain again with both gradients of every product.
    """
    drop = 1.0 if stack.dropout else 0.0
    if stack.fused:
        return Passes((4, 6), (6 + drop, 4 + drop), (6, 10), (4, 6), (4, 4))
    if stack.family == "megatron":
        return Passes((8, 12), (14 + drop, 10 + drop), (10, 14), (8, 10), (8, 8))
    norm = (4.0, 6.0) if stack.fused_norms else (38.0, 70.0)
    weighed = (20.0, 28.0) if stack.family == "torch" else (0.0, 0.0)
    # Rotary and putting together take 19.2 ms forward and 15.6 backward for 65,536 tokens of 128 heads on a
    # GB300 (torchtitan, pull request 4134): 38 and 31 bytes at 0.8 of its bandwidth.
    return Passes(norm, (6 + 2 * drop, 6 + drop), (10, 18), (4, 6), (20, 20), (18, 11), weighed)


def _attention_bytes(
    layer: Layer, keys: LayerKeys, passes: Passes, stack: Stack
) -> tuple[Floats | float, Floats | float]:
    """Bytes a token of rotary, of norms of queries and keys, and of putting latent attention's together."""
    att, t = layer.attention, keys.tp.astype(np.float64)
    if att is None:
        return 0.0, 0.0
    rotated = (att.q_width + att.k_width) / t
    forward, backward = (keys.rotary * passes.rotary[way] * rotated for way in (0, 1))
    if isinstance(att, LatentAttention):
        ranks = ((att.q_rank or 0) + att.kv_rank) * keys.stream_share
        put = passes.assembled or (4 * (att.k_width + att.v_width) / (att.q_width + att.k_width),) * 2
        forward, backward = forward + 4 * ranks + put[0] * rotated, backward + 6 * ranks + put[1] * rotated
    elif att.qk_norm != "none":
        norm = (4.0, 6.0) if stack.family == "megatron" else passes.norm
        forward, backward = forward + norm[0] * rotated, backward + norm[1] * rotated
    return forward, backward


def _moe_bytes(
    moe: Moe, hidden: int, keys: LayerKeys, passes: Passes, stack: Stack
) -> tuple[Floats, Floats, Floats]:
    """Bytes a token of the experts' activation functions, weighing and biases, and of the router; and of
    putting tokens in order."""
    sigma, extra = keys.stream_share, 0.0 if stack.fused else 1.0
    routed = moe.topk * sigma * stack.moe_imbalance
    wide = moe.width * routed * (stack.grouped != "block")  # which has the activation inside
    shared = moe.shared_width / keys.tp.astype(np.float64)
    acted = passes.gate if moe.gated else passes.plain
    weighed = passes.weighed if stack.experts_apart else (0.0, 0.0)
    forward, backward = (
        (wide + shared) * acted[way] + weighed[way] * hidden * routed + 16 * moe.experts * sigma
        for way in (0, 1)
    )
    if keys.clamped:  # two clamps, a scale, a sigmoid and an addition more, each on its own where unfused
        forward, backward = forward + 20 * extra * wide, backward + 22 * extra * wide
    if moe.bias:
        bias_f, bias_b = _bias_bytes(moe, hidden, routed, stack)
        forward, backward = forward + bias_f, backward + bias_b
    return forward, backward, reordering(stack) * hidden * routed


def element_traffic(layer: Layer, hidden: int, keys: LayerKeys, stack: Stack) -> Traffic:
    """Norms, residual adds, rotary, activation function, routing (``passes_of``). MoE tokens are put in order
    for their experts and back (``reordering``)."""
    tokens, t, sigma = keys.tokens, keys.tp.astype(np.float64), keys.stream_share
    passes, mlp = passes_of(stack), layer.mlp
    forward, backward = _torch_bytes(layer, hidden, keys, stack)
    reordered = np.zeros(len(keys))
    norms = layer.norms * hidden * sigma
    adds = (int(layer.attention is not None) + int(mlp is not None)) * hidden * sigma
    att_f, att_b = _attention_bytes(layer, keys, passes, stack)
    forward = forward + passes.norm[0] * norms + passes.add[0] * adds + att_f
    backward = backward + passes.norm[1] * norms + passes.add[1] * adds + att_b
    each: float | Floats = 0.0
    if isinstance(mlp, Mlp):
        acted = passes.gate if mlp.gated else passes.plain
        forward, backward = forward + mlp.width / t * acted[0], backward + mlp.width / t * acted[1]
    elif isinstance(mlp, Moe):
        moe_f, moe_b, reordered = _moe_bytes(mlp, hidden, keys, passes, stack)
        forward, backward = forward + moe_f, backward + moe_b
        each = 3.0 * mlp.experts / keys.ep * (mlp.bias and stack.family == "megatron")
    extra = 0.0 if stack.fused else 1.0
    kernels = layer.norms + 4.0 + (8.0 if isinstance(mlp, Moe) else 1.0) + 8.0 * extra + each
    wide_by = keys.element_bytes / 2.0
    scale = tokens * wide_by
    return Traffic(
        forward=forward * scale, backward=backward * scale, reordered=reordered * scale, kernels=kernels
    )
