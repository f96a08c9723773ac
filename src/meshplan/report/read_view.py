"""A launch file understood, for people and as data: what it does, what is wrong, what would be better."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meshplan.cost.costs import Costs
from meshplan.export.launch import counted
from meshplan.export.reading import Reading, rules_of_file
from meshplan.model.counts import model_parameters
from meshplan.plan.plans import Plans
from meshplan.plan.rules import broken
from meshplan.report.launch_view import indented
from meshplan.report.parts import bars, step_time, wrap
from meshplan.report.plan_names import plan_names
from meshplan.report.plan_rows import (
    cluster_data,
    layout_data,
    model_data,
    parts_data,
    plan_data,
    workload_data,
    workload_words,
)
from meshplan.report.screen import Screen
from meshplan.units import format_bytes

SCHEMA_VERSION = 1
MOST_CHANGES = 24


@dataclass(frozen=True, kw_only=True, slots=True)
class Better:
    """The best plan the framework can run: its price (one row), the lines to change, the gain in speed
    (``None`` where the file's own plan does not run)."""

    costs: Costs
    changes: tuple[str, ...]
    gain: float | None


def read_text_view(reading: Reading, costs: Costs | None, better: Better | None, screen: Screen) -> str:
    """What ``meshplan read`` prints."""
    lines = [screen.bold(reading.what), *_effective(reading, screen), ""]
    if reading.problems:
        lines.append(screen.bold("it would not start"))
        for problem in reading.problems:
            lines += indented(problem, screen.width)
        lines.append("")
    if costs is not None:
        lines += [*_estimate(reading, costs, screen), ""]
    lines += [*_better(costs, better, screen)]
    for title, items in (("flags nobody knows", reading.unknown), ("notes", reading.notes)):
        if items:
            lines.append(screen.bold(title))
            for item in items:
                lines += indented(item, screen.width)
            lines.append("")
    return screen.text("\n".join(lines).rstrip() + "\n")


def _effective(reading: Reading, screen: Screen) -> list[str]:
    model, cluster, workload = reading.setting
    size = model_parameters(model).total / 1e9
    node = f" in nodes of {cluster.gpus_per_node}" if cluster.gpus > cluster.gpus_per_node else ""
    plans = Plans.of(counted(reading.plan, len(reading.setting.model.layers)), order=reading.order)
    layers = f"{len(model.layers)} layers"
    deep = "" if model.name.startswith(f"{layers} of") else f", {layers}"  # a model without another name
    lines = [
        f"model     {model.name}, {size:,.1f} billion parameters{deep}",
        f"cluster   {cluster.gpus:,}× {cluster.gpu.title}{node}",
        f"workload  {workload_words(workload)}",
        f"plan      {' '.join(plan_names(plans, reading.order)[0].split())}",
    ]
    if reading.defaults:
        filled = " · ".join(f"{name} {value}" for name, value in reading.defaults.items())
        lines += wrap(f"filled in {filled}", screen.width, indent="          ")
    return lines


def _estimate(reading: Reading, costs: Costs, screen: Screen) -> list[str]:
    step, need, limit = float(costs.step_s[0]), float(costs.memory_bytes[0]), costs.memory_limit_bytes
    tokens = reading.setting.workload.tokens / (step * reading.setting.cluster.gpus)
    verdict = "fits" if bool(costs.fits[0]) else "DOES NOT FIT"
    return [
        screen.bold(f"{verdict}: {format_bytes(need)} of {format_bytes(limit)}"),
        f"step {step_time(step)} · {tokens:,.0f} tokens/s/GPU · MFU {float(costs.mfu[0]):.1%}",
        *bars(parts_data(costs.time, 0), lambda part: step_time(part, step)),
    ]


def _better(costs: Costs | None, better: Better | None, screen: Screen) -> list[str]:
    if better is None:
        return ["no plan of this framework fits this cluster", ""]
    if not better.changes and better.gain is not None:
        return ["nothing better was found for this framework and cluster", ""]
    name = " ".join(plan_names(better.costs.plans, better.costs.plans.order)[0].split())
    mfu, need = float(better.costs.mfu[0]), format_bytes(float(better.costs.memory_bytes[0]))
    head = f"better: {name}: MFU {mfu:.1%}, {need}"
    if costs is not None and better.gain is not None:
        own = f"MFU {float(costs.mfu[0]):.1%}, {format_bytes(float(costs.memory_bytes[0]))}"
        head = f"yours: {own}; {head}, {better.gain:.1%} faster"
    lines = wrap(head, screen.width)
    lines[0] = screen.bold(lines[0])
    shown = [
        line if len(line) <= screen.width - 2 else line[: screen.width - 5] + "..." for line in better.changes
    ]
    lines += [f"  {line}" for line in shown[:MOST_CHANGES]]
    if len(shown) > MOST_CHANGES:
        lines.append(f"  and {len(shown) - MOST_CHANGES} lines more")
    return [*lines, ""]


def read_data(reading: Reading, costs: Costs | None, better: Better | None) -> dict[str, Any]:
    """The same as plain data; ``plan`` has the keys of ``plan --json``."""
    model, cluster, workload = reading.setting
    limit = costs.memory_limit_bytes if costs is not None else cluster.gpu.usable_hbm_bytes
    plans = Plans.of(counted(reading.plan, len(reading.setting.model.layers)), order=reading.order)
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": reading.kind,
        "what": reading.what,
        "model": model_data(model),
        "cluster": cluster_data(cluster, limit),
        "workload": workload_data(workload),
        "plan": plan_data(costs, 0, workload, cluster.gpus)
        if costs is not None
        else layout_data(plans, 0, workload),
        "order": "-".join(reading.order),
        "defaults": dict(reading.defaults),
        "unknown": list(reading.unknown),
        "notes": list(reading.notes),
        "problems": list(reading.problems),
        "rules": [
            {"id": rule.id, "title": rule.title, "sentence": rule.explain(reading.setting, reading.plan)}
            for rule in broken(reading.setting, reading.plan, rules_of_file(reading.kind))
        ],
        "estimate": None if costs is None else _estimate_data(reading, costs),
        "better": None
        if better is None
        else {
            "plan": plan_data(better.costs, 0, workload, cluster.gpus),
            "gain": better.gain,
            "changes": list(better.changes),
        },
    }


def _estimate_data(reading: Reading, costs: Costs) -> dict[str, Any]:
    step = float(costs.step_s[0])
    gpus, workload = reading.setting.cluster.gpus, reading.setting.workload
    return {
        "step_s": step,
        "tokens_per_s_per_gpu": workload.tokens / (step * gpus),
        "mfu": float(costs.mfu[0]),
        "memory_bytes": float(costs.memory_bytes[0]),
        "memory_limit_bytes": costs.memory_limit_bytes,
        "fits": bool(costs.fits[0]),
        "time": parts_data(costs.time, 0),
        "hidden": parts_data(costs.hidden, 0),
        "memory": parts_data(costs.memory, 0),
    }
