"""A cluster: GPUs of one kind and the tiers of the network between them, from inside out."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import overload

import numpy as np
import numpy.typing as npt

from meshplan.cluster.gpu import Gpu
from meshplan.errors import InputError, shown

MAX_GPUS = 10_000_000
"""More than any machine in sight; a larger count is taken for a slip."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Tier:
    """One level of the network: ``span`` GPUs reach each other at ``bandwidth`` (bytes/s per GPU and
    direction) with ``latency_s`` seconds a message.

    Raises ``InputError`` for a span below 1, a bandwidth that is not positive and finite, or a
    negative latency.
    """

    name: str
    span: int
    bandwidth: float
    latency_s: float

    def __post_init__(self) -> None:
        if not is_count(self.span):
            raise InputError(
                f"tier '{self.name}': span must be a whole number of GPUs, not {shown(self.span)}"
            )
        if not (math.isfinite(self.bandwidth) and self.bandwidth > 0):
            raise InputError(f"tier '{self.name}': bandwidth must be positive, not {self.bandwidth:g} B/s")
        if not (math.isfinite(self.latency_s) and self.latency_s >= 0):
            raise InputError(f"tier '{self.name}': latency must be 0 or more seconds, not {self.latency_s:g}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """``gpus`` GPUs; the first tier is the scale-up domain, the last reaches every GPU.

    Raises ``InputError`` when the count is absurd, the tiers do not grow in whole multiples or do not
    reach all GPUs, or the GPUs do not fill whole nodes (fewer than one node is fine).
    """

    gpu: Gpu
    gpus: int
    tiers: tuple[Tier, ...]
    memory_fraction: float | None = None
    """Share of the usable memory that a plan may fill. ``None``: what the cost model thinks right (the
    handbook leaves a tenth; the full model itemises context, NCCL and fragmentation instead)."""
    name: str = ""
    described: tuple[Tier, ...] = field(default=(), compare=False, repr=False)
    """The tiers before those that ``gpus`` do not reach were cut off; ``with_gpus`` needs them to grow."""

    def __post_init__(self) -> None:
        check_gpus(self.gpus)
        fraction = self.memory_fraction
        if fraction is not None and not (math.isfinite(fraction) and 0 < fraction <= 1):
            raise InputError(f"memory_fraction must be above 0 and at most 1, not {fraction:g}")
        if not self.tiers:
            raise InputError("a cluster needs at least one network tier")
        self._check_spans()
        node = self.gpus_per_node
        if self.gpus > node and self.gpus % node:
            below = self.gpus // node * node
            other = min((n for n in range(1, 2 * node) if self.gpus % n == 0), key=lambda n: abs(n - node))
            raise InputError(
                f"{self.gpus} GPUs do not fill whole nodes of {node}; use {below} or {below + node}, "
                f"or nodes of {other} (--gpus-per-node {other})"
            )

    def _check_spans(self) -> None:
        for inner, outer in pairwise(self.tiers):
            if outer.span <= inner.span:
                raise InputError(
                    f"network tiers must grow from inside out: '{outer.name}' spans {outer.span} GPUs, "
                    f"'{inner.name}' inside it {inner.span}"
                )
            if outer.span % inner.span and outer.span < self.gpus:
                below = outer.span // inner.span * inner.span
                raise InputError(
                    f"tier '{outer.name}' spans {outer.span} GPUs, not a multiple of the {inner.span} of "
                    f"'{inner.name}' inside it; use {below} or {below + inner.span}"
                )
        last = self.tiers[-1]
        if last.span < self.gpus:
            raise InputError(
                f"the network tiers reach only {last.span} of {self.gpus} GPUs; "
                f"the last tier '{last.name}' must span {self.gpus}"
            )

    @property
    def gpus_per_node(self) -> int:
        """GPUs in the scale-up domain: the first tier's span."""
        return self.tiers[0].span

    @property
    def spans(self) -> Ints:
        """Span of each tier, from inside out."""
        return np.array([tier.span for tier in self.tiers], dtype=np.int64)

    @property
    def memory_bytes(self) -> float:
        """Bytes of one GPU that a plan may fill."""
        return self.gpu.usable_hbm_bytes * (0.9 if self.memory_fraction is None else self.memory_fraction)

    @overload
    def tier_of(self, span: int) -> int: ...
    @overload
    def tier_of(self, span: Ints) -> Ints: ...
    def tier_of(self, span: int | Ints) -> int | Ints:
        """Index of the innermost tier that holds ``span`` adjacent ranks (an int or an array of them).

        A group of ``size`` ranks ``inner`` apart spans ``inner · size``. This takes groups to start at
        a tier's edge, which they do when degrees divide the tier; ``Mesh.inside_node`` is exact.
        Raises ``ValueError`` for more ranks than the last tier reaches.
        """
        index = np.searchsorted(self.spans, span)
        if np.any(index == len(self.tiers)):
            raise ValueError(f"no tier spans {np.max(span)} GPUs")
        return index if isinstance(span, np.ndarray) else int(index)

    def with_gpus(self, gpus: int) -> Cluster:
        """The same machines, another number of them: the last tier shrinks or grows, tiers not reached go.

        Raises ``InputError`` as the class does.
        """
        check_gpus(gpus)
        stands = self.described and reach(self.described, self.gpus) == self.tiers
        return replace(self, gpus=gpus, tiers=reach(self.described if stands else self.tiers, gpus))


def is_count(value: object) -> bool:
    """Whether this is a whole number of at least 1."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def check_gpus(gpus: object) -> None:
    """Raise ``InputError`` unless ``gpus`` is a whole number from 1 to ``MAX_GPUS``."""
    if isinstance(gpus, bool) or not isinstance(gpus, int):
        raise InputError(f"gpus must be a whole number, not {shown(gpus)}")
    if not 1 <= gpus <= MAX_GPUS:
        raise InputError(f"gpus must be from 1 to {MAX_GPUS:,}, not {gpus:,}")


def reach(tiers: tuple[Tier, ...], gpus: int) -> tuple[Tier, ...]:
    """These tiers for ``gpus`` GPUs: the first that holds them all becomes the last and spans just them."""
    kept: list[Tier] = []
    for tier in tiers:
        if tier.span >= gpus or tier is tiers[-1]:
            return (*kept, replace(tier, span=gpus))
        kept.append(tier)
    return tuple(kept)
