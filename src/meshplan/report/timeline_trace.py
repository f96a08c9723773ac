"""A simulated schedule as a Chrome trace: opens in Perfetto (ui.perfetto.dev) and chrome://tracing.

One process a rank. Its slices, idle ones included, fill the step exactly; arrows follow activations
and gradients between ranks; a counter shows the activations alive, or their memory. Times are
microseconds.
(Trace Event Format: X slices, s and f flows, C counters, M names.)
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TextIO

import numpy as np

from meshplan.schedule.order import LETTERS
from meshplan.schedule.result import Simulation

_US = 1e6
_COLOURS = {"F": "thread_state_running", "B": "thread_state_iowait", "I": "thread_state_iowait", "W": "good"}


def trace_events(run: Simulation, activations: Any = None) -> Iterator[dict[str, Any]]:
    """The events of the trace, rank after rank; ``activations``: bytes of a micro-batch, one a stage."""
    order = run.order
    alive = run.memory(1.0 if activations is None else activations).after
    counter, unit = ("activations alive", "alive") if activations is None else ("activation memory", "bytes")
    start, end = run.start * _US, run.end * _US
    step = run.step * _US
    for rank in range(order.ranks):
        yield {"name": "process_name", "ph": "M", "pid": rank, "tid": 0, "args": {"name": f"rank {rank}"}}
        yield {"name": "process_sort_index", "ph": "M", "pid": rank, "tid": 0, "args": {"sort_index": rank}}
        yield {"name": "thread_name", "ph": "M", "pid": rank, "tid": 0, "args": {"name": "compute"}}
        now = 0.0
        for i in range(int(order.first[rank]), int(order.first[rank + 1])):
            if run.together and order.paired[i]:
                continue
            if start[i] > now:
                yield _idle(rank, now, float(start[i]))
            yield _slice(run, rank, i, float(start[i]), float(end[i]))
            now = float(end[i])
            yield {
                "name": counter, "ph": "C", "pid": rank, "tid": 0, "ts": now,
                "args": {unit: round(float(alive[i]), 9)},
            }  # fmt: skip
        tail = float(run.tail[rank]) * _US
        if tail:
            at = float(run.pipeline_end[rank]) * _US
            if at > now:
                yield _idle(rank, now, at)
            yield {
                "name": "tail",
                "cat": "tail",
                "ph": "X",
                "pid": rank,
                "tid": 0,
                "ts": at,
                "dur": tail,
                "args": {},
            }
            now = at + tail
        if step > now:
            yield _idle(rank, now, step)
    yield from _flows(run)


def _slice(run: Simulation, rank: int, i: int, start: float, end: float) -> dict[str, Any]:
    order = run.order
    action = order.action(i)
    name = f"{action.kind}{action.micro_batch}"
    args: dict[str, Any] = {"stage": action.stage, "micro_batch": action.micro_batch}
    if run.together and i > 0 and order.paired[i - 1]:
        forward = order.action(i - 1)
        name = f"F{forward.micro_batch} + {name}"
        args |= {"forward_stage": forward.stage, "forward_micro_batch": forward.micro_batch}
    return {
        "name": name, "cat": action.kind, "ph": "X", "pid": rank, "tid": 0, "ts": start, "dur": end - start,
        "cname": _COLOURS[action.kind], "args": args,
    }  # fmt: skip


def _idle(rank: int, start: float, end: float) -> dict[str, Any]:
    return {
        "name": "idle", "cat": "bubble", "ph": "X", "pid": rank, "tid": 0, "ts": start, "dur": end - start,
        "cname": "white", "args": {},
    }  # fmt: skip


def _flows(run: Simulation) -> Iterator[dict[str, Any]]:
    order = run.order
    rank, start, end = order.rank, run.start * _US, run.end * _US
    for number, to in enumerate(np.flatnonzero(run.feeds >= 0).tolist()):
        source = int(run.feeds[to])
        what = "activations" if LETTERS[order.kind[to]] == "F" else "gradients"
        common = {"name": what, "cat": what, "id": number, "tid": 0}
        # Just inside the sending slice, so that the arrow belongs to it and not to the next one.
        leaves = float(start[source] + 0.9 * (end[source] - start[source]))
        yield {**common, "ph": "s", "pid": int(rank[source]), "ts": leaves}
        yield {**common, "ph": "f", "bp": "e", "pid": int(rank[to]), "ts": float(start[to])}


def write_trace(run: Simulation, out: TextIO, activations: Any = None) -> None:
    """Write the trace as JSON, one event a line; ``activations`` as in ``trace_events``."""
    about = {"schedule": run.order.name, "step_s": run.step, "bubble": run.bubble}
    out.write(f'{{"displayTimeUnit": "ms", "otherData": {json.dumps(about)}, "traceEvents": [\n')
    for number, event in enumerate(trace_events(run, activations)):
        out.write((",\n" if number else "") + json.dumps(event, allow_nan=False))
    out.write("\n]}\n")
