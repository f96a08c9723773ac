"""The numbers behind each kind of curve of a profile, with the bounds physics sets them.

Shares are of the GPU's datasheet (``Gpu``), so that a curve can stand in for another GPU's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PROVENANCES = ("measured", "fitted", "datasheet", "assumed")
"""How well a number is known, best first."""

OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
"""Collectives with a measured curve; broadcast and point to point are derived from them."""

ATTENTION_KERNELS = ("fa1", "aotriton", "fa2", "fa3", "cudnn")
"""Fused attention kernels, oldest first; a GPU without one runs the next newer it has, or its newest.
``aotriton`` is what PyTorch itself brings for AMD's GPUs."""

_SHARE: Mapping[str, Any] = {"low": 0.0, "high": 1.0}
_SHARE_OR_0: Mapping[str, Any] = {"low": 0.0, "high": 1.0, "closed": True}
_POSITIVE: Mapping[str, Any] = {"low": 0.0, "high": math.inf}
_NOT_NEGATIVE: Mapping[str, Any] = {"low": 0.0, "high": math.inf, "closed": True}


@dataclass(frozen=True, kw_only=True, slots=True)
class FitError:
    """Absolute relative error ``|model / measured − 1|`` of a curve against its measurements."""

    median: float = field(metadata=_NOT_NEGATIVE)
    mean: float = field(metadata=_NOT_NEGATIVE)
    points: int = field(metadata=_POSITIVE)
    on: str = ""
    """Which measurements; ``""`` for all."""
    by_class: Mapping[str, tuple[float, float, int]] = field(default_factory=dict)
    """Class of shapes → (median, mean, points)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """Where the numbers of a curve come from."""

    provenance: str
    source: str
    date: str
    """Of the measurement or of the snapshot it was read from, ``YYYY-MM-DD`` or less."""
    fit_error: FitError | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class GemmCurve:
    """A matrix multiplication in tiles and waves; ``curves.gemm_seconds`` has the equation."""

    efficiency: float = field(metadata=_SHARE)
    """Share of peak of a large tile at the clock of a short burst, without the start of its k loop."""
    overhead_k: float = field(metadata=_POSITIVE)
    """Prologue and epilogue of a tile, in units of k."""
    medium_tile: float = field(metadata=_SHARE)
    """Efficiency of a 128 × 128 tile over that of a 128 × 256 one."""
    small_tile: float = field(metadata=_SHARE)
    """Efficiency of a 64 × 64 tile over that of a 128 × 256 one."""
    quantisation: float = field(metadata=_SHARE_OR_0)
    """1: the last wave costs as much as a full one; 0: waves divide without loss."""
    hbm_efficiency: float = field(metadata=_SHARE)
    start_s: float = field(metadata=_POSITIVE)
    throttle: float = field(metadata=_SHARE)
    """Rate under the sustained load of training over that of a short burst (power limit)."""
    long_kernel: float = field(metadata=_SHARE)
    """Rate of a very long kernel over that of a short one, in the table: ``throttle`` where that was
    read off the same table."""
    throttle_s: float = field(metadata=_POSITIVE)
    """Length of the kernel at which half of that has set in."""
    operand_bytes: float = field(metadata=_POSITIVE)
    """Bytes of an element of either input, scales included."""
    quantise_bytes: float = field(default=0.0, metadata=_NOT_NEGATIVE)
    """HBM traffic, at the full datasheet rate, that casting one element of the input costs."""
    quantise_s: float = field(default=0.0, metadata=_NOT_NEGATIVE)
    """Fixed time of that cast."""
    library: float = field(default=1.0, metadata=_POSITIVE)
    """Rate of the library that training uses over that of the kernel measured, where both are known;
    applied to sustained load only. The product with ``efficiency`` stays below 1."""
    evidence: Evidence


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionCurve:
    """A fused attention kernel; ``curves.attention_seconds`` has the equation. Lists go by head size."""

    head_dims: tuple[float, ...] = field(metadata=_POSITIVE)
    efficiency: tuple[float, ...] = field(metadata=_SHARE)
    """Share of the 16-bit peak for long sequences."""
    row_overhead: tuple[float, ...] = field(metadata=_NOT_NEGATIVE)
    """Columns of k and v that a causal query row pays besides those it attends to."""
    open_overhead: float = field(metadata=_SHARE_OR_0)
    """The same without a mask, as a share of ``row_overhead``."""
    tail: float = field(metadata=_NOT_NEGATIVE)
    """Weight of the longest block of rows, which one SM runs alone: few heads leave SMs idle."""
    start_s: float = field(metadata=_NOT_NEGATIVE)
    backward_flops: float = field(metadata=_POSITIVE)
    """FLOP of backward over forward (2.5: five products instead of two)."""
    backward_efficiency: float = field(metadata=_POSITIVE)
    """FLOP/s of backward over those of forward."""
    backward_overhead: float = field(metadata=_POSITIVE)
    """Row overhead of backward over that of forward."""
    backward_tail: float = field(metadata=_NOT_NEGATIVE)
    throttle: float = field(metadata=_SHARE)
    """As for matrix multiplication, whose ``throttle_s`` holds here too."""
    evidence: Evidence


@dataclass(frozen=True, kw_only=True, slots=True)
class UnfusedAttention:
    """Attention as two batched products with the scores kept in memory (before FlashAttention)."""

    efficiency: float = field(metadata=_SHARE)
    """Share of the 16-bit peak of the batched products, the whole square counted."""
    score_bytes: float = field(metadata=_POSITIVE)
    """HBM bytes for each score forward: written by q·k, read and written by mask, softmax, read by p·v."""
    score_bytes_backward: float = field(metadata=_POSITIVE)
    dropout_bytes: float = field(metadata=_NOT_NEGATIVE)
    """What dropout adds to forward."""
    dropout_bytes_backward: float = field(metadata=_NOT_NEGATIVE)
    kernels: float = field(metadata=_POSITIVE)
    """Kernels launched forward; backward launches twice as many."""
    evidence: Evidence


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupedCurve:
    """Expert matrix multiplications in one kernel, relative to ``gemm`` of the same precision."""

    efficiency: float = field(metadata=_SHARE)
    """Rate of a large group over that of one large matrix of the same shape."""
    hbm_efficiency: float = field(metadata=_SHARE)
    """Share of bandwidth at which the experts' weights are read, when there are few tokens."""
    group_s: float = field(metadata=_NOT_NEGATIVE)
    """Extra seconds an expert where experts run as separate kernels on a few streams."""
    evidence: Evidence


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryCurve:
    """Operators limited by memory."""

    efficiency: float = field(metadata=_SHARE)
    """Share of HBM bandwidth of a large element-wise operator."""
    permute_efficiency: float = field(metadata=_SHARE)
    """The same for gathering and scattering rows of tokens."""
    launch_s: float = field(metadata=_NOT_NEGATIVE)
    """Fixed GPU time of one kernel."""
    evidence: Evidence


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveCurve:
    """Measured times inside one switch domain: ``seconds[i][j]`` is for ``ranks[i]`` and ``sizes[j]``."""

    ranks: tuple[int, ...] = field(metadata=_POSITIVE)
    sizes: tuple[float, ...] = field(metadata=_POSITIVE)
    """Bytes: of the buffer (all-reduce), of the full gathered buffer (all-gather, reduce-scatter), of
    what one rank sends in all (all-to-all)."""
    seconds: tuple[tuple[float, ...], ...] = field(metadata=_POSITIVE)
    link_bandwidth: float = field(metadata=_POSITIVE)
    """Bytes/s per direction of the link these were measured on."""
    hop_s: float = field(metadata=_NOT_NEGATIVE)
    """Seconds each further rank adds, beyond the ranks measured."""
    in_switch: bool = False
    """Measured with the switch adding up (NVLS): a GPU that cannot pays a scatter and a gather."""
    evidence: Evidence


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkCurve:
    """Collectives between nodes."""

    efficiency: float = field(metadata=_SHARE)
    """Share of a NIC's line rate that a long ring or tree transfer gets."""
    all_to_all_efficiency: float = field(metadata=_SHARE)
    scaleup_share: float = field(default=1.0, metadata=_SHARE)
    """What a scale-up link without a switch of its own (PCIe) keeps of the rate the curves give it."""
    nvls: bool
    """All-reduce may run in the switch (NVLink SHARP, Hopper and later)."""
    evidence: Evidence


@dataclass(frozen=True, kw_only=True, slots=True)
class AcrossCurve:
    """Measured times across nodes: ``seconds[i][j]`` is for ``ranks[i]`` ranks, ``per_node[i]`` on each node,
    and ``sizes[j]`` bytes (as ``CollectiveCurve`` counts them)."""

    ranks: tuple[int, ...] = field(metadata=_POSITIVE)
    per_node: tuple[int, ...] = field(metadata=_POSITIVE)
    sizes: tuple[float, ...] = field(metadata=_POSITIVE)
    seconds: tuple[tuple[float, ...], ...] = field(metadata=_POSITIVE)
    network_bandwidth: float = field(metadata=_POSITIVE)
    """Bytes/s of a rank's NIC that these were measured on."""
    evidence: Evidence


@dataclass(frozen=True, kw_only=True, slots=True)
class Factor:
    """One scalar with its evidence."""

    value: float = field(metadata=_POSITIVE)
    low: float = field(default=math.nan)
    high: float = field(default=math.nan)
    evidence: Evidence
