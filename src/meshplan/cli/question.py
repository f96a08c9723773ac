"""From flags and a job file to model, cluster, workload, space and cost model. Flags win."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from meshplan.cli.flags import ClusterFlags, SizeFlags, SpaceFlags, WorkloadFlags, given
from meshplan.cli.job import Job, is_job_file, load_job
from meshplan.cli.options import Framework
from meshplan.cli.progress import note
from meshplan.cluster.cluster import Cluster
from meshplan.cluster.files import cluster_of_table, load_cluster
from meshplan.cluster.presets import cluster_of
from meshplan.cost.costs import CostModel
from meshplan.cost.full.model import FullModel
from meshplan.cost.models import DEFAULT, cost_model_named, stack_name
from meshplan.errors import InputError
from meshplan.model.load import load_model
from meshplan.model.model import Model
from meshplan.plan.frameworks import usual_shardings
from meshplan.plan.plans import ALL_LAYERS, Plan
from meshplan.plan.rules import Rule, Setting, broken, workload_rules
from meshplan.plan.space import Space
from meshplan.plan.workload import Workload
from meshplan.search.objective import Objective
from meshplan.search.usual import usual_size

MACHINE_FLAGS = {"gpu": "--gpu", "nic": "--nic", "gpus_per_node": "--gpus-per-node"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """Everything a search needs."""

    model: Model
    cluster: Cluster
    workload: Workload
    space: Space
    cost_model: CostModel
    objective: Objective = "step"
    stack: str | None = None
    """What was typed for the stack, if anything was."""
    chosen: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the space that flags or job file give."""


def question(
    what: str,
    cluster: ClusterFlags,
    workload: WorkloadFlags,
    space: SpaceFlags,
    *,
    cost_model: str | None = None,
    stack: str | None = None,
    download: bool = False,
    size: SizeFlags | None = None,
    objective: Objective | None = None,
    phased: bool = False,
    judged: bool = True,
) -> Question:
    """Read a model argument (a model, or a job file) and flags; raises ``InputError``.

    ``size``: how many plans to look at and for which framework (default: as ``usual_size`` says).
    ``stack``: software that the full cost model assumes (default: that of the job file, or of the framework).
    ``objective``: what ranks the plans (default: that of the job file, or the step time). ``judged``: whether
    a workload that the framework or the software does not have is an error.
    """
    job = load_job(what) if is_job_file(what) else Job(path="", model=what)
    if job.model is None:
        raise InputError(f"{job.where}: model is missing")
    if job.phases and not phased and {"seq", "gbs"} <= {*job.workload, *given(workload)}:
        note(f"{job.where} has phases, which `meshplan plan` alone reads; this is its workload without them")
    read, size = load_model(job.model, download=download), size or SizeFlags()
    framework, priced = size.framework or job.framework or "any", cost_model or job.cost_model or DEFAULT
    stack = stack or (job.stack if priced == "full" else None)
    prices = cost_model_named(priced, framework=framework, stack=stack)
    chosen = {**job.space, **given(space)}
    for layers, _ in space.recompute or job.space.get("recompute", ()):
        check_recompute(layers, len(read.layers), read.name)
    width, usual = size.space or job.size or usual_size(prices), {}
    own = getattr(prices, "stack", None)
    if own is not None and own.sharding and framework == "any" and width != "full":
        usual["sharding"] = tuple(dict.fromkeys((own.usual_sharding, *usual_shardings(framework))))
    asked = Question(
        cluster=_cluster(given(cluster), job),
        workload=_workload({**job.workload, **given(workload)}, job),
        space=Space.of(width, read, framework, **{**usual, **chosen}),
        cost_model=prices,
        objective=objective or job.objective or "step",
        stack=stack,
        chosen=chosen,
        model=read,
    )
    if judged:
        check_workload(asked, framework)
    return asked


def check_workload(asked: Question, framework: str) -> None:
    """Raises ``InputError`` where a framework, or the software that prices, has no such thing as is to be
    trained, whatever the plan."""
    setting, plan = Setting(asked.model, asked.cluster, asked.workload), Plan()
    stack = stack_name(asked.cost_model)
    own: tuple[Rule, ...] = getattr(asked.cost_model, "rules", ())
    for who, rules in ((framework, workload_rules(framework)), (f"stack {stack}", own)):
        wrong = broken(setting, plan, [rule for rule in rules if not rule.columns])
        if wrong:
            raise InputError(f"{who}: {wrong[0].words(setting, plan)}")


def asked_of_plan(
    what: str,
    cluster: ClusterFlags | None,
    workload: WorkloadFlags | None,
    *,
    framework: Framework | None,
    stack: str | None,
    download: bool,
    judged: bool = True,
) -> tuple[FullModel, Question]:
    """The question around one plan that the flags give, and the full cost model, which prices it whatever
    prices a search; what a job file says of the space does not count."""
    asked = question(
        what,
        cluster or ClusterFlags(),
        workload or WorkloadFlags(),
        SpaceFlags(),
        cost_model="full",
        stack=stack,
        download=download,
        size=SizeFlags(framework=framework),
        judged=judged,
    )
    assert isinstance(asked.cost_model, FullModel)
    return asked.cost_model, asked


def check_recompute(layers: int, held: int, where: str) -> None:
    """Raises ``InputError`` where more layers are to be recomputed than the ``held`` ones of ``where``."""
    if held < layers < ALL_LAYERS:
        raise InputError(
            f"--recompute {layers:,} is more than the {held:,} layers of {where};"
            " --recompute full recomputes all"
        )


def _cluster(flags: dict[str, Any], job: Job) -> Cluster:
    file = flags.pop("cluster", None)
    gpus = flags.get("gpus")
    source = job.cluster if file is None else file
    if isinstance(source, str):
        found = load_cluster(source, gpus=gpus)  # first: a file that is not there contradicts nothing
        for name, flag in MACHINE_FLAGS.items():
            if name in flags:
                raise InputError(
                    f"{flag} contradicts the cluster file '{source}', which says it too; drop one"
                )
        return found
    if source is None:
        _need(flags, {"gpu": "--gpu", "gpus": "--gpus"}, "cluster", job)
        return cluster_of(
            flags["gpu"], flags["gpus"], gpus_per_node=flags.get("gpus_per_node"), nic=flags.get("nic")
        )
    return _inline(source, flags, job)


def _inline(table: Mapping[str, Any], flags: Mapping[str, Any], job: Job) -> Cluster:
    if "tiers" in table:
        for name in ("nic", "gpus_per_node"):
            if name in flags:
                raise InputError(f"{MACHINE_FLAGS[name]} contradicts the tiers of {job.where}; drop one")
    return cluster_of_table({**table, **flags}, where=f"{job.where}: cluster")


def _workload(values: Mapping[str, Any], job: Job) -> Workload:
    _need(values, {"seq": "--seq", "gbs": "--gbs"}, "workload", job)
    return Workload(**values)


def _need(values: Mapping[str, Any], flags: Mapping[str, str], section: str, job: Job) -> None:
    missing = [flag for name, flag in flags.items() if name not in values]
    if missing and job.phases and section == "workload":
        raise InputError(
            f"{job.where} has phases, which `meshplan plan` alone takes together; ask about one of them with"
            f" {_asked_alike(job)}"
        )
    if missing:
        also = f" (or {section} in {job.where})" if job.path else ""
        are = "is" if len(missing) == 1 else "are"
        raise InputError(f"{' and '.join(missing)} {are} missing{also}")


def _asked_alike(job: Job) -> str:
    """The flags that ask about the first phase of a file which has a size of its own."""
    known = [{**job.workload, **phase} for phase in job.phases]
    first = next((k for k in known if {"seq", "gbs"} <= k.keys()), {"seq": "8192", "gbs": "512"})
    return f"its --seq and --gbs, such as --seq {first['seq']} --gbs {first['gbs']}"
