"""Where each step of each rank went. Every moment is counted once, so parts sum to the step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np

from meshplan.errors import InputError
from meshplan.trace.cover import Floats, Spans, clip, length, union, without
from meshplan.trace.events import Call, RankTrace, read_rank
from meshplan.trace.stream import TraceFile

COMPUTE = ("matmul", "attention", "elementwise")
P2P = ("send", "recv")


@dataclass(frozen=True, kw_only=True, slots=True)
class StepParts:
    """One step of one rank, seconds. ``parts`` sum to ``step_s``: computing by kind, transfers that no
    computing hides by dimension (``tp all-gather`` …), ``copies``, ``host`` (the rank waits for its own
    host) and ``idle``. ``hidden``: transfers under computing, by the same names."""

    rank: int
    step: int
    step_s: float
    parts: Mapping[str, float]
    hidden: Mapping[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class CallRow:
    """All calls of one collective over one group with one size, on one rank. ``waited_s``: the part of
    ``total_s`` before the last rank (of a transfer: the sender) had begun."""

    rank: int
    call: Call
    calls: int
    total_s: float
    waited_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Breakdown:
    """A set of traces, one a rank."""

    steps: tuple[StepParts, ...]
    calls: tuple[CallRow, ...]
    world: int
    missing: tuple[int, ...]
    """Ranks of the run without a trace."""
    notes: tuple[str, ...] = field(default=())

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that there are traces of."""
        return tuple(sorted({s.rank for s in self.steps}))

    def of_rank(self, rank: int) -> dict[str, float]:
        """Median seconds of each part over the rank's steps, scaled to sum to its median step."""
        mine = [s for s in self.steps if s.rank == rank]
        names = dict.fromkeys(n for s in mine for n in s.parts)
        found = {n: median(s.parts.get(n, 0.0) for s in mine) for n in names}
        whole, step = sum(found.values()), median(s.step_s for s in mine)
        return {n: v * step / whole for n, v in found.items()} if whole else found

    def step_s(self, rank: int) -> float:
        """Median step of a rank."""
        return median(s.step_s for s in self.steps if s.rank == rank)

    def average(self) -> dict[str, float]:
        """Parts averaged over ranks."""
        each = [self.of_rank(r) for r in self.ranks]
        names = dict.fromkeys(n for e in each for n in e)
        return {n: sum(e.get(n, 0.0) for e in each) / len(each) for n in names}

    def stragglers(self, least: float = 0.05) -> list[tuple[int, float]]:
        """Ranks whose own work (computing, copies and host) takes ``least`` longer than the median rank's,
        slowest first, with by how much."""
        own = {
            r: sum(v for n, v in self.of_rank(r).items() if n in (*COMPUTE, "copies", "host"))
            for r in self.ranks
        }
        middle = median(own.values()) if own else 0.0
        if middle <= 0 or len(own) < 2:
            return []
        slow = [(r, v / middle - 1) for r, v in own.items() if v / middle - 1 >= least]
        return sorted(slow, key=lambda item: -item[1])


def read_traces(paths: Sequence[Path]) -> Breakdown:
    """Traces of the ranks of one run. Raises ``InputError`` for files that are no traces, two of one rank,
    or none with a step."""
    traces: dict[int, RankTrace] = {}
    notes = []
    for i, path in enumerate(paths):
        found = read_rank(TraceFile(path), i)
        if found.rank in traces:
            raise InputError(f"two traces are of rank {found.rank}; '{path}' is the second")
        traces[found.rank] = found
        if found.cut:
            notes.append(f"the trace of rank {found.rank} ends in the middle; what it lost is missing here")
        if not found.steps:
            raise InputError(
                f"trace '{path}' has none of the profiler's events (operators, kernels, collectives);"
                " it may be of another program"
            )
    world = max((t.world for t in traces.values()), default=0) or len(traces)
    missing = tuple(r for r in range(world) if r not in traces)
    if missing:
        few = ", ".join(map(str, missing[:8])) + (" …" if len(missing) > 8 else "")
        notes.append(f"no trace of rank {few}: waits on it cannot be told from transfers")
    steps = [s for rank in sorted(traces) for s in _steps(traces[rank])]
    return Breakdown(
        steps=tuple(steps), calls=tuple(_calls(traces)), world=world, missing=missing, notes=tuple(notes)
    )


def _steps(trace: RankTrace) -> list[StepParts]:
    layers = _layers(trace)
    busy = union(np.concatenate([s for name, s in layers if name in COMPUTE] or [np.zeros((0, 2))]))
    found = []
    for number, (start, end) in enumerate(trace.steps):
        parts, hidden = {}, {}
        taken: Spans = np.zeros((0, 2))
        for name, spans in layers:
            inside = clip(spans, start, end)
            parts[name] = length(without(inside, taken))
            if name not in COMPUTE:
                under = length(inside) - length(without(inside, busy))
                if under > 1e-12:
                    hidden[name] = under
            taken = union(np.concatenate([taken, inside]))
        rest = (end - start) - length(taken)
        # On a CPU what is no operator and no transfer is Python; on a GPU the host's launches tell.
        host = rest
        if trace.gpu:
            gaps = without(clip(trace.launches.spans(), start, end), taken)
            host = min(length(gaps), rest)
        parts["host"], parts["idle"] = host, rest - host
        found.append(StepParts(rank=trace.rank, step=number, step_s=end - start, parts=parts, hidden=hidden))
    return found


def _layers(trace: RankTrace) -> list[tuple[str, Spans]]:
    """Names and moments, in the order in which they claim a moment."""
    prefix = "" if trace.gpu else "cpu:"
    waits = trace.waits.spans()
    layers = [
        (k, without(trace.compute[prefix + k].spans(), waits)) for k in COMPUTE if prefix + k in trace.compute
    ]
    by_name: dict[str, list[Spans]] = {}
    for call, calls in trace.calls.items():
        name = _name(call)
        by_name.setdefault(name, []).append(np.stack([np.array(calls.starts), np.array(calls.ends)], axis=1))
    transfers = sorted(by_name, key=lambda n: (n.endswith("p2p"), n))
    layers += [(name, union(np.concatenate(by_name[name]))) for name in transfers]
    copies = trace.copies.spans()
    return [*layers, *([("copies", copies)] if len(copies) else [])]


def _name(call: Call) -> str:
    """What a transfer is counted as; a barrier moves nothing, whatever its group."""
    if call.kind == "barrier":
        return "barrier"
    return f"{call.dim} p2p" if call.kind in P2P else f"{call.dim} {call.kind.replace('_', '-')}"


def _calls(traces: Mapping[int, RankTrace]) -> list[CallRow]:
    found = []
    for rank, trace in sorted(traces.items()):
        for call, calls in trace.calls.items():
            order = np.argsort(np.array(calls.starts), kind="stable")
            starts, ends = np.array(calls.starts)[order], np.array(calls.ends)[order]
            total = float((ends - starts).sum())
            late = _last_start(traces, trace, call, len(starts))
            waited = 0.0 if late is None else float(np.clip(np.minimum(late, ends) - starts, 0, None).sum())
            found.append(CallRow(rank=rank, call=call, calls=len(starts), total_s=total, waited_s=waited))
    return found


def _last_start(traces: Mapping[int, RankTrace], trace: RankTrace, call: Call, count: int) -> Floats | None:
    """When the last rank of each call had begun: the k-th call of one rank meets the k-th of the others."""
    if call.kind in P2P:
        if call.kind == "send" or call.peer not in traces:
            return None
        twin = Call(call.dim, "send", call.size_bytes, trace.rank)
        other = traces[call.peer].calls.get(twin)
        return np.sort(np.array(other.starts)) if other is not None and len(other.starts) == count else None
    members = trace.members.get(call.dim) or ()
    starts = []
    for rank in members:
        calls = traces[rank].calls.get(call) if rank in traces else None
        if calls is None or len(calls.starts) != count:
            return None
        starts.append(np.sort(np.array(calls.starts)))
    return np.max(starts, axis=0) if starts else None
