"""One plan in full, for people and as data: time by part, memory by stage, and what both rest on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, Literal

from meshplan.cluster.cluster import Cluster
from meshplan.cost.full.explain import Explanation, Stage, Term
from meshplan.model.model import Model
from meshplan.plan.kinds import Schedule
from meshplan.plan.workload import Workload
from meshplan.report.parts import bars, step_time, wrap
from meshplan.report.plan_names import plan_names
from meshplan.report.plan_rows import (
    beyond,
    cluster_data,
    layout_data,
    model_data,
    parts_data,
    workload_data,
    workload_words,
)
from meshplan.report.screen import Screen
from meshplan.report.table import Column, table
from meshplan.units import format_bytes

SCHEMA_VERSION = 1
GIB = 2.0**30
Detail = Literal["summary", "memory", "time", "all"]
ORDER = ("measured", "fitted", "datasheet", "counted", "assumed")
"""Provenances, best known first."""


def estimate_text(
    found: Explanation, model: Model, cluster: Cluster, workload: Workload, screen: Screen, detail: Detail
) -> str:
    """What ``meshplan estimate`` prints: ``time`` or ``memory`` alone, both (``summary``), or ``all`` with
    every source."""
    lines = [*_head(found, model, cluster, workload, screen), ""]
    if detail != "memory":
        lines += [*_time(found, screen), ""]
    if detail != "time":
        lines += [*_memory(found, screen), ""]
    if detail == "all":
        lines += [*_evidence(found, screen), ""]
    elif detail == "summary":
        lines += [*_evidence_in_short(found, screen), ""]
    lines += [line for text in beyond(model, workload) for line in wrap(f"note: {text}", screen.width)]
    lines += _closing(found, screen)
    return screen.text("\n".join(lines).rstrip() + "\n")


def estimate_data(found: Explanation, model: Model, cluster: Cluster, workload: Workload) -> dict[str, Any]:
    """The same as plain data: bytes, seconds and FLOP/s; ``time`` and ``memory`` sum to the whole."""
    costs = found.costs
    step = float(costs.step_s[0])
    return {
        "schema_version": SCHEMA_VERSION,
        "model": model_data(model),
        "cluster": cluster_data(cluster, costs.memory_limit_bytes),
        "workload": workload_data(workload),
        "plan": {**layout_data(costs.plans, 0, workload), "order": "-".join(costs.plans.order)},
        "stack": {"name": found.stack.name, "title": found.stack.title, "fitted": found.stack.fitted},
        "step_s": step,
        "tokens_per_s_per_gpu": workload.tokens / (step * cluster.gpus),
        "mfu": float(costs.mfu[0]),
        "hfu": found.hfu,
        "peak_flops_per_s": found.peak_flops,
        "memory_bytes": float(costs.memory_bytes[0]),
        "memory_limit_bytes": costs.memory_limit_bytes,
        "fits": bool(costs.fits[0]),
        "time": parts_data(costs.time, 0),
        "hidden": parts_data(costs.hidden, 0),
        "memory": parts_data(costs.memory, 0),
        "readings": {
            "allocated_bytes": found.readings.allocated,
            "reserved_bytes": found.readings.reserved,
            "device_bytes": found.readings.device,
        },
        "stages": [stage_data(stage) for stage in found.stages],
        "provenance": [asdict(term) for term in found.terms],
        "assumptions": [*found.assumptions, *beyond(model, workload)],
        "left_out": list(found.left_out),
    }


def stage_data(stage: Stage) -> dict[str, Any]:
    """One kind of pipeline rank as plain data."""
    return {
        "ranks": stage.ranks,
        "first_rank": stage.first_rank,
        "layers": stage.layers,
        "layers_of_stages": list(stage.held),
        "embedding": stage.embedding,
        "head": stage.head,
        "memory_bytes": stage.memory_bytes,
        "memory": dict(stage.memory),
    }


def _head(
    found: Explanation, model: Model, cluster: Cluster, workload: Workload, screen: Screen
) -> Iterator[str]:
    costs = found.costs
    step, need = float(costs.step_s[0]), float(costs.memory_bytes[0])
    node = f" in nodes of {cluster.gpus_per_node}" if cluster.gpus > cluster.gpus_per_node else ""
    yield screen.bold(f"{model.name} on {cluster.gpus:,}× {cluster.gpu.title}{node}")
    ask = f"{workload_words(workload)} · stack {found.stack.name}"
    yield from wrap(f"{ask}: {found.stack.title}", screen.width)
    yield from wrap(plan_names(costs.plans, costs.plans.order)[0] + _layout(found), screen.width)
    yield ""
    verdict = "fits" if bool(costs.fits[0]) else "DOES NOT FIT"
    tokens = workload.tokens / (step * cluster.gpus)
    yield from wrap(
        f"step {step_time(step)} · {tokens:,.0f} tokens/s/GPU · MFU {float(costs.mfu[0]):.1%}"
        f" · HFU {found.hfu:.1%} · {verdict}: {format_bytes(need)}"
        f" of {format_bytes(costs.memory_limit_bytes)}",
        screen.width,
    )


def _layout(found: Explanation) -> str:
    plans = found.costs.plans
    if plans.layout[0] < 0:
        return ""
    counts, parts = plans.layouts[int(plans.layout[0])], []
    start = 0
    for i in range(1, len(counts) + 1):
        if i == len(counts) or counts[i] != counts[start]:
            parts.append(f"{counts[start]} × {i - start}" if i - start > 1 else str(counts[start]))
            start = i
    return f" · layers a stage: {', '.join(parts)}"


def _time(found: Explanation, screen: Screen) -> Iterator[str]:
    costs = found.costs
    step = float(costs.step_s[0])
    yield screen.bold(f"one step: {step_time(step)}")
    yield from bars(parts_data(costs.time, 0), lambda part: step_time(part, step))
    hidden = {name: v for name, v in parts_data(costs.hidden, 0).items() if v >= 0.0005 * step}
    if hidden:
        told = " · ".join(f"{name} {step_time(v, step)}" for name, v in _largest(hidden))
        yield from wrap(f"hidden behind computing, not in the step: {told}", screen.width)


def _memory(found: Explanation, screen: Screen) -> Iterator[str]:
    costs = found.costs
    yield screen.bold(f"memory of the fullest GPU: {format_bytes(float(costs.memory_bytes[0]))}")
    yield from bars(parts_data(costs.memory, 0), format_bytes)
    seen = found.readings
    yield from wrap(
        f"as tools read it: PyTorch allocated {format_bytes(seen.allocated)}, reserved"
        f" {format_bytes(seen.reserved)}; nvidia-smi {format_bytes(seen.device)}",
        screen.width,
    )
    if len(found.stages) > 1:
        yield ""
        head, *rows = table(_stage_columns(found), screen.width)
        yield screen.bold(head)
        yield from rows


def _stage_columns(found: Explanation) -> list[Column]:
    """Memory in GiB by kind of pipeline rank and part; small parts go first where the screen is narrow."""
    stages = found.stages
    fullest = max(stage.memory_bytes for stage in stages)
    both = found.costs.plans.schedule[0] == Schedule.DUALPIPE
    totals = {name: max(stage.memory[name] for stage in stages) for name in stages[0].memory}
    shown = [name for name, value in _largest(totals) if value > 0]
    return [
        Column(title="pipeline ranks", cells=[_ranks(stage) for stage in stages]),
        Column(title="layers", cells=[_layers(stage, both=both) for stage in stages], right=True),
        Column(
            title="GiB",
            cells=[
                f"{stage.memory_bytes / GIB:.1f}{'*' if stage.memory_bytes == fullest else ' '}"
                for stage in stages
            ],
            right=True,
        ),
        *(
            Column(
                title=name,
                cells=[f"{stage.memory[name] / GIB:.1f}" for stage in stages],
                right=True,
                priority=1 + i,
            )
            for i, name in enumerate(shown)
        ),
    ]


def _layers(stage: Stage, *, both: bool) -> str:
    """How many layers; of a rank that holds a stage from either end, of each of them."""
    return " + ".join(map(str, stage.held)) if both else str(stage.layers)


def _ranks(stage: Stage) -> str:
    ends = " + ".join(name for name, held in (("embedding", stage.embedding), ("head", stage.head)) if held)
    more = f" and {stage.ranks - 1} more" if stage.ranks > 1 else ""
    return f"{stage.first_rank}{more}{f' ({ends})' if ends else ''}"


def _evidence(found: Explanation, screen: Screen) -> Iterator[str]:
    """Every term with its source."""
    yield screen.bold("what the numbers rest on")
    for term in _by_provenance(found):
        error = "" if term.error is None else f", median error {term.error:.1%}"
        date = f", {term.date}" if term.date else ""
        text = f"{', '.join(term.parts) or 'all'}: {term.what}{error} ({term.source}{date})"
        yield from _indented(term.provenance, text, screen)


def _evidence_in_short(found: Explanation, screen: Screen) -> Iterator[str]:
    """A line for each provenance."""
    yield screen.bold("what the numbers rest on (--detail all: with sources)")
    for provenance in ORDER:
        terms = [t for t in found.terms if t.provenance == provenance]
        if terms:
            errors = ["" if t.error is None else f" (± {t.error:.1%})" for t in terms]
            text = " · ".join(f"{t.what}{e}" for t, e in zip(terms, errors, strict=True))
            yield from _indented(provenance, text, screen)


def _by_provenance(found: Explanation) -> list[Term]:
    return sorted(found.terms, key=lambda term: ORDER.index(term.provenance))


def _indented(provenance: str, text: str, screen: Screen) -> list[str]:
    first, *more = wrap(text, screen.width - 13, indent="")
    return [f"  {provenance:<9}  {first}", *(" " * 13 + line for line in more)]


def _closing(found: Explanation, screen: Screen) -> Iterator[str]:
    for assumption in found.assumptions:
        yield from wrap(f"assumed: {assumption}", screen.width)
    yield from wrap(f"left out: {'; '.join(found.left_out)}", screen.width)


def _largest(parts: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(parts.items(), key=lambda item: -item[1])
