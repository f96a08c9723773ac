"""Downloads, dropped files, and long searches watched and cancelled."""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncIterator
from pathlib import PurePosixPath

import anyio
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse

from meshplan.errors import InputError
from meshplan.report.gather import named_ranking, report_data
from meshplan.report.html import POLICY
from meshplan.report.said import said
from meshplan.report.words import Words
from meshplan.web import take
from meshplan.web.answer import stopped_answer
from meshplan.web.asked import Visit, read_pairs
from meshplan.web.desk import Desk, row_of
from meshplan.web.jobs import Job
from meshplan.web.packed import pack
from meshplan.web.pages import planner
from meshplan.web.question import Address, question_of

TOLD_S = 0.15
"""How often a watched search is told of."""


async def report(desk: Desk, visit: Visit) -> Response:
    """The report as a file."""
    asked = question_of(visit.address)
    ranking = await desk.ranking(asked)
    row = (
        row_of(ranking, visit.address.values["plan"])
        if "plan" in visit.address.values and len(ranking)
        else 0
    )
    text = await desk.thread(
        lambda: take.report_text(report_data(ranking, cost_model=asked.cost_model, chosen=row), visit.words)
    )
    return _file(
        text, "text/html", f"meshplan-{take.file_stem(asked)}.html", **{"content-security-policy": POLICY}
    )


async def job(desk: Desk, visit: Visit) -> Response:
    """The job file; where it names a dropped configuration, an archive with both."""
    asked = question_of(visit.address)
    files = await desk.thread(lambda: take.job_files(asked, visit.address))
    if len(files) == 1:
        return _file(next(iter(files.values())), "application/yaml", "job.yaml")
    return _file(take.archive(files), "application/zip", f"job-{take.file_stem(asked)}.zip")


async def launch(desk: Desk, visit: Visit) -> Response:
    """The launch files of the chosen plan as an archive."""
    asked = question_of(visit.address)
    ranking = await desk.ranking(asked)
    if not len(ranking):
        raise InputError("no plan is possible, so there is nothing to launch")
    row = row_of(ranking, visit.address.values["plan"]) if "plan" in visit.address.values else 0
    target, launcher = visit.own("to", "megatron"), visit.own("launcher", "torchrun")
    data = await desk.thread(
        lambda: take.launch_archive(take.launch_files(asked, ranking, row, target, launcher))
    )
    return _file(data, "application/zip", f"{target}-{take.file_stem(asked)}.zip")


async def picture(desk: Desk, visit: Visit) -> Response:
    """One picture as a file of its own."""
    asked = question_of(visit.address)
    ranking = await desk.ranking(asked)
    if not len(ranking):
        raise InputError("no plan is possible, so there is nothing to draw")
    row = row_of(ranking, visit.address.values["plan"]) if "plan" in visit.address.values else 0
    name = str(visit.request.path_params["name"])
    text = await desk.thread(
        lambda: take.picture(name, desk.chosen(asked, ranking, row), named_ranking(ranking, 1), visit.words)
    )
    return Response(text, media_type="image/svg+xml", headers={"content-security-policy": POLICY})


async def progress(desk: Desk, visit: Visit) -> Response:
    """A long search as a stream of events, until it ends or the reader goes."""
    found = desk.jobs.get(visit.own("job"))
    if found is None:
        return Response("", 404)
    return StreamingResponse(_events(found, visit.words), media_type="text/event-stream")


async def _events(job: Job, words: Words) -> AsyncIterator[str]:
    job.watchers += 1
    last = ""
    try:
        while True:
            job.seen = time.monotonic()
            ended = job.ended
            data = {**job.data(), "doing": said(job.doing, words)}
            told = json.dumps(data, ensure_ascii=False)
            if told != last or ended:
                yield f"data: {told}\n\n"
                last = told
            else:
                yield ": still here\n\n"
            if ended:
                return
            await anyio.sleep(TOLD_S)
    finally:
        job.watchers -= 1


async def cancel(desk: Desk, visit: Visit) -> Response:
    """End a long search."""
    form = await visit.form()
    found = desk.jobs.get(form.get("job", ""))
    if found is not None:
        desk.jobs.cancel(found)
    address = Address.of(read_pairs(form.get("back", "").lstrip("?")))
    text = planner(visit.words, address, stopped_answer(address, visit.words), twin=None)
    return HTMLResponse(text)


async def config(desk: Desk, visit: Visit) -> Response:
    """Take a dropped or pasted file into the address: JSON is a model, anything else a cluster."""
    form = await visit.form()
    address = Address.of(read_pairs(form.get("back", "").lstrip("?"))).without("plan", "why")
    text = form.get("text", "").strip("\ufeff \t\r\n")
    if not text:
        raise InputError("the file is empty; drop a config.json or a cluster file")
    if text.startswith("{"):
        changes = {
            "config": pack(text, "the config.json"),
            "name": file_name(form.get("file_name", "")),
            "model": None,
        }
    else:
        changes = {
            "cluster": pack(text, "the cluster file"),
            "gpu": None,
            "gpus_per_node": None,
            "nic": None,
            "gpus": None,
        }
    query = address.query(**changes, pin=None)
    question_of(Address.of(read_pairs(query.lstrip("?"))))  # what is wrong with the file is said here
    return RedirectResponse("/" + query, 303)


def file_name(text: str) -> str:
    """A model's name from the name of a file: its stem, of plain letters.

    >>> file_name("My Model.json"), file_name("config.json"), file_name("../../etc/passwd")
    ('My-Model', 'my-model', 'passwd')
    """
    stem = PurePosixPath(text.replace("\\", "/")).stem[:64]
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-.")
    return plain if plain and plain != "config" else "my-model"


def _file(content: str | bytes, kind: str, name: str, **headers: str) -> Response:
    told = {"content-disposition": f'attachment; filename="{name}"', **headers}
    return Response(content, media_type=kind, headers=told)
