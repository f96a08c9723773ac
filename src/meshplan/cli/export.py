"""``meshplan export``: launch files for a framework."""

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

import cyclopts
from cyclopts import Parameter

from meshplan.cli.flags import ClusterFlags, ObjectiveName, SizeFlags, SpaceFlags, StackName, WorkloadFlags
from meshplan.cli.options import Count, Json
from meshplan.cli.plan import no_plan
from meshplan.cli.question import Question, check_workload, question
from meshplan.cost.costs import Costs
from meshplan.cost.full.model import FullModel
from meshplan.cost.full.stack import load_stack, stack_names
from meshplan.cost.models import stack_of
from meshplan.errors import InputError
from meshplan.export.folder import differences, write
from meshplan.export.launch import Job, Launch, Note, counted
from meshplan.export.launchers import IMAGE
from meshplan.export.targets import export as make
from meshplan.model.model import Model
from meshplan.plan.frameworks import framework_values
from meshplan.plan.plans import Plan, Plans
from meshplan.plan.rules import Rule, Setting, framework_rules, rules_of
from meshplan.plan.space import Size, Space
from meshplan.report.launch_view import export_data, export_text
from meshplan.report.screen import Screen
from meshplan.search.fidelity import MOST_SURE, simulate_all
from meshplan.search.objective import Objective
from meshplan.search.planned import planned
from meshplan.search.ranking import Ranking
from meshplan.search.reasons_compare import with_memory
from meshplan.search.same import no_effect_rules
from meshplan.units import format_bytes

app = cyclopts.App(name="export")

NO_PLAN = 1
MOST_TRIED = 20
"""Plans that may be tried beyond the rank asked for, where a target runs them otherwise than they are."""
ROOMIER = (1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0)
"""Times the memory there is, tried in turn for plans that are wanted although they do not fit."""
Target = Literal["megatron", "megatron-bridge", "torchtitan", "deepspeed", "accelerate", "pytorch"]
Launcher = Literal["torchrun", "slurm", "kubernetes", "skypilot"]


def as_run(setting: Setting, notes: Iterable[Note]) -> Setting:
    """The question as it is run where the target writes another precision, or leaves multi-token prediction
    out."""
    for note in notes:
        if note.part == "precision":
            setting = setting._replace(workload=replace(setting.workload, precision=note.written))
        if note.part == "multi-token prediction":
            setting = setting._replace(model=replace(setting.model, mtp=()))
    return setting


def prices(target: str, stack: str | None = None) -> FullModel:
    """The full cost model with the habits of a target, or with those of another stack."""
    return FullModel(stack=load_stack(stack or stack_of(target)))


def price_of(cost_model: FullModel, setting: Setting, plan: Plan, order: tuple[str, ...]) -> Costs:
    """The price of one plan, as it is, with its pipeline simulated."""
    plans = Plans.of(counted(plan, len(setting.model.layers)), order=order)
    return simulate_all(cost_model, setting, cost_model.price(*setting, plans))


def best_plans(
    setting: Setting,
    target: str,
    chosen: Mapping[str, Any],
    cost_model: FullModel,
    *,
    framework: str | None = None,
    size: Size = "small",
    sure: int = 1,
    advise: bool = True,
    objective: Objective = "step",
    without: tuple[Rule, ...] = (),
) -> Ranking:
    """The plans that a target can express and would accept, in the order of ``meshplan plan`` (or by another
    ``objective``).

    ``chosen`` holds fields of ``Space`` whose values are given. Where the target itself accepts no plan, or
    not all that is chosen, those count that it can be made to run (``framework_rules``). ``framework``:
    another one whose rules the plans must satisfy instead. The first ``sure`` are simulated. ``without``:
    rules not to ask about.
    """
    space = Space.of(size, setting.model, target, **chosen)
    ask = partial(
        planned,
        setting,
        space=space,
        cost_model=cost_model,
        fidelity="simulate",
        sure=sure,
        objective=objective,
    )
    limits = framework_values(target)
    same = no_effect_rules(space.values(setting), open_vp=space.vp is None)
    if framework is None and all(set(chosen[name]) <= set(limits[name]) for name in limits if name in chosen):
        ranking = ask(
            rules=(*(rule for rule in rules_of(target) if rule not in without), *same), advise=False
        )
        if len(ranking):
            return ranking
    own = () if framework == "any" else framework_rules(framework or target)
    rules = dict.fromkeys((*own, *(rule for rule in rules_of("any") if not rule.written or not own)))
    return ask(rules=(*(rule for rule in rules if rule not in without), *same), advise=advise)


@app.default
def export(
    model: str,
    /,
    *,
    to: Annotated[Target, Parameter(metavar="TARGET")],
    out: Annotated[str, Parameter(metavar="DIR")],
    launcher: Annotated[Launcher, Parameter(metavar="NAME")] = "torchrun",
    plan: Count = 1,
    cluster: ClusterFlags | None = None,
    workload: WorkloadFlags | None = None,
    space: SpaceFlags | None = None,
    size: SizeFlags | None = None,
    objective: ObjectiveName = None,
    name: str = "meshplan",
    image: str = IMAGE,
    stack: StackName = None,
    force: Annotated[bool, Parameter(negative=())] = False,
    diff: Annotated[bool, Parameter(negative=())] = False,
    allow_oversize: Annotated[bool, Parameter(negative=())] = False,
    json_: Json = False,
    download: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Write the launch files of a plan: the best one for the target, or the one the flags fix.

    Exit code 0: written, or with --diff shown; 1: no plan fits, as it is or as the target can run it;
    2: the question makes no sense, or a file is in the way.

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
        Rank of the plan among those the target can run and that fit as the target runs them.
    name
        Of the job.
    image
        Container image, for kubernetes.
    force
        Overwrite files that are there.
    diff
        Show what would change, write nothing.
    allow_oversize
        Write a plan that needs more memory than there is, where none fits; the estimate says by how much.
    download
        Fetch the config.json of an unknown model from the Hugging Face hub.
    """
    if not out.strip():
        raise InputError("--out is empty; name a folder for the files, --out . for this one")
    asked = question(
        model,
        cluster or ClusterFlags(),
        workload or WorkloadFlags(),
        space or SpaceFlags(),
        cost_model="full",
        stack=stack,
        download=download,
        size=size,
        objective=objective,
    )
    cost_model = prices(to, asked.stack)
    setting = Setting(asked.model, asked.cluster, asked.workload)
    check_workload(asked, to)
    search_for = partial(
        best_plans,
        target=to,
        chosen=asked.chosen,
        cost_model=cost_model,
        framework=_whose_rules(to, size, asked),
        size=asked.space.size,
    )
    ranking = search_for(setting, sure=min(plan, MOST_SURE), objective=asked.objective)
    if allow_oversize and not len(ranking):
        ranking = _oversized(search_for, setting) or ranking
    if not len(ranking):
        raise _no_plan(ranking, to)
    if plan > len(ranking):
        raise InputError(f"--plan {plan:,} is more than the {len(ranking):,} plans there are")

    def written(one: Plan) -> tuple[Job, Launch, Costs]:
        job = Job(
            setting=setting,
            plan=one,
            order=asked.space.order,
            name=name,
            asked_model=asked.model.name if _is_preset(asked.model) else model,
            stack=asked.stack if asked.stack in stack_names() else None,
        )
        launch = make(job, to, launcher, image=image)
        run = as_run(setting, launch.notes)
        return job, launch, price_of(cost_model, run, launch.written, launch.order)

    if allow_oversize:
        job, launch, priced = written(ranking.costs.plans[plan - 1])
    else:
        found = _nth_that_fits(plan, len(ranking), lambda i: written(ranking.costs.plans[i]))
        if found is None:
            raise NothingToExportError(_too_large(to, *written(ranking.costs.plans[plan - 1])))
        job, launch, priced = found
    costs = [note_cost(cost_model, job, note) for note in launch.notes]
    if diff:
        sys.stdout.writelines(differences(out, launch.files))
        return 0
    write(out, launch.files, force=force)
    stack_name = cost_model.stack.name
    if json_:
        data = export_data(job, launch, priced, costs, out, stack_name)
        print(json.dumps(data, indent=2, allow_nan=False))
    else:
        sys.stdout.write(export_text(job, launch, priced, costs, out, stack_name, Screen.of()))
    return 0


class NothingToExportError(InputError):
    """No plan fits: a fair question whose answer is no."""

    exit_code = NO_PLAN


def _no_plan(ranking: Ranking, target: str) -> InputError:
    """Why there is nothing to write, and what would work, as ``meshplan plan`` says it; a question that makes
    no sense where no plan is valid."""
    nothing = ranking.nothing
    if nothing is None:
        return InputError(f"no plan to export: {target} can run none of them")
    ways = tuple(way for way in nothing.ways if "--framework any" not in way.flags)
    told = no_plan(replace(nothing, ways=ways), ranking)
    if nothing.limit == "rules":
        return InputError(told)
    return NothingToExportError(f"{told}; or --allow-oversize, to write one all the same")


def _oversized(search_for: Callable[..., Ranking], run: Setting) -> Ranking | None:
    """The plans that need least memory, with as much more of it as one of them needs."""
    for factor in ROOMIER:
        roomy = run._replace(cluster=with_memory(run.cluster, factor))
        ranking = search_for(roomy, objective="memory", advise=False)
        if len(ranking):
            return ranking
    return None


def _whose_rules(target: str, size: SizeFlags | None, asked: Question) -> str | None:
    """The framework whose rules hold instead of the target's: that of the flags, or another one of a job
    file."""
    told = None if size is None else size.framework
    own = asked.space.framework
    return told or (None if own in ("any", target) else own)


def _nth_that_fits(
    nth: int, count: int, written: Callable[[int], tuple[Job, Launch, Costs]]
) -> tuple[Job, Launch, Costs] | None:
    """The ``nth`` plan among the first ``count`` that fits as it is written; ``None`` where none does.

    Plans that the target refuses are passed over; where it refuses all that were tried, the ``InputError``
    of the first is raised.
    """
    refused: InputError | None = None
    seen = fitting = 0
    for i in range(min(count, nth + MOST_TRIED)):
        try:
            found = written(i)
        except InputError as error:
            refused = refused or error
            continue
        seen += 1
        fitting += bool(found[2].fits[0])
        if fitting == nth:
            return found
    if refused is not None and not seen:
        raise refused
    return None


def _too_large(target: str, job: Job, launch: Launch, priced: Costs) -> str:
    """Why nothing was written: the plan fits, but not as the target runs it."""
    need, limit = format_bytes(float(priced.memory_bytes[0])), format_bytes(priced.memory_limit_bytes)
    changed = ", ".join(note.part for note in launch.notes if note.change) or "nothing"
    return (
        f"no plan to export: as {target} would run it ({changed} changed) the plan of {job.model.name}"
        f" needs {need} of {limit}; give other flags, or --allow-oversize to write it all the same"
    )


def note_cost(cost_model: FullModel, job: Job, note: Note) -> float | None:
    """By how much the change a note tells of makes the step longer, relatively; ``None`` where it cannot
    be priced."""
    if not note.change:
        return None
    try:
        before = price_of(cost_model, job.setting, job.plan, job.order).step_s[0]
        changed = replace(job.plan, **dict(note.change))
        after = price_of(cost_model, job.setting, changed, job.order).step_s[0]
    except (InputError, ValueError, IndexError):
        return None
    return float(after / before - 1)


def _is_preset(model: Model) -> bool:
    from meshplan.model.presets import preset_name

    return preset_name(model.name) == model.name
