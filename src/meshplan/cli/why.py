"""``meshplan why``: where two plans differ, what binds, and what would turn their order round."""

import json
import sys
from typing import Annotated

import cyclopts
from cyclopts import Parameter

from meshplan.cli.flags import ClusterFlags, ObjectiveName, SizeFlags, SpaceFlags, StackName, WorkloadFlags
from meshplan.cli.help import HelpFormatter
from meshplan.cli.options import Json
from meshplan.cli.progress import progress
from meshplan.cli.wishes import CostModelName, PlanText, allowed, asked_case, tie_share, wish_of
from meshplan.cost.costs import Costs
from meshplan.errors import InputError
from meshplan.report.screen import Screen
from meshplan.report.why_view import same_plan, why_data, why_text
from meshplan.search.heap import keep_freed_memory
from meshplan.search.objective import BY_TIME
from meshplan.search.ranking import Ranking
from meshplan.search.reasons import Case, Wish, answer, asked_again
from meshplan.search.reasons_compare import compare, sensitivities
from meshplan.search.reasons_flip import flips

app = cyclopts.App(name="why", help_formatter=HelpFormatter())

NO_PLAN = 1


@app.default
def why(
    model: str,
    /,
    *,
    plan: PlanText = None,
    vs: Annotated[
        str | None,
        Parameter(
            metavar="PLAN",
            help="The plan to hold it against, written the same way (default: the best, or the next best).",
        ),
    ] = None,
    cluster: ClusterFlags | None = None,
    workload: WorkloadFlags | None = None,
    space: SpaceFlags | None = None,
    size: SizeFlags | None = None,
    cost_model: CostModelName = None,
    objective: ObjectiveName = None,
    stack: StackName = None,
    json_: Json = False,
    download: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Say why one plan is better than another: part by part, and what would turn the order round.

    Without --vs the plan is held against the best one, and the best one against the next. Exit code 0:
    both plans fit; 1: one does not, or there is none; 2: the question makes no sense.

    Parameters
    ----------
    model
        A preset (see `meshplan models`), a config.json or its folder, a name in the Hugging Face
        cache, or a job file (.yaml, .toml). Flags win over it.
    plan
        The plan to explain (default: the best one).
    vs
        The plan to hold it against (default: the best one, or the next after it).
    download
        Fetch the config.json of an unknown model from the Hugging Face hub.
    """
    case = asked_case(
        model,
        cluster,
        workload,
        space,
        cost_model=cost_model,
        stack=stack,
        download=download,
        size=size,
        objective=objective,
    )
    keep_freed_memory()
    told = progress()
    told("looking for the plans")
    a, b, names = _two(case, plan, vs, space)
    found = compare(a, b)
    if asked_key(a) == asked_key(b) and not json_:
        print(f"{names[0]} and {names[1]} are the same plan: {same_plan(case, a)}")
        return 0 if bool(a.fits[0]) else NO_PLAN
    told("what the better one waits for, and what would turn their order round")
    slopes = sensitivities(case, a.plans[0])
    turning = flips(case, asked_again(a.plans[0], case.space), asked_again(b.plans[0], case.space))
    told("how far off the model usually is")
    tie = tie_share(case)
    if json_:
        print(json.dumps(why_data(case, found, names, slopes, turning, tie), indent=2, allow_nan=False))
    else:
        sys.stdout.write(why_text(case, found, names, slopes, turning, tie, Screen.of()))
    return 0 if bool(a.fits[0]) and bool(b.fits[0]) else NO_PLAN


class NothingToExplainError(InputError):
    """No plan fits: a fair question whose answer is no."""

    exit_code = 1


def _two(
    case: Case, plan: str | None, vs: str | None, space: SpaceFlags | None
) -> tuple[Costs, Costs, tuple[str, str]]:
    """The better plan, the other one, and what they are called."""
    sides: list[tuple[Costs, str]] = []
    for text, flag in ((plan, "--plan"), (vs, "--vs")):
        if text is not None:
            name = f"{flag} {text}"
            sides.append((_asked(case, allowed(wish_of(text, flag), space, name), flag), name))
    if len(sides) < 2:
        ranking = case.ranked()
        if not len(ranking):
            raise NothingToExplainError(
                "no plan fits, so there is none to explain; `meshplan plan` says what stands in the way and"
                " what would work"
            )
        sides += _others(ranking, sides)
    (first, one), (second, two) = sides[:2]
    if _key(second) < _key(first):
        return second, first, (two, one)
    return first, second, (one, two)


def _asked(case: Case, wish: Wish, flag: str) -> Costs:
    found = answer(case, wish)
    if found.costs is None:
        more = ""
        if len(found.broken) > 1:
            more = f" (and {len(found.broken) - 1} more: {', '.join(b.rule for b in found.broken[1:])})"
        reason = found.broken[0].reason if found.broken else "no plan is left"
        raise InputError(f"{flag}: no such plan is valid: {reason}{more}")
    return found.costs


def _others(ranking: Ranking, sides: list[tuple[Costs, str]]) -> list[tuple[Costs, str]]:
    """The plan that ``meshplan plan`` puts first, and where that is the one asked for, or none was, the
    next."""
    best = ranking.costs.take(slice(0, 1)), f"#1 of {ranking.counts.feasible:,}"
    if ranking.objective not in BY_TIME:
        best = best[0], f"{best[1]} by {ranking.objective}"
    elif len(ranking) > 1 and _key(ranking.costs.take(slice(1, 2))) < _key(best[0]):
        best = best[0], f"{best[1]}, the simplest"
    if sides and asked_key(sides[0][0]) != asked_key(best[0]):
        return [best]
    if len(ranking) < 2:
        raise InputError("only one plan fits; name another with --vs to hold it against")
    following = ranking.costs.take(slice(1, 2))
    name = "#2, the faster" if _key(following) < _key(best[0]) else "#2"
    return [*([] if sides else [best]), (following, name)]


def asked_key(costs: Costs) -> tuple[object, ...]:
    """What makes the first plan the plan it is."""
    plan = costs.plans[0]
    return tuple(getattr(plan, name) for name in plan.__slots__)


def _key(costs: Costs) -> tuple[bool, float]:
    return not bool(costs.fits[0]), float(costs.step_s[0])
