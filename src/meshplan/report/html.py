"""The report: one HTML file that needs nothing else, no network, no script, both themes, paper."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshplan.report import sections
from meshplan.report.asked_sections import asked_sections
from meshplan.report.markup import Html, h, join
from meshplan.report.ranking_table import ranking_table, tie_note
from meshplan.report.style import document_css
from meshplan.report.words import HTML_CODES, Words, words_in

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
"""Nothing may be loaded: the reader's browser holds the file to it."""


def report_html(data: Mapping[str, Any], *, language: str = "en") -> str:
    """The whole report as text. ``data`` is what ``gather.report_data`` answers; sections whose data is
    missing are left out."""
    words = words_in(language)
    title = sections.headline(data["ranking"], words)
    body = join(
        [
            part
            for section in (_answer, _plan, asked_sections, _studies, _again, _evidence)
            for part in section(data, words)
        ]
    )
    head = h(
        "head",
        h("meta", charset="utf-8"),
        h("meta", http_equiv="Content-Security-Policy", content=POLICY),
        h("meta", name="viewport", content="width=device-width, initial-scale=1"),
        h("meta", name="generator", content=f"meshplan {data['version']}"),
        h("title", f"meshplan: {title}"),
        h("style", Html(document_css())),
    )
    main = h("main", h("h1", title), sections.question(data["ranking"], words), body, _footer(data, words))
    return f"<!doctype html>\n{h('html', head, h('body', main), lang=HTML_CODES[language])}\n"


def report_pictures(data: Mapping[str, Any], *, language: str = "en") -> dict[str, Html]:
    """Every picture of the report by name."""
    words = words_in(language)
    found: dict[str, Html] = {}
    if data["chosen"]:
        found |= {name: p for name, p, _ in sections.plan_pictures(data["chosen"], data["ranking"], words)}
    return found | {name: p for name, p, _ in sections.study_pictures(data, words)}


def _answer(data: Mapping[str, Any], words: Words) -> list[Html]:
    ranking, band = data["ranking"], data["band"]
    chosen = data["chosen"]["rank"] if data["chosen"] else None
    return [
        h("h2", words("report.answer")),
        *(h("p", note, class_="soft") for note in data.get("notes", ())),
        ranking_table(ranking, words, shown=data.get("shown"), band=band, chosen=chosen),
        sections.fidelity_note(ranking, words),
        tie_note(band, data.get("shown") or ranking["plans"], words),
        sections.funnel(ranking, words),
        sections.misses(ranking, words),
    ]


def _plan(data: Mapping[str, Any], words: Words) -> list[Html]:
    plan, ranking = data["chosen"], data["ranking"]
    if not plan:
        return []
    found = [
        h("h2", words("report.plan", rank=plan["rank"], name=plan["name"])),
        sections.plan_facts(plan, ranking, words),
    ]
    for name, picture, caption in sections.plan_pictures(plan, ranking, words):
        found += [h("h3", words(f"{name}.title")), sections.figure(name, picture, caption)]
    if plan["pp"] < 2:
        found.append(h("p", words("timeline.no_pipeline"), class_="soft"))
    return found


def _studies(data: Mapping[str, Any], words: Words) -> list[Html]:
    found = []
    for name, picture, caption in sections.study_pictures(data, words):
        found += [h("h2", words(f"{name}.title")), sections.figure(name, picture, caption)]
        if name == "scaling":
            found.append(sections.scaling_table(data["scaling"]["points"], data["ranking"]["order"], words))
    return found


def _again(data: Mapping[str, Any], words: Words) -> list[Html]:
    if not data["command"]:
        return []
    return [
        h("h2", words("report.again")),
        h("pre", data["command"]),
        h("p", words("report.job")) if data["job"] else Html(""),
        h("pre", data["job"]) if data["job"] else Html(""),
    ]


def _evidence(data: Mapping[str, Any], words: Words) -> list[Html]:
    plan = data["chosen"]
    return [h("h2", words("report.evidence")), sections.evidence(plan, words)] if plan else []


def _footer(data: Mapping[str, Any], words: Words) -> Html:
    return h("footer", words("report.footer", version=data["version"]))
