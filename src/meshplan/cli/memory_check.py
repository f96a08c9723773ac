"""``meshplan memory-check``: the cost model's memory beside one rank's real module."""

import json
import sys
from typing import Annotated, Any

import cyclopts
from cyclopts import Parameter

from meshplan.cli.estimate import PlanFlags, plan_of
from meshplan.cli.flags import WorkloadFlags, no_habits
from meshplan.cli.help import HelpFormatter
from meshplan.cli.options import Json, OptionalCount
from meshplan.cli.plan_text import read_plan
from meshplan.cli.question import Question
from meshplan.cluster.presets import cluster_of
from meshplan.cost.full.stack import load_stack
from meshplan.cost.models import cost_model_named
from meshplan.errors import InputError
from meshplan.measure.cut import with_layers
from meshplan.measure.needs import need_torch
from meshplan.model.load import load_model
from meshplan.plan.kinds import Sharding
from meshplan.plan.plans import DEFAULT_ORDER, Plan
from meshplan.plan.space import Space
from meshplan.plan.workload import Workload
from meshplan.report.measure_view import memory_data, memory_text
from meshplan.report.screen import Screen

app = cyclopts.App(name="memory-check", help_formatter=HelpFormatter())

STACK = "torchtitan"
GPU = "h100-sxm"
"""Bytes do not depend on it; rules of plans need some cluster."""


@app.default
def memory_check(
    model: str,
    /,
    *,
    workload: WorkloadFlags | None = None,
    flags: PlanFlags | None = None,
    plan: Annotated[
        str | None, Parameter(help="The plan in one word, tp2,pp2,zero3, beside its flags.")
    ] = None,
    layers: Annotated[OptionalCount, Parameter(help="So many of the model's layers instead of all.")] = None,
    rank: Annotated[
        int | None, Parameter(help="Pipeline rank to run (default: the first and the last).")
    ] = None,
    stack: Annotated[str, Parameter(metavar="NAME")] = STACK,
    json_: Json = False,
    download: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Run one rank's real PyTorch module of a plan under fake tensors; hold the model's memory against it.

    Nothing is computed and no GPU is needed: any world size runs on this CPU. Needs PyTorch. Exit code 0: it
    ran; 2: the plan or the question makes no sense; 3: this machine cannot run it.

    Parameters
    ----------
    model
        A preset (see `meshplan models`), a config.json or its folder, or a name on the hub.
    stack
        Software whose habits the cost model assumes; of the torch family: torchtitan, torchtitan-eager …
    download
        Fetch the config.json of an unknown model from the Hugging Face hub.
    """
    need_torch("memory-check")
    told = read_plan(plan, flags or PlanFlags()) if plan else flags or PlanFlags()
    habits = load_stack(stack)
    if habits.family != "torch":
        raise InputError(
            f"the module is PyTorch's; stack {stack} is {habits.family}, not of the torch family"
        )
    cut = with_layers(load_model(model, download=download), layers)
    chosen, work = checked(cut, told, workload or WorkloadFlags())
    order = told.order or DEFAULT_ORDER
    ranks = sorted({0, chosen.pp - 1} if rank is None else {rank})
    if not all(0 <= r < chosen.pp for r in ranks):
        raise InputError(f"--rank must be from 0 to {chosen.pp - 1}, not {rank}")
    from meshplan.measure.memory.check import check_rank
    from meshplan.measure.memory.compare import modelled
    from meshplan.measure.memory.volumes import volumes

    pairs = [
        (
            check_rank(cut, work, chosen, pipeline_rank=r, fused=habits.fused, order=order),
            modelled(cut, work, chosen, habits, pipeline_rank=r, order=order),
        )
        for r in ranks
    ]
    said = [
        volumes(cut, work, chosen, micro_batches=seen.micro_batches, pipeline_rank=r)
        for r, (seen, _) in zip(ranks, pairs, strict=True)
    ]
    data: dict[str, Any] = memory_data(cut, work, chosen, habits.name, pairs, said)
    if json_:
        print(json.dumps(data, indent=2, allow_nan=False))
    else:
        sys.stdout.write(memory_text(data, Screen.of()))
    return 0


def checked(model: Any, told: PlanFlags, flags: WorkloadFlags) -> tuple[Plan, Workload]:
    """The plan and workload, with the batch that is left open set to one micro-batch a rank."""
    if flags.seq is None:
        raise InputError("--seq is missing")
    if flags.precision not in (None, "bf16"):
        raise InputError(f"the module trains in bf16 here, not {flags.precision}: that is what is compared")
    no_habits(flags, "the module keeps its optimizer on the GPU and balances experts")
    dp, mbs = told.dp or 1, told.mbs or 1
    work = Workload(
        seq=flags.seq, gbs=flags.gbs or dp * mbs * (told.pp or 1), precision=flags.precision or "bf16"
    )
    gpus = (told.tp or 1) * (told.cp or 1) * (told.pp or 1) * dp
    cluster = cluster_of(GPU, gpus, gpus_per_node=1)
    asked = Question(
        model=model, cluster=cluster, workload=work, space=Space(), cost_model=cost_model_named()
    )
    told.dp = dp
    return plan_of(told, asked, sharding=Sharding.ZERO3), work
