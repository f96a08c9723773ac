"""``meshplan export``: launch files for a framework."""

import json
import sys
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import cyclopts
import numpy as np
from cyclopts import Parameter

from meshplan.cli.flags import ClusterFlags, SpaceFlags, WorkloadFlags, given
from meshplan.cli.job import is_job_file, load_job
from meshplan.cli.options import Count, Json
from meshplan.cli.question import Question, question
from meshplan.cluster.cluster import Cluster
from meshplan.cost.costs import Costs
from meshplan.cost.full.model import FullModel
from meshplan.cost.full.stack import load_stack
from meshplan.errors import InputError
from meshplan.export.folder import differences, write
from meshplan.export.launch import Job, Note, counted
from meshplan.export.launchers import IMAGE
from meshplan.export.space import framework_columns, framework_space
from meshplan.export.targets import export as make
from meshplan.model.model import Model
from meshplan.plan.plans import Plan, Plans
from meshplan.plan.rules import Rule, Setting, framework_rules
from meshplan.plan.space import Space
from meshplan.plan.workload import Workload
from meshplan.report.launch_view import export_data, export_text
from meshplan.report.screen import Screen
from meshplan.search.ranking import Ranking
from meshplan.search.search import search

app = cyclopts.App(name="export")

NO_PLAN = 1
Target = Literal["megatron", "megatron-bridge", "torchtitan", "deepspeed", "accelerate", "pytorch"]
Launcher = Literal["torchrun", "slurm", "kubernetes", "skypilot"]
STACKS = {
    "megatron": "megatron-core-2025", "megatron-bridge": "megatron-core-2025", "torchtitan": "torchtitan",
    "pytorch": "torchtitan", "deepspeed": "deepspeed", "accelerate": "torchtitan",
}  # fmt: skip
"""Whose habits the full cost model prices a target with."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AsTarget:
    """A cost model that prices plans as a target would run them."""

    base: FullModel
    columns: dict[str, int]
    name: str = "full"

    @classmethod
    def of(cls, target: str, stack: str | None = None) -> "AsTarget":
        """The full model with the stack of a target (or another one)."""
        return cls(
            base=FullModel(stack=load_stack(stack or STACKS[target])), columns=framework_columns(target)
        )

    def price(self, model: Model, cluster: Cluster, workload: Workload, plans: Plans) -> Costs:
        """As the full model, with the columns that the target sets by itself."""
        if not len(plans):  # the shape of the answer, from any one plan
            return self.base.price(model, cluster, workload, Plans.of(Plan(), order=plans.order)).take(
                slice(0, 0)
            )
        own = {name: np.full(len(plans), value, dtype=np.int64) for name, value in self.columns.items()}
        return self.base.price(model, cluster, workload, plans.replace(**own))

    def one(self, setting: Setting, plan: Plan, order: tuple[str, ...]) -> Costs:
        """The price of one plan, as it is."""
        return self.base.price(*setting, Plans.of(counted(plan, len(setting.model.layers)), order=order))


@app.default
def export(
    model: str,
    /,
    *,
    to: Annotated[Target, Parameter(metavar="TARGET")],
    out: Annotated[str, Parameter(metavar="DIR")],
    launcher: Annotated[Launcher, Parameter(metavar="NAME")] = "torchrun",
    plan: Count = 1,
    framework: Annotated[Literal[Target, "any"] | None, Parameter(metavar="NAME")] = None,
    cluster: ClusterFlags | None = None,
    workload: WorkloadFlags | None = None,
    space: SpaceFlags | None = None,
    name: str = "meshplan",
    image: str = IMAGE,
    stack: Annotated[str | None, Parameter(metavar="NAME")] = None,
    force: Annotated[bool, Parameter(negative=())] = False,
    diff: Annotated[bool, Parameter(negative=())] = False,
    json_: Json = False,
    download: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Write the launch files of a plan: the best one for the target, or the one the flags fix.

    Exit code 0: written, or with --diff shown; 1: no plan fits; 2: the question makes no sense, or a file
    is in the way.

    Parameters
    ----------
    model
        A preset (see `meshplan models`), a config.json or its folder, a name in the Hugging Face
        cache, or a job file (.yaml, .toml) with model, cluster, workload and space. Flags win over it.
    to
        megatron, megatron-bridge, torchtitan, deepspeed, accelerate or pytorch (mesh and stages alone).
    out
        Folder for the files; made if it is not there.
    launcher
        torchrun, slurm, kubernetes (JobSet) or skypilot.
    plan
        Rank of the plan among those the target can run.
    framework
        Whose rules the plans must satisfy (default: the target's); any: the general ones.
    name
        Of the job.
    image
        Container image, for kubernetes.
    stack
        Software that the estimate assumes (default: the target's).
    force
        Overwrite files that are there.
    diff
        Show what would change, write nothing.
    download
        Fetch the config.json of an unknown model from the Hugging Face hub.
    """
    asked = question(
        model,
        cluster or ClusterFlags(),
        workload or WorkloadFlags(),
        space or SpaceFlags(),
        download=download,
    )
    cost_model = AsTarget.of(to, stack)
    in_job = load_job(model).space if is_job_file(model) else {}
    rules = framework_rules(to) if framework in (None, to) else _rules(framework)
    ranking = rank(asked, {**in_job, **given(space or SpaceFlags())}, to, cost_model, rules)
    if ranking.nothing is not None or not len(ranking):
        reason = ranking.nothing.reason if ranking.nothing is not None else "no plan is left"
        print(f"error: no plan to export: {reason}", file=sys.stderr)
        return NO_PLAN
    if plan > len(ranking):
        raise InputError(f"--plan {plan:,} is more than the {len(ranking):,} plans there are")
    setting = Setting(asked.model, asked.cluster, asked.workload)
    job = Job(
        setting=setting,
        plan=ranking.costs.plans[plan - 1],
        order=asked.space.order,
        name=name,
        asked_model=asked.model.name if _is_preset(asked.model) else model,
    )
    launch = make(job, to, launcher, image=image)
    priced = cost_model.one(setting, launch.written, launch.order)
    costs = [note_cost(cost_model, job, note) for note in launch.notes]
    if diff:
        sys.stdout.writelines(differences(out, launch.files))
        return 0
    write(out, launch.files, force=force)
    if json_:
        print(json.dumps(export_data(job, launch, priced, costs, out), indent=2, allow_nan=False))
    else:
        sys.stdout.write(export_text(job, launch, priced, costs, out, Screen.of()))
    return 0


def rank(
    asked: Question,
    chosen: dict[str, Any],
    target: str,
    cost_model: AsTarget,
    rules: tuple[Rule, ...] | None,
) -> Ranking:
    """The plans of the question that the target can express and would accept, fastest first.

    ``chosen`` holds the fields of ``Space`` that the user gave.
    """
    setting = Setting(asked.model, asked.cluster, asked.workload)
    space = Space(**{**framework_space(target, setting), **chosen})
    return search(asked.model, asked.cluster, asked.workload, space=space, cost_model=cost_model, rules=rules)


def note_cost(cost_model: AsTarget, job: Job, note: Note) -> float | None:
    """By how much the change a note tells of makes the step longer, relatively; ``None`` where it cannot
    be priced."""
    if not note.change:
        return None
    try:
        before = cost_model.one(job.setting, job.plan, job.order).step_s[0]
        after = cost_model.one(job.setting, replace(job.plan, **dict(note.change)), job.order).step_s[0]
    except (InputError, ValueError, IndexError):
        return None
    return float(after / before - 1)


def _rules(framework: str | None) -> tuple[Rule, ...] | None:
    return None if framework == "any" or framework is None else framework_rules(framework)


def _is_preset(model: Model) -> bool:
    from meshplan.model.presets import preset_name

    return preset_name(model.name) == model.name
