"""Every allocation and release of a fake run, in order, with what it was for. Needs torch.

A log of our own: torch's trackers cost a hundred times as much, and count the global-shape tensors that
DTensor makes while it works out placements (phantom memory).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from meshplan.measure.memory.census import Census


class MemoryLog(TorchDispatchMode):  # type: ignore[misc,unused-ignore]
    """Watches storages. ``kind`` is what storages born from now on are for."""

    def __init__(self, census: Census | None = None) -> None:
        super().__init__()
        self.census = census
        self.kind = "other"
        self.kinds: list[str] = []
        self._serials: list[int] = []
        self._changes: list[int] = []
        self._known: dict[int, tuple[int, int, Any]] = {}
        self._paused = 0

    def note(self, tensor: torch.Tensor, kind: str) -> None:
        """Say what a tensor's storage is for, from birth on."""
        for part in local_tensors(tensor):
            self._add(part)
            serial = self._known[id(part.untyped_storage())][0]
            self.kinds[serial] = kind

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Let DTensor become local operators first, then watch those."""
        if any(issubclass(t, DTensor) for t in types):
            return NotImplemented
        name = func.name()
        if "::wait_tensor" in name:  # its fake kernel allocates; the real one gives back its input
            return args[0]
        out = func(*args, **(kwargs or {}))
        if self._paused:
            return out
        if self.census is not None and ("c10d" in name):
            self.census.record(name, args, kwargs or {}, out)
        for leaf in tree_flatten(out)[0]:
            if isinstance(leaf, torch.Tensor):
                self._add(leaf)
        return out

    def _add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self._known and self._known[key][2]() is storage:
            return
        serial = len(self.kinds)
        self.kinds.append(self.kind)
        size = storage.nbytes()
        log = self

        def gone(_ref: Any) -> None:
            entry = log._known.get(key)
            if entry is not None and entry[0] == serial:
                del log._known[key]
                log._change(serial, -entry[1])

        self._known[key] = (serial, size, weakref.ref(storage, gone))
        self._change(serial, size)

    def _change(self, serial: int, size: int) -> None:
        if size:
            self._serials.append(serial)
            self._changes.append(size)

    def resized(self, storage: Any, size: int) -> None:
        """FSDP gives memory back, and takes it, by resizing storages."""
        key = id(storage)
        entry = self._known.get(key)
        if entry is None or entry[2]() is not storage:
            serial = len(self.kinds)
            self.kinds.append("gathered weights")
            before = storage.nbytes()
            log = self

            def gone(_ref: Any) -> None:
                found = log._known.get(key)
                if found is not None and found[0] == serial:
                    del log._known[key]
                    log._change(serial, -found[1])

            self._known[key] = (serial, before, weakref.ref(storage, gone))
            self._change(serial, before)
            entry = self._known[key]
        serial, before, ref = entry
        self.kinds[serial] = "gathered weights"
        self._known[key] = (serial, size, ref)
        self._change(serial, size - before)

    @contextmanager
    def phase(self, kind: str) -> Iterator[None]:
        """Storages born inside are for ``kind``."""
        before, self.kind = self.kind, kind
        try:
            yield
        finally:
            self.kind = before

    @contextmanager
    def watching(self) -> Iterator[None]:
        """The mode on, resizes seen, DTensor's shape propagation not counted."""
        original = torch.UntypedStorage.resize_
        log = self

        def resize(storage: Any, size: int) -> Any:
            log.resized(storage, size)
            return original(storage, size)

        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign,unused-ignore]
        try:
            with _no_phantoms(self), self:
                yield
        finally:
            torch.UntypedStorage.resize_ = original  # type: ignore[method-assign,unused-ignore]

    @property
    def moments(self) -> int:
        """Changes so far: a place in the log."""
        return len(self._changes)

    def curves(self) -> dict[str, npt.NDArray[np.int64]]:
        """Bytes alive of each kind after every change."""
        serials = np.array(self._serials, dtype=np.int64)
        changes = np.array(self._changes, dtype=np.int64)
        names = sorted(set(self.kinds))
        codes = np.array([names.index(k) for k in self.kinds], dtype=np.int64)[serials]
        return {name: np.cumsum(np.where(codes == i, changes, 0)) for i, name in enumerate(names)}

    def alive(self) -> dict[str, int]:
        """Bytes alive now, by kind."""
        found: dict[str, int] = {}
        for serial, size, _ in self._known.values():
            found[self.kinds[serial]] = found.get(self.kinds[serial], 0) + size
        return found


def local_tensors(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensor itself, or a DTensor's local one."""
    return [tensor._local_tensor if isinstance(tensor, DTensor) else tensor]


@contextmanager
def _no_phantoms(log: MemoryLog) -> Iterator[None]:
    """Pause while DTensor runs operators on whole shapes to find placements (a private method of torch:
    where it is missing, small phantom tensors are counted)."""
    from torch.distributed.tensor import _sharding_prop as module

    owner = module.ShardingPropagator
    name = "_propagate_tensor_meta_non_cached"
    original = getattr(owner, name, None)
    if original is None:
        yield
        return

    def quiet(*args: Any, **kwargs: Any) -> Any:
        log._paused += 1
        try:
            return original(*args, **kwargs)
        finally:
            log._paused -= 1

    setattr(owner, name, quiet)
    try:
        yield
    finally:
        setattr(owner, name, original)
