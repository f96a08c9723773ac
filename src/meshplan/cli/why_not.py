"""``meshplan why-not``: what stands against a plan, and the smallest change that works."""

import json
import sys
from dataclasses import replace
from typing import Annotated

import cyclopts
from cyclopts import Parameter

from meshplan.cli.estimate import read_layers
from meshplan.cli.flags import (
    SPACE,
    ClusterFlags,
    ObjectiveName,
    SizeFlags,
    SpaceFlags,
    StackName,
    WorkloadFlags,
)
from meshplan.cli.help import HelpFormatter
from meshplan.cli.options import Json, option
from meshplan.cli.progress import progress
from meshplan.cli.question import check_recompute
from meshplan.cli.wishes import (
    CostModelName,
    PlanText,
    agreeing,
    asked_case,
    open_space,
    tie_share,
    wish_of,
    wish_of_flags,
)
from meshplan.errors import InputError
from meshplan.report.screen import Screen
from meshplan.report.why_not_view import why_not_data, why_not_text
from meshplan.search.heap import keep_freed_memory
from meshplan.search.reasons_not import why_not as judge

app = cyclopts.App(name="why-not", help_formatter=HelpFormatter())

DOES_NOT_WORK = 1


@app.default
def why_not(
    model: str,
    /,
    *,
    plan: PlanText = None,
    cluster: ClusterFlags | None = None,
    workload: WorkloadFlags | None = None,
    space: SpaceFlags | None = None,
    size: SizeFlags | None = None,
    layout: Annotated[
        tuple[int, ...] | None, option(read_layers, metavar="LAYERS"), Parameter(group=SPACE)
    ] = None,
    cost_model: CostModelName = None,
    objective: ObjectiveName = None,
    stack: StackName = None,
    json_: Json = False,
    download: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Say what stands against a plan: invalid, too large or slower, and the smallest change that works.

    The plan is given by its degrees (--tp 1 --pp 8) or by --plan tp1,pp8; what is left out is chosen as the
    search would. Exit code 0: it fits; 1: it is not valid or does not fit; 2: the question makes no sense.

    Parameters
    ----------
    model
        A preset (see `meshplan models`), a config.json or its folder, a name in the Hugging Face
        cache, or a job file (.yaml, .toml). Flags win over it.
    plan
        The plan in question, such as tp1,pp8; joined with the flags of single dimensions.
    layout
        Layers of each stage of the plan in question, 7,8,8,7 or 7,8x14,7.
    download
        Fetch the config.json of an unknown model from the Hugging Face hub.
    """
    flags = space or SpaceFlags()
    wish = wish_of_flags(flags) | ({} if layout is None else {"layout": layout})
    if plan is not None:
        wish = dict(agreeing(wish_of(plan, "--plan"), wish, f"--plan {plan}"))
    if not wish:
        raise InputError("no plan in question; name one like --tp 1 --pp 8")
    case = asked_case(
        model,
        cluster,
        workload,
        SpaceFlags(order=flags.order),
        cost_model=cost_model,
        stack=stack,
        download=download,
        size=size,
        objective=objective,
    )
    case = replace(case, space=open_space(case.space, case.model))
    check_recompute(wish.get("recompute_layers", 0), len(case.model.layers), case.model.name)
    keep_freed_memory()
    told = progress()
    found = judge(case, wish)
    told("how far off the model usually is")
    tie = tie_share(case)
    if json_:
        print(json.dumps(why_not_data(case, found, tie), indent=2, allow_nan=False))
    else:
        sys.stdout.write(why_not_text(case, found, tie, Screen.of()))
    return 0 if found.answer.fits else DOES_NOT_WORK
