"""The pages and their twins: each takes a visit and answers it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import HTMLResponse, Response

from meshplan.cli.estimate import PlanFlags, as_cut, check_layers, plan_of
from meshplan.cli.plan import no_plan
from meshplan.cli.question import Question
from meshplan.errors import InputError
from meshplan.plan.rules import Setting
from meshplan.report import sections
from meshplan.report.compare import compare_data
from meshplan.report.estimate_view import estimate_data
from meshplan.report.gather import band_data, named_ranking, shown_plans
from meshplan.report.markup import Html, h, join
from meshplan.report.plan_key import read_plan
from meshplan.report.plan_rows import ranking_data
from meshplan.report.resume import report_of_estimate
from meshplan.report.studies import gpu_counts
from meshplan.report.words import Words
from meshplan.search.one import explain_one
from meshplan.search.ranking import Ranking
from meshplan.web import answer
from meshplan.web.asked import Visit
from meshplan.web.desk import Desk, row_of
from meshplan.web.jobs import Job
from meshplan.web.pages import plain_page, planner
from meshplan.web.question import Address, Asked, question_of
from meshplan.web.tasks import Task

REFRESH_S = 2


async def index(desk: Desk, visit: Visit) -> Response:
    """The planning page."""
    address, words = visit.address, visit.words
    body, status, waiting = await _answer(desk, address, words)
    text = planner(
        words,
        address,
        body,
        twin="/plan.json" + address.query(pin=None),
        refresh_s=REFRESH_S if waiting else None,
    )
    return HTMLResponse(text, status)


async def fragment(desk: Desk, visit: Visit) -> Response:
    """The part of the planning page that changes with the question."""
    body, status, _ = await _answer(desk, visit.address, visit.words)
    return HTMLResponse(body, status)


async def nothing(desk: Desk, visit: Visit) -> Response:
    """There is no such page."""
    words = visit.words
    text = plain_page(
        words, visit.address_or(Address({})), [h("p", words("page.not_found"))], title="404", path="/"
    )
    return HTMLResponse(text, 404)


async def plan_json(desk: Desk, visit: Visit) -> Response:
    """What ``meshplan plan --json`` prints for the same question."""
    asked = question_of(visit.address)
    ranking = await desk.ranking(asked)
    empty = ranking.nothing
    if empty is not None and empty.limit == "rules":
        raise InputError(no_plan(empty, ranking))
    return json_response(await desk.thread(lambda: ranking_data(ranking, asked.top)))


async def estimate_json(desk: Desk, visit: Visit) -> Response:
    """What ``meshplan estimate --json`` prints for the same plan."""
    return json_response(await desk.thread(lambda: _estimate(visit.address)))


async def estimate(desk: Desk, visit: Visit) -> Response:
    """One plan in full."""
    words, address = visit.words, visit.address

    def render() -> str:
        data = report_of_estimate(_estimate(address))
        plan, ranking = data["chosen"], data["ranking"]
        parts: list[Html] = [
            h("h2", f"{words('page.estimate')}: {plan['name']}"),
            h("p", words("page.estimate_note"), class_="soft"),
            sections.question(ranking, words),
            sections.plan_facts(plan, ranking, words),
        ]
        for name, picture, caption in sections.plan_pictures(plan, ranking, words):
            parts += [h("h3", words(f"{name}.title")), sections.figure(name, picture, caption)]
        parts += [h("h3", words("report.evidence")), sections.evidence(plan, words)]
        twin = "/estimate.json" + address.query()
        return plain_page(words, address, parts, title=plan["name"], path="/estimate", twin=twin)

    return HTMLResponse(await desk.thread(render))


async def compare(desk: Desk, visit: Visit) -> Response:
    """Two pinned plans on a page of their own."""
    words, address = visit.words, visit.address
    found = await _compared(desk, visit)
    body = answer.compare_answer(found, address, words)
    twin = "/compare.json" + address.query()
    text = plain_page(words, address, [body], title=words("compare.title"), path="/compare", twin=twin)
    return HTMLResponse(text)


async def compare_json(desk: Desk, visit: Visit) -> Response:
    """The comparison as data."""
    return json_response(await _compared(desk, visit))


async def why(desk: Desk, visit: Visit) -> Response:
    """What stands against a plan, on a page of its own."""
    words, address = visit.words, visit.address
    found = await _doubted(desk, visit)
    if visit.is_part:
        return HTMLResponse(answer.why_answer(found, words))
    twin = "/why-not.json" + address.query()
    parts = [h("h2", words("why.title")), answer.why_answer(found, words)]
    return HTMLResponse(
        plain_page(words, address, parts, title=words("why.title"), path="/why-not", twin=twin)
    )


async def why_json(desk: Desk, visit: Visit) -> Response:
    """The verdict as data."""
    return json_response((await _doubted(desk, visit))["json"])


async def scale_json(desk: Desk, visit: Visit) -> Response:
    """What ``meshplan scale --no-weak --json`` prints, for a quarter to eight times the GPUs."""
    address = visit.address
    counts = gpu_counts(question_of(address).cluster)
    largest = question_of(address.with_gpus(counts[-1]))
    found = await desk.slowly(Task(asked=largest, kind="scale", detail=",".join(map(str, counts))))
    return json_response(found)


async def studies(desk: Desk, visit: Visit) -> Response:
    """The scaling curve and the sensitivities; bare where the script asks for them."""
    words, address = visit.words, visit.address
    found, ranking = await _studied(desk, visit)
    data = await desk.thread(lambda: named_ranking(ranking, 1))
    body = answer.studies_answer(found, data, words)
    if visit.is_part:
        return HTMLResponse(body)
    twin = "/studies.json" + address.query()
    parts = [h("h2", words("page.studies")), body]
    text = plain_page(words, address, parts, title=words("page.studies"), path="/studies", twin=twin)
    return HTMLResponse(text)


async def studies_json(desk: Desk, visit: Visit) -> Response:
    """The studies as data."""
    return json_response((await _studied(desk, visit))[0])


def json_response(data: Mapping[str, Any]) -> Response:
    """Data as the command line prints it."""
    return Response(json.dumps(data, indent=2, allow_nan=False) + "\n", media_type="application/json")


async def _answer(desk: Desk, address: Address, words: Words) -> tuple[Html, int, bool]:
    """The answer, its status, and whether a search is still under way."""
    try:
        asked = question_of(address)
        found = await desk.quickly(Task(asked=asked))
        if isinstance(found, Job):
            return _waiting(found, asked, address, words), 200, True
        before = None
        if address.moved:
            before = await desk.quickly(Task(asked=question_of(address, sliders=False)))
        base = (before, found) if isinstance(before, Ranking) else None
        return await desk.thread(lambda: _whole(desk, asked, found, address, words, base)), 200, False
    except InputError as error:
        return answer.error_answer(str(error), words), 422, False


def _whole(
    desk: Desk, asked: Asked, ranking: Ranking, address: Address, words: Words,
    base: tuple[Ranking, Ranking] | None,
) -> Html:  # fmt: skip
    """Ranking, comparison, chosen plan, doubts, studies, downloads."""
    data = named_ranking(ranking, asked.top)
    chosen, pinned = _chosen(ranking, address), _pinned(ranking, address)
    shown = shown_plans(ranking, asked.top, {*pinned, *([] if chosen is None else [chosen])})
    parts = [
        answer.ranking_answer(
            ranking, data, address, words, shown=shown, band=band_data(ranking), chosen=chosen, base=base
        )
    ]
    if len(pinned) == 2:
        parts.append(answer.compare_answer(compare_data(ranking, *pinned), address, words))
    plan = None if chosen is None else desk.chosen(asked, ranking, chosen)
    if plan is not None:
        parts.append(answer.plan_answer(plan, data, address, words))
    parts.append(answer.why_form(address, words))
    if plan is not None:
        parts.append(answer.studies_box(address, words))
    parts.append(answer.downloads(plan, asked, address, words))
    return join(parts)


def _waiting(job: Job, asked: Asked, address: Address, words: Words) -> Html:
    if job.state == "failed":
        raise InputError(job.error)
    return answer.waiting_answer(job, asked, address, words)


def _chosen(ranking: Ranking, address: Address) -> int | None:
    """The row of the plan in the address; the best one where it is not there any more."""
    if not len(ranking):
        return None
    try:
        return row_of(ranking, address.values["plan"]) if "plan" in address.values else 0
    except InputError:
        return 0


def _pinned(ranking: Ranking, address: Address) -> list[int]:
    found = []
    for pin in address.pins:
        try:
            found.append(row_of(ranking, pin))
        except InputError:
            continue
    return found


async def _compared(desk: Desk, visit: Visit) -> dict[str, Any]:
    address = visit.address
    if len(address.pins) != 2:
        raise InputError(visit.words("page.pins_needed"))
    ranking = await desk.ranking(question_of(address))
    rows = [row_of(ranking, pin) for pin in address.pins]
    return await desk.thread(lambda: compare_data(ranking, *rows))


async def _doubted(desk: Desk, visit: Visit) -> dict[str, Any]:
    asked, text = question_of(visit.address), visit.address.values.get("why", "")
    if not text:
        raise InputError("why is missing: a plan, or a part of one, such as tp8,pp1")
    found: dict[str, Any] = await desk.slowly(Task(asked=asked, kind="why", detail=text))
    return found


async def _studied(desk: Desk, visit: Visit) -> tuple[dict[str, Any], Ranking]:
    asked = question_of(visit.address)
    ranking = await desk.ranking(asked)
    row = _chosen(ranking, visit.address)
    if row is None:
        raise InputError("no plan is possible, so there is nothing to study")
    return await desk.slowly(Task(asked=asked, kind="studies", detail=str(row))), ranking


def _estimate(address: Address) -> dict[str, Any]:
    """The plan in the address priced as ``meshplan estimate`` does. Raises ``InputError``."""
    if "plan" not in address.values:
        raise InputError("plan is missing: such as tp4,cp2,dp4,pp2,mbs1")
    asked = question_of(address)
    full = asked.full
    flags = flags_of(read_plan(address.values["plan"]))
    whole = Question(
        model=asked.model, cluster=asked.cluster, workload=asked.workload, space=asked.space, cost_model=full
    )
    plan = plan_of(flags, whole, sharding=full.stack.usual_sharding)
    setting = Setting(asked.model, asked.cluster, asked.workload)
    found = explain_one(full, setting, plan, order=asked.space.order, cut=flags.layout is None)
    check_layers(as_cut(found.costs, whole))
    return estimate_data(found, asked.model, asked.cluster, asked.workload)


def flags_of(fields: Mapping[str, Any]) -> PlanFlags:
    """The fields of a plan as the flags of ``meshplan estimate``."""
    known = (
        "tp",
        "sp",
        "cp",
        "cp_kind",
        "pp",
        "vp",
        "schedule",
        "layout",
        "dp",
        "sharding",
        "replicas",
        "ep",
        "etp",
        "mbs",
    )
    again = (fields.get("recompute_layers", 0), fields.get("recompute_modules", 0))
    return PlanFlags(**{name: fields[name] for name in known if name in fields}, recompute=again)
