"""What real runs showed, beside what the cost model says: memory, step times, traces."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from meshplan.measure.results import Result
from meshplan.measure.summary import Measured
from meshplan.model.model import Model
from meshplan.plan.plans import Plan
from meshplan.plan.workload import Workload
from meshplan.report.parts import bars, step_time, wrap
from meshplan.report.screen import Screen
from meshplan.report.table import Column, table
from meshplan.report.trace_view import compare
from meshplan.trace.breakdown import read_traces
from meshplan.units import format_bytes

SCHEMA_VERSION = 1
NOT_SEEN = (
    "not seen by a fake run: allocator rounding and fragmentation, CUDA context, communicators, library"
    " workspaces"
)


def plan_label(plan: Plan) -> str:
    """A plan in one word, as ``--plan`` reads it."""
    words = [
        f"{n}{getattr(plan, n)}" for n in ("tp", "cp", "pp", "vp", "dp", "ep", "etp") if getattr(plan, n) > 1
    ]
    if plan.tp > 1 and not plan.sp:
        words.append("no-sp")
    if plan.cp > 1:
        words.append(plan.cp_kind.label)
    if plan.pp > 1:
        words.append(plan.schedule.label)
    words += [plan.sharding.label, *([f"replicas{plan.replicas}"] if plan.replicas > 1 else [])]
    if plan.mbs > 1:
        words.append(f"mbs{plan.mbs}")
    if plan.recompute_layers:
        words.append(
            "recompute=full" if plan.recompute_layers >= 1 << 20 else f"recompute={plan.recompute_layers}"
        )
    if plan.recompute_modules:
        names = [m.name.lower().replace("_", "-") for m in plan.recompute_modules if m.name]
        words.append("recompute=" + "+".join(names))
    return ",".join(words)


def memory_data(
    model: Model,
    workload: Workload,
    plan: Plan,
    stack: str,
    pairs: Sequence[tuple[Any, Any]],
    said: Sequence[Any],
) -> dict[str, Any]:
    """Seen and modelled bytes of each pipeline rank, and collectives; plain data for JSON."""
    return {
        "schema_version": SCHEMA_VERSION,
        "model": model.name,
        "layers": len(model.layers),
        "seq": workload.seq,
        "gbs": workload.gbs,
        "precision": workload.precision,
        "plan": plan_label(plan),
        "gpus": plan.gpus,
        "stack": stack,
        "ranks": [
            {
                "pipeline_rank": seen.pipeline_rank,
                "micro_batches": seen.micro_batches,
                "seconds": seen.seconds,
                "parameters": _pair(seen.parameters, told.parameters),
                "gradients_bytes": _pair(seen.gradients_bytes, told.gradients_bytes),
                "optimizer_bytes": _pair(seen.optimizer_bytes, told.optimizer_bytes),
                "activations_bytes": _pair(seen.activations_bytes, told.activations_bytes),
                "peak_bytes": _pair(seen.peak_bytes, told.peak_bytes),
                "parts_at_peak": {
                    name: _pair(seen.parts.get(name, 0), told.parts.get(name, 0.0))
                    for name in dict.fromkeys((*seen.parts, *told.parts))
                },
                "collectives": [
                    {**asdict(c), "calls": n}
                    for c, n in sorted(seen.collectives.items(), key=_by_group)
                ],
            }
            for seen, told in pairs
        ],
        "volumes": [
            row for (seen, _), mine in zip(pairs, said, strict=True) for row in _volumes(seen, mine)
        ],
    }  # fmt: skip


def _by_group(item: tuple[Any, int]) -> tuple[str, str, int]:
    found = item[0]
    return found.dim, found.kind, -found.size_bytes


def _pair(seen: float, said: float) -> dict[str, float | None]:
    off = 0.0 if seen == said else (said / seen - 1.0 if seen else None)
    return {"seen": seen, "model": said, "off": off}


def _volumes(seen: Any, said: Sequence[Any]) -> list[dict[str, Any]]:
    found = []
    for v in said:
        calls = [(c, n) for c, n in seen.collectives.items() if c.dim == v.dim and c.kind == v.kind]
        # Counts of tokens and single numbers of the loss are not what a plan's time depends on.
        total = sum(n * c.size_bytes for c, n in calls if c.size_bytes >= 65536)
        found.append(
            {
                "pipeline_rank": seen.pipeline_rank,
                "dim": v.dim,
                "kind": v.kind,
                **_pair(total, v.size_bytes),
                "priced": v.priced_bytes,
                "note": v.note,
            }
        )
    return found


def memory_text(data: Mapping[str, Any], screen: Screen) -> str:
    """The same as tables."""
    return screen.text("\n".join(_memory_lines(data, screen)) + "\n")


def _memory_lines(data: Mapping[str, Any], screen: Screen) -> Iterator[str]:
    yield screen.bold(f"{data['model']} · {data['gpus']:,} ranks · {data['plan']}")
    yield from wrap(
        f"seq {data['seq']:,} · gbs {data['gbs']:,} · {data['precision']} · the cost model as stack"
        f" {data['stack']}",
        screen.width,
    )
    for rank in data["ranks"]:
        yield ""
        count = rank["micro_batches"]
        yield screen.bold(
            f"pipeline rank {rank['pipeline_rank']}: {count} micro-batch{'es' if count > 1 else ''},"
            f" {rank['seconds']:.1f} s"
        )
        states = ("gradients", "optimizer", "activations", "peak")
        parts = rank["parts_at_peak"].items()
        rows = [
            ("parameters", rank["parameters"], True),
            *((name, rank[f"{name}_bytes"], False) for name in states),
            *((f"  {name}", pair, False) for name, pair in parts if pair["seen"] or pair["model"]),
        ]
        yield from table(
            [
                Column(title="", cells=[name for name, _, _ in rows]),
                Column(title="real module", cells=[_cell(p["seen"], n) for _, p, n in rows], right=True),
                Column(title="cost model", cells=[_cell(p["model"], n) for _, p, n in rows], right=True),
                Column(title="off", cells=[_off(p["off"]) for _, p, _ in rows], right=True),
            ],
            screen.width,
        )
    yield from wrap(f"peak is at its moment, its parts below it; {NOT_SEEN}", screen.width)
    if data["volumes"]:
        yield ""
        yield from _volume_lines(data["volumes"], screen)


def _volume_lines(volumes: Sequence[Mapping[str, Any]], screen: Screen) -> Iterator[str]:
    """Every kind of transfer, and below where the cost model times another number of bytes."""
    yield screen.bold("transfers of a rank and step, bytes of the whole tensor")
    ranks = dict.fromkeys(v["pipeline_rank"] for v in volumes)
    several = [Column(title="rank", cells=[str(v["pipeline_rank"]) for v in volumes], right=True)]
    yield from table(
        [
            *(several if len(ranks) > 1 else []),
            Column(title="group", cells=[v["dim"] for v in volumes]),
            Column(title="kind", cells=[v["kind"].replace("_", "-") for v in volumes]),
            Column(title="real module", cells=[format_bytes(v["seen"]) for v in volumes], right=True),
            Column(title="cost model", cells=[format_bytes(v["model"]) for v in volumes], right=True),
            Column(title="off", cells=[_off(v["off"]) for v in volumes], right=True),
        ],
        screen.width,
    )
    notes: dict[str, list[str]] = {}
    for v in volumes:
        if v["note"]:
            words = f"{v['dim']} {v['kind'].replace('_', '-')} {format_bytes(v['priced'])}"
            notes.setdefault(v["note"], []).append(words)
    for note, rows in notes.items():
        yield from wrap(f"timed of these: {', '.join(dict.fromkeys(rows))} ({note})", screen.width)


def _cell(value: float, number: bool) -> str:
    return f"{value:,.0f}" if number else format_bytes(value)


def _off(value: float | None) -> str:
    if value is None:
        return "–"
    return "0" if value == 0 else f"{value:+.1%}"


# ── measured runs ────────────────────────────────────────────────────────────────────────────────


def measured_data(
    found: Sequence[Measured], results: Sequence[Result], priced: Mapping[str, Any], folder: Path
) -> dict[str, Any]:
    """Plans by measured step time, each with its estimate and, where it was profiled, its parts."""
    return {
        "schema_version": SCHEMA_VERSION,
        "folder": str(folder),
        "versions": next((dict(r.versions) for r in results if r.versions), {}),
        "hosts": sorted({h for r in results for h in r.hosts}),
        "plans": [_measured(m, priced.get(m.key), folder) for m in found],
    }


def _measured(m: Measured, estimate: Mapping[str, Any] | None, folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {
        k: None if isinstance(v, float) and math.isnan(v) else v for k, v in asdict(m).items()
    }
    found["estimate"] = estimate
    traces = sorted((folder / m.folder).glob("trace-*.json*")) if m.outcome == "ok" else []
    if traces:
        parts = read_traces(traces)
        whole = sum(parts.average().values())
        # Shares from the profile, seconds from the steps that were not profiled.
        scale = m.step_s / whole
        found["parts"] = {k: v * scale for k, v in parts.average().items()}
        found["ranks"] = [
            {"rank": r, "parts": {k: v * scale for k, v in parts.of_rank(r).items()}} for r in parts.ranks
        ]
        found["waited_s"] = sum(c.waited_s for c in parts.calls) / max(len(parts.steps), 1) * scale
        if estimate is not None:
            found["against"] = compare(found["parts"], estimate)
    return found


def measured_text(data: Mapping[str, Any], screen: Screen) -> str:
    """The same as tables."""
    return screen.text("\n".join(_measured_lines(data, screen)) + "\n")


def _measured_lines(data: Mapping[str, Any], screen: Screen) -> Iterator[str]:
    plans = data["plans"]
    ran = [p for p in plans if p["outcome"] == "ok"]
    versions = ", ".join(f"{k} {v}" for k, v in data["versions"].items())
    yield screen.bold(f"{len(ran)} of {len(plans)} plans ran on {', '.join(data['hosts']) or 'no host'}")
    if versions:
        yield from wrap(versions, screen.width)
    if ran:
        yield ""
        yield from table(_ran_columns(ran), screen.width)
        yield from wrap(
            "range: of the rounds' medians and the 95 % interval of the median; plans whose ranges overlap"
            " share a rank",
            screen.width,
        )
    for p in ran:
        if p["outliers"]:
            yield f"{p['label']}: {p['outliers']} of {p['steps']} steps are outliers"
        if p["reason"]:
            yield f"{p['label']}: {p['reason']}"
    for p in plans:
        if p["outcome"] != "ok":
            yield from wrap(f"{p['label']}: {p['outcome']}: {p['reason']}", screen.width)
    for p in ran:
        yield from _parts_lines(p, screen)


def _ran_columns(ran: Sequence[Mapping[str, Any]]) -> list[Column]:
    whole = max(p["step_s"] for p in ran)
    columns = [
        Column(title="#", cells=[f"{p['rank']}{'=' if p['tied'] else ' '}" for p in ran], right=True),
        Column(title="plan", cells=[p["label"] for p in ran]),
        Column(title="step", cells=[step_time(p["step_s"], whole) for p in ran], right=True),
        Column(
            title="range",
            cells=[f"{step_time(p['low'], whole)} – {step_time(p['high'], whole)}" for p in ran],
            right=True,
            priority=1,
        ),
        Column(title="spread", cells=[f"{p['variation']:.1%}" for p in ran], right=True, priority=2),
        Column(title="peak", cells=[format_bytes(p["peak_bytes"]) for p in ran], right=True, priority=3),
    ]
    if any(p["estimate"] for p in ran):
        said = [p["estimate"]["step_s"] for p in ran]
        off = [e / p["step_s"] - 1 for e, p in zip(said, ran, strict=True)]
        columns += [
            Column(title="estimated", cells=[step_time(e, whole) for e in said], right=True),
            Column(title="off", cells=[f"{o:+.0%}" for o in off], right=True),
        ]
    return columns


def _parts_lines(plan: Mapping[str, Any], screen: Screen) -> Iterator[str]:
    if "parts" not in plan:
        return
    yield ""
    yield screen.bold(f"{plan['label']}: a step of {step_time(plan['step_s'])}, shares from the profile")
    yield from bars(plan["parts"], lambda v: step_time(v, plan["step_s"]))
    if plan["waited_s"] > 0.005 * plan["step_s"]:
        yield f"  of all transfers, {step_time(plan['waited_s'], plan['step_s'])} waited for another rank"
    if "against" in plan:
        yield from wrap("  " + plan["against"]["sentence"], screen.width)
