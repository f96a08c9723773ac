"""What a trace's events are: computing by kind, collectives by group, transfers, copies.

gloo (CPU): collectives are annotations ``gloo:<op>`` on worker threads that carry no group; all-reduces of
sizes of their own, issued at the start of a profile by the reference engine, label the threads. NCCL:
kernels carry collective, group and size (kineto's ``record_param_comms`` arguments).
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from meshplan.trace.cover import Cover
from meshplan.trace.stream import TraceFile

MATMUL = re.compile(
    r"gemm|cutlass|cublas|nvjet|wgmma|matmul|::mm$|::bmm$|::addmm$|_grouped_mm|::linear$", re.I
)
ATTENTION = re.compile(r"flash|fmha|attention|sdpa", re.I)
_OPS = {
    "allreduce": "all_reduce",
    "all_reduce": "all_reduce",
    "allgather": "all_gather",
    "all_gather": "all_gather",
    "reducescatter": "reduce_scatter",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
    "broadcast": "broadcast",
    "barrier": "barrier",
    "reduce": "reduce",
    "send": "send",
    "recv": "recv",
    "sendrecv": "send",
    "gather": "gather",
    "scatter": "scatter",
}
_BYTES = {
    "float": 4,
    "Float": 4,
    "double": 8,
    "Double": 8,
    "c10::BFloat16": 2,
    "BFloat16": 2,
    "c10::Half": 2,
    "Half": 2,
    "long int": 8,
    "Long": 8,
    "int": 4,
    "Int": 4,
    "unsigned char": 1,
    "Byte": 1,
    "Float8_e4m3fn": 1,
}
UNKNOWN = "unknown group"


@dataclass
class Calls:
    """Calls of one collective over one group with one size: when each began and ended."""

    starts: array[float] = field(default_factory=lambda: array("d"))
    ends: array[float] = field(default_factory=lambda: array("d"))


@dataclass(frozen=True, slots=True)
class Call:
    """What calls have in common; ``peer`` is the other rank of a point-to-point transfer, or -1."""

    dim: str
    kind: str
    size_bytes: int
    peer: int = -1


@dataclass
class RankTrace:
    """One rank's trace, taken apart; times in seconds on the trace's own clock."""

    rank: int
    world: int
    steps: list[tuple[float, float]] = field(default_factory=list)
    compute: dict[str, Cover] = field(default_factory=dict)
    copies: Cover = field(default_factory=Cover)
    launches: Cover = field(default_factory=Cover)
    """Host busy issuing work (of GPU traces)."""
    waits: Cover = field(default_factory=Cover)
    """Of CPU traces: standing still for a collective. An operator that is handed a tensor still on its way
    waits inside its own event."""
    calls: dict[Call, Calls] = field(default_factory=dict)
    members: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Ranks of each group this rank is in, by dimension."""
    gpu: bool = False
    cut: bool = False
    events: int = 0
    first: float = float("inf")
    last: float = 0.0

    def cover(self, kind: str) -> Cover:
        """The computing of a kind."""
        return self.compute.setdefault(kind, Cover())


@dataclass
class _Gloo:
    """Waits for its thread's label: a collective whose group is not yet known."""

    kind: str
    tid: Any
    size: int
    elements: int
    start: float
    end: float


def read_rank(trace: TraceFile, fallback: int) -> RankTrace:
    """One file, streamed; ``fallback`` is the rank of a trace that does not say its own."""
    found = RankTrace(rank=fallback, world=0)
    gloo: list[_Gloo] = []
    peers: list[tuple[float, str, int]] = []
    for event in trace:
        if event.get("ph") == "X":
            _take(found, event, gloo, peers)
    _head(found, trace)
    _name_gloo(found, gloo, peers, trace.head)
    found.cut, found.events = trace.cut, trace.events
    if not found.steps and found.last > found.first:
        found.steps = [(found.first, found.last)]
    found.steps.sort()
    return found


def _take(
    found: RankTrace, event: Mapping[str, Any], gloo: list[_Gloo], peers: list[tuple[float, str, int]]
) -> None:
    try:
        start = float(event["ts"]) * 1e-6
        end = start + float(event.get("dur", 0)) * 1e-6
    except (KeyError, TypeError, ValueError):
        return
    name, cat = str(event.get("name", "")), str(event.get("cat", ""))
    args = event.get("args")
    args = args if isinstance(args, dict) else {}
    if name.startswith("ProfilerStep#"):
        if cat != "gpu_user_annotation":
            found.steps.append((start, end))
        return
    if cat in ("kernel", "gpu_memcpy", "gpu_memset"):
        found.gpu = True
        _kernel(found, name, cat, args, start, end)
    elif cat == "user_annotation" and name.startswith("gloo:"):
        kind = _OPS.get(name.removeprefix("gloo:"), name.removeprefix("gloo:"))
        elements, size = _size(args)
        gloo.append(_Gloo(kind, event.get("tid"), size, elements, start, end))
    elif cat == "cuda_runtime":
        found.launches.add(start, end)
        return
    elif cat == "cpu_op":
        if name in ("c10d::send", "c10d::recv_"):
            peers.append((start, "send" if name == "c10d::send" else "recv", _peer(args)))
        elif name == "_c10d_functional::wait_tensor":
            found.waits.add(start, end)
        elif name.startswith("aten::"):
            found.cover("cpu:" + _kind(name)).add(start, end)
    else:
        return
    found.first, found.last = min(found.first, start), max(found.last, end)


def _kind(name: str) -> str:
    if ATTENTION.search(name):
        return "attention"
    return "matmul" if MATMUL.search(name) else "elementwise"


def _kernel(found: RankTrace, name: str, cat: str, args: Mapping[str, Any], start: float, end: float) -> None:
    if cat != "kernel":
        found.copies.add(start, end)
        return
    if "nccl" not in name.lower():
        found.cover(_kind(name)).add(start, end)
        return
    said = str(args.get("Collective name", "")).lower().strip("_")
    word = said or re.sub(r".*?kernel_?([a-z]+).*", r"\1", name.lower())
    kind = next((v for k, v in _OPS.items() if word.startswith(k)), word or "collective")
    elements = max(_number(args.get("In msg nelems")), _number(args.get("Out msg nelems")))
    size = elements * _BYTES.get(str(args.get("dtype", "")), 2)
    desc = str(args.get("Process Group Description") or args.get("Process Group Name") or UNKNOWN)
    dim = desc.removeprefix("mesh_")
    peer = _number(args.get("Dst Rank" if kind == "send" else "Src Rank"), -1)
    _call(found, Call(dim, kind, size, peer if kind in ("send", "recv") else -1), start, end)
    ranks = _ranks(args.get("Process Group Ranks"))
    if ranks:
        found.members.setdefault(dim, ranks)


def _call(found: RankTrace, call: Call, start: float, end: float) -> None:
    calls = found.calls.setdefault(call, Calls())
    calls.starts.append(start)
    calls.ends.append(end)


def _number(value: Any, default: int = 0) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        return default


def _ranks(value: Any) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", str(value))) if value else ()


def _size(args: Mapping[str, Any]) -> tuple[int, int]:
    """Elements and bytes of the first input."""
    dims, kinds = args.get("Input Dims"), args.get("Input type")
    if not isinstance(dims, list) or not dims or not isinstance(dims[0], list):
        return 0, 0
    elements = 1
    for n in dims[0]:
        elements *= n if isinstance(n, int) else 0
    kind = kinds[0] if isinstance(kinds, list) and kinds else "float"
    return elements, elements * _BYTES.get(str(kind), 4)


def _peer(args: Mapping[str, Any]) -> int:
    inputs = args.get("Concrete Inputs")
    return _number(inputs[2], -1) if isinstance(inputs, list) and len(inputs) > 2 else -1


def _head(found: RankTrace, trace: TraceFile) -> None:
    info = trace.head.get("distributedInfo")
    if not isinstance(info, dict):
        return
    found.rank, found.world = _number(info.get("rank"), found.rank), _number(info.get("world_size"))
    for group in info.get("pg_config") or ():
        if isinstance(group, dict) and group.get("pg_size", 0) != 1:
            name = str(group.get("pg_desc") or group.get("pg_name")).removeprefix("mesh_")
            found.members.setdefault(name, tuple(group.get("ranks") or ()))


def _name_gloo(
    found: RankTrace, gloo: list[_Gloo], peers: list[tuple[float, str, int]], head: Mapping[str, Any]
) -> None:
    """Give gloo's events their group, by the marks on their threads, and transfers their peer."""
    own = head.get("meshplan")
    own = own if isinstance(own, dict) else {}
    marks = {int(k): str(v) for k, v in (own.get("marks") or {}).items()}
    for dim, ranks in (own.get("members") or {}).items():
        found.members[dim] = tuple(ranks)
    threads = {e.tid: marks[e.elements] for e in gloo if e.kind == "all_reduce" and e.elements in marks}
    only = next(iter(set(marks.values())), UNKNOWN) if len(set(marks.values())) == 1 else UNKNOWN
    posted = {kind: sorted(p for p in peers if p[1] == kind) for kind in ("send", "recv")}
    for kind in ("send", "recv"):
        mine = sorted((e for e in gloo if e.kind == kind), key=lambda e: e.start)
        pairs = posted[kind] if len(posted[kind]) == len(mine) else [(0.0, kind, -1)] * len(mine)
        for e, (_, _, peer) in zip(mine, pairs, strict=True):
            dim = "pp" if "pp" in marks.values() or not marks else "cp" if "cp" in marks.values() else only
            ranks = found.members.get(dim, ())
            whole = ranks[peer] if 0 <= peer < len(ranks) else peer
            _call(found, Call(dim, kind, e.size, whole), e.start, e.end)
    for e in gloo:
        if e.kind in ("send", "recv") or (e.kind == "all_reduce" and e.elements in marks):
            continue
        _call(found, Call(threads.get(e.tid, only), e.kind, e.size), e.start, e.end)
