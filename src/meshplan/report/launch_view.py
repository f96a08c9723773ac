"""Launch files for people: what was written, what the target could not say, and what that costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshplan.cost.costs import Costs
from meshplan.export.launch import Job, Launch, Note
from meshplan.report.parts import step_time, wrap
from meshplan.report.plan_names import plan_names
from meshplan.report.plan_rows import cluster_data, model_data, plan_data, workload_data
from meshplan.report.screen import Screen
from meshplan.units import format_bytes

SCHEMA_VERSION = 1


def export_text(
    job: Job,
    launch: Launch,
    priced: Costs,
    costs: Sequence[float | None],
    folder: str,
    stack: str,
    screen: Screen,
) -> str:
    """What ``meshplan export`` prints: the plan, its price, the notes, the files, how to start."""
    cluster = job.setting.cluster
    name = plan_names(priced.plans, launch.order)[0]
    fits = "" if bool(priced.fits[0]) else " (more than there is)"
    need, limit = format_bytes(float(priced.memory_bytes[0])), format_bytes(priced.memory_limit_bytes)
    lines = [
        screen.bold(f"{job.model.name} on {cluster.gpus:,}× {cluster.gpu.title} for {launch.version}"),
        name,
        f"step {step_time(float(priced.step_s[0]))} · MFU {float(priced.mfu[0]):.1%} ·"
        f" {need} of {limit}{fits} · stack {stack}",
        "",
    ]
    if launch.notes:
        lines.append(screen.bold(f"what {launch.target} cannot express, and what is written instead"))
        for note, cost in zip(launch.notes, costs, strict=True):
            lines += indented(_note(note, cost), screen.width)
        lines.append("")
    lines += [f"  {folder.rstrip('/')}/{file}" for file in launch.files]
    # A command to copy is not broken over lines.
    return screen.text("\n".join([*lines, "", ""])) + f"start: {start_command(launch, folder)}\n"


def start_command(launch: Launch, folder: str) -> str:
    """How to start what was written."""
    import shlex

    place = shlex.quote(folder)
    match launch.main:
        case "job.sbatch":
            return f"cd {place} && sbatch job.sbatch"
        case "jobset.yaml":
            return f"kubectl apply -f {place}/jobset.yaml"
        case "sky.yaml":
            return f"cd {place} && sky launch sky.yaml"
    return f"bash {place}/{launch.main}"


def indented(text: str, width: int) -> list[str]:
    """A paragraph two spaces in, its later lines four."""
    return [f"  {line}" for line in wrap(text, width - 2)]


def _note(note: Note, cost: float | None) -> str:
    price = (
        "" if cost is None else f"; the step becomes {abs(cost):.1%} {'longer' if cost >= 0 else 'shorter'}"
    )
    return f"{note.part}: {note.asked} → {note.written}: {note.why}{price}"


def export_data(
    job: Job, launch: Launch, priced: Costs, costs: Sequence[float | None], folder: str, stack: str
) -> dict[str, Any]:
    """The same as plain data."""
    return {
        "schema_version": SCHEMA_VERSION,
        "target": launch.target,
        "version": launch.version,
        "stack": stack,
        "model": model_data(job.model),
        "cluster": cluster_data(job.setting.cluster, priced.memory_limit_bytes),
        "workload": workload_data(job.setting.workload),
        "plan": plan_data(priced, 0, job.setting.workload, job.setting.cluster.gpus),
        "order": "-".join(launch.order),
        "notes": [
            {
                "part": note.part,
                "asked": note.asked,
                "written": note.written,
                "why": note.why,
                "step_change": cost,
            }
            for note, cost in zip(launch.notes, costs, strict=True)
        ],
        "folder": folder,
        "files": list(launch.files),
        "main": launch.main,
        "start": start_command(launch, folder),
    }
