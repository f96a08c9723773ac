"""A plan's simulated pipeline for people and as data: the timeline, every rank, schedules side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshplan.cost.costs import Costs, Floats
from meshplan.cost.full.pipeline import Pipelines
from meshplan.cost.full.stages import held_by_ranks
from meshplan.plan.kinds import Schedule
from meshplan.plan.rules import Setting
from meshplan.report.parts import bars, step_time, wrap
from meshplan.report.plan_names import plan_names
from meshplan.report.plan_rows import (
    cluster_data,
    layout_data,
    model_data,
    parts_data,
    workload_data,
    workload_words,
)
from meshplan.report.screen import Screen, printable
from meshplan.report.table import Column, table
from meshplan.report.timeline import critical_path_text, draw_timeline
from meshplan.schedule.layout_string import short_layout
from meshplan.schedule.result import Simulation
from meshplan.units import format_bytes

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanRun:
    """One plan as simulated."""

    setting: Setting
    costs: Costs
    """One row, with simulated time and memory."""
    pipelines: Pipelines
    """Of that row."""
    run: Simulation
    """The pipeline and the reduction of gradients; parameters gathered, optimizer and the like come after."""

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers of every stage."""
        return self.pipelines.layers_of(0)

    @property
    def activations(self) -> Floats:
        """(stages,): bytes that one micro-batch keeps."""
        return np.asarray(self.pipelines.activations[0, : self.run.order.stages])

    @property
    def alive(self) -> Floats:
        """(ranks,): bytes of activations at each rank's peak."""
        return np.asarray(self.run.memory(self.activations).peak)

    @property
    def memory(self) -> Floats:
        """(ranks,): bytes of each rank at its peak."""
        return self.pipelines.rank_memory(0, self.alive)


def title(found: PlanRun) -> str:
    """One sentence: the schedule, and how long its pipeline takes."""
    run, order = found.run, found.run.order
    stages = f", {order.stages} stages" if order.stages != order.ranks else ""
    return (
        f"{order.name}: {order.ranks} ranks{stages}, {order.micro_batches} micro-batches; "
        f"pipeline {step_time(run.step)}, {run.bubble:.1%} idle"
    )


def pipeline_text(found: PlanRun, screen: Screen) -> str:
    """Everything ``meshplan timeline`` prints for one plan."""
    costs, setting = found.costs, found.setting
    name = plan_names(costs.plans, costs.plans.order)[0]
    cluster, work = setting.cluster, setting.workload
    ask = workload_words(work)
    lines = [
        screen.bold(printable(f"{setting.model.name} on {cluster.gpus:,}× {cluster.gpu.title} · {ask}")),
        *wrap(" ".join(name.split()), screen.width),
        *wrap(f"layers of each stage: {short_layout(found.layers)}", screen.width),
        "",
        draw_timeline(found.run, screen, title=title(found)),
        "",
        *_ranks(found, screen),
        "",
        critical_path_text(found.run, screen),
        "",
        f"one step: {step_time(float(costs.step_s[0]))}",
        *bars(
            {part: float(values[0]) for part, values in costs.time.items()},
            lambda part: step_time(part, float(costs.step_s[0])),
        ),
    ]
    return screen.text("\n".join(lines)) + "\n"


def _ranks(found: PlanRun, screen: Screen) -> list[str]:
    run, limit = found.run, found.costs.memory_limit_bytes
    ranks = range(run.order.ranks)
    schedule = Schedule(int(found.pipelines.plans.schedule[0]))
    held = held_by_ranks(found.layers, run.order.ranks, schedule)
    both = schedule is Schedule.DUALPIPE
    layers = [" + ".join(map(str, own)) if both else str(sum(own)) for own in held]
    busy, idle, wait = run.busy, run.idle, np.maximum(run.wait, 0.0)
    peak, alive, memory = run.peak_in_flight, found.alive, found.memory
    columns = [
        Column(title="rank", cells=[str(r) for r in ranks], right=True),
        Column(title="layers", cells=layers, right=True),
        Column(title="busy", cells=[step_time(busy[r], run.step) for r in ranks], right=True),
        Column(title="idle", cells=[f"{idle[r] / run.step:.1%}" for r in ranks], right=True),
        Column(
            title="waits inside",
            cells=[step_time(wait[r], run.step) for r in ranks],
            right=True,
            priority=2,
        ),
        Column(title="in flight", cells=[str(peak[r]) for r in ranks], right=True),
        Column(title="activations", cells=[format_bytes(alive[r]) for r in ranks], right=True, priority=1),
        Column(
            title="memory",
            cells=[f"{format_bytes(memory[r])}{'!' if memory[r] > limit else ''}" for r in ranks],
            right=True,
        ),
    ]
    return list(table(columns, screen.width))


def _home(found: PlanRun) -> list[int]:
    return [int(rank) for rank in found.pipelines.home[0, : found.run.order.stages]]


def pipeline_data(found: PlanRun) -> dict[str, Any]:
    """The same as data: SI units."""
    run, costs, pipes = found.run, found.costs, found.pipelines
    busy, idle, wait, peak = run.busy, run.idle, run.wait, run.peak_in_flight
    alive, memory, stages = found.alive, found.memory, range(run.order.stages)
    return {
        "schema_version": SCHEMA_VERSION,
        "model": model_data(found.setting.model),
        "cluster": cluster_data(found.setting.cluster, costs.memory_limit_bytes),
        "workload": workload_data(found.setting.workload),
        "order": "-".join(costs.plans.order),
        "plan": layout_data(costs.plans, 0, found.setting.workload) | {"layout": list(found.layers)},
        "step_s": float(costs.step_s[0]),
        "mfu": float(costs.mfu[0]),
        "time": parts_data(costs.time, 0),
        "memory_bytes": float(costs.memory_bytes[0]),
        "memory": parts_data(costs.memory, 0),
        "fits": bool(costs.fits[0]),
        "pipeline_s": run.step,
        "bubble": run.bubble,
        "p2p_s": float(pipes.hop[0]),
        "ranks": [
            {
                "rank": r,
                "busy_s": float(busy[r]),
                "idle_s": float(idle[r]),
                "wait_s": max(float(wait[r]), 0.0),
                "gradient_reduction_s": float(run.tail[r]),
                "peak_in_flight": int(peak[r]),
                "activation_bytes": float(alive[r]),
                "memory_bytes": float(memory[r]),
            }
            for r in range(run.order.ranks)
        ],
        "stages": [
            {
                "stage": s,
                "rank": rank,
                "layers": found.layers[s],
                "forward_s": float(pipes.forward[0, s]),
                "backward_input_s": float(pipes.backward_input[0, s]),
                "weight_s": float(pipes.weight[0, s]),
                "activation_bytes": float(pipes.activations[0, s]),
            }
            for s, rank in zip(stages, _home(found), strict=True)
        ],
        "critical_path": [moment._asdict() for moment in run.critical_path()],
    }


def compare_text(found: Sequence[tuple[str, PlanRun | str]], screen: Screen) -> str:
    """Schedules side by side; those that cannot run, and why, below."""
    runs = [(name, one) for name, one in found if isinstance(one, PlanRun)]
    lines: list[str] = []
    if runs:
        best = min(float(one.costs.step_s[0]) for _, one in runs)
        lines += table(_compared(runs, best), screen.width)
        if not all(one.costs.fits[0] for _, one in runs):
            lines.append(f"!: more than the {format_bytes(runs[0][1].costs.memory_limit_bytes)} there are")
    for name, one in found:
        if isinstance(one, str):
            lines += wrap(f"{name}: {one}", screen.width)
    return screen.text("\n".join(lines)) + "\n"


def _compared(runs: Sequence[tuple[str, PlanRun]], best: float) -> list[Column]:
    steps = [float(one.costs.step_s[0]) for _, one in runs]
    memory = [float(one.costs.memory_bytes[0]) for _, one in runs]
    return [
        Column(title="schedule", cells=[name for name, _ in runs]),
        Column(title="step", cells=[step_time(step, max(steps)) for step in steps], right=True),
        Column(title="against best", cells=[f"{step / best - 1:+.1%}" for step in steps], right=True),
        Column(title="bubble", cells=[f"{one.run.bubble:.1%}" for _, one in runs], right=True),
        Column(title="MFU", cells=[f"{float(one.costs.mfu[0]):.1%}" for _, one in runs], right=True),
        Column(
            title="peak memory",
            cells=[
                format_bytes(m) + ("" if one.costs.fits[0] else "!")
                for m, (_, one) in zip(memory, runs, strict=True)
            ],
            right=True,
        ),
        Column(
            title="activations",
            cells=[format_bytes(float(one.alive.max())) for _, one in runs],
            right=True,
            priority=1,
        ),
        Column(title="layers of each stage", cells=[_fitting(one.layers) for _, one in runs], priority=2),
    ]


def _fitting(layers: tuple[int, ...], *, longest: int = 30) -> str:
    short = short_layout(layers)
    return short if len(short) <= longest else "uneven"


def compare_data(found: Sequence[tuple[str, PlanRun | str]]) -> dict[str, Any]:
    """The same as data."""
    rows: list[dict[str, Any]] = []
    for name, one in found:
        if isinstance(one, str):
            rows.append({"schedule": name, "error": one})
            continue
        costs = one.costs
        rows.append(
            {
                "schedule": name,
                "step_s": float(costs.step_s[0]),
                "mfu": float(costs.mfu[0]),
                "pipeline_s": one.run.step,
                "bubble": one.run.bubble,
                "memory_bytes": float(costs.memory_bytes[0]),
                "fits": bool(costs.fits[0]),
                "activation_bytes": float(one.alive.max()),
                "peak_in_flight": int(one.run.peak_in_flight.max()),
                "vp": int(costs.plans.vp[0]),
                "layout": list(one.layers),
                "recomputed_layers": int(costs.plans.recompute_layers[0]),
            }
        )
    return {"schema_version": SCHEMA_VERSION, "schedules": rows}
