"""``meshplan check``: the rules a plan breaks, and near plans that break none."""

import json
import sys
from typing import Annotated

import cyclopts
from cyclopts import Parameter

from meshplan.cli.estimate import V_KINDS, PlanFlags
from meshplan.cli.flags import ClusterFlags, SpaceFlags, WorkloadFlags
from meshplan.cli.help import HelpFormatter
from meshplan.cli.options import Framework, Json
from meshplan.cli.question import Question, check_recompute, question
from meshplan.model.layers import Moe
from meshplan.plan.frameworks import framework_defaults
from meshplan.plan.kinds import Schedule, Sharding
from meshplan.plan.plans import DEFAULT_ORDER, Plan
from meshplan.report.rules_view import check_data, check_text
from meshplan.report.screen import Screen
from meshplan.search.check import check_plan

app = cyclopts.App(name="check", help_formatter=HelpFormatter())

INVALID = 1


@app.default
def check(
    model: str,
    /,
    *,
    cluster: ClusterFlags | None = None,
    workload: WorkloadFlags | None = None,
    plan: PlanFlags | None = None,
    framework: Annotated[Framework, Parameter(metavar="NAME")] = "any",
    json_: Json = False,
    download: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """List every rule that a plan breaks, warnings apart, with near plans that break none.

    Exit code 0: valid, perhaps with warnings; 1: a rule is broken; 2: the question makes no sense.

    Parameters
    ----------
    model
        A preset (see `meshplan models`), a config.json or its folder, a name in the Hugging Face
        cache, or a job file (.yaml, .toml), of which model, cluster and workload are read.
    framework
        Whose rules: any (arithmetic only), megatron, megatron-bridge, torchtitan, pytorch, deepspeed,
        accelerate, mindspeed or paddle. What is not said of the plan is as this framework does it.
    download
        Fetch the config.json of an unknown model from the Hugging Face hub.
    """
    asked = question(
        model, cluster or ClusterFlags(), workload or WorkloadFlags(), SpaceFlags(), download=download
    )
    flags = plan or PlanFlags()
    chosen = plan_from(flags, asked, framework)
    found = check_plan(
        asked.model,
        asked.cluster,
        asked.workload,
        chosen,
        framework=framework,
        order=flags.order or DEFAULT_ORDER,
    )
    notes = _notes(flags, chosen, asked, framework)
    if json_:
        print(json.dumps(check_data(found, notes), indent=2, allow_nan=False))
    else:
        sys.stdout.write(check_text(found, Screen.of(), notes))
    return 0 if found.valid else INVALID


def plan_from(flags: PlanFlags, asked: Question, framework: str) -> Plan:
    """The plan that the flags describe, valid or not; what they leave out is as the framework does it."""
    tp, cp, pp = flags.tp or 1, flags.cp or 1, flags.pp or 1
    usual = framework_defaults(framework, pp=pp)
    schedule = flags.schedule
    vp = flags.vp or (2 if schedule in V_KINDS else 1)
    if schedule is None:
        schedule = Schedule.INTERLEAVED if vp > 1 else Schedule.ONE_F_ONE_B
    layers, modules = flags.recompute
    check_recompute(
        layers, -(-len(asked.model.layers) // pp), "the model" if pp == 1 else f"one of pp {pp} ranks"
    )
    return Plan(
        tp=tp,
        sp=flags.sp and usual["sp"],
        cp=cp,
        cp_kind=usual["cp_kind"] if flags.cp_kind is None else flags.cp_kind,
        pp=pp,
        vp=vp,
        schedule=schedule,
        layout=flags.layout,
        dp=flags.dp or max(asked.cluster.gpus // (tp * cp * pp), 1),
        sharding=usual["sharding"] if flags.sharding is None else flags.sharding,
        replicas=flags.replicas or 1,
        ep=flags.ep or 1,
        etp=flags.etp or 1,
        mbs=flags.mbs or 1,
        recompute_layers=layers,
        recompute_modules=modules,
    )


def _offload_notes(plan: Plan, framework: str) -> list[str]:
    """Where a framework cannot hold the optimizer of this plan in host memory."""
    if framework in ("megatron", "megatron-bridge") and plan.sharding is not Sharding.ZERO1:
        return [f"Megatron offloads the optimizer with --sharding zero1 only, not {plan.sharding.label}"]
    if framework == "deepspeed" and plan.sharding is Sharding.DDP:
        return ["DeepSpeed offloads the optimizer of zero1, zero2 and zero3 only, not of ddp"]
    if framework in ("torchtitan", "accelerate", "pytorch"):
        return [f"{framework} offloads the weights together with the optimizer's states, or nothing"]
    return []


def _notes(flags: PlanFlags, plan: Plan, asked: Question, framework: str) -> list[str]:
    notes = []
    experts = any(isinstance(layer.mlp, Moe) for layer in asked.model.layers)
    if framework in ("megatron", "megatron-bridge") and experts and plan.tp > 1 and flags.etp is None:
        notes.append(
            f"etp is 1 here; Megatron's own default is tp ({plan.tp}), so write"
            " --expert-tensor-parallel-size 1 there"
        )
    if asked.workload.offload != "none":
        notes += _offload_notes(plan, framework)
    if plan.pp > 1 and plan.schedule in V_KINDS:
        notes.append(
            f"{plan.schedule.label} places stages on a V: rank r holds stages r and {2 * plan.pp - 1} - r"
        )
    return notes
