"""``meshplan check``: the rules a plan breaks, and near plans that break none."""

import json
import sys
from dataclasses import replace
from typing import Annotated

import cyclopts
from cyclopts import Parameter

from meshplan.cli.estimate import EVEN, V_KINDS, PlanFlags
from meshplan.cli.flags import ClusterFlags, FrameworkName, StackName, WorkloadFlags
from meshplan.cli.help import HelpFormatter
from meshplan.cli.options import Json
from meshplan.cli.question import Question, asked_of_plan, check_recompute
from meshplan.cost.full.model import FullModel
from meshplan.errors import InputError
from meshplan.export.megatron_plan import pipeline_options
from meshplan.model.layers import Moe
from meshplan.plan.frameworks import framework_defaults
from meshplan.plan.kinds import Schedule
from meshplan.plan.plans import Plan
from meshplan.plan.rules import LAYERS_DIVIDE_PP, LAYERS_DIVIDE_VP, Rule, Setting, rule_named
from meshplan.report.rules_view import check_data, check_text
from meshplan.report.screen import Screen
from meshplan.schedule.layout_string import even_split
from meshplan.search.check import Check, check_plan
from meshplan.search.one import price_one

app = cyclopts.App(name="check", help_formatter=HelpFormatter())

INVALID = 1
UNEVEN = ("any", "megatron", "megatron-bridge", "torchtitan", "pytorch")
"""Frameworks that take stages of unequal layers when told; for the others layers must divide."""
EVEN_RULES = (LAYERS_DIVIDE_PP, LAYERS_DIVIDE_VP)
BRIDGE = {
    "--decoder-first-pipeline-num-layers": "num_layers_in_first_pipeline_stage",
    "--decoder-last-pipeline-num-layers": "num_layers_in_last_pipeline_stage",
    "--pipeline-model-parallel-layout": "pipeline_model_parallel_layout",
}
"""Megatron's flags as fields of Megatron Bridge."""


@app.default
def check(
    model: str,
    /,
    *,
    cluster: ClusterFlags | None = None,
    workload: WorkloadFlags | None = None,
    plan: PlanFlags | None = None,
    framework: FrameworkName = None,
    stack: StackName = None,
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
    download
        Fetch the config.json of an unknown model from the Hugging Face hub.
    """
    full, asked = asked_of_plan(
        model, cluster, workload, framework=framework, stack=stack, download=download, judged=False
    )
    flags, whose = plan or PlanFlags(), asked.space.framework
    found = _checked(plan_from(flags, asked, whose), asked, full, flags.order or asked.space.order)
    notes = _notes(flags, found.plan, asked, whose)
    if json_:
        print(json.dumps(check_data(found, notes), indent=2, allow_nan=False))
    else:
        sys.stdout.write(check_text(found, Screen.of(), notes))
    return 0 if found.valid else INVALID


def _checked(plan: Plan, asked: Question, full: FullModel, order: tuple[str, ...]) -> Check:
    """The plan against the rules; layers that do not divide are cut as ``meshplan plan`` cuts them, where
    no layout was asked for and the framework can be told one."""
    setting, framework = Setting(asked.model, asked.cluster, asked.workload), asked.space.framework
    layers, stages = len(asked.model.layers), plan.pp * plan.vp
    without: tuple[Rule, ...] = ()
    if plan.layout is None and layers % stages and stages <= layers + 2 and framework in UNEVEN:
        without = (*EVEN_RULES, *((rule_named("stages-have-layers"),) if stages > layers else ()))
    found = check_plan(*setting, plan, framework=framework, order=order, without=without)
    if not without or not found.valid:
        return found
    try:
        plans = price_one(full, setting, plan, order=order, cut=True).plans
        layout = plans.layouts[int(plans.layout[0])]
    except InputError:  # valid as arithmetic goes, but nothing that can be priced
        layout = even_split(layers, stages)
    return check_plan(*setting, replace(plan, layout=tuple(layout)), framework=framework, order=order)


def _layout_note(plan: Plan, asked: Question, framework: str) -> str:
    """How layers that do not divide were cut, and what the framework must be told."""
    note = f"{len(asked.model.layers)} layers do not divide over {plan.pp * plan.vp} stages, and were cut as"
    note += f" `meshplan plan` does: --layout {','.join(map(str, plan.layout or ()))}"
    if framework.startswith("megatron"):
        options = pipeline_options(plan, len(asked.model.layers), len(asked.model.mtp))
        words = [" ".join((BRIDGE[o[0]] if framework != "megatron" else o[0], *o[1:])) for o in options]
        note += f"; Megatron by itself refuses them (old versions lost layers): give it {' '.join(words)}"
    elif framework == "torchtitan":
        note += "; give torchtitan module_fqns_per_model_part, as `meshplan export --to torchtitan` writes it"
    return note


def plan_from(flags: PlanFlags, asked: Question, framework: str) -> Plan:
    """The plan that the flags describe, valid or not; what they leave out is as the framework does it."""
    tp, cp, pp = flags.tp or 1, flags.cp or 1, flags.pp or 1
    usual = framework_defaults(framework, pp=pp)
    schedule = flags.schedule
    vp = flags.vp or (2 if schedule in V_KINDS else 1)
    if schedule is None:
        schedule = Schedule.INTERLEAVED if vp > 1 else Schedule.ONE_F_ONE_B
    layers, modules = flags.recompute
    most = -(-len(asked.model.layers) // pp) + (vp if pp > 1 else 0)  # as the cost model may cut them
    check_recompute(layers, most, "the model" if pp == 1 else f"one of pp {pp} ranks")
    even = even_split(len(asked.model.layers), pp * vp) if flags.layout == EVEN else flags.layout
    return Plan(
        tp=tp,
        sp=flags.sp and usual["sp"],
        cp=cp,
        cp_kind=usual["cp_kind"] if flags.cp_kind is None else flags.cp_kind,
        pp=pp,
        vp=vp,
        schedule=schedule,
        layout=even,
        dp=flags.dp or max(asked.cluster.gpus // (tp * cp * pp), 1),
        sharding=usual["sharding"] if flags.sharding is None else flags.sharding,
        replicas=flags.replicas or 1,
        ep=flags.ep or 1,
        etp=flags.etp or 1,
        mbs=flags.mbs or 1,
        recompute_layers=layers,
        recompute_modules=modules,
    )


def _notes(flags: PlanFlags, plan: Plan, asked: Question, framework: str) -> list[str]:
    notes = []
    if flags.layout is None and plan.layout is not None:
        notes.append(_layout_note(plan, asked, framework))
    experts = any(isinstance(layer.mlp, Moe) for layer in asked.model.layers)
    if framework in ("megatron", "megatron-bridge") and experts and plan.tp > 1 and flags.etp is None:
        notes.append(
            f"etp is 1 here; Megatron's own default is tp ({plan.tp}), so write"
            " --expert-tensor-parallel-size 1 there"
        )
    if plan.pp > 1 and plan.schedule in V_KINDS:
        notes.append(
            f"{plan.schedule.label} places stages on a V: rank r holds stages r and {2 * plan.pp - 1} - r"
        )
    return notes
