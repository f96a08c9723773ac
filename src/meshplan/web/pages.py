"""Whole pages: the frame that all share, the planning page, and the pages beside it."""

from __future__ import annotations

from collections.abc import Iterable

import meshplan
from meshplan.report.markup import Child, Html, h
from meshplan.report.palette import CHART_CSS, theme_css
from meshplan.report.style import DOCUMENT_CSS, PRINT_CSS
from meshplan.report.words import HTML_CODES, LANGUAGES, Words
from meshplan.web.form import ask_form, drop_form
from meshplan.web.question import Address

PAGE_CSS = (
    "header{display:flex;flex-wrap:wrap;gap:.5rem 1.5rem;align-items:baseline;padding:.75rem 1rem;"
    "border-bottom:1px solid var(--mp-line)}header h1{margin:0;font-size:1.2rem}"
    "header nav{margin-left:auto}header nav a{margin-left:.75rem}"
    ".skip{position:absolute;left:-99rem}.skip:focus{left:1rem;top:.5rem;background:var(--mp-paper);padding:.3rem}"
    ".planner{display:grid;grid-template-columns:minmax(0,1fr);gap:1rem 2rem;max-width:90rem;margin:0 auto;"
    "padding:1rem}.planner main{max-width:none;margin:0;padding:0;min-width:0}"
    "@media (min-width:64rem){.planner{grid-template-columns:20rem minmax(0,1fr)}"
    ".side{position:sticky;top:.5rem;max-height:calc(100vh - 4.5rem);overflow-y:auto}}"
    "fieldset{border:1px solid var(--mp-line);border-radius:.3rem;margin:0 0 .75rem;padding:.5rem .75rem}"
    "legend{font-weight:600;padding:0 .3rem}"
    "label{display:flex;justify-content:space-between;align-items:center;gap:.5rem;margin:.25rem 0}"
    "section label,.launch label{display:inline-flex}"
    "input,select,textarea,button{font:inherit;color:var(--mp-ink);background:var(--mp-paper);"
    "border:1px solid var(--mp-edge);border-radius:.25rem;padding:.2rem .4rem}"
    ".side label input:not([type=range]):not([type=file]),.side label select{width:10.5rem}"
    "textarea{width:100%}button{cursor:pointer;background:var(--mp-panel)}"
    "button.main{background:var(--mp-link);border-color:var(--mp-link);color:var(--mp-paper);font-weight:600;"
    "padding:.35rem 1.2rem}"
    ".ask{position:sticky;bottom:0;padding:.4rem 0;background:var(--mp-paper)}"
    ":focus-visible{outline:3px solid var(--mp-link);outline-offset:2px}"
    ".slider{display:grid;grid-template-columns:6rem 1fr 3.5rem;gap:.5rem;align-items:center}"
    ".slider output{text-align:right;font-variant-numeric:tabular-nums}"
    "input[type=range]{padding:0;width:100%;accent-color:var(--mp-link)}"
    "progress{width:100%;height:1.2rem}"
    ".moved{background:var(--mp-band);padding:.5rem .75rem;border-radius:.3rem}"
    "tr.strong th,tr.strong td{font-weight:600}tbody th{font-weight:400}tbody tr.strong th{font-weight:600}"
    ".busy #answer{opacity:.55}.dragging{outline:4px dashed var(--mp-link);outline-offset:-8px}"
    ".script{display:none}.scripted .script{display:initial}.scripted label.script{display:flex}"
    "h3 small{font-weight:400;font-size:.8rem}"
    ".quiet{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}"
)


def page_css() -> str:
    """All the style of the page."""
    return theme_css(":root") + DOCUMENT_CSS + CHART_CSS + PAGE_CSS + PRINT_CSS


def frame(
    words: Words,
    address: Address,
    *body: Child,
    title: str,
    twin: str | None = None,
    refresh_s: int | None = None,
    path: str = "/",
) -> str:  # fmt: skip
    """A whole document. ``twin``: address of the same as JSON; ``refresh_s``: where no script runs, load
    again after so many seconds."""
    head = h(
        "head",
        h("meta", charset="utf-8"),
        h("meta", name="viewport", content="width=device-width, initial-scale=1"),
        h("title", title),
        h("link", rel="icon", href="data:,"),
        h("link", rel="stylesheet", href="/page.css"),
        h("link", rel="alternate", type="application/json", href=twin) if twin else None,
        h("noscript", h("meta", http_equiv="refresh", content=str(refresh_s))) if refresh_s else None,
        h("script", src="/app.js", defer=True),
    )
    languages = [
        h(
            "a",
            name,
            href=path + address.query(lang=code),
            hreflang=HTML_CODES[code],
            lang=HTML_CODES[code],
            data_lang=code,
            aria_current="true" if code == words.language else None,
        )
        for code, name in LANGUAGES.items()
    ]
    top = h(
        "header",
        h("a", words("page.skip"), href="#answer", class_="skip"),
        h("h1", h("a", "meshplan", href="/" + address.query(pin=None, plan=None, why=None))),
        h("nav", languages, aria_label=words("page.language")),
    )
    foot = h("footer", h("p", words("page.footer", version=meshplan.__version__)), class_="planner")
    document = h("html", head, h("body", top, body, foot), lang=HTML_CODES[words.language])
    return f"<!doctype html>\n{document}\n"


def planner(
    words: Words, address: Address, answer: Html, *, twin: str | None, refresh_s: int | None = None
) -> str:
    """The planning page: the form beside the answer."""
    side = h("div", ask_form(address, words), drop_form(address, words), class_="side")
    main = h("main", answer, id="answer", tabindex="-1")
    live = h("p", "", id="live", class_="quiet", aria_live="polite")
    body = h("div", side, main, class_="planner")
    return frame(words, address, body, live, title=words("page.title"), twin=twin, refresh_s=refresh_s)


def plain_page(
    words: Words, address: Address, parts: Iterable[Child], *, title: str, path: str, twin: str | None = None
) -> str:
    """A page with one column."""
    links: list[Child] = [h("a", words("page.to_ranking"), href="/" + address.query())]
    links += [" · ", h("a", words("page.json"), href=twin)] if twin else []
    main = h("main", h("p", links), parts, id="answer", tabindex="-1")
    return frame(words, address, main, title=f"meshplan: {title}", twin=twin, path=path)
