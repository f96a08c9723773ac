"""Counts of the collectives a rank issues: kind, group, bytes. Needs torch only for what it is handed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

KINDS = {
    "_c10d_functional::all_gather_into_tensor": "all_gather",
    "_c10d_functional::all_gather_into_tensor_out": "all_gather",
    "_c10d_functional::reduce_scatter_tensor": "reduce_scatter",
    "_c10d_functional::all_reduce": "all_reduce",
    "_c10d_functional::all_reduce_": "all_reduce",
    "_c10d_functional::all_to_all_single": "all_to_all",
    "c10d::_allgather_base_": "all_gather",
    "c10d::_reduce_scatter_base_": "reduce_scatter",
    "c10d::allreduce_": "all_reduce",
    "c10d::alltoall_base_": "all_to_all",
    "c10d::send": "send",
    "c10d::recv_": "recv",
}
"""Dispatcher's name → kind."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Collective:
    """One kind of collective over one group; ``size_bytes`` of the whole tensor (what an all-gather makes, a
    reduce-scatter or all-to-all takes)."""

    dim: str
    kind: str
    size_bytes: int


@dataclass
class Census:
    """Counts by (dimension, kind, bytes). ``names``: name of a process group → dimension."""

    names: dict[str, str]
    counts: dict[Collective, int] = field(default_factory=dict)

    def record(self, name: str, args: Any, kwargs: Any, out: Any) -> None:
        """Count one call of the dispatcher; calls that are no collective are left out."""
        base = name.split(".", maxsplit=1)[0]
        kind = KINDS.get(base)
        if kind is None:
            return
        dim = "ep" if kind == "all_to_all" else self._dim(args, kwargs)
        if dim is None:
            return
        self.add(dim, kind, _size(kind, base, args, out))

    def add(self, dim: str, kind: str, size_bytes: int) -> None:
        """Count one."""
        entry = Collective(dim=dim, kind=kind, size_bytes=size_bytes)
        self.counts[entry] = self.counts.get(entry, 0) + 1

    def _dim(self, args: Any, kwargs: Any) -> str | None:
        from torch.distributed import ProcessGroup

        for value in [*args, *kwargs.values()]:
            if isinstance(value, str) and value in self.names:
                return self.names[value]
            if type(value).__name__ == "ScriptObject":
                try:
                    group = ProcessGroup.unbox(value)
                except RuntimeError:  # a reduce operation, say
                    continue
                return self.names.get(group.group_name)
        return None

    def total(self, dim: str, kind: str) -> int:
        """Bytes of all calls of one kind over one dimension."""
        return sum(n * c.size_bytes for c, n in self.counts.items() if c.dim == dim and c.kind == kind)


def _size(kind: str, base: str, args: Any, out: Any) -> int:
    """Bytes of the whole tensor."""
    if base.startswith("c10d::_") or base == "c10d::alltoall_base_":
        outer, inner = args[0], args[1]
        return _bytes(outer if kind == "all_gather" else inner)
    first = args[0]
    if isinstance(first, list | tuple):
        first = first[0]
    return _bytes(out if kind == "all_gather" else first)


def _bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())
