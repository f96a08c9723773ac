"""Plans that somebody has in mind, and the question around them, as several commands read them."""

from typing import Annotated, Any

from cyclopts import Parameter

from meshplan.cli.flags import ClusterFlags, SizeFlags, SpaceFlags, WorkloadFlags, given
from meshplan.cli.question import Question, question
from meshplan.cost.models import COST_MODELS, DEFAULT
from meshplan.errors import InputError
from meshplan.model.model import Model
from meshplan.plan.space import Space
from meshplan.report.plan_key import read_plan
from meshplan.report.why_not_view import value_words
from meshplan.search.band import error_band
from meshplan.search.fidelity import can_simulate
from meshplan.search.objective import Objective
from meshplan.search.reasons import Case, Wish

PRICED_BY = f"What prices the plans: {' or '.join(COST_MODELS)} (default: {DEFAULT})."
CostModelName = Annotated[str | None, Parameter(metavar="NAME", help=PRICED_BY)]
PlanText = Annotated[
    str | None,
    Parameter(
        metavar="PLAN",
        help="Parts of a plan, such as tp8,pp1; what is left out is chosen as the search would.",
    ),
]


def asked_case(
    model: str,
    cluster: ClusterFlags | None,
    workload: WorkloadFlags | None,
    space: SpaceFlags | None,
    *,
    cost_model: str | None,
    stack: str | None,
    download: bool,
    size: SizeFlags | None = None,
    objective: Objective | None = None,
) -> Case:
    """The question of the usual flags. Raises ``InputError``."""
    asked = question(
        model,
        cluster or ClusterFlags(),
        workload or WorkloadFlags(),
        space or SpaceFlags(),
        cost_model=cost_model,
        stack=stack,
        download=download,
        size=size,
        objective=objective,
    )
    return case_of(asked)


def case_of(asked: Question) -> Case:
    """The same as a case."""
    return Case(
        model=asked.model,
        cluster=asked.cluster,
        workload=asked.workload,
        space=asked.space,
        cost_model=asked.cost_model,
        simulate=can_simulate(asked.cost_model),
        objective=asked.objective,
    )


def wish_of(text: str, what: str) -> Wish:
    """The fields of a plan that ``text`` gives; raises ``InputError`` that names the option."""
    try:
        found = read_plan(text)
    except InputError as error:
        raise InputError(f"{what}: {error}") from None
    if not found:
        raise InputError(f"{what} names no part of a plan; write it like tp8,pp1")
    return found


def agreeing(wish: Wish, flags: Wish, what: str) -> Wish:
    """Both together; raises ``InputError`` where they give a part of a plan two values."""
    for name, value in flags.items():
        if name in wish and wish[name] != value:
            flag = "recompute" if name.startswith("recompute") else name.replace("_", "-")
            own, other = value_words(name, wish[name]), value_words(name, value)
            raise InputError(f"--{flag} {other} contradicts {what}, which says {flag} {own}; drop one")
    return {**wish, **flags}


def allowed(wish: Wish, space: SpaceFlags | None, what: str) -> Wish:
    """The wish; raises ``InputError`` where the flags leave it no value that it names."""
    for name, values in given(space or SpaceFlags()).items():
        if name in wish and wish[name] not in values:
            told = ",".join(str(value_words(name, value)) for value in values)
            flag, own = name.replace("_", "-"), value_words(name, wish[name])
            raise InputError(f"--{flag} {told} contradicts {what}, which says {flag} {own}; drop one")
    return wish


def wish_of_flags(flags: SpaceFlags) -> dict[str, Any]:
    """The dimensions that the flags fix to one value each; raises ``InputError`` for a list of values."""
    found: dict[str, Any] = {}
    for name, values in given(flags).items():
        if name == "order":
            continue
        if len(values) > 1:
            raise InputError(f"--{name} must be one value here, the one of the plan in question, not a list")
        if name == "recompute":
            layers, modules = values[0]
            found |= {"recompute_layers": layers, "recompute_modules": modules}
        else:
            found[name] = values[0]
    return found


def open_space(space: Space, model: Model) -> Space:
    """The whole space of the same size, framework and order: what a job file fixes is open again."""
    return Space.of(space.size, model, space.framework, order=space.order)


def tie_share(case: Case) -> float | None:
    """By how much the cost model is usually off for such models; ``None`` where that is not known."""
    band = error_band(case.cost_model.name, case.model)
    return None if band is None else band.share
