"""What was measured as one HTML page: the ranking, each plan's parts beside its estimate, its ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from meshplan.report.html import POLICY
from meshplan.report.markup import Html, h
from meshplan.report.parts import step_time
from meshplan.report.style import document_css
from meshplan.units import format_bytes


def measured_html(data: Mapping[str, Any]) -> str:
    """The whole page; ``data`` is what ``measure_view.measured_data`` answers."""
    plans = data["plans"]
    ran = [p for p in plans if p["outcome"] == "ok"]
    title = f"{len(ran)} of {len(plans)} plans measured on {', '.join(data['hosts']) or 'no host'}"
    body = [h("h1", title), *_facts(data)]
    if ran:
        body += [_ranking(ran), h("p", _RANGE, class_="soft")]
    failed = [p for p in plans if p["outcome"] != "ok"]
    if failed:
        body += [h("h2", "What did not run"), _table(
            ("plan", "outcome", "reason"), [(p["label"], p["outcome"], p["reason"]) for p in failed]
        )]  # fmt: skip
    for p in ran:
        body += _plan(p)
    head = h(
        "head",
        h("meta", charset="utf-8"),
        h("meta", http_equiv="Content-Security-Policy", content=POLICY),
        h("meta", name="viewport", content="width=device-width, initial-scale=1"),
        h("title", f"meshplan: {title}"),
        h("style", Html(document_css())),
    )
    return f"<!doctype html>\n{h('html', head, h('body', h('main', *body)), lang='en')}\n"


_RANGE = (
    "range: of the rounds' medians and the 95 % interval of the median; plans whose ranges overlap share a"
    " rank"
)


def _facts(data: Mapping[str, Any]) -> Iterator[Html]:
    versions = " · ".join(f"{k} {v}" for k, v in data["versions"].items())
    if versions:
        yield h("p", versions, class_="soft")


def _ranking(ran: Sequence[Mapping[str, Any]]) -> Html:
    whole = max(p["step_s"] for p in ran)
    estimated = any(p["estimate"] for p in ran)
    rows = []
    for p in ran:
        row = [
            f"{p['rank']}{'=' if p['tied'] else ''}", p["label"], step_time(p["step_s"], whole),
            f"{step_time(p['low'], whole)} – {step_time(p['high'], whole)}", f"{p['variation']:.1%}",
            format_bytes(p["peak_bytes"]),
        ]  # fmt: skip
        if estimated:
            said = p["estimate"]["step_s"]
            row += [step_time(said, whole), f"{said / p['step_s'] - 1:+.0%}"]
        rows.append(row)
    more = ("estimated", "off") if estimated else ()
    return _table(("#", "plan", "step", "range", "spread", "peak", *more), rows)


def _plan(p: Mapping[str, Any]) -> list[Html]:
    body = [h("h2", p["label"])]
    if "against" in p:
        body.append(h("p", p["against"]["sentence"]))
    if p["agreement"]:
        body.append(h("p", p["agreement"], class_="soft"))
    if "against" in p:
        whole = max(p["against"]["measured_s"], p["against"]["estimated_s"])
        rows = [
            (r["part"], step_time(r["measured_s"], whole), step_time(r["estimated_s"], whole))
            for r in [*p["against"]["parts"], {"part": "step", **p["against"]}]
        ]
        body.append(_table(("part", "measured", "estimated"), rows))
    elif "parts" in p:
        rows2 = [
            (name, step_time(v, p["step_s"]), f"{v / p['step_s']:.0%}") for name, v in p["parts"].items()
        ]
        body.append(_table(("part", "seconds", "share"), rows2))
    if len(p.get("ranks", ())) > 1:
        names = sorted(p["parts"], key=lambda n: -float(p["parts"][n]))
        body.append(
            _table(
                ("rank", *names),
                [
                    (str(r["rank"]), *(step_time(r["parts"].get(n, 0.0), p["step_s"]) for n in names))
                    for r in p["ranks"]
                ],
            )
        )
    return body


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Html:
    return h(
        "table",
        h("thead", h("tr", *(h("th", t) for t in titles))),
        h("tbody", *(h("tr", *(h("td", cell) for cell in row)) for row in rows)),
    )
