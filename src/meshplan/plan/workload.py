"""What is asked of the cluster in one step: sequences, precision, offload, load of experts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from meshplan.errors import InputError

PRECISIONS = ("bf16", "fp16", "fp8", "mxfp8", "nvfp4", "fp32")

OFFLOADS = ("none", "optimizer")
"""What host memory holds instead of the GPUs'."""
MOST_IMBALANCE = 1000.0

MOST = 10**9
"""Beyond any sequence or batch; products of counts stay inside 64 bits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """One optimizer step.

    ``seq``: tokens in a sequence; ``gbs``: sequences in the global batch; ``precision``: of the
    matrix multiplications; ``offload``: what host memory holds, ``optimizer`` for master weights and
    moments, which the host then steps, and ``offload_fraction`` how much of them. ``moe_imbalance``:
    tokens of the fullest expert rank over the mean (``None``: as the software stack has it, 1 unless it
    says another: published benchmarks force balance). ``capacity_factor``: tokens an expert takes at
    most, over the mean; it pads up to that, or drops what is above. Raises ``InputError`` for values
    outside their range and unknown names.
    """

    seq: int
    gbs: int
    precision: str = "bf16"
    offload: str = "none"
    offload_fraction: float = 1.0
    moe_imbalance: float | None = None
    capacity_factor: float | None = None

    def __post_init__(self) -> None:
        for field in ("seq", "gbs"):
            value = getattr(self, field)
            if not 1 <= value <= MOST:
                raise InputError(f"{field} must be from 1 to {MOST:,}, not {value:,}")
        if self.precision not in PRECISIONS:
            raise InputError(f"precision must be one of {', '.join(PRECISIONS)}, not '{self.precision}'")
        if self.offload not in OFFLOADS:
            raise InputError(f"offload must be one of {', '.join(OFFLOADS)}, not '{self.offload}'")
        if not 0 < self.offload_fraction <= 1:  # NaN is not
            raise InputError(
                f"the offload fraction must be above 0 and at most 1, not {self.offload_fraction:g}"
            )
        if self.offload == "none" and self.offload_fraction != 1:
            raise InputError(
                f"offload fraction {self.offload_fraction:g} is of what `offload: optimizer` (--offload"
                " optimizer) takes, and nothing is offloaded"
            )
        for field, least in (("moe_imbalance", 1.0), ("capacity_factor", 0.1)):
            factor = getattr(self, field)
            if factor is not None and not (math.isfinite(factor) and least <= factor <= MOST_IMBALANCE):
                raise InputError(f"{field} must be from {least:g} to {MOST_IMBALANCE:,g}, not {factor:g}")

    @property
    def expert_load(self) -> float | None:
        """Tokens of the fullest expert rank over the mean, as far as this says it: experts padded to their
        capacity take that many; ones that drop what is above it, no more than routing sends them."""
        if self.capacity_factor is None or self.moe_imbalance is None:
            return self.capacity_factor if self.moe_imbalance is None else self.moe_imbalance
        return min(self.capacity_factor, self.moe_imbalance)

    @property
    def tokens(self) -> int:
        """Tokens in one step."""
        return self.seq * self.gbs
