"""``meshplan estimate``: one plan in full."""

import json
import re
import sys
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import cyclopts
from cyclopts import Group, Parameter

from meshplan.cli.flags import ClusterFlags, FrameworkName, Order, StackName, WorkloadFlags
from meshplan.cli.help import HelpFormatter
from meshplan.cli.options import (
    Json,
    OptionalCount,
    option,
    read_degree,
    read_kind,
    read_recompute,
)
from meshplan.cli.progress import fault
from meshplan.cli.question import Question, asked_of_plan, check_recompute
from meshplan.cli.run_flags import RunFlags, need_tokens
from meshplan.cost.costs import Costs
from meshplan.cost.full.explain import Explanation
from meshplan.errors import InputError, shown
from meshplan.plan.frameworks import framework_defaults
from meshplan.plan.kinds import CpKind, Recompute, Schedule, Sharding
from meshplan.plan.plans import Plan
from meshplan.plan.rules import LAYERS_DIVIDE_PP, LAYERS_DIVIDE_VP, RULES, Setting, broken, workload_rules
from meshplan.report.estimate_view import Detail, estimate_data, estimate_text
from meshplan.report.screen import Screen
from meshplan.schedule.layout import rank_of_stage
from meshplan.schedule.layout_string import even_split, read_layout
from meshplan.search.fidelity import Fidelity
from meshplan.search.one import explain_one
from meshplan.units import format_bytes

app = cyclopts.App(name="estimate", help_formatter=HelpFormatter())

DOES_NOT_FIT = 1
MOST_STAGES = 100_000
_RUN = re.compile(r"(\d{1,6})(?:\s*[x×*]\s*(\d{1,6}))?", re.ASCII)
V_KINDS = (Schedule.ZB_V, Schedule.V_HALF, Schedule.V_MIN, Schedule.DUALPIPE_V)
CHECKED = tuple(rule for rule in RULES if rule not in (LAYERS_DIVIDE_PP, LAYERS_DIVIDE_VP))
"""Layers that do not divide get an uneven layout here."""


EVEN: tuple[int, ...] = ()
"""``--layout even``: layers as even as they divide, once the number of stages is known."""


def read_layout_flag(text: str, what: str) -> tuple[int, ...] | None:
    """``even`` or ``auto``, as `meshplan plan` names them, or the layers of each stage."""
    words = {"even": EVEN, "auto": None}
    return words[text.lower()] if text.lower() in words else read_layers(text, what, " even, auto,")


def read_layers(text: str, what: str, also: str = "") -> tuple[int, ...]:
    """Layers of each stage in model order: ``7,8,8,7``, ``7,8x14,7`` as plans are shown, or Megatron's
    layout string."""
    if "|" in text or "L" in text:
        return read_layout(text).layers
    found: list[int] = []
    for part in text.split(","):
        match = _RUN.fullmatch(part.strip())
        if match is None:
            raise InputError(
                f"{what} {shown(text)} is none of{also} layers a stage like 7,8,8,7 or 7,8x14,7,"
                " and a Megatron layout string"
            )
        found += [int(match[1])] * int(match[2] or 1)
        if len(found) > MOST_STAGES:
            raise InputError(f"{what} has more than {MOST_STAGES:,} stages")
    return tuple(found)


Degree = Annotated[OptionalCount, option(read_degree)]


@Parameter(name="*", group=Group("Plan", sort_key=3))
@dataclass(kw_only=True)
class PlanFlags:
    """One way to lay the run out; what is not given is 1, or as the framework does it."""

    tp: Annotated[Degree, Parameter(help="Tensor parallel.")] = None
    sp: Annotated[
        bool, Parameter(negative="--no-sp", help="Sequence parallel where tp is above 1; --no-sp without.")
    ] = True
    cp: Annotated[Degree, Parameter(help="Context parallel.")] = None
    cp_kind: Annotated[
        CpKind | None,
        option(read_kind(CpKind), metavar="NAME"),
        Parameter(help=f"Exchange of context parallel: {', '.join(k.label for k in CpKind)}."),
    ] = None
    pp: Annotated[Degree, Parameter(help="Pipeline parallel.")] = None
    vp: Annotated[Degree, Parameter(help="Virtual stages of a pipeline rank.")] = None
    schedule: Annotated[
        Schedule | None,
        option(read_kind(Schedule), metavar="NAME"),
        Parameter(
            help="Pipeline schedule (default: 1f1b, interleaved with --vp):"
            f" {', '.join(s.label for s in Schedule)}."
        ),
    ] = None
    layout: Annotated[
        tuple[int, ...] | None,
        option(read_layout_flag, metavar="LAYERS"),
        Parameter(
            help="Layers of each stage, 7,8,8,7 or 7,8x14,7, or Megatron's layout string; even; or auto,"
            " so that the busiest rank has least to do, as `meshplan plan` cuts them (default)."
        ),
    ] = None
    dp: Annotated[Degree, Parameter(help="Data parallel (default: the GPUs the others leave).")] = None
    sharding: Annotated[
        Sharding | None,
        option(read_kind(Sharding), metavar="NAME"),
        Parameter(help="Of data parallel: ddp, zero1, zero2, zero3 (default: zero1, zero3 in torchtitan)."),
    ] = None
    replicas: Annotated[Degree, Parameter(help="Copies of the shards over data parallel (HSDP).")] = None
    ep: Annotated[Degree, Parameter(help="Expert parallel.")] = None
    etp: Annotated[Degree, Parameter(help="Tensor parallel of the experts.")] = None
    mbs: Annotated[Degree, Parameter(help="Sequences in a micro-batch.")] = None
    recompute: Annotated[
        tuple[int, Recompute],
        option(read_recompute, metavar="HOW"),
        Parameter(
            help="none (default), full, auto (as few layers as fit), layers a stage, modules joined by +"
            " (core-attn, norm, mlp, …; operators is torchtitan's selective).",
            show_default=False,
        ),
    ] = (0, Recompute.NONE)
    order: Annotated[Order, Parameter(help="Dimensions from inside out, such as tp-cp-ep-dp-pp.")] = None


@app.default
def estimate(
    model: str,
    /,
    *,
    cluster: ClusterFlags | None = None,
    workload: WorkloadFlags | None = None,
    plan: PlanFlags | None = None,
    run: RunFlags | None = None,
    framework: FrameworkName = None,
    stack: StackName = None,
    fidelity: Annotated[Fidelity, Parameter(metavar="NAME")] = "simulate",
    detail: Annotated[Literal["summary", "memory", "time", "all"], Parameter(metavar="NAME")] = "summary",
    json_: Json = False,
    download: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Price one plan with the full cost model: time and memory by part, and what the numbers rest on.

    Exit code 0: the plan fits the memory; 1: it does not; 2: the plan or the question makes no sense.

    Parameters
    ----------
    model
        A preset (see `meshplan models`), a config.json or its folder, a name in the Hugging Face
        cache, or a job file (.yaml, .toml), of which model, cluster and workload are read.
    fidelity
        simulate the pipeline exactly, as `meshplan plan` does for its best plans, or estimate it by
        the closed form.
    detail
        memory or time alone, both in short, or all with the source of every number.
    download
        Fetch the config.json of an unknown model from the Hugging Face hub.
    """
    need_tokens(run or RunFlags())
    full, asked = asked_of_plan(model, cluster, workload, framework=framework, stack=stack, download=download)
    flags = as_in(asked.space.framework, plan or PlanFlags())
    chosen = plan_of(flags, asked, sharding=full.stack.usual_sharding)
    found = explain_one(
        full, Setting(asked.model, asked.cluster, asked.workload), chosen,
        order=flags.order or asked.space.order, fidelity=fidelity, cut=flags.layout is None,
    )  # fmt: skip
    check_layers(as_cut(found.costs, asked))
    text, more = _whole_run(found, asked, run)
    if json_:
        data = estimate_data(found, asked.model, asked.cluster, asked.workload) | more
        print(json.dumps(data, indent=2, allow_nan=False))
    else:
        view: Detail = detail
        screen = Screen.of()
        sys.stdout.write(estimate_text(found, asked.model, asked.cluster, asked.workload, screen, view))
        sys.stdout.write(text)
    if bool(found.costs.fits[0]):
        return 0
    if not json_:
        fault(too_much(found))
    return DOES_NOT_FIT


def _whole_run(found: Explanation, asked: Question, run: RunFlags | None) -> tuple[str, dict[str, Any]]:
    """What ``--tokens`` adds: text, and a key of the JSON."""
    if run is None or run.tokens is None:
        return "", {}
    from meshplan.cli.studies import Studies, run_of
    from meshplan.report.run_view import run_data, run_lines

    screen = Screen.of()
    whole = run_of(asked.model, asked.cluster, asked.workload, found.costs, run)
    return Studies(sections=[run_lines(whole, screen)]).text(screen), {"run": run_data(whole)}


def as_in(framework: str, flags: PlanFlags) -> PlanFlags:
    """The flags with what they leave open as a framework does it; for ``any`` as they are."""
    if framework == "any":
        return flags
    usual = framework_defaults(framework, pp=flags.pp or 1)
    return replace(
        flags,
        sp=flags.sp and usual["sp"],
        cp_kind=flags.cp_kind or usual["cp_kind"],
        sharding=usual["sharding"] if flags.sharding is None else flags.sharding,
    )


def plan_of(flags: PlanFlags, asked: Question, *, sharding: Sharding) -> Plan:
    """The plan the flags describe, checked; ``sharding`` where they name none. Raises ``InputError`` with the
    nearest values that work."""
    tp, cp, pp = flags.tp or 1, flags.cp or 1, flags.pp or 1
    schedule = flags.schedule
    vp = flags.vp or (2 if schedule in V_KINDS else 1)
    if schedule is None:
        schedule = Schedule.INTERLEAVED if vp > 1 else Schedule.ONE_F_ONE_B
    layers, modules = flags.recompute
    plan = Plan(
        tp=tp,
        sp=flags.sp,
        cp=cp,
        cp_kind=flags.cp_kind or CpKind.RING,
        pp=pp,
        vp=vp,
        schedule=schedule,
        layout=_layout(flags.layout, asked, pp, vp),
        dp=flags.dp or max(asked.cluster.gpus // (tp * cp * pp), 1),
        sharding=sharding if flags.sharding is None else flags.sharding,
        replicas=flags.replicas or 1,
        ep=flags.ep or 1,
        etp=flags.etp or 1,
        mbs=flags.mbs or 1,
        recompute_layers=layers,
        recompute_modules=modules,
    )
    if flags.layout is not None:
        check_layers(plan)
    setting = Setting(asked.model, asked.cluster, asked.workload)
    wrong = broken(setting, plan, (*CHECKED, *workload_rules(asked.space.framework)))
    if wrong:
        more = f" (and {len(wrong) - 1} more: {', '.join(r.id for r in wrong[1:])})" if len(wrong) > 1 else ""
        raise InputError(wrong[0].explain(setting, plan) + more)
    if plan.dp * plan.cp % plan.replicas:
        raise InputError(
            f"replicas {plan.replicas} does not divide dp {plan.dp} × cp {plan.cp} = {plan.dp * plan.cp}"
        )
    return plan


def as_cut(costs: Costs, asked: Question) -> Plan:
    """The first plan with the layers to recompute as asked for, and its layers as they were cut."""
    plan = costs.plans[0]
    return (
        plan
        if plan.layout is not None
        else replace(plan, layout=even_split(len(asked.model.layers), plan.pp * plan.vp))
    )


def check_layers(plan: Plan) -> None:
    """Raises ``InputError`` where every rank of a plan with a layout is to recompute more layers than it
    holds; where the layers are cut by the cost model, that is known of the plan as priced."""
    assert plan.layout is not None
    home = rank_of_stage(len(plan.layout), plan.pp, v_shaped=plan.schedule in V_KINDS)
    held = max(sum(n for n, r in zip(plan.layout, home, strict=True) if r == rank) for rank in range(plan.pp))
    where = "the model" if plan.pp == 1 else f"the fullest of pp {plan.pp} ranks"
    check_recompute(plan.recompute_layers, held, where)


def _layout(layout: tuple[int, ...] | None, asked: Question, pp: int, vp: int) -> tuple[int, ...] | None:
    """The layers of each stage; ``None`` where they divide evenly."""
    layers, stages = len(asked.model.layers), pp * vp
    if layout is None:
        if layers < stages - 2:  # the first and the last may have embedding and head alone
            raise InputError(
                f"{layers} layers are fewer than pp {pp} × vp {vp} = {stages} stages;"
                f" pp × vp of {layers} or fewer would do"
            )
        return None if layers % stages == 0 else even_split(layers, stages)
    if layout == EVEN:
        return even_split(layers, stages)
    if len(layout) != stages:
        raise InputError(f"--layout has {len(layout)} stages, and pp {pp} × vp {vp} is {stages}")
    if sum(layout) != layers:
        raise InputError(f"--layout has {sum(layout)} layers in all, and {asked.model.name} has {layers}")
    return layout


def too_much(found: Explanation) -> str:
    """By how much the plan exceeds the memory, where, and the two largest parts."""
    costs = found.costs
    need, limit = float(costs.memory_bytes[0]), costs.memory_limit_bytes
    fullest = max(found.stages, key=lambda stage: stage.memory_bytes)
    largest = sorted(costs.memory.items(), key=lambda item: -float(item[1][0]))[:2]
    parts = " and ".join(f"{name} {format_bytes(float(v[0]))}" for name, v in largest)
    where = f"pipeline rank {fullest.first_rank}" if len(found.stages) > 1 else "every GPU"
    return (
        f"the plan does not fit: {where} needs {format_bytes(need)} ({parts}),"
        f" {format_bytes(need - limit)} more than the {format_bytes(limit)} there are"
    )
