"""What is asked of the cluster in one step: sequence length, global batch, precision."""

from __future__ import annotations

from dataclasses import dataclass

from meshplan.errors import InputError

PRECISIONS = ("bf16", "fp16", "fp8", "mxfp8", "nvfp4", "fp32")

MOST = 10**9
"""Beyond any sequence or batch; products of counts stay inside 64 bits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """One optimizer step.

    ``seq``: tokens in a sequence; ``gbs``: sequences in the global batch; ``precision``: of the
    matrix multiplications. Raises ``InputError`` for values outside 1 … ``MOST`` and an unknown precision.
    """

    seq: int
    gbs: int
    precision: str = "bf16"

    def __post_init__(self) -> None:
        for field in ("seq", "gbs"):
            value = getattr(self, field)
            if not 1 <= value <= MOST:
                raise InputError(f"{field} must be from 1 to {MOST:,}, not {value:,}")
        if self.precision not in PRECISIONS:
            raise InputError(f"precision must be one of {', '.join(PRECISIONS)}, not '{self.precision}'")

    @property
    def tokens(self) -> int:
        """Tokens in one step."""
        return self.seq * self.gbs
