"""``meshplan plan``: the ranked ways to lay a run out."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import cyclopts
import numpy as np
from cyclopts import Parameter

from meshplan.cli.flags import ClusterFlags, ObjectiveName, SizeFlags, SpacesFlags, WorkloadsFlags
from meshplan.cli.job import is_phased
from meshplan.cli.options import Count, Format, Json
from meshplan.cli.progress import fault, progress
from meshplan.cli.question import Question, question
from meshplan.cli.report import Language, check_places, report_language
from meshplan.cli.run_flags import RunFlags, StudyFlags, need_tokens
from meshplan.cli.variants import best_first, only_variant, variants_of
from meshplan.cost.models import COST_MODELS, DEFAULT
from meshplan.errors import InputError
from meshplan.plan.rules import Setting
from meshplan.report.parts import step_time
from meshplan.report.plan_names import plan_names
from meshplan.report.plan_rows import flat, ranking_data
from meshplan.report.plan_view import plan_markdown, plan_text
from meshplan.report.screen import Screen
from meshplan.report.table import csv_text
from meshplan.report.variants_view import variants_data, variants_text
from meshplan.search.fidelity import MOST_SURE, Fidelity
from meshplan.search.heap import keep_freed_memory
from meshplan.search.planned import planned
from meshplan.search.ranking import Nothing, Ranking

app = cyclopts.App(name="plan")

NO_PLAN = 1
PRICED_BY = f"What prices the plans: {' or '.join(COST_MODELS)} (default: {DEFAULT})."


@app.default
def plan(
    model: str,
    /,
    *,
    cluster: ClusterFlags | None = None,
    workload: WorkloadsFlags | None = None,
    space: SpacesFlags | None = None,
    size: SizeFlags | None = None,
    objective: ObjectiveName = None,
    ties: Annotated[bool, Parameter(negative="--no-ties")] = True,
    pareto: Annotated[bool, Parameter(negative=())] = False,
    study: StudyFlags | None = None,
    run: RunFlags | None = None,
    cost_model: Annotated[str | None, Parameter(metavar="NAME", help=PRICED_BY)] = None,
    stack: Annotated[str | None, Parameter(metavar="NAME")] = None,
    fidelity: Annotated[Fidelity | None, Parameter(metavar="NAME")] = None,
    top: Count = 10,
    format_: Annotated[Format, Parameter(name="--format", metavar="NAME")] = "table",
    json_: Json = False,
    html: Annotated[Path | None, Parameter(metavar="FILE")] = None,
    svg: Annotated[Path | None, Parameter(metavar="FOLDER")] = None,
    language: Annotated[Language | None, Parameter(metavar="NAME")] = None,
    download: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Rank the ways to lay a training run out over GPUs.

    Exit code 0: at least one plan fits; 1: none fits the memory; 2: the question makes no sense.

    Parameters
    ----------
    model
        A preset (see `meshplan models`), a config.json or its folder, a name in the Hugging Face
        cache, or a job file (.yaml, .toml) with model, cluster, workload and space. Flags win over it.
        A job file with phases gets a plan for each phase.
    ties
        Put the simplest plan first of those that are as fast as the fastest within the usual error of the
        cost model; --no-ties ranks by time alone.
    pareto
        Only plans that no other beats in step time, memory and simplicity at once.
    stack
        Software that the full cost model assumes: megatron-core-2025, torchtitan, deepspeed … (default: that
        of --framework).
    fidelity
        estimate ranks by the cost model's closed form; simulate also simulates the pipelines of the best
        plans, as many as it takes to be certain of those shown (default: simulate, where it can).
    top
        Plans shown.
    format_
        Of the output.
    html
        Write a report with pictures to this file, which needs no network to be read.
    svg
        Write the pictures of the report into this folder.
    language
        Of the report and its pictures: en (default) or zh.
    download
        Fetch the config.json of an unknown model from the Hugging Face hub.
    """
    workload, space = workload or WorkloadsFlags(), space or SpacesFlags()
    if is_phased(model):
        from meshplan.cli.phases import plan_job

        pictures = [flag for flag, path in (("--html", html), ("--svg", svg)) if path is not None]
        if pictures or format_ not in ("table", "json"):
            flag = pictures[0] if pictures else f"--format {format_}"
            raise InputError(
                f"{flag} shows one ranking, and a job of phases has none; use --json or the table"
            )
        for flag, given in (
            ("--language", language is not None),
            ("--pareto", pareto),
            ("--no-ties", not ties),
            ("--fidelity", fidelity is not None),
            ("--what-if", (study or StudyFlags()).what_if is not None),
            ("--sensitivities", (study or StudyFlags()).sensitivities),
            ("--explain-steps", (study or StudyFlags()).explain_steps),
        ):
            if given:
                raise InputError(f"{flag} is about one ranking, and a job of phases has none; drop it")
        one = only_variant(workload, space, "and the phases are planned for one")
        return plan_job(
            model,
            cluster,
            one.workload,
            one.space,
            run,
            cost_model=cost_model,
            stack=stack,
            size=size,
            objective=objective,
            json_=json_,
            download=download,
        )
    if json_ and format_ not in ("table", "json"):
        raise InputError(f"--json and --format {format_} contradict each other; drop one")
    form: Format = "json" if json_ else format_
    check_places(html, svg)
    spoken = report_language(language, needs="--html FILE or --svg FOLDER", drawn=bool(html or svg))
    variants = variants_of(workload, space)
    if len(variants) > 1 and form not in ("table", "json"):
        only_variant(workload, space, f"and --format {form} is one ranking")
    questions = []
    for variant in variants:
        asked = question(
            model,
            cluster or ClusterFlags(),
            variant.workload,
            variant.space,
            cost_model=cost_model,
            stack=stack,
            download=download,
            size=size,
            objective=objective,
        )
        layout = asked.space.layout if space.layout is None else space.layout
        questions.append(replace(asked, space=replace(asked.space, layout=layout)))
    need_tokens(run or RunFlags())
    keep_freed_memory()

    def ranked(asked: Question) -> Ranking:
        found = planned(
            Setting(asked.model, asked.cluster, asked.workload),
            space=asked.space,
            cost_model=asked.cost_model,
            fidelity=fidelity,
            sure=min(top, MOST_SURE),
            objective=asked.objective,
            ties=ties,
            told=progress(),
        )
        return found.take(np.flatnonzero(found.pareto)) if pareto else found

    rankings = [ranked(asked) for asked in questions]
    order = best_first(rankings)
    asked, ranking = questions[order[0]], rankings[order[0]]
    nothing = ranking.nothing
    if nothing is not None and nothing.limit == "rules":
        raise InputError(no_plan(nothing, ranking))
    sections, data = _studies(asked, ranking, study or StudyFlags(), run or RunFlags(), form)
    if len(rankings) > 1:
        compared = [rankings[i] for i in order]
        data["variants"] = variants_data(compared)
        sys.stdout.write(variants_text(compared, Screen.of()) if form == "table" else "")
    sys.stdout.write(_render(ranking, top, form, data, stack=asked.stack, pareto=pareto) + sections)
    if html is not None or svg is not None:
        from meshplan.cli.report import write_report
        from meshplan.report.asked_sections import KEYS
        from meshplan.report.gather import report_data

        flags = ("--pareto",) if pareto else ()
        whole = report_data(
            ranking, cost_model=asked.cost_model, stack=asked.stack, flags=flags, told=progress()
        )
        whole |= {name: data[name] for name in KEYS if name in data}
        write_report(whole, html=html, svg=svg, language=spoken)
    if nothing is None:
        return 0
    if form != "json":
        fault(no_plan(nothing, ranking))
    return NO_PLAN


def _studies(
    asked: Question, ranking: Ranking, study: StudyFlags, run: RunFlags, form: Format
) -> tuple[str, dict[str, Any]]:
    """What else was asked about the answer: text to print after it, and keys of the JSON."""
    if study == StudyFlags() and need_tokens(run):
        return "", {}
    if form not in ("table", "json"):
        raise InputError(f"--format {form} is the ranking alone; use table or json with these flags")
    from meshplan.cli.studies import studies_of

    screen = Screen.of()
    found = studies_of(asked, ranking, study, run, screen)
    return (found.text(screen) if form == "table" else ""), found.data


def _render(
    ranking: Ranking, top: int, form: Format, data: dict[str, Any], *, stack: str | None, pareto: bool
) -> str:
    match form:
        case "json":
            whole = ranking_data(ranking, top, stack=stack, pareto_only=pareto) | data
            return json.dumps(whole, indent=2, allow_nan=False) + "\n"
        case "csv":
            rows = [flat(plan) for plan in ranking_data(ranking, top)["plans"]]
            return csv_text(list(rows[0]), [list(row.values()) for row in rows]) if rows else ""
        case "markdown":
            return plan_markdown(ranking, top)
        case _:
            return plan_text(ranking, top, Screen.of())


def no_plan(nothing: Nothing, ranking: Ranking) -> str:
    """Why there is no plan and how many GPUs would do, as one sentence."""
    fewer = nothing.smallest_gpus if nothing.limit == "memory" else nothing.fewer_gpus
    counts = dict.fromkeys(n for n in (fewer, nothing.more_gpus) if n is not None)
    gpus = f"{ranking.cluster.gpus:,} GPU{'s' if ranking.cluster.gpus > 1 else ''}"
    kind = "fits" if nothing.limit == "memory" else "is valid for"
    if counts:
        works = f"; {' or '.join(f'{n:,}' for n in counts)} GPUs would work"
    else:
        more = nothing.limit == "memory" and nothing.searched_to > ranking.cluster.gpus
        works = f"; no number of GPUs up to {nothing.searched_to:,} would" if more else ""
    ways = [
        f"{' '.join(way.flags)} ({' '.join(plan_names(way.costs.plans, way.costs.plans.order)[0].split())},"
        f" {step_time(float(way.costs.step_s[0]))} a step)"
        for way in nothing.ways
    ]
    other = f"; otherwise {', or '.join(ways)}" if ways else ""
    return f"no plan {kind} {gpus}: {nothing.reason}{works}{other}"
