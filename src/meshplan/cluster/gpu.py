"""One GPU: its datasheet, each number with its source."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from meshplan.errors import InputError

PRECISIONS = ("bf16", "fp16", "fp8", "fp4", "tf32", "fp32")
_RUNS_ON = {"mxfp8": "fp8", "nvfp4": "fp4", "mxfp4": "fp4"}
_POSITIVE = (
    "hbm_bytes", "usable_hbm_bytes", "hbm_bandwidth", "scaleup_bandwidth", "scaleup_domain", "gpus_per_host",
    "nic_bandwidth", "sms", "watts", "host_bandwidth",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """An accelerator as its maker describes it, dense peaks, one direction of each link.

    FLOP/s, bytes and bytes/s throughout. Where a device has several dies that frameworks see as
    separate ranks (MI250X, Ascend 910C, Trainium), a ``Gpu`` is one of them. Raises ``InputError``
    for a number that is not positive and finite.
    """

    name: str
    title: str
    peak_flops: Mapping[str, float]
    """Dense FLOP/s by precision: ``bf16``, ``fp16``, ``fp8``, ``fp4``, ``tf32``, ``fp32``; only what the
    part has."""
    hbm_bytes: float
    """Memory as sold; makers write GB and mean GiB."""
    usable_hbm_bytes: float
    """Memory a process can really get (after ECC and driver)."""
    hbm_bandwidth: float
    scaleup_bandwidth: float
    """Per GPU and direction inside the scale-up domain (NVLink, xGMI, RoCE on board), all peers together."""
    scaleup_domain: int
    """GPUs that the scale-up network joins (8; 72 for NVL72)."""
    gpus_per_host: int
    """GPUs that one host drives (8; 4 for a GB200 tray)."""
    nic_bandwidth: float
    """Scale-out bandwidth per GPU and direction that such machines are usually sold with."""
    sms: int
    """Streaming multiprocessors, compute units, AI cores: what a kernel's tiles are spread over."""
    watts: float
    host_bandwidth: float
    """GPU ↔ host memory, per direction."""
    scaleup: str = "NVLink"
    """What the scale-up network is: ``NVLink 4``, ``xGMI``, ``PCIe 5`` …"""
    scaleup_peer_bandwidth: float | None = None
    """Between one pair of GPUs, where the domain is a mesh of links and not a switch; ``None``: a switch,
    so that any pair gets all of ``scaleup_bandwidth``."""
    like: str = ""
    """The preset that this one was made from, where it was: its curves stand in."""
    aliases: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    """Field name → where the number comes from; ``conflict`` → which sources disagree."""

    def __post_init__(self) -> None:
        numbers = {name: getattr(self, name) for name in _POSITIVE}
        numbers |= {f"peak_flops.{precision}": value for precision, value in self.peak_flops.items()}
        if self.scaleup_peer_bandwidth is not None:
            numbers["scaleup_peer_bandwidth"] = self.scaleup_peer_bandwidth
        for name, value in numbers.items():
            if not (math.isfinite(value) and value > 0):
                raise InputError(f"GPU {self.name}: {name} must be a positive number, not {value}")
        if not self.peak_flops:
            raise InputError(f"GPU {self.name}: peak_flops names no precision; give at least bf16")
        if self.usable_hbm_bytes > self.hbm_bytes:
            raise InputError(f"GPU {self.name}: more memory is usable than the part has")

    @property
    def is_cpu(self) -> bool:
        """A calibrated CPU core: no part with matrix units computes fp32 as fast as 16-bit floats."""
        return self.peak_flops.get("fp32", 0.0) >= self.peak_flops.get("bf16", math.inf)

    def peak(self, precision: str) -> float:
        """Dense FLOP/s of matrix multiplications in ``precision``; ``mxfp8`` runs as fp8, ``nvfp4`` as fp4.

        Raises ``InputError`` when the part does not have it.
        """
        found = self.peak_flops.get(_RUNS_ON.get(precision, precision))
        if precision == "mxfp8" and "fp4" not in self.peak_flops:  # block scales came with fp4
            found = None
        if precision == "nvfp4" and not self.title.startswith("NVIDIA"):
            found = None
        if found is None:
            has = ", ".join(self.peak_flops)
            raise InputError(f"GPU {self.name} has no {precision} matrix multiplication; it has {has}")
        return found
