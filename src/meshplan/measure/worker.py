"""One rank of a measured run: ``torchrun … -m meshplan.measure.worker FOLDER``. Needs torch.

Reads ``run.json`` of the folder; writes ``rank-N.json`` (times, memory, agreement), ``trace-N.json.gz``, or
``failed-N.json`` with the kind and reason of a failure.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from time import perf_counter
from typing import Any

from meshplan.errors import InputError, MeshplanError
from meshplan.measure.specs import RunSpec, spec_of

MISMATCH, CRASH, OOM = "mismatch", "crash", "oom"
FINGERPRINT = 101
"""Elements of the first marking all-reduce inside a profile; each dimension has two more."""


def main(folder: Path) -> int:
    """Run; the exit code is 0 only when the run went through."""
    die_with_parent()
    rank = int(os.environ.get("RANK", "0"))
    try:
        spec = spec_of(json.loads((folder / "run.json").read_text()))
        found = measure(spec, folder)
    except BaseException as error:
        kind, reason = failure(error)
        _write(
            folder / f"failed-{rank}.json", {"kind": kind, "reason": reason, "trace": traceback.format_exc()}
        )
        if isinstance(error, KeyboardInterrupt):
            return 130
        return 1
    _write(folder / f"rank-{rank}.json", found)
    return 0


class DisagreementError(Exception):
    """The plan does not compute what one process computes."""


def failure(error: BaseException) -> tuple[str, str]:
    """Kind and one-line reason."""
    import torch

    text = " ".join(str(error).split())[:400] or type(error).__name__
    if isinstance(error, DisagreementError):
        return MISMATCH, text
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in text:
        return OOM, text
    if isinstance(error, MeshplanError):
        return "refused", text
    return CRASH, f"{type(error).__name__}: {text}"


def measure(spec: RunSpec, folder: Path) -> dict[str, Any]:
    """Check, warm up, time, profile; what this rank found."""
    import logging
    import warnings

    import torch
    import torch.distributed as dist

    from meshplan.measure.reference.check import compare, write_reference
    from meshplan.measure.reference.engine import Engine

    warnings.simplefilter("ignore")
    logging.getLogger("torch.distributed.tensor").setLevel(logging.ERROR)
    device = _device(spec.device)
    if device.startswith("cuda"):
        torch.cuda.set_device(int(device.split(":")[1]))
    else:
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    limit = timedelta(seconds=float(os.environ.get("MESHPLAN_TIME_LIMIT", "300")))
    dist.init_process_group("nccl" if device.startswith("cuda") else "gloo", timeout=limit)
    try:
        engine = Engine(
            spec.model, spec.workload, spec.plan, device=device, order=spec.order, balanced=spec.balanced
        )
        reference = folder.parent / f"reference-{spec.reference_key}.pt"
        found: dict[str, Any] = {"rank": dist.get_rank(), "host": socket.gethostname(), "agreement": ""}
        if not spec.steps:
            write_reference(engine, reference)
            return found
        if spec.check and reference.exists():
            agreement = compare(engine, reference)
            found["agreement"] = agreement.sentence()
            if not agreement.holds:
                raise DisagreementError(agreement.sentence())
        for _ in range(spec.warmup):
            engine.step()
        found["steps_s"] = _timed(engine, spec.steps, device)
        found["memory"] = _memory(device)
        if spec.profiled:
            with _profile(folder / f"trace-{dist.get_rank()}.json.gz", engine, device):
                for i in range(spec.profiled):
                    with torch.profiler.record_function(f"ProfilerStep#{i}"):
                        engine.step()
                        dist.barrier()
        found["versions"] = _versions()
        return found
    finally:
        dist.destroy_process_group()


def _timed(engine: Any, steps: int, device: str) -> list[float]:
    """Seconds of each step on the slowest rank."""
    import torch
    import torch.distributed as dist

    dist.barrier()
    times, before = [], perf_counter()
    for _ in range(steps):
        engine.step()
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        now = perf_counter()
        times.append(now - before)
        before = now
    slowest = torch.tensor(times, dtype=torch.float64, device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return [float(t) for t in slowest]


def _memory(device: str) -> dict[str, int]:
    """Peak bytes: of the process and, on a GPU, allocated, reserved and in use on the device."""
    found = {"process_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    if device.startswith("cuda"):
        import torch

        free, total = torch.cuda.mem_get_info()
        found |= {
            "allocated_bytes": torch.cuda.max_memory_allocated(),
            "reserved_bytes": torch.cuda.max_memory_reserved(),
            "device_bytes": total - free,
        }
    return found


@contextmanager
def _profile(path: Path, engine: Any, device: str) -> Iterator[None]:
    """A profile whose first events mark the groups: gloo's events carry no group, so an all-reduce of a size
    of its own in each group labels the threads that work for it."""
    import torch
    import torch.distributed as dist

    kinds = [torch.profiler.ProfilerActivity.CPU]
    if device.startswith("cuda"):
        kinds.append(torch.profiler.ProfilerActivity.CUDA)
    names = engine.groups.named()
    marks: dict[str, str] = {}
    members = {d: dist.get_process_group_ranks(engine.groups.group(d)) for d in names.values()}
    with torch.profiler.profile(activities=kinds, record_shapes=True) as profiler:
        for i, dim in enumerate(dict.fromkeys(names.values())):
            group = engine.groups.group(dim)
            works = []
            for twice in range(8):
                size = FINGERPRINT + 16 * i + twice
                marks[str(size)] = dim
                works.append(dist.all_reduce(torch.zeros(size, device=device), group=group, async_op=True))
            for work in works:
                work.wait()
        dist.barrier()
        yield
        profiler.add_metadata_json("meshplan", json.dumps({"marks": marks, "members": members}))
    profiler.export_chrome_trace(str(path))


def _versions() -> dict[str, str]:
    import platform

    import torch

    found = {"torch": torch.__version__, "python": platform.python_version(), "kernel": platform.release()}
    if torch.cuda.is_available():
        found["cuda"] = str(torch.version.cuda)
        found["gpu"] = torch.cuda.get_device_name()
    return found


def _device(asked: str) -> str:
    import torch

    local = int(os.environ.get("LOCAL_RANK", "0"))
    if asked == "cpu" or (asked == "auto" and not torch.cuda.is_available()):
        return "cpu"
    if not torch.cuda.is_available():
        raise InputError("--device cuda, but PyTorch sees no CUDA GPU on this host")
    return f"cuda:{local}"


def die_with_parent() -> None:
    """Linux: end when the launcher does, however it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _write(path: Path, data: dict[str, Any]) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(data))
    part.replace(path)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
