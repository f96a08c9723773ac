"""Bytes a layer keeps for its backward pass, tensor by tensor, for one micro-batch on one rank.

Sources: Korthikanti et al. 2022 (arXiv 2205.05198), section 4, for the list of tensors; what
TransformerEngine and Megatron-Core save today (norm input and output, q, k, v, attention output and
its log-sum-exp, both sides of the activation function). bf16 tensors have 2 bytes an element.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshplan.cost.costs import Floats
from meshplan.cost.full.gemms import attention_gemms, mlp_gemms
from meshplan.cost.full.keys import LayerKeys
from meshplan.cost.full.stack import Stack
from meshplan.model.layers import LatentAttention, Layer, Mlp, Moe
from meshplan.plan.kinds import CpKind, Recompute

FP8_STORED = ("fp8", "mxfp8", "nvfp4")


class LayerActivations(NamedTuple):
    """Bytes of one micro-batch, an entry a key. ``kept`` stays from forward to backward as planned;
    ``full`` is what the layer keeps when nothing is recomputed (the workspace while a layer that is
    recomputed runs backward); ``input`` is what a wholly recomputed layer keeps; ``workspace`` is the
    largest set of gradients alive while one layer runs backward."""

    kept: Floats
    full: Floats
    input: Floats
    workspace: Floats
    parts: dict[str, Floats]
    """``kept`` by kind: attention, mlp, moe, norm."""


def recomputes(keys: LayerKeys, module: Recompute) -> Floats:
    """1 where the key recomputes ``module``."""
    if keys.keeps_all:
        return keys.none
    return np.asarray((keys.modules & int(module)) != 0, dtype=np.float64)


def _keeps_inner(stack: Stack, gated: bool) -> float:
    """1 where torch runs SwiGLU as two operators: the product keeps silu(gate) beside its inputs."""
    return float(gated and stack.family == "torch" and not stack.fused)


def attention_bytes(
    layer: Layer, hidden: int, stack: Stack, keys: LayerKeys
) -> tuple[dict[str, Floats], Floats]:
    """Bytes a token by tensor, and the share that recomputing modules takes away."""
    att = layer.attention
    if att is None:
        return {}, np.zeros(len(keys))
    t, sigma = keys.tp.astype(np.float64), keys.stream_share
    gathered = np.where(keys.sp & (stack.family == "torch"), 1.0, sigma)
    mask = 1.0 if stack.dropout else 0.0
    parts = {
        "norm in": 2 * hidden * sigma,
        "norm out": 2 * hidden * gathered,
        "out and lse": (stack.core_bytes * att.out_width + 4 * att.heads) / t,
        "mask": mask * hidden * sigma,
    }
    kv_share = np.maximum(1.0 / t, 1.0 / att.kv_heads)
    if stack.repeats_kv and not stack.fused:  # compiled, the copies are made again for backward
        kv_share = att.heads / att.kv_heads / t
    removed = parts["norm out"] * recomputes(keys, Recompute.NORM)
    if isinstance(att, LatentAttention):
        q_rank = att.q_rank or 0
        latent = 2 * (q_rank + att.kv_rank + att.rope_dim) + 2 * (q_rank + att.kv_rank)
        parts["latents"] = latent * sigma
        parts["qkv"] = 2 * (att.q_width + att.k_width + att.v_width) / t
        removed = removed + parts["qkv"] * recomputes(keys, Recompute.MLA_UP_PROJ)
    else:
        parts["qkv"] = 2 * att.q_width / t + 2 * (att.k_width + att.v_width) * kv_share
        if att.gate:
            parts["gate"] = 4 * att.q_width / t
        if att.qk_norm != "none":
            parts["qk norm in"] = 2 * att.q_width / t + 2 * att.k_width * kv_share
            removed = removed + parts["qk norm in"] * recomputes(keys, Recompute.NORM)
    if stack.attention == "unfused":
        per_score = 5.0 if stack.dropout else 2.0
        parts["scores"] = per_score * att.heads * keys.seq / t
        removed = removed + parts["scores"] * recomputes(keys, Recompute.CORE_ATTN)
    parts["out to scatter"] = 2 * att.out_width / t * (keys.cp_kind == CpKind.ULYSSES) * (keys.cp > 1)
    if layer.parallel:
        parts["norm in"] = parts["norm in"] / 2
    return parts, removed


def mlp_bytes(layer: Layer, hidden: int, stack: Stack, keys: LayerKeys) -> tuple[dict[str, Floats], Floats]:
    """The same for the feed-forward block."""
    mlp = layer.mlp
    zero = np.zeros(len(keys))
    if mlp is None:
        return {}, zero
    t, sigma = keys.tp.astype(np.float64), keys.stream_share
    gathered = np.where(keys.sp & (stack.family == "torch"), 1.0, sigma)
    mask = 1.0 if stack.dropout else 0.0
    parts: dict[str, Floats] = {
        "mlp norm in": 2 * hidden * sigma * (0.5 if layer.parallel else 1.0),
        "mlp mask": mask * hidden * sigma,
    }
    if isinstance(mlp, Mlp):
        parts["mlp norm out"] = 2 * hidden * gathered
        parts["fc1 out"] = stack.act_input_bytes * (2 if mlp.gated else 1) * mlp.width / t
        parts["act out"] = 2 * mlp.width / t
        parts["act inner"] = 2 * mlp.width / t * _keeps_inner(stack, mlp.gated)
        whole = recomputes(keys, Recompute.MLP)
        act = np.maximum(recomputes(keys, Recompute.MLP_ACT), whole)
        norm = recomputes(keys, Recompute.NORM)
        removed = (
            (parts["act out"] + parts["act inner"]) * act
            + parts["fc1 out"] * whole
            + parts["mlp norm out"] * norm
        )
        return parts, removed
    return _moe_bytes(mlp, hidden, stack, keys, parts)


def _moe_bytes(
    moe: Moe, hidden: int, stack: Stack, keys: LayerKeys, parts: dict[str, Floats]
) -> tuple[dict[str, Floats], Floats]:
    """Routed and shared experts. ``dispatched`` tokens are what one rank's experts receive for each
    token it holds itself, with the imbalance of routing."""
    t, etp = keys.tp.astype(np.float64), keys.etp.astype(np.float64)
    sigma = keys.stream_share
    # Every rank sends its own share of the stream; an expert rank of an etp group holds them all.
    dispatched = moe.topk * sigma * etp * stack.moe_imbalance
    parts["mlp norm out"] = 2 * hidden * sigma
    parts["router"] = 8 * moe.experts * sigma
    stored = 1.0 if keys.precision in FP8_STORED else 2.0
    parts["dispatched"] = stored * hidden * dispatched
    read = stack.act_input_bytes * (2 if moe.gated else 1)
    parts["expert fc1 out"] = read * moe.width * dispatched / etp
    parts["expert act out"] = stored * moe.width * dispatched / etp
    # Clamped (gpt-oss), the clamped gate, its sigmoid and the raised other side are kept besides.
    inner = _keeps_inner(stack, moe.gated) * (4 if keys.clamped else 1)
    parts["expert act inner"] = stored * moe.width * dispatched / etp * inner
    # torch weighs the experts' outputs after they came home, Megatron inside the activation function; in
    # separate operators it also keeps them in fp32, the rows gathered before sending and those padded after.
    apart = 4 + 2 + 2 if stack.experts_apart and not stack.fused else 0
    combined = (2 + apart) * hidden * moe.topk * sigma * (stack.family == "torch")
    parts["expert out"] = combined
    if moe.shared_width:
        parts["shared fc1 out"] = read * moe.shared_width / t
        parts["shared act out"] = 2 * moe.shared_width / t * (1 + inner)
    whole = recomputes(keys, Recompute.MOE)
    act = np.maximum(recomputes(keys, Recompute.MOE_ACT), whole)
    removed = (
        (parts["expert act out"] + parts["expert act inner"]) * act
        + (parts["expert fc1 out"] + parts["dispatched"] + parts["router"] + combined) * whole
        + parts["mlp norm out"] * np.maximum(recomputes(keys, Recompute.NORM), whole)
    )
    if moe.shared_width:
        shared = np.maximum(recomputes(keys, Recompute.SHARED_EXPERTS), whole)
        removed = removed + (parts["shared fc1 out"] + parts["shared act out"]) * shared
    return parts, removed


def _workspace(layer: Layer, hidden: int, keys: LayerKeys, stack: Stack) -> Floats:
    """Gradients alive at once while the MLP, or else attention, runs backward, bytes a token."""
    t, sigma = keys.tp.astype(np.float64), keys.stream_share
    stream = 2.0 * hidden  # the gathered gradient that enters the block
    block = np.zeros(len(keys))
    if isinstance(layer.mlp, Mlp):
        block = (6 if layer.mlp.gated else 4) * layer.mlp.width / t
    elif isinstance(layer.mlp, Moe):
        tokens = layer.mlp.topk * sigma * stack.moe_imbalance
        block = ((6 if layer.mlp.gated else 4) * layer.mlp.width + 2 * hidden * keys.etp) * tokens
    if layer.attention is not None:
        att = layer.attention
        block = np.maximum(block, 2 * (att.q_width + att.k_width + att.v_width + att.out_width) / t)
        if stack.ring == "gathered":
            # Keys and values of all ranks, and their fp32 gradients: the sum, as it is sent, as it arrives.
            shared = 1.0 if stack.repeats_kv else att.kv_heads / att.heads
            k_and_v = 2 * (att.q_width + att.heads * att.v_dim) * shared / t
            ring = (keys.cp > 1) & (keys.cp_kind == CpKind.RING)
            block = block + np.where(ring, k_and_v * (keys.cp + 6.0), 0.0)
    return block + stream * np.where(keys.sp, 1.0, 1.0) + 2 * hidden * sigma


def _operator_bytes(layer: Layer, hidden: int, keys: LayerKeys, stack: Stack) -> Floats:
    """Bytes a token that torchtitan's per-operator checkpointing keeps: the layer's input, what attention
    writes, every second product of ``_products``, what TP scatters and what experts' all-to-alls bring
    (torchtitan/distributed/activation_checkpoint.py). Grouped products of experts are not kept. The outcome
    of the layer's last product is kept though nothing reads it, unless the layer is a graph (compiled or
    traced).
    """
    graph = stack.fused or stack.traced
    t, sigma = keys.tp.astype(np.float64), keys.stream_share
    total = 2.0 * hidden * sigma
    if layer.attention is not None:
        total = total + (2 * layer.attention.out_width + 4 * layer.attention.heads) / t
    products = _products(layer, hidden, t)
    kept = products[::2]
    if keys.precision == "nvfp4":  # products are operators of torchao's own, which no list names
        kept = []
    if graph and len(products) % 2:
        kept = kept[:-1]
    total = total + sum(kept, np.zeros(len(keys)))
    if isinstance(layer.mlp, Moe) and stack.keeps_exchanged:
        routed = layer.mlp.topk * sigma * stack.moe_imbalance
        total = total + np.where(keys.ep > 1, 4.0 * hidden * routed, 0.0)  # there and back
    if not stack.fused and keys.precision == "fp8":
        total = total + _cast_bytes(layer, hidden, keys, stack)
    blocks = (layer.attention is not None) + (isinstance(layer.mlp, Mlp) or bool(_shared(layer)))
    return total + np.where(keys.sp, 2.0 * hidden * sigma * (blocks - graph), 0.0)


def _cast_bytes(layer: Layer, hidden: int, keys: LayerKeys, stack: Stack) -> Floats:
    """Bytes a token of the absolute values of inputs and weights, in bf16, that checkpointing by operator
    keeps where casts to fp8 run operator by operator (``aten.abs`` was in torchtitan's list)."""
    gemms = attention_gemms(layer, hidden, keys, stack)
    if isinstance(layer.mlp, Mlp):
        gemms += mlp_gemms(layer, hidden, keys, stack)
    return np.asarray(sum((2.0 * (g.k + g.n * g.k / keys.tokens) for g in gemms), np.zeros(len(keys))))


def _products(layer: Layer, hidden: int, t: Floats) -> list[Floats]:
    """Bytes a token that each matrix product of a layer in torchtitan writes, in their order."""
    whole = np.zeros(len(t)) + 2.0 * hidden  # of a row-parallel product each rank has a summand of its own
    found: list[Floats] = []
    att = layer.attention
    if isinstance(att, LatentAttention):
        if att.q_rank:
            found.append(0 * t + 2.0 * att.q_rank)
        found += [2 * att.q_width / t, 0 * t + 2.0 * (att.kv_rank + att.rope_dim)]
        found += [2 * att.heads * (att.nope_dim + att.v_dim) / t, whole]
    elif att is not None:
        found += [2 * att.q_width / t, 2 * att.k_width / t, 2 * att.v_width / t, whole]
    width, gated = _shared(layer), True
    if isinstance(layer.mlp, Mlp):
        width, gated = layer.mlp.width, layer.mlp.gated
    elif isinstance(layer.mlp, Moe):
        found.append(0 * t + 2.0 * layer.mlp.experts)
    if width:
        found += [2 * width / t] * (2 if gated else 1) + [whole]
    return found


def _shared(layer: Layer) -> int:
    return layer.mlp.shared_width if isinstance(layer.mlp, Moe) else 0


def layer_activations(layer: Layer, hidden: int, stack: Stack, keys: LayerKeys) -> LayerActivations:
    """What one layer keeps, for every key; bytes of one micro-batch on one rank."""
    tokens = keys.tokens
    attention, attention_removed = attention_bytes(layer, hidden, stack, keys)
    mlp, mlp_removed = mlp_bytes(layer, hidden, stack, keys)
    total_a = sum(attention.values(), np.zeros(len(keys)))
    total_m = sum(mlp.values(), np.zeros(len(keys)))
    is_moe = isinstance(layer.mlp, Moe)
    parts = {
        "attention": (total_a - attention_removed) * tokens,
        "moe" if is_moe else "mlp": (total_m - mlp_removed) * tokens,
    }
    # A norm after attention or MLP (Gemma 2 and 3) keeps its input; what it writes is only added.
    after = 2.0 * hidden * max(layer.norms - 2, 0) * keys.stream_share * tokens
    parts["norm"] = after
    full = (total_a + total_m) * tokens + after
    again = np.zeros(len(keys))
    by_operator = recomputes(keys, Recompute.OPERATORS)
    if by_operator.any():
        few = _operator_bytes(layer, hidden, keys, stack) * tokens
        share = np.where(by_operator > 0, few / np.maximum(sum(parts.values()), 1.0), 1.0)
        parts = {name: value * share for name, value in parts.items()}
        # What a layer's operators are computed again from and to stands while it runs backward.
        again = np.maximum(full - few, 0.0) * by_operator
    return LayerActivations(
        kept=sum(parts.values(), np.zeros(len(keys))),
        full=full,
        input=2 * hidden * keys.stream_share * tokens,
        workspace=_workspace(layer, hidden, keys, stack) * tokens + again,
        parts=parts,
    )
