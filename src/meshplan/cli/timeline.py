"""``meshplan timeline``: what the ranks of a plan's pipeline do over a step."""

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import cyclopts
from cyclopts import Group, Parameter

from meshplan.cli.estimate import PlanFlags, as_cut, as_in, check_layers, plan_of, read_layout_flag
from meshplan.cli.flags import ClusterFlags, FrameworkName, StackName, WorkloadFlags
from meshplan.cli.help import HelpFormatter
from meshplan.cli.options import Json, option
from meshplan.cli.output import write_file
from meshplan.cli.progress import fault
from meshplan.cli.question import Question, asked_of_plan
from meshplan.cli.schedule import Names
from meshplan.cost.full.model import FullModel
from meshplan.errors import InputError, MeshplanError
from meshplan.plan.kinds import Schedule
from meshplan.plan.plans import Plan
from meshplan.plan.rules import Setting
from meshplan.report.pipeline_view import (
    PlanRun,
    compare_data,
    compare_text,
    pipeline_data,
    pipeline_text,
    title,
)
from meshplan.report.screen import Screen
from meshplan.report.timeline_svg import draw_svg
from meshplan.report.timeline_trace import write_trace
from meshplan.schedule.generate import SCHEDULES, make_order, usual_group
from meshplan.search.one import price_one
from meshplan.units import format_bytes

app = cyclopts.App(name="timeline", help_formatter=HelpFormatter())

DOES_NOT_FIT = 1
Layers = Annotated[
    tuple[int, ...] | None,
    option(read_layout_flag, metavar="LAYERS"),
    Parameter(
        help="Layers of each stage, 7,8,8,7 or 7,8x14,7, or Megatron's layout string; even; or auto,"
        " so that the busiest rank has least to do (default)."
    ),
]
Flag = Annotated[bool, Parameter(negative=(), show_default=False)]


@Parameter(name="*", group=Group("Plan", sort_key=3))
@dataclass(kw_only=True)
class TimelineFlags(PlanFlags):
    """A plan as in ``meshplan estimate``, but with the best layout where none is given."""

    layout: Layers = None


@app.default
def timeline(
    model: str,
    /,
    *,
    cluster: ClusterFlags | None = None,
    workload: WorkloadFlags | None = None,
    plan: TimelineFlags | None = None,
    compare: Names = None,
    svg: Annotated[Path | None, Parameter(metavar="FILE")] = None,
    trace: Annotated[Path | None, Parameter(metavar="FILE")] = None,
    framework: FrameworkName = None,
    stack: StackName = None,
    json_: Json = False,
    download: Flag = False,
) -> int:
    """Simulate a plan's pipeline and show what every rank does over a step.

    Exit code 0: the plan fits the memory; 1: it does not (shown all the same); 2: the plan or the question
    makes no sense.

    Parameters
    ----------
    model
        A preset (see `meshplan models`), a config.json or its folder, a name in the Hugging Face
        cache, or a job file (.yaml, .toml), of which model, cluster and workload are read.
    compare
        Show these schedules side by side: step, bubble, peak memory; each with its best layout.
    svg
        Write the timeline to this file as a picture.
    trace
        Write it as a Chrome trace, for Perfetto: a process a rank, arrows between stages, memory.
    download
        Fetch the config.json of an unknown model from the Hugging Face hub.
    """
    full, asked = asked_of_plan(model, cluster, workload, framework=framework, stack=stack, download=download)
    flags = as_in(asked.space.framework, plan or TimelineFlags())
    if compare:
        _refuse_with_compare(flags, {"--svg": svg, "--trace": trace})
        runs = [(name, _compared(full, asked, flags, name)) for name in compare]
        return _show_comparison(runs, as_json=json_)
    found = _run(full, asked, plan_of(flags, asked, sharding=full.stack.usual_sharding), flags)
    write_file(svg, lambda out: out.write(draw_svg(found.run, title=title(found))))
    write_file(trace, lambda out: write_trace(found.run, out, found.activations))
    if json_:
        print(json.dumps(pipeline_data(found), indent=2, allow_nan=False))
    else:
        sys.stdout.write(pipeline_text(found, Screen.of()))
    if bool(found.costs.fits[0]):
        return 0
    if not json_:
        fault(_too_much(found))
    return DOES_NOT_FIT


def _run(full: FullModel, asked: Question, plan: Plan, flags: PlanFlags) -> PlanRun:
    """Price and simulate one plan, however few its micro-batches; a layout not given is the best one."""
    setting = Setting(asked.model, asked.cluster, asked.workload)
    batches = asked.workload.gbs // (plan.dp * plan.mbs)
    name = plan.schedule.label
    make_order(
        name, ranks=plan.pp, micro_batches=batches, unfilled=True,
        vp=plan.vp if SCHEDULES[name].vp is None else None,
        group=usual_group(name, ranks=plan.pp, micro_batches=batches, vp=plan.vp),
    )  # fmt: skip
    costs = price_one(full, setting, plan, order=flags.order or asked.space.order, cut=flags.layout is None)
    check_layers(as_cut(costs, asked))
    pipelines = full.pipelines(*setting, costs.plans)
    return PlanRun(setting=setting, costs=costs, pipelines=pipelines, run=pipelines.simulation(0))


def _compared(full: FullModel, asked: Question, flags: PlanFlags, name: str) -> PlanRun | str:
    """One schedule of a comparison, or why it cannot run."""
    kind = SCHEDULES[name]
    schedule = next(s for s in Schedule if s.label == name)
    vp = kind.vp if kind.vp is not None else (flags.vp or kind.default_vp)
    if schedule in (Schedule.INTERLEAVED, Schedule.LOOPED_BFS):
        vp = max(vp, 2)
    try:
        plan = plan_of(replace(flags, schedule=schedule, vp=vp), asked, sharding=full.stack.usual_sharding)
        return _run(full, asked, plan, flags)
    except MeshplanError as error:
        return str(error)


def _refuse_with_compare(flags: PlanFlags, files: dict[str, Path | None]) -> None:
    for flag, value in files.items():
        if value is not None:
            raise InputError(f"{flag} shows one schedule; leave out --compare")
    for flag, there in (("--schedule", flags.schedule is not None), ("--layout", flags.layout is not None)):
        if there:
            raise InputError(f"--compare goes through schedules, each with its best layout; leave out {flag}")


def _show_comparison(runs: list[tuple[str, PlanRun | str]], *, as_json: bool) -> int:
    if all(isinstance(one, str) for _, one in runs):
        raise InputError("; ".join(f"{name}: {one}" for name, one in runs))
    if as_json:
        print(json.dumps(compare_data(runs), indent=2, allow_nan=False))
    else:
        sys.stdout.write(compare_text(runs, Screen.of()))
    fitting = any(isinstance(one, PlanRun) and bool(one.costs.fits[0]) for _, one in runs)
    return 0 if fitting else DOES_NOT_FIT


def _too_much(found: PlanRun) -> str:
    memory, limit = found.memory, found.costs.memory_limit_bytes
    rank = int(memory.argmax())
    where = f"pipeline rank {rank}" if len(memory) > 1 else "every GPU"
    return (
        f"the plan does not fit: {where} needs {format_bytes(float(memory[rank]))},"
        f" {format_bytes(float(memory[rank]) - limit)} more than the {format_bytes(limit)} there are"
    )
