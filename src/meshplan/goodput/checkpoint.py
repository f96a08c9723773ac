"""Checkpoints as files: how large, how long to write and to read."""

from __future__ import annotations

from dataclasses import dataclass

CHECKPOINT_BYTES = 14.0
"""Bytes a parameter: the bf16 weight and in fp32 master weight and two moments (Megatron's distributed
optimizer; 12 where, as in torchtitan, the fp32 weight is the only one)."""
STORAGE_PER_GPU = 2e12 / 16384
"""Bytes/s of storage for each GPU: 2 TB/s sustained for 16,384 (arXiv 2407.21783, 3.3.1), 122 MB/s."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """One checkpoint of a run."""

    size_bytes: float
    storage_bandwidth: float
    """Bytes/s of all GPUs together."""

    @property
    def transfer_s(self) -> float:
        """Seconds to write it (in the background) or to read it (in a restart)."""
        return self.size_bytes / self.storage_bandwidth


def checkpoint_of(parameters: float, gpus: int) -> Checkpoint:
    """The checkpoint of a model trained with mixed-precision Adam."""
    return Checkpoint(size_bytes=CHECKPOINT_BYTES * parameters, storage_bandwidth=STORAGE_PER_GPU * gpus)
