"""The page's addresses and what answers them.

Every page has a twin in JSON: ``/`` and ``/plan.json`` (``meshplan plan --json``), ``/estimate`` and
``/estimate.json`` (``meshplan estimate --json``), ``/why-not`` and ``/why-not.json`` (``meshplan why-not
--json``), ``/scale.json`` (``meshplan scale --json``); ``/compare`` and ``/studies`` have their own.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

import meshplan
from meshplan.errors import MeshplanError
from meshplan.report.markup import h
from meshplan.report.said import said
from meshplan.web import actions, views
from meshplan.web.answer import error_answer
from meshplan.web.asked import Visit
from meshplan.web.desk import Desk, StoppedError
from meshplan.web.guard import LOOPBACK, Guard, TooLargeError
from meshplan.web.jobs import BusyError
from meshplan.web.pages import page_css, plain_page
from meshplan.web.question import START, Address, question_of
from meshplan.web.tasks import Task

SCRIPT = Path(__file__).parent / "static" / "app.js"
RETRY_S = 3

View = Callable[[Desk, Visit], Awaitable[Response]]
log = logging.getLogger("meshplan.web")

PAGES: dict[str, View] = {
    "/": views.index,
    "/answer": views.fragment,
    "/estimate": views.estimate,
    "/compare": views.compare,
    "/why-not": views.why,
    "/studies": views.studies,
    "/report.html": actions.report,
    "/job": actions.job,
    "/launch.zip": actions.launch,
    "/picture/{name}.svg": actions.picture,
    "/progress": actions.progress,
}
TWINS: dict[str, View] = {
    "/plan.json": views.plan_json,
    "/estimate.json": views.estimate_json,
    "/compare.json": views.compare_json,
    "/why-not.json": views.why_json,
    "/scale.json": views.scale_json,
    "/studies.json": views.studies_json,
}
POSTS: dict[str, View] = {"/cancel": actions.cancel, "/config": actions.config}


def create_app(
    *,
    desk: Desk | None = None,
    hosts: frozenset[str] | None = frozenset(LOOPBACK),
    token: str | None = None,
) -> Guard:
    """The whole server as an ASGI application. ``hosts``: names it answers to (``None``: any); ``token``:
    what visitors must show."""
    own = desk or Desk()
    routes = [Route(path, partial(_page, own, view)) for path, view in PAGES.items()]
    routes += [Route(path, partial(_twin, own, view)) for path, view in TWINS.items()]
    routes += [Route(path, partial(_page, own, view), methods=["POST"]) for path, view in POSTS.items()]
    routes += [Route("/page.css", _css), Route("/app.js", _script)]
    routes.append(Route("/{anything:path}", partial(_page, own, views.nothing)))

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_warm, own)
            yield
            tasks.cancel_scope.cancel()
        own.jobs.close()

    return Guard(Starlette(routes=routes, lifespan=lifespan), hosts, token)


async def _page(desk: Desk, view: View, request: Request) -> Response:
    """A view with what may go wrong as a page."""
    visit = Visit(request)
    try:
        return await view(desk, visit)
    except Exception as error:
        status, sentence = _failure(error, visit)
        words, address = visit.words, visit.address_or(Address(START))
        body = (
            error_answer(sentence, words) if status == 422 else h("p", sentence, class_="bad", role="alert")
        )
        text = plain_page(words, address, [body], title=_title(said(sentence, words)), path="/")
        return HTMLResponse(text, status, headers=_retry(status))


async def _twin(desk: Desk, view: View, request: Request) -> Response:
    """A view in JSON; errors look as on the command line."""
    visit = Visit(request)
    try:
        return await view(desk, visit)
    except Exception as error:
        status, sentence = _failure(error, visit)
        code = getattr(error, "exit_code", 2 if status == 422 else 70)
        return _json({"error": sentence, "exit_code": code}, status)


def _failure(error: Exception, visit: Visit) -> tuple[int, str]:
    """Status and sentence of what went wrong; what nobody foresaw is logged and is not the server's end."""
    words = visit.words
    match error:
        case TooLargeError():
            return 413, str(error)
        case MeshplanError():
            return 422, str(error)
        case BusyError():
            return 503, words("page.busy")
        case StoppedError():
            return 503, words("page.cancelled")
        case _:
            log.error("%s", visit.path, exc_info=error)
            what = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            return 500, words("page.bug", version=meshplan.__version__, what=what)


def _title(sentence: str) -> str:
    """The beginning of a sentence, up to where a word ends."""
    found = re.match(r".{0,80}(?=[\s,;:，；：。]|$)", sentence)
    return found[0] if found else sentence[:80]


def _retry(status: int) -> dict[str, str] | None:
    return {"retry-after": str(RETRY_S)} if status == 503 else None


def _json(data: Any, status: int) -> Response:
    text = json.dumps(data, ensure_ascii=False) + "\n"
    return Response(text, status, media_type="application/json", headers=_retry(status))


async def _warm(desk: Desk) -> None:
    """Answer the question that the page opens with before anybody asks: the first answer reads all curves."""
    with contextlib.suppress(MeshplanError):
        await desk.quickly(Task(asked=question_of(Address(START))))


async def _css(request: Request) -> Response:
    return Response(page_css(), media_type="text/css")


async def _script(request: Request) -> Response:
    return Response(SCRIPT.read_text(encoding="utf-8"), media_type="text/javascript")
