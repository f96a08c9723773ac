"""``meshplan plan`` of a job file with phases: a plan for each, what lies between them, and totals."""

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from meshplan.cli.flags import HABITS, ClusterFlags, SizeFlags, SpaceFlags, WorkloadFlags, given
from meshplan.cli.job import Job, load_job
from meshplan.cli.options import read_count
from meshplan.cli.progress import progress
from meshplan.cli.question import question
from meshplan.cli.run_flags import RunFlags, power_of, price_of, read_tokens, reliability_of
from meshplan.cli.wishes import case_of, wish_of
from meshplan.cost.models import priced_by
from meshplan.errors import InputError, nearest, shown
from meshplan.goodput.phases import Phase, plan_phases
from meshplan.plan.workload import Workload
from meshplan.report.plan_rows import SCHEMA_VERSION
from meshplan.report.run_view import phases_data, phases_lines
from meshplan.report.screen import Screen
from meshplan.report.why_view import head, question_data
from meshplan.search.heap import keep_freed_memory
from meshplan.search.objective import Objective

KEYS = ("name", "tokens", "steps", "seq", "gbs", "gpus", "precision", "plan")
MOST_PHASES = 50
DOES_NOT_FIT = 1


def plan_job(
    path: str,
    cluster: ClusterFlags | None,
    workload: WorkloadFlags | None,
    space: SpaceFlags | None,
    run: RunFlags | None,
    *,
    cost_model: str | None,
    stack: str | None = None,
    size: SizeFlags | None = None,
    objective: Objective | None = None,
    json_: bool,
    download: bool,
) -> int:
    """Plan every phase of the job file and print all of them. Raises ``InputError``."""
    job, flags, run = load_job(path), workload or WorkloadFlags(), run or RunFlags()
    if run.tokens is not None:
        raise InputError(f"--tokens contradicts the phases of {job.where}, which have their own; drop one")
    own = [key for key in ("seq", "gbs") if getattr(flags, key) is not None]
    own = [key for key in own if job.phases and all(key in table for table in job.phases)]
    if own:
        raise InputError(f"--{own[0]} contradicts the phases of {job.where}, which have their own; drop it")
    phases = phases_of(job, flags)
    first = phases[0].workload
    asked = question(
        path,
        cluster or ClusterFlags(),
        replace(flags, seq=first.seq, gbs=first.gbs),
        space or SpaceFlags(),
        cost_model=cost_model,
        stack=stack,
        download=download,
        size=size,
        objective=objective,
        phased=True,
    )
    if asked.objective not in ("step", "mfu", "cost"):
        raise InputError(f"objective {asked.objective} is for one ranking; phases are planned for time")
    case = replace(case_of(asked), workload=first)
    gpu = case.cluster.gpu
    keep_freed_memory()
    found = plan_phases(
        case,
        phases,
        reliability=reliability_of(run),
        price=price_of(run, gpu),
        power=power_of(run, gpu),
        told=progress(),
    )
    if json_:
        limit = found.phases[0].costs.memory_limit_bytes
        data = {"schema_version": SCHEMA_VERSION, **question_data(case, limit), **phases_data(found)}
        print(json.dumps(data, indent=2, allow_nan=False))
    else:
        screen = Screen.of()
        lines = [head(case, screen)[0], f"{len(phases)} phases · {priced_by(case.cost_model)}", ""]
        sys.stdout.write(screen.text("\n".join([*lines, *phases_lines(found, screen)]) + "\n"))
    return 0 if all(bool(p.costs.fits[0]) for p in found.phases) else DOES_NOT_FIT


def phases_of(job: Job, flags: WorkloadFlags) -> tuple[Phase, ...]:
    """The phases of a job file; what one leaves out is as in the file's workload, or as flags say."""
    if len(job.phases) > MOST_PHASES:
        raise InputError(f"{job.where} has {len(job.phases)} phases; {MOST_PHASES} is the most")
    usual = {**job.workload, **given(flags)}
    return tuple(_phase(job, table, i, usual) for i, table in enumerate(job.phases))


def _phase(job: Job, table: Mapping[str, Any], i: int, usual: Mapping[str, Any]) -> Phase:
    where = f"{job.where}: phase {i + 1}"
    for key, value in table.items():
        if key not in KEYS:
            close = nearest(str(key), KEYS, 2)
            ask = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(KEYS)}"
            raise InputError(f"{where}: unknown key {shown(key)}; {ask}")
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise InputError(f"{where}: {key} must be a number or a name, not {shown(value)}")
    counts = {key: _count(table, key, where) for key in ("seq", "gbs", "gpus", "steps") if key in table}
    both = {**{k: usual[k] for k in ("seq", "gbs") if k in usual}, **counts}
    missing = [key for key in ("seq", "gbs") if key not in both]
    if missing:
        raise InputError(f"{where}: {' and '.join(missing)} missing, here and in the workload of the file")
    precision = str(table.get("precision", usual.get("precision", "bf16")))
    same = {name: usual[name] for name in HABITS if name in usual}
    workload = Workload(seq=both["seq"], gbs=both["gbs"], precision=precision, **same)
    if ("tokens" in table) == ("steps" in table):
        raise InputError(f"{where} must say either tokens or steps")
    tokens = (
        read_tokens(str(table["tokens"]), f"{where}: tokens")
        if "tokens" in table
        else float(counts["steps"] * workload.tokens)
    )
    plan = table.get("plan")
    return Phase(
        name=str(table.get("name", f"phase {i + 1}")),
        tokens=tokens,
        workload=workload,
        gpus=counts.get("gpus"),
        wish=None if plan is None else wish_of(str(plan), f"{where}: plan"),
    )


def _count(table: Mapping[str, Any], key: str, where: str) -> int:
    return read_count(str(table[key]), f"{where}: {key}")
