"""Seconds of a kernel on one GPU, from its profile; every argument may be an array, shapes broadcast.

Nothing here knows of models or plans: matrices, heads and bytes only. Each function says what it
leaves out. Sizes below one are taken as one; sizes need not be whole.
"""

from __future__ import annotations

import functools
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from meshplan.cluster.profile import Profile, peak_flops
from meshplan.cluster.profile_data import ATTENTION_KERNELS, AttentionCurve, GemmCurve
from meshplan.errors import InputError, UnknownNameError

Floats = npt.NDArray[np.float64]
Clock = Literal["sustained", "burst"]

_TILES = ((128.0, 256.0, "large"), (256.0, 128.0, "large"), (128.0, 128.0, "medium"), (64.0, 64.0, "small"))
_SPLITS = (1.0, 4.0)
_ROWS = 128.0
"""Query rows that one block of a fused attention kernel handles."""
_ROW_BYTES = 16
_UNALIGNED = ((8.0, 1.7), (4.0, 1.8), (2.0, 3.0))
"""How many times as long a product takes whose rows start at multiples of so many bytes only, not of 16. From
vTrain's profiles of a head of 50,257 columns on A100, whole and cut in 2, 4 and 8 (arXiv 2312.12391): an odd
head runs at 80 TFLOP/s, one whose columns are a multiple of eight at 240. Netflix found a head three times as
slow off the multiple ("Scaling LLM Post-Training at Netflix", 2026)."""


class Seconds(NamedTuple):
    """Forward and backward time of the same operator."""

    forward: Floats
    backward: Floats


def _sizes(*values: npt.ArrayLike) -> list[Floats]:
    return [np.maximum(np.asarray(v, dtype=np.float64), 1.0) for v in values]


def _smooth_max(a: Floats, b: Floats) -> Floats:
    """(a⁴ + b⁴)^¼: the larger of both, up to 19 % more where they are equal."""
    return np.asarray(np.sqrt(np.sqrt(np.square(np.square(a)) + np.square(np.square(b)))))


# ── matrix multiplication ────────────────────────────────────────────────────────────────────────


def gemm_curve(profile: Profile, dtype: str) -> tuple[GemmCurve, float]:
    """The curve and the peak FLOP/s for ``dtype``.

    ``fp16`` runs as ``bf16``, ``tf32`` at that curve's share of its own peak; ``mxfp8`` is ``fp8`` where
    the GPU scales blocks in hardware (it has fp4) and ``fp8_block`` elsewhere. Raises ``UnknownNameError``
    for a precision the GPU has no curve for.
    """
    curves, gpu = profile.gemm, profile.gpu
    name = {"fp16": "bf16", "tf32": "bf16"}.get(dtype, dtype)
    if dtype == "mxfp8":
        name = "fp8" if "fp4" in gpu.peak_flops else "fp8_block"
    if name == "fp8_block" and name not in curves:
        name = "fp8"
    peak = peak_flops(gpu, name)
    if name not in curves or peak is None:
        known = [*curves, "fp16", "tf32"] + (["mxfp8"] if "fp8" in curves else [])
        raise UnknownNameError(f"precision on {profile.name}", dtype, known, f"known are {', '.join(known)}")
    if dtype in ("fp16", "tf32"):
        peak = gpu.peak_flops.get(dtype, peak if dtype == "fp16" else peak / 2)
    return curves[name], peak


def _tile_seconds(
    profile: Profile, curve: GemmCurve, peak: float, shape: tuple[Floats, Floats, Floats, Floats], split: bool
) -> Floats:
    """The fastest tiling of ``groups`` products: tiles in waves over the SMs, each tile a loop over k
    with a fixed start."""
    groups, m, n, k = shape
    gpu = profile.gpu
    rates = {"large": 1.0, "medium": curve.medium_tile, "small": curve.small_tile}
    sm_rate = peak / gpu.sms * curve.efficiency
    times: list[Floats] = []
    for tm, tn, size in _TILES:
        tiles = groups * np.ceil(m / tm) * np.ceil(n / tn) / gpu.sms
        for parts in _SPLITS if split else (1.0,):
            share = tiles * parts
            waves = curve.quantisation * np.ceil(share) + (1 - curve.quantisation) * np.maximum(share, 1.0)
            t = waves * (2 * tm * tn / (sm_rate * rates[size])) * (k / parts + curve.overhead_k)
            if parts > 1:  # fp32 partial sums are written and read once more
                t = t + m * n * (2 * parts) / (0.8 * gpu.hbm_bandwidth)
            times.append(t)
    return np.asarray(functools.reduce(np.minimum, times))


def _throttled(t: Floats, steady: float, long_kernel: float, onset_s: float, clock: Clock) -> Floats:
    """``t`` at the rate that the power limit leaves: always (sustained), or once a kernel is long."""
    if clock == "sustained":
        return t / steady
    onset = np.square(t / onset_s)
    return np.asarray(t * (1 + (1 / long_kernel - 1) * onset / (1 + onset)))


def _at_clock(curve: GemmCurve, t: Floats, clock: Clock) -> Floats:
    return _throttled(t, curve.throttle * curve.library, curve.long_kernel, curve.throttle_s, clock)


def gemm_seconds(
    profile: Profile,
    m: npt.ArrayLike,
    n: npt.ArrayLike,
    k: npt.ArrayLike,
    *,
    dtype: str = "bf16",
    out_bytes: npt.ArrayLike = 2.0,
    clock: Clock = "sustained",
) -> Floats:
    """Seconds of one (m × k)·(k × n) product, forward layout.

        t = ( tiles⁴ + memory⁴ )^¼ + start
        tiles = min over tile and split of waves · 2·tm·tn·(k/split + overhead_k) / (peak/SMs · efficiency)
        waves = q·⌈share⌉ + (1 − q)·max(share, 1),   share = ⌈m/tm⌉·⌈n/tn⌉·split / SMs
        memory = (bytes of both inputs and the output) / (hbm_efficiency · bandwidth)

    ``tiles`` is divided by ``throttle``, the rate that the power limit leaves, when ``clock`` is
    ``sustained`` (training). With ``burst`` only kernels longer than ``throttle_s`` slow down, as in the
    short benchmark loops the curve was fitted on: use it to compare with those, not to price a step.

    ``out_bytes`` is the traffic of one output element: 2 writes bf16, 8 reads and adds to fp32.
    Rises with m, n and k; never above peak nor above HBM bandwidth. Left out: rows whose length is not
    a multiple of 16 bytes (``unaligned``), transposed inputs (``Profile.dgrad_factor``,
    ``wgrad_factor``), casting inputs to fp8 or fp4 (``quantise_seconds``), the data the matrices hold
    (zeros run up to 10 % faster than noise).
    """
    curve, peak = gemm_curve(profile, dtype)
    m, n, k = _sizes(m, n, k)
    tiles = _tile_seconds(profile, curve, peak, (np.ones(()), m, n, k), split=True)
    width = 4.0 if dtype == "tf32" else curve.operand_bytes
    traffic = width * k * (m + n) + np.asarray(out_bytes, dtype=np.float64) * m * n
    memory = traffic / (curve.hbm_efficiency * profile.gpu.hbm_bandwidth)
    return _smooth_max(_at_clock(curve, tiles, clock), memory) + curve.start_s


def unaligned(*lengths: npt.ArrayLike, element_bytes: float = 2.0) -> Floats:
    """How many times as long a product takes for rows of ``lengths`` elements that do not fill whole 16
    bytes, which tensor cores' fastest kernels load at once (NVIDIA, Matrix Multiplication Background, 2.2):
    1 where all do. The worst row decides; lengths are rounded up to whole elements."""
    slower = np.ones(np.broadcast_shapes(*(np.shape(n) for n in lengths)))
    for length in lengths:
        row = np.ceil(np.asarray(length, dtype=np.float64)) * element_bytes
        if not (row % _ROW_BYTES).any():
            continue
        for start, times in reversed(_UNALIGNED):
            slower = np.where(row % (2 * start) != 0, np.maximum(slower, times), slower)
    return np.asarray(slower)


def quantise_seconds(profile: Profile, elements: npt.ArrayLike, *, dtype: str) -> Floats:
    """Seconds of casting ``elements`` bf16 numbers to ``dtype`` with fresh scales; 0 for 16-bit floats.

    As inference servers do it in front of each product (read, find the maximum, read, write). Training
    fuses part of it with norms and activation functions: an upper bound there.
    """
    curve, _ = gemm_curve(profile, dtype)
    count = np.maximum(np.asarray(elements, dtype=np.float64), 0.0)
    return np.asarray(count * curve.quantise_bytes / profile.gpu.hbm_bandwidth + curve.quantise_s)


def grouped_gemm_seconds(
    profile: Profile,
    tokens_per_expert: npt.ArrayLike,
    experts: npt.ArrayLike,
    n: npt.ArrayLike,
    k: npt.ArrayLike,
    *,
    dtype: str = "bf16",
    out_bytes: float = 2.0,
    kernel: Literal["fused", "streams"] = "fused",
    weight_gradient: bool = False,
    clock: Clock = "sustained",
) -> Floats:
    """Seconds of ``experts`` products (tokens × k)·(k × n), every expert with as many tokens.

    The tiles of all experts share the waves of ``gemm_seconds``, at ``grouped.efficiency`` of its rate
    and without splitting k; each expert pads its tokens to whole tiles and reads its own weights, which
    is what makes few tokens slow. ``weight_gradient`` computes (n × tokens)·(tokens × k) instead: give
    ``out_bytes=8`` when it adds to fp32. ``kernel="streams"`` adds ``group_s`` an expert: one cuBLAS
    call each, on a few streams. Left out: uneven experts (take the fullest rank's tokens), permuting.
    """
    curve, peak = gemm_curve(profile, dtype)
    group = profile.grouped.get(dtype) or profile.grouped["bf16"]
    tokens, n, k = _sizes(tokens_per_expert, n, k)
    count = np.maximum(np.asarray(experts, dtype=np.float64), 0.0)
    rows, cols, depth = (n, k, tokens) if weight_gradient else (tokens, n, k)
    tiles = _tile_seconds(profile, curve, peak, (count, rows, cols, depth), split=False)
    traffic = count * (curve.operand_bytes * depth * (rows + cols) + out_bytes * rows * cols)
    memory = traffic / (group.hbm_efficiency * profile.gpu.hbm_bandwidth)
    t = _smooth_max(_at_clock(curve, tiles / group.efficiency, clock), memory) + curve.start_s
    return np.asarray(t + count * group.group_s if kernel == "streams" else t)


# ── attention ────────────────────────────────────────────────────────────────────────────────────


def attention_pairs(
    seq_q: npt.ArrayLike, seq_kv: npt.ArrayLike, *, causal: bool = True, window: float | None = None
) -> Floats:
    """How many (query, key) pairs a head computes.

    Causal queries are the last ``seq_q`` of ``seq_kv`` positions, and row i sees i + 1 keys, at most
    ``window`` of them. Without a mask every query sees every key, or ``window`` of them. Counts half of
    the diagonal: s²/2 for s queries and keys, the usual convention.
    """
    q, kv = _sizes(seq_q, seq_kv)
    if not causal:
        return np.asarray(q * (kv if window is None else np.minimum(kv, window)))
    q = np.minimum(q, kv)
    full = np.square(kv) / 2 - np.square(kv - q) / 2
    if window is None:
        return np.asarray(full)
    w = np.minimum(float(window), kv)
    inside = np.clip(kv - w, 0.0, q)  # rows that see a whole window
    start = kv - q
    short = q - inside
    return np.asarray(inside * w + short * start + np.square(short) / 2)


def attention_seconds(
    profile: Profile,
    *,
    batch: npt.ArrayLike,
    heads: npt.ArrayLike,
    head_dim: npt.ArrayLike,
    seq_q: npt.ArrayLike,
    seq_kv: npt.ArrayLike | None = None,
    kv_heads: npt.ArrayLike | None = None,
    v_head_dim: npt.ArrayLike | None = None,
    causal: bool = True,
    window: float | None = None,
    pairs: npt.ArrayLike | None = None,
    kernel: str = "flash",
    dropout: bool = False,
    clock: Clock = "sustained",
) -> Seconds:
    """Forward and backward seconds of softmax attention with 16-bit inputs.

        work = batch · heads · 2·(d_qk + d_v) · (pairs + seq_q · overhead)
        t = work / (peak · efficiency(d)) + tail · (longest block) + start
        longest block = 2·(d_qk + d_v) · 128 · (seq_kv + overhead) on one SM

    which for long causal sequences is TF(s) = P · s / (s + 2·overhead). Backward has
    ``backward_flops`` times the FLOP at ``backward_efficiency`` of the rate. ``kernel`` is ``flash``
    (the GPU's best), ``torch`` (what PyTorch brings), ``fa3``, ``fa2``, ``fa1``, ``cudnn`` or ``unfused``
    (scores in memory, the whole square computed, ``dropout`` adds its passes); a GPU without the kernel runs
    the next newer it has, or its newest. Queries are the last ``seq_q`` positions. For zig-zag context
    parallel over c ranks give ``seq_q`` = s/c and ``pairs`` = s²/(2c), what each rank computes: it replaces
    the mask's count.

    Left out: the traffic of k and v (``kv_heads`` is only checked), packed documents (give their lengths
    as sequences), dropout in fused kernels (up to 10 %).
    """
    b, a, d, q = _sizes(batch, heads, head_dim, seq_q)
    kv = q if seq_kv is None else _sizes(seq_kv)[0]
    d_v = d if v_head_dim is None else _sizes(v_head_dim)[0]
    if kv_heads is not None and np.any(np.asarray(kv_heads, dtype=np.float64) <= 0):
        raise InputError("kv_heads must be at least 1")
    if window is not None and not window >= 1:
        raise InputError(f"an attention window must be at least 1 token, not {window}")
    name = attention_kernel(profile, kernel)
    if name == "unfused":
        return _unfused(profile, b * a, d + d_v, q, kv, dropout)
    masked = attention_pairs(q, kv, causal=causal, window=window) if pairs is None else pairs
    longest = kv if window is None else np.minimum(kv, window + _ROWS)
    work = _Work(b * a, d, d_v, q, np.asarray(masked, dtype=np.float64), longest, causal)
    return _fused(profile, profile.attention[name], work, clock)


def attention_kernel(profile: Profile, kernel: str) -> str:
    """The kernel that ``kernel`` means on this GPU; raises ``UnknownNameError`` for a name nobody knows."""
    if kernel == "flash":
        return profile.best_attention
    if kernel == "torch":
        return "aotriton" if "aotriton" in profile.attention else profile.best_attention
    if kernel in profile.attention or kernel == "unfused":
        return kernel
    if kernel not in ATTENTION_KERNELS:
        known = ["flash", "torch", "unfused", *ATTENTION_KERNELS]
        raise UnknownNameError("attention kernel", kernel, known, f"known are {', '.join(known)}")
    have = [k for k in ATTENTION_KERNELS if k in profile.attention]
    newer = [k for k in have if ATTENTION_KERNELS.index(k) > ATTENTION_KERNELS.index(kernel)]
    return newer[0] if newer else have[-1]


class _Work(NamedTuple):
    """What a fused kernel is asked for: heads of all sequences, sizes, pairs of each, longest row."""

    units: Floats
    d: Floats
    d_v: Floats
    q: Floats
    pairs: Floats
    longest: Floats
    causal: bool


def _fused(profile: Profile, curve: AttentionCurve, w: _Work, clock: Clock) -> Seconds:
    rate, overhead = head_size(profile, curve, (w.d + w.d_v) / 2)
    if not w.causal:
        overhead = overhead * curve.open_overhead
    per_pair = 2 * (w.d + w.d_v) / rate
    rows = np.minimum(w.q, _ROWS) * profile.gpu.sms

    def seconds(extra: Floats, tail: float, slower: float, starts: float) -> Floats:
        work = w.units * per_pair * (w.pairs + w.q * extra)
        block = per_pair * rows * (w.longest + extra)
        t = slower * (work + tail * block)
        onset_s = profile.gemm["bf16"].throttle_s
        return _throttled(t, curve.throttle, curve.throttle, onset_s, clock) + starts * curve.start_s

    slower = curve.backward_flops / curve.backward_efficiency
    forward = seconds(overhead, curve.tail, 1.0, 1.0)
    return Seconds(forward, seconds(overhead * curve.backward_overhead, curve.backward_tail, slower, 2.0))


def head_size(profile: Profile, curve: AttentionCurve, d: npt.ArrayLike) -> tuple[Floats, Floats]:
    """FLOP/s for long sequences and the causal row overhead, for a (mean) head size.

    Linear in log₂ of the head size between those measured. Below the smallest the rate falls with the
    size (the exponentials, one for each pair, do not shrink with it); above the largest it stays.
    """
    x = np.log2(np.asarray(d, dtype=np.float64))
    known = np.log2(np.asarray(curve.head_dims))
    share = np.interp(x, known, curve.efficiency)
    share = share * np.minimum(1.0, np.exp2(x - known[0]))
    return _peak16(profile) * share, np.interp(x, known, curve.row_overhead)


def _peak16(profile: Profile) -> float:
    return peak_flops(profile.gpu, "bf16") or 0.0


def _unfused(profile: Profile, units: Floats, dims: Floats, q: Floats, kv: Floats, dropout: bool) -> Seconds:
    """Two batched products each way over all q × kv scores, and the passes over the scores in memory."""
    u = profile.unfused_attention
    scores = units * q * kv
    flops = 2 * dims * scores / (_peak16(profile) * u.efficiency)
    rate = profile.memory.efficiency * profile.gpu.hbm_bandwidth
    drop_f, drop_b = (u.dropout_bytes, u.dropout_bytes_backward) if dropout else (0.0, 0.0)
    start = u.kernels * profile.memory.launch_s
    forward = flops + scores * (u.score_bytes + drop_f) / rate + start
    backward = 2 * flops + scores * (u.score_bytes_backward + drop_b) / rate + 2 * start
    return Seconds(np.asarray(forward), np.asarray(backward))


# ── memory ───────────────────────────────────────────────────────────────────────────────────────


def membound_seconds(
    profile: Profile, size_bytes: npt.ArrayLike, *, kernels: npt.ArrayLike = 1.0, permute: bool = False
) -> Floats:
    """Seconds to read and write ``size_bytes`` in all: bytes / (efficiency · bandwidth) + launches.

    ``permute`` for gathering and scattering rows (MoE dispatch on one GPU). Left out: what stays in the
    L2 cache between two kernels, and the host, which may be slower than the GPU for small tensors.
    """
    share = profile.memory.permute_efficiency if permute else profile.memory.efficiency
    size = np.maximum(np.asarray(size_bytes, dtype=np.float64), 0.0)
    count = np.asarray(kernels, dtype=np.float64)
    return np.asarray(size / (share * profile.gpu.hbm_bandwidth) + count * profile.memory.launch_s)
