"""Seconds one layer takes on one rank for one micro-batch, forward and backward, by part.

A kernel's time is read off the GPU's measured curve and divided by the stack's sustained rate; a
layer's GPU time is the sum of its kernels and of the transfers nothing hides.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from meshplan.cluster.curves import (
    Clock,
    Seconds,
    attention_seconds,
    gemm_seconds,
    grouped_gemm_seconds,
    membound_seconds,
    quantise_seconds,
    unaligned,
)
from meshplan.cluster.profile import Profile
from meshplan.cost.costs import Floats
from meshplan.cost.full.activations import recomputes
from meshplan.cost.full.comm import LayerComm, limited
from meshplan.cost.full.distinct import distinct
from meshplan.cost.full.gemms import Gemm, attention_gemms, mlp_gemms
from meshplan.cost.full.keys import LayerKeys
from meshplan.cost.full.stack import Stack
from meshplan.cost.full.traffic import element_traffic
from meshplan.model.layers import Attention, LatentAttention, Layer, Moe
from meshplan.plan.kinds import CpKind, Recompute
from meshplan.plan.plans import Ints

FP32_SUM = 10.0
"""Bytes to add a bf16 block to an fp32 sum: read both, write one."""
EAGER_CAST = 6.6
"""Times the traffic of a cast to fp8 where its operators run one by one: absolute value (4 bytes), maximum
(2), to fp32 (6), times the scale (8), clamp (8), to fp8 (5), instead of two reads and a write (torchao,
``float8_utils.py``)."""
PARTS = ("matmul", "attention", "elementwise", "tp", "cp", "ep")


class LayerTime(NamedTuple):
    """Seconds by part (``PARTS``), an entry a key. ``weight`` is the part of ``backward`` that only
    weight gradients need; ``selective`` is what recomputing the chosen modules adds; ``whole`` what
    recomputing the layer adds; ``hidden`` the transfers that computing hides."""

    forward: dict[str, Floats]
    backward: dict[str, Floats]
    weight: Floats
    selective: Floats
    whole: Floats
    hidden: dict[str, Floats]
    host: Floats
    """Seconds the host needs to launch forward."""

    @property
    def forward_s(self) -> Floats:
        """All parts of forward."""
        return np.asarray(sum(self.forward.values()))

    @property
    def backward_s(self) -> Floats:
        """All parts of backward, recomputing left out."""
        return np.asarray(sum(self.backward.values()))


def kernel_dtype(precision: str, stack: Stack) -> str:
    """The curve a precision's matrix multiplications are read from."""
    if precision == "fp8" and stack.fp8_blocks:
        return "fp8_block"
    return {"fp16": "bf16", "fp32": "tf32"}.get(precision, precision)


def is_low(gemm: Gemm, stack: Stack) -> bool:
    """Whether a product runs in the workload's precision where that is below bf16."""
    only = {"all": True, "experts": gemm.name.startswith("experts")}
    only["linears"] = not only["experts"]
    return only[stack.low_precision] and not gemm.high_precision


WAYS = ("forward", "input", "weight")
"""The three products of a layer's weights: forward (m, n, k), the gradient of its input (m, k, n) and of its
weights (n, k, m)."""


def _shapes(gemms: list[Gemm], count: int) -> Floats:
    """(ways, products, sides, keys): rows, columns and depth of every product each way."""
    sides = np.empty((3, len(gemms), count))
    for i, g in enumerate(gemms):
        sides[0, i], sides[1, i], sides[2, i] = g.m, g.n, g.k
    m, n, k = sides
    return np.stack([np.stack(sides, axis=1) for sides in ((m, n, k), (m, k, n), (n, k, m))])


def _seconds(gemms: list[Gemm], count: int, profile: Profile, dtype: str, stack: Stack) -> Floats:
    """(ways, products, keys): seconds of single products."""
    shapes = _shapes(gemms, count)
    out_bytes = np.array([2.0, 2.0, 8.0])[:, None, None]
    factor = np.array([1.0, profile.dgrad_factor, profile.wgrad_factor])[:, None, None]
    rows, columns, depth = (shapes[:, :, side] for side in range(3))
    if dtype == "bf16":  # of fp8 and fp4, frameworks pad
        factor = factor * unaligned(columns[0], depth[0])
    clock: Clock = "burst" if stack.one_by_one else "sustained"
    one = gemm_seconds(profile, rows, columns, depth, dtype=dtype, out_bytes=out_bytes, clock=clock)
    return np.asarray(one * factor)


def _experts_seconds(gemms: list[Gemm], count: int, profile: Profile, dtype: str, stack: Stack) -> Floats:
    """The same of all experts of a rank."""
    batch = np.stack([np.broadcast_to(np.asarray(g.batch, dtype=np.float64), (count,)) for g in gemms])
    shapes = _shapes(gemms, count)
    kernel: Literal["fused", "streams"] = "streams" if stack.grouped == "streams" else "fused"

    def grouped(ways: slice, out_bytes: float, weight_gradient: bool) -> Floats:
        m, n, k = (shapes[ways, :, side] for side in ((2, 0, 1) if weight_gradient else (0, 1, 2)))
        return grouped_gemm_seconds(
            profile, m, batch, n, k, dtype=dtype, out_bytes=out_bytes, weight_gradient=weight_gradient,
            kernel=kernel,
        )  # fmt: skip

    together = np.concatenate([grouped(slice(0, 2), 2.0, False), grouped(slice(2, 3), 8.0, True)])
    # Few large experts: one product after the other is faster than one grouped kernel.
    one_by_one = batch * _seconds(gemms, count, profile, dtype, stack)
    return np.asarray(np.minimum(together, one_by_one) / stack.grouped_rate)


class _Products:
    """Seconds of a layer's matrix products. Their shapes depend on few columns of the keys: each product is
    priced once for every distinct combination of those, all of one kind at once, and gathered."""

    def __init__(self, layer: Layer, hidden: int, keys: LayerKeys, profile: Profile, stack: Stack) -> None:
        self.profile, self.stack, self.count = profile, stack, len(keys)
        self.gemms: list[Gemm] = []
        self.known: dict[str, Floats] = {}
        """(ways, keys) of every product."""
        self._price(layer, hidden, keys)

    def _price(self, layer: Layer, hidden: int, keys: LayerKeys) -> None:
        profile, stack = self.profile, self.stack
        low = kernel_dtype(keys.precision, stack)
        columns = (keys.tp, keys.sp.astype(np.int64), keys.cp, keys.mbs)
        first, of = distinct(columns)
        some = keys.take(first)
        gemms = [*attention_gemms(layer, hidden, some, stack), *mlp_gemms(layer, hidden, some, stack)]
        self.gemms = gemms
        dense = [g for g in gemms if not g.name.startswith("experts")]
        for dtype in dict.fromkeys((low, "bf16")):
            own = [g for g in dense if (low if is_low(g, stack) else "bf16") == dtype]
            self._note(own, of, _seconds(own, len(first), profile, dtype, stack) if own else None)
        if isinstance(layer.mlp, Moe):
            first, of = distinct((*columns, keys.ep, keys.etp))
            gemms = mlp_gemms(layer, hidden, keys.take(first), stack)
            experts = [g for g in gemms if g.name.startswith("experts")]
            dtype = low if is_low(experts[0], stack) else "bf16"
            self._note(experts, of, _experts_seconds(experts, len(first), profile, dtype, stack))

    def _note(self, gemms: list[Gemm], of: Ints, seconds: Floats | None) -> None:
        if seconds is not None:
            for i, gemm in enumerate(gemms):
                self.known[gemm.name] = seconds[:, i].take(of, axis=1)

    def seconds(self, which: str, *prefixes: str) -> Floats:
        """Seconds of products whose name starts with one of ``prefixes`` (all of them without any)."""
        way = WAYS.index(which)
        some = [self.known[g.name][way] for g in self.gemms if g.name.startswith(prefixes or "")]
        return np.asarray(sum(some, np.zeros(self.count)) / self.stack.matmul)


def attention_core(layer: Layer, keys: LayerKeys, profile: Profile, stack: Stack) -> tuple[Floats, Floats]:
    """Forward and backward seconds of softmax attention on one rank, causal, zig-zag balanced over cp.

    A ring runs a kernel for each of its cp chunks, the rank's own under the causal mask and the others open
    (half the queries or half the keys of each), and adds up partial outputs and gradients in fp32.
    """
    att = layer.attention
    zero = np.zeros(len(keys))
    if att is None:
        return zero, zero
    heads = att.heads / keys.tp
    kv_heads = heads if stack.repeats_kv else np.maximum(att.kv_heads / keys.tp, 1.0)
    ulysses = keys.cp_kind == CpKind.ULYSSES
    heads = np.where(ulysses, np.maximum(heads / keys.cp, 1.0), heads)
    seq_q = np.where(ulysses, keys.seq, keys.seq / keys.cp)
    ring = keys.cp_kind == CpKind.RING
    if att.window is None and ring.all():  # one chunk is no ring, and takes what the kernel takes
        return _ring(att, keys, profile, stack, heads, kv_heads)
    times = attention_seconds(
        profile,
        batch=keys.mbs,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=att.head_dim,
        v_head_dim=att.v_dim,
        seq_q=seq_q,
        seq_kv=(keys.seq + seq_q) / 2,
        window=att.window,
        kernel=stack.attention,
        dropout=stack.dropout,
    )
    forward, backward = times.forward / stack.attention_rate, times.backward / stack.attention_rate
    ring &= keys.cp > 1
    if att.window is not None or not ring.any():
        return forward, backward
    hops_f, hops_b = _ring(att, keys, profile, stack, heads, kv_heads)
    return np.where(ring, hops_f, forward), np.where(ring, hops_b, backward)


def _ring(
    att: Attention | LatentAttention,
    keys: LayerKeys,
    profile: Profile,
    stack: Stack,
    heads: Floats,
    kv_heads: Floats,
) -> tuple[Floats, Floats]:
    """Forward and backward seconds of a ring of cp chunks."""
    chunk = keys.seq / keys.cp

    def kernel(rows: Floats, causal: bool) -> Seconds:
        return attention_seconds(
            profile,
            batch=keys.mbs,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=att.head_dim,
            v_head_dim=att.v_dim,
            seq_q=rows,
            pairs=chunk**2 / 2,
            causal=causal,
            kernel=stack.attention,
            dropout=stack.dropout,
        )

    own, other = kernel(chunk, True), kernel(0.75 * chunk, False)
    tokens, rate = keys.tokens, stack.memory_rate
    # torch puts the half of a sum that a chunk changes together with the other half: all of it moves.
    moved = FP32_SUM * tokens * (1.0 if stack.ring == "gathered" else 0.75)
    out = moved * heads * att.v_dim
    grads = moved * (heads * att.head_dim + kv_heads * (att.head_dim + att.v_dim))
    hops = keys.cp - 1
    forward = own.forward + hops * other.forward
    backward = own.backward + hops * other.backward
    added_f = hops * membound_seconds(profile, out, kernels=1) / rate
    added_b = hops * membound_seconds(profile, grads, kernels=3) / rate
    return forward / stack.attention_rate + added_f, backward / stack.attention_rate + added_b


def layer_time(
    layer: Layer,
    hidden: int,
    keys: LayerKeys,
    profile: Profile,
    stack: Stack,
    comm: LayerComm,
    core: tuple[Floats, Floats],
) -> LayerTime:
    """The price of ``layer`` for every key; ``core``: seconds of its softmax attention both ways."""
    gemms = [*attention_gemms(layer, hidden, keys, stack), *mlp_gemms(layer, hidden, keys, stack)]
    products = _Products(layer, hidden, keys, profile, stack)
    mm_f, mm_i, mm_w = (products.seconds(which) for which in ("forward", "input", "weight"))
    att_f, att_b = core
    traffic = element_traffic(layer, hidden, keys, stack)
    el_f = membound_seconds(profile, traffic.forward, kernels=traffic.kernels) / stack.memory_rate
    el_b = membound_seconds(profile, traffic.backward, kernels=2 * traffic.kernels) / stack.memory_rate
    order = traffic.reordered / profile.gpu.hbm_bandwidth
    gaps = (
        stack.kernel_gap_s * (traffic.kernels + len(gemms) + 3) * (0.0 if stack.cuda_graph == "full" else 1.0)
    )
    el_f, el_b = el_f + order + gaps, el_b + order + 2 * gaps
    cast_f, cast_b = _casts(gemms, keys, profile, stack)
    el_f, el_b = el_f + cast_f, el_b + cast_b
    forward = {"matmul": mm_f, "attention": att_f, "elementwise": el_f}
    backward = {"matmul": mm_i + mm_w, "attention": att_b, "elementwise": el_b}
    comm = limited(comm, forward, backward)
    forward, backward = {**forward, **comm.forward}, {**backward, **comm.backward}
    whole = np.asarray(sum(forward.values()))
    return LayerTime(
        forward=forward,
        backward=backward,
        weight=np.minimum(mm_w, np.asarray(sum(backward.values()))),
        selective=_selective(layer, hidden, keys, products, att_f, el_f, mm_f, forward),
        whole=whole,
        hidden=comm.hidden,
        host=_host_seconds(layer, keys, stack),
    )


def _casts(gemms: list[Gemm], keys: LayerKeys, profile: Profile, stack: Stack) -> tuple[Floats, Floats]:
    """Seconds of casting inputs (forward) and output gradients (backward) to fp8 or fp4. Where one scale
    holds for a tensor, weights are cast once a step, which is left out (under 1 % from four micro-batches
    on), but torch without compiling casts them with every micro-batch, operator by operator."""
    zero = np.zeros(len(keys))
    if keys.precision not in ("fp8", "mxfp8", "nvfp4"):
        return zero, zero
    eager = stack.family == "torch" and not stack.fused
    slower = EAGER_CAST if eager else 1.0
    forward, backward = zero, zero
    for g in gemms:
        if not is_low(g, stack):
            continue
        rows = np.asarray(g.m * np.asarray(g.batch), dtype=np.float64)
        (into, out), (own_in, own_out) = _cast_shares(g, stack), _own_shares(g, keys, stack)
        read = quantise_seconds(profile, rows * g.k * own_in, dtype=keys.precision) * (not g.shares_input)
        written = quantise_seconds(profile, rows * g.n * own_out, dtype=keys.precision)
        forward, backward = forward + into * read, backward + out * written
        if stack.fp8_rows:  # along the other rows as well
            backward = backward + into * read + out * written
        if stack.fp8_rows or (eager and keys.precision == "fp8"):
            size = np.asarray(np.asarray(g.batch) * np.asarray(g.n) * np.asarray(g.k), dtype=np.float64)
            weights = stack.cast_share * quantise_seconds(profile, size + zero, dtype=keys.precision)
            forward, backward = forward + weights, backward + weights
    return forward * slower / stack.memory_rate, backward * slower / stack.memory_rate


def _own_shares(gemm: Gemm, keys: LayerKeys, stack: Stack) -> tuple[Floats | float, Floats | float]:
    """Shares of a product's input and of its output's gradient that a rank casts: its own part of the stream,
    where TP gathers it after the cast."""
    if not stack.fp8_gathers:
        return 1.0, 1.0
    if gemm.name.startswith(("qkv", "fc1", "shared fc1")):
        return keys.stream_share, 1.0
    return 1.0, keys.stream_share if gemm.name in ("attention out", "fc2", "shared fc2") else 1.0


def _cast_shares(gemm: Gemm, stack: Stack) -> tuple[float, float]:
    """Shares of the casts of a product's input and of its output's gradient that have kernels of their own.

    Norms and activations cast on the way. What goes to experts is cast after it was split among them; one
    kernel for the whole block casts between its two products.
    """
    if not gemm.name.startswith("experts"):
        return stack.cast_share, stack.cast_share
    if stack.grouped != "block":
        return 1.0, 1.0
    return (1.0, 0.0) if gemm.name == "experts fc1" else (0.0, 1.0)


def _host_seconds(layer: Layer, keys: LayerKeys, stack: Stack) -> Floats:
    """Time the host needs to launch one forward pass. A collective waits for the slowest of tp hosts, so
    its cost grows with them."""
    share = {"none": 1.0, "partial": stack.partial_graph_host, "full": 0.0}[stack.cuda_graph]
    launch = stack.host_layer_s
    if isinstance(layer.mlp, Moe):
        launch = stack.host_moe_s * (stack.host_overlap if stack.overlaps_experts else 1.0)
    return np.asarray(share * (launch + 2.0 * stack.host_tp_s * (keys.tp - 1)))


def _selective(
    layer: Layer,
    hidden: int,
    keys: LayerKeys,
    products: _Products,
    att_f: Floats,
    el_f: Floats,
    mm_f: Floats,
    forward: dict[str, Floats],
) -> Floats:
    """Seconds of computing again the modules a plan recomputes."""
    total = np.zeros(len(keys))
    if keys.keeps_all:
        return total
    profile, stack = products.profile, products.stack

    def chosen(module: Recompute) -> Floats:
        return recomputes(keys, module)

    def matmuls(*prefixes: str) -> Floats:
        return products.seconds("forward", *prefixes)

    total += chosen(Recompute.CORE_ATTN) * att_f
    total += chosen(Recompute.MLA_UP_PROJ) * matmuls("q up", "kv up")
    norms = membound_seconds(profile, 4.0 * layer.norms * hidden * keys.stream_share * keys.tokens)
    total += chosen(Recompute.NORM) * norms / stack.memory_rate
    act = np.maximum(chosen(Recompute.MLP_ACT), chosen(Recompute.MOE_ACT)) * (1 - chosen(Recompute.MLP))
    total += act * 0.3 * el_f
    total += chosen(Recompute.MLP) * matmuls("fc1")
    total += chosen(Recompute.MOE) * (matmuls("router", "experts", "shared") + forward["ep"])
    total += chosen(Recompute.SHARED_EXPERTS) * matmuls("shared fc1")
    again = 1.0 if keys.precision == "nvfp4" else 0.5  # see ``activations._operator_bytes``
    total += chosen(Recompute.OPERATORS) * (again * mm_f + el_f)
    return total
