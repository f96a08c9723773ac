"""What real runs showed, beside what the cost model says: memory, step times, traces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from meshplan.model.model import Model
from meshplan.plan.plans import Plan
from meshplan.plan.workload import Workload
from meshplan.report.parts import wrap
from meshplan.report.screen import Screen
from meshplan.report.table import Column, table
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
        "volumes": _volumes(pairs[0][0], said),
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
        total = sum(n * c.size_bytes for c, n in calls if c.size_bytes > 65536)
        found.append({"dim": v.dim, "kind": v.kind, **_pair(total, v.size_bytes)})
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
        yield screen.bold("collectives of a rank and step, bytes of the whole tensor")
        rows2 = data["volumes"]
        yield from table(
            [
                Column(title="group", cells=[v["dim"] for v in rows2]),
                Column(title="kind", cells=[v["kind"].replace("_", "-") for v in rows2]),
                Column(title="real module", cells=[format_bytes(v["seen"]) for v in rows2], right=True),
                Column(title="cost model", cells=[format_bytes(v["model"]) for v in rows2], right=True),
                Column(title="off", cells=[_off(v["off"]) for v in rows2], right=True),
            ],
            screen.width,
        )


def _cell(value: float, number: bool) -> str:
    return f"{value:,.0f}" if number else format_bytes(value)


def _off(value: float | None) -> str:
    if value is None:
        return "–"
    return "0" if value == 0 else f"{value:+.1%}"
