"""``torchrun … -m meshplan.calibrate.bench.worker FILE``: time kernels and collectives, all ranks busy.

Rank 0 writes FILE. Kernels run on every rank at once, as in training; the slowest rank's time counts.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as fn

from meshplan.calibrate.samples import Sample, write_samples
from meshplan.measure.worker import die_with_parent

CPU_SHAPES = (
    (64, 256, 256),
    (256, 256, 256),
    (256, 512, 256),
    (512, 512, 512),
    (512, 1024, 512),
    (1024, 1024, 1024),
)
GPU_SHAPES = tuple((m, n, k) for m in (1024, 4096, 8192) for n in (2048, 8192) for k in (1024, 4096, 8192))
CPU_TOKENS, GPU_TOKENS = (128, 512), (1024, 4096, 8192)
WINDOWS, WINDOW_S = 7, 0.1
"""Of a kernel: in each window ranks that share a core have taken many turns."""


def main(target: Path) -> None:
    """Measure and write."""
    die_with_parent()
    on_gpu = torch.cuda.is_available()
    device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if on_gpu else "cpu"
    if on_gpu:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=timedelta(seconds=120))
    host = os.environ.get("MESHPLAN_HOST") or socket.gethostname()
    hosts: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(hosts, host)
    most = float(os.environ.get("MESHPLAN_MOST_BYTES") or (1 << 30 if on_gpu else 1 << 24))
    samples = [*kernels(device), *collectives(device, made_groups(hosts), most)]
    if dist.get_rank() == 0:
        about = {
            "hosts": hosts,
            "torch": torch.__version__,
            "date": datetime.now(UTC).date().isoformat(),
            "device": torch.cuda.get_device_name() if on_gpu else "cpu",
            "memory_bytes": _memory(device),
            "cores": os.cpu_count(),
        }
        write_samples(target, samples, about)
    dist.destroy_process_group()


def _memory(device: str) -> int:
    if device.startswith("cuda"):
        return int(torch.cuda.get_device_properties(device).total_memory)
    return (
        os.sysconf("SC_PAGE_SIZE")
        * os.sysconf("SC_PHYS_PAGES")
        // max(int(os.environ.get("LOCAL_WORLD_SIZE", "1")), 1)
    )


def timed(
    run: Callable[[], Any], device: str, *, least: int = 7, budget_s: float = 0.25
) -> tuple[float, ...]:
    """Seconds of each of several runs on the slowest rank, after two to warm up."""
    for _ in range(2):
        run()
    sync(device)
    started, found = perf_counter(), []
    run()
    sync(device)
    once = torch.tensor([max(perf_counter() - started, 1e-7)], dtype=torch.float64, device=device)
    dist.all_reduce(once, op=dist.ReduceOp.MAX)  # all ranks must agree on how often
    count = int(min(max(budget_s / float(once), least), 60))
    dist.barrier()
    for _ in range(count):
        before = perf_counter()
        run()
        sync(device)
        found.append(perf_counter() - before)
    times = torch.tensor(found, dtype=torch.float64, device=device)
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    return tuple(float(t) for t in times)


def kept_busy(run: Callable[[], Any], device: str) -> tuple[float, ...]:
    """Seconds a run of a kernel takes a rank while all ranks repeat it, in each of several windows.

    On a CPU ranks may share cores. Single runs shorter than a turn of the scheduler then show a core of one's
    own, and which rank gets fewer turns is chance, which a step evens out as ranks wait for each other. So
    what counts is the runs of all ranks together in the time of all ranks together.
    """
    if device.startswith("cuda"):
        return timed(run, device)
    for _ in range(2):
        run()
    found = []
    dist.barrier()
    for _ in range(WINDOWS):
        before, runs = perf_counter(), 0
        while perf_counter() - before < WINDOW_S:
            run()
            runs += 1
        found.append((perf_counter() - before, float(runs)))
    sums = torch.tensor(found, dtype=torch.float64)
    dist.all_reduce(sums)
    return tuple(float(seconds / runs) for seconds, runs in sums)


def sync(device: str) -> None:
    """Wait for the GPU."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def kernels(device: str) -> Iterator[Sample]:
    """Products by shape, attention both ways, a copy, and the least a kernel takes."""
    gpu = device.startswith("cuda")
    kinds = {"bf16": torch.bfloat16} if gpu else {"fp32": torch.float32}
    for name, kind in kinds.items():
        for m, n, k in GPU_SHAPES if gpu else CPU_SHAPES:
            a = torch.randn(m, k, device=device, dtype=kind)
            b = torch.randn(n, k, device=device, dtype=kind)
            seconds = kept_busy(partial(torch.matmul, a, b.t()), device)
            yield Sample(op="matmul", dtype=name, shape=(m, n, k), seconds=seconds)
        for tokens in GPU_TOKENS if gpu else CPU_TOKENS:
            for width in (64, 128):
                yield from _attention(device, kind, name, (1, 16 if gpu else 4, tokens, width))
    size = 1 << 28 if gpu else 1 << 24
    x = torch.empty(size // 4, device=device)
    y = torch.empty_like(x)
    yield Sample(op="copy", size_bytes=2.0 * size, seconds=kept_busy(lambda: y.copy_(x), device))
    tiny = torch.zeros(1, device=device)
    many = kept_busy(lambda: [tiny.add_(1) for _ in range(100)], device)
    yield Sample(op="launch", seconds=tuple(t / 100 for t in many))


def _attention(device: str, kind: Any, name: str, shape: tuple[int, ...]) -> Iterator[Sample]:
    q, k, v = (torch.randn(shape, device=device, dtype=kind, requires_grad=True) for _ in range(3))

    def forward() -> Any:
        return fn.scaled_dot_product_attention(q, k, v, is_causal=True)

    grad = torch.randn(shape, device=device, dtype=kind)
    yield Sample(op="attention", dtype=name, shape=shape, seconds=kept_busy(forward, device))
    out = forward()

    def backward() -> Any:
        return torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)

    yield Sample(op="attention_backward", dtype=name, shape=shape, seconds=kept_busy(backward, device))


def groups(hosts: list[str]) -> Iterator[tuple[list[list[int]], int]]:
    """Groups that a training step would use at the same time, and how many ranks of each host one has: inside
    a host by doubling, and across hosts with one, two, four … and all ranks of each. A layer's groups are all
    busy at once, and share what they share: NICs, a switch, cores."""
    by_host: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        by_host.setdefault(host, []).append(rank)
    held = list(by_host.values())
    size = 2
    while size <= min(len(r) for r in held):
        yield [part for ranks in held for part in _parts(ranks, size)], size
        size *= 2
    if len(held) > 1:
        per = min(len(r) for r in held)
        for each in sorted({2**i for i in range(per.bit_length())} | {per}):
            rows = zip(*(_parts(ranks, each) for ranks in held), strict=False)
            yield [sorted(rank for part in row for rank in part) for row in rows], each


def _parts(ranks: list[int], size: int) -> list[list[int]]:
    """As many disjoint groups of ``size`` as there are ranks for."""
    return [ranks[i : i + size] for i in range(0, len(ranks) - size + 1, size)]


def made_groups(hosts: list[str]) -> list[tuple[list[list[int]], int, Any]]:
    """``groups`` with the process group that this rank is in; collective over all ranks."""
    found = []
    for siblings, per_host in groups(hosts):
        made = [dist.new_group(ranks) for ranks in siblings]
        mine = [g for g, ranks in zip(made, siblings, strict=True) if dist.get_rank() in ranks]
        found.append((siblings, per_host, mine[0] if mine else None))
    return found


def collectives(device: str, made: list[tuple[list[list[int]], int, Any]], most: float) -> Iterator[Sample]:
    """Every collective by size for each kind of group, all groups of a kind at once; ranks in none wait."""
    for siblings, per_host, group in made:
        mine = next((ranks for ranks in siblings if dist.get_rank() in ranks), None)
        count = len(siblings[0])
        size = 4096.0
        while size <= most:
            for op, run, whole in _calls(device, group, mine or siblings[0], int(size)):
                seconds = timed(run if mine else lambda: None, device, least=9)
                yield Sample(op=op, size_bytes=whole, ranks=count, per_host=per_host, seconds=seconds)
            size *= 4


def _calls(
    device: str, group: Any, ranks: list[int], size: int
) -> Iterator[tuple[str, Callable[[], Any], float]]:
    n, count = len(ranks), max(size // 4 // len(ranks), 1)
    whole = torch.zeros(count * n, device=device)
    part, other = torch.zeros(count, device=device), torch.zeros(count * n, device=device)
    bytes_ = 4.0 * count * n
    yield "all_reduce", lambda: dist.all_reduce(whole, group=group), bytes_
    yield "all_gather", lambda: dist.all_gather_into_tensor(whole, part, group=group), bytes_
    yield "reduce_scatter", lambda: dist.reduce_scatter_tensor(part, whole, group=group), bytes_
    yield "all_to_all", lambda: dist.all_to_all_single(other, whole, group=group), bytes_
    me, ends = dist.get_rank(), (ranks[0], ranks[-1])

    def message() -> None:
        # There and back, so that both ends know when it arrived; half of it is one way.
        for source, sink in (ends, ends[::-1]):
            if me == source:
                dist.send(whole, sink)
            elif me == sink:
                dist.recv(whole, source)

    yield "p2p", message, bytes_


if __name__ == "__main__":
    main(Path(sys.argv[1]))
