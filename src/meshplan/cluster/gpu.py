"""One GPU: its datasheet, each number with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """An accelerator as its maker describes it, dense peaks, one direction of each link.

    FLOP/s, bytes and bytes/s throughout.
    """

    name: str
    title: str
    peak_flops: Mapping[str, float]
    """Dense FLOP/s by precision: ``bf16``, ``fp8``, ``fp4``, ``fp32``; only what the part has."""
    hbm_bytes: float
    """Memory as sold."""
    usable_hbm_bytes: float
    """Memory a process can really get (after ECC and driver)."""
    hbm_bandwidth: float
    scaleup_bandwidth: float
    """Per GPU and direction inside the scale-up domain (NVLink, xGMI, RoCE on board)."""
    scaleup_domain: int
    """GPUs that the scale-up network joins (8; 72 for NVL72)."""
    gpus_per_host: int
    """GPUs that one host drives (8; 4 for a GB200 tray)."""
    nic_bandwidth: float
    """Scale-out bandwidth per GPU and direction that such machines are usually sold with."""
    sms: int
    watts: float
    host_bandwidth: float
    """GPU ↔ host memory, per direction."""
    aliases: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    """Field name → where the number comes from; ``conflict`` → which sources disagree."""
