"""What can be taken away: a report, a job file, launch files, single pictures."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Mapping
from typing import Any

from meshplan.cost.models import stack_name, stack_of
from meshplan.errors import InputError, UnknownNameError
from meshplan.export.launch import Job as LaunchJob
from meshplan.export.launch import Launch
from meshplan.export.targets import export
from meshplan.plan.rules import Setting
from meshplan.report import sections
from meshplan.report.html import report_html
from meshplan.report.job_text import CONFIG, JOB, job_table, job_text, model_word
from meshplan.report.markup import Html
from meshplan.report.svg import standalone
from meshplan.report.words import Words
from meshplan.search.ranking import Ranking
from meshplan.web.packed import unpack
from meshplan.web.question import Address, Asked

_WHEN = (1980, 1, 1, 0, 0, 0)
"""The date of every file in an archive, so that the same question gives the same bytes."""


def file_stem(asked: Asked) -> str:
    """A file name that any system takes, from the question: ``llama-3.1-70b-64``."""
    name = re.sub(r"[^a-z0-9.]+", "-", asked.model.name.lower()).strip("-.")[:60]
    return f"{name or 'model'}-{asked.cluster.gpus}"


def job_files(asked: Asked, address: Address) -> dict[str, str]:
    """The job file, and beside it the ``config.json`` that it names, where one was dropped."""
    model = model_word(asked.model, CONFIG)
    files = {JOB: job_text(job_table(*asked.words, **asked.kinds, word=model))}
    if model == CONFIG:
        files["config.json"] = unpack(address.values["config"], "the config.json")
    return files


def launch_files(asked: Asked, ranking: Ranking, row: int, target: str, launcher: str) -> Launch:
    """The launch files of a plan. Raises ``InputError`` where the target cannot run it."""
    setting = Setting(asked.model, asked.cluster, asked.workload)
    job = LaunchJob(
        setting=setting, plan=ranking.costs.plans[row], order=asked.space.order, name=asked.model.name,
        asked_model=model_word(asked.model, CONFIG),
        stack=stack if (stack := stack_name(asked.cost_model)) != stack_of(target) else None,
    )  # fmt: skip
    return export(job, target, launcher)


def launch_archive(launch: Launch) -> bytes:
    """The files of a launch and what the target could not be told, as an archive."""
    notes = [f"{note.part}: asked {note.asked}, written {note.written}: {note.why}" for note in launch.notes]
    extra = {"NOTES.txt": "\n".join(notes) + "\n"} if notes else {}
    return archive({**launch.files, **extra})


def archive(files: Mapping[str, str]) -> bytes:
    """A zip archive of these files; those that end in ``.sh`` are executable."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, text in files.items():
            info = zipfile.ZipInfo(name, _WHEN)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (0o755 if name.endswith(".sh") else 0o644) << 16
            zipped.writestr(info, text)
    return out.getvalue()


def report_text(data: Mapping[str, Any], words: Words) -> str:
    """The report in the page's language."""
    return report_html(data, language=words.language)


def picture(name: str, plan: Mapping[str, Any], ranking: Mapping[str, Any], words: Words) -> str:
    """One picture of a plan as a file of its own. Raises ``UnknownNameError`` and, where this plan has no
    such picture, ``InputError``."""
    known = ("memory", "time", "mesh", "timeline")
    if name not in known:
        raise UnknownNameError("picture", name, known, f"known: {', '.join(known)}")
    found: dict[str, Html] = {n: p for n, p, _ in sections.plan_pictures(plan, ranking, words)}
    if name not in found:
        raise InputError(f"a plan without pipeline has no {name}")
    return standalone(found[name])
