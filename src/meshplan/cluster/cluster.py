"""A cluster: GPUs of one kind and the tiers of the network between them, from inside out."""

from __future__ import annotations

from dataclasses import dataclass

from meshplan.cluster.gpu import Gpu
from meshplan.errors import InputError


@dataclass(frozen=True, kw_only=True, slots=True)
class Tier:
    """One level of the network: ``span`` GPUs reach each other at ``bandwidth`` (bytes/s per GPU and
    direction) with ``latency_s`` seconds a message."""

    name: str
    span: int
    bandwidth: float
    latency_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """``gpus`` GPUs; the first tier is the scale-up domain, the last reaches every GPU.

    Raises ``InputError`` when the tiers do not grow or do not reach all GPUs.
    """

    gpu: Gpu
    gpus: int
    tiers: tuple[Tier, ...]
    memory_fraction: float = 0.9
    """Share of the usable memory that a plan may fill; the rest is headroom."""
    name: str = ""

    def __post_init__(self) -> None:
        if self.gpus < 1:
            raise InputError(f"gpus must be at least 1, not {self.gpus}")
        spans = [t.span for t in self.tiers]
        if not spans or sorted(set(spans)) != spans:
            raise InputError(f"network tiers must grow from inside out, not span {spans}")

    @property
    def gpus_per_node(self) -> int:
        """GPUs in the scale-up domain: the first tier's span."""
        return self.tiers[0].span
