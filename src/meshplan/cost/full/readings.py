"""One peak as three tools read it: what tensors took, what PyTorch reserved, what the GPU shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

LOOSE = ("activations", "loss and workspace", "gathered weights")
"""Parts of memory that come and go within a step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Readings:
    """Bytes of the fullest GPU: ``torch.cuda.max_memory_allocated`` (what SimuMax and Megatron-Bridge print),
    ``max_memory_reserved`` (torchtitan), and nvidia-smi."""

    allocated: float
    reserved: float
    device: float


def readings(parts: Mapping[str, float], *, limit: float, cached: float, buffers: float) -> Readings:
    """What the tools read where a rank needs ``parts``.

    ``cached``: a stack's share of what comes and goes that the allocator keeps though it is free;
    ``buffers``: what is free but lent to nothing else (``memory.gather_buffers``). Both only as far as there
    is room below ``limit``: an allocator that runs short gives them back.
    """
    need = sum(parts.values())
    held = cached * sum(parts[part] for part in LOOSE) + buffers
    kept = min(held, max(limit - need, 0.0))
    apart = parts["context and NCCL"]
    return Readings(
        allocated=need - apart - parts["fragmentation"], reserved=need - apart + kept, device=need + kept
    )
