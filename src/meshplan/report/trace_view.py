"""Traces of a run as tables: parts of the step, collectives, stragglers, and an estimate beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from meshplan.report.parts import bars, step_time, wrap
from meshplan.report.screen import Screen
from meshplan.report.table import Column, table
from meshplan.trace.breakdown import Breakdown
from meshplan.units import format_bytes

SCHEMA_VERSION = 1
MOST_RANKS = 16
MOST_CALLS = 20
_OF_ESTIMATE = {
    "matmul": "matmul", "attention": "attention", "elementwise": "elementwise", "optimizer": "elementwise",
    "head and loss": "matmul", "recompute": "matmul", "host": "host", "step overhead": "host",
    "imbalance": "pp", "bubble": "pp", "pp": "pp", "tp": "tp", "cp": "cp", "ep": "ep", "dp": "dp",
}  # fmt: skip
_GROUPS = ("tp", "cp", "ep", "dp", "pp")
_OF_GROUP = {"shard": "dp", "replica": "dp", "edp": "dp", "etp": "tp"}


def trace_data(found: Breakdown, against: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Plain data: seconds; ``parts`` of a rank sum to its ``step_s``."""
    data: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "world": found.world,
        "missing": list(found.missing),
        "notes": list(found.notes),
        "average": found.average(),
        "ranks": [
            {"rank": r, "step_s": found.step_s(r), "parts": found.of_rank(r)} for r in found.ranks
        ],
        "steps": [
            {
                "rank": s.rank, "step": s.step, "step_s": s.step_s, "parts": dict(s.parts),
                "hidden": dict(s.hidden),
            }
            for s in found.steps
        ],
        "calls": [
            {
                "rank": c.rank, "group": c.call.dim, "kind": c.call.kind, "size_bytes": c.call.size_bytes,
                "peer": None if c.call.peer < 0 else c.call.peer, "calls": c.calls, "total_s": c.total_s,
                "waited_s": c.waited_s,
            }
            for c in found.calls
        ],
        "stragglers": [{"rank": r, "slower": by} for r, by in found.stragglers()],
    }  # fmt: skip
    if against is not None:
        data["against"] = compare(found.average(), against)
    return data


def compare(parts: Mapping[str, float], estimate: Mapping[str, Any]) -> dict[str, Any]:
    """Measured and estimated seconds by what both name; ``estimate`` as ``meshplan estimate --json`` prints.

    Waiting for another stage (bubble, imbalance) shows in a trace as point-to-point time: both are ``pp``.
    """
    seen: dict[str, float] = {}
    largest: dict[str, tuple[float, str]] = {}
    for name, value in parts.items():
        key, _, kind = name.partition(" ")
        key = _OF_GROUP.get(key, key)
        seen[key] = seen.get(key, 0.0) + value
        largest[key] = max(largest.get(key, (0.0, "")), (value, kind))
    said: dict[str, float] = {}
    for name, value in estimate["time"].items():
        key = _OF_ESTIMATE.get(name, name)
        said[key] = said.get(key, 0.0) + float(value)
    step = sum(seen.values())
    rows = [
        {
            "part": k,
            "mostly": largest.get(k, (0.0, ""))[1],
            "measured_s": seen.get(k, 0.0),
            "estimated_s": said.get(k, 0.0),
        }
        for k in dict.fromkeys((*seen, *said))
        if seen.get(k, 0.0) + said.get(k, 0.0) > 0
    ]
    return {
        "measured_s": step, "estimated_s": float(estimate["step_s"]), "parts": rows,
        "sentence": sentence(step, float(estimate["step_s"]), rows),
    }  # fmt: skip


def sentence(measured: float, estimated: float, rows: list[dict[str, Any]]) -> str:
    """``your estimate was 8 % low, 6 of it TP all-gather``: the part that is furthest off to that side, named
    by its longest transfer, in per cent of the measured step."""
    off = estimated / measured - 1
    if abs(off) < 0.005:
        return "your estimate was right to half a per cent"
    side = "low" if off < 0 else "high"
    gaps = [(r, (r["estimated_s"] - r["measured_s"]) / measured) for r in rows]
    row, most = (min if off < 0 else max)(gaps, key=lambda g: g[1])
    part = row["part"].upper() if row["part"] in _GROUPS else row["part"]
    part = f"{part} {row['mostly']}".strip()
    whole, share = 100 * abs(off), 100 * abs(most)
    if share > 1.05 * whole:
        return (
            f"your estimate was {whole:.0f} % {side}: {part} {share:.0f} % of the step too"
            f" {'little' if off < 0 else 'much'}, other parts the other way"
        )
    return f"your estimate was {whole:.0f} % {side}, {share:.0f} of it {part}"


def trace_text(data: Mapping[str, Any], screen: Screen) -> str:
    """The same as tables."""
    return screen.text("\n".join(_lines(data, screen)) + "\n")


def _lines(data: Mapping[str, Any], screen: Screen) -> Iterator[str]:
    ranks = data["ranks"]
    count = len({s["step"] for s in data["steps"]})
    yield screen.bold(
        f"{len(ranks)} of {data['world']} ranks · {count} step{'s' if count > 1 else ''} each, medians"
    )
    for note in data["notes"]:
        yield from wrap(f"note: {note}", screen.width)
    yield ""
    step = max(r["step_s"] for r in ranks)
    yield screen.bold(f"a step, averaged over ranks: {step_time(sum(data['average'].values()))}")
    yield from bars(data["average"], lambda v: step_time(v, step))
    if len(ranks) > 1:
        yield ""
        shown = ranks[:MOST_RANKS]
        names = sorted(data["average"], key=lambda n: -float(data["average"][n]))
        yield from table(
            [
                Column(title="rank", cells=[str(r["rank"]) for r in shown], right=True),
                Column(title="step", cells=[step_time(r["step_s"]) for r in shown], right=True),
                *(
                    Column(
                        title=n, cells=[step_time(r["parts"].get(n, 0.0), step) for r in shown], right=True,
                        priority=1 + i,
                    )
                    for i, n in enumerate(names)
                ),
            ],
            screen.width,
        )  # fmt: skip
        if len(ranks) > MOST_RANKS:
            yield f"  and {len(ranks) - MOST_RANKS} more (--json)"
    for s in data["stragglers"]:
        yield f"straggler: rank {s['rank']}, {s['slower']:.0%} more work of its own than the median rank"
    yield from _call_lines(data, screen)
    if "against" in data:
        yield from _against_lines(data["against"], screen)


def _call_lines(data: Mapping[str, Any], screen: Screen) -> Iterator[str]:
    rows = sorted(data["calls"], key=lambda c: -float(c["total_s"]))[:MOST_CALLS]
    if not rows:
        return
    yield ""
    yield screen.bold("transfers, all steps together (waited: before the last rank had begun)")
    whole = max(float(c["total_s"]) for c in rows)
    yield from table(
        [
            Column(title="rank", cells=[str(c["rank"]) for c in rows], right=True),
            Column(title="group", cells=[c["group"] for c in rows]),
            Column(title="kind", cells=[c["kind"].replace("_", "-") for c in rows]),
            Column(title="bytes", cells=[format_bytes(c["size_bytes"]) for c in rows], right=True),
            Column(title="calls", cells=[str(c["calls"]) for c in rows], right=True),
            Column(title="total", cells=[step_time(c["total_s"], whole) for c in rows], right=True),
            Column(title="waited", cells=[step_time(c["waited_s"], whole) for c in rows], right=True),
        ],
        screen.width,
    )


def _against_lines(data: Mapping[str, Any], screen: Screen) -> Iterator[str]:
    yield ""
    yield screen.bold(data["sentence"])
    whole = max(data["measured_s"], data["estimated_s"])
    rows = [*data["parts"], {"part": "step", **data}]
    yield from table(
        [
            Column(title="part", cells=[r["part"] for r in rows]),
            Column(title="measured", cells=[step_time(r["measured_s"], whole) for r in rows], right=True),
            Column(title="estimated", cells=[step_time(r["estimated_s"], whole) for r in rows], right=True),
        ],
        screen.width,
    )
