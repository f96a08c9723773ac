"""The answer to a question as markup: the part of the page that changes when the question does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from meshplan.export.launchers import LAUNCHERS
from meshplan.export.targets import TARGETS
from meshplan.report import sections
from meshplan.report.chart_pareto import pareto_chart
from meshplan.report.job_text import JOB, job_table, job_text, plan_command
from meshplan.report.markup import Html, h, join
from meshplan.report.parts import step_time
from meshplan.report.ranking_table import Extra, ranking_table, tie_note
from meshplan.report.said import said
from meshplan.report.words import Words
from meshplan.search.ranking import Ranking
from meshplan.units import format_bytes
from meshplan.web.jobs import Job
from meshplan.web.question import LOGS, Address, Asked

MOST_POINTS = 2000
Data = Mapping[str, Any]


def error_answer(sentence: str, words: Words) -> Html:
    """What is wrong with the question."""
    sentence = said(sentence, words)
    return h(
        "section",
        h("p", h("strong", words("page.wrong")), " ", sentence, class_="bad"),
        role="alert",
        data_said=sentence,
    )


def waiting_answer(job: Job, asked: Asked, address: Address, words: Words) -> Html:
    """A long search under way."""
    return h(
        "section",
        h("h2", words("page.searching"), tabindex="-1"),
        h("p", words("page.candidates", count=f"{asked.candidates:,}")),
        h("progress", aria_label=words("page.searching")),
        h("p", "", class_="soft", data_note=words("page.priced"), data_best=words("page.best")),
        h(
            "form",
            h("input", type="hidden", name="job", value=job.id),
            h("input", type="hidden", name="back", value=address.query()),
            h("button", words("page.cancel"), type="submit"),
            method="post",
            action=f"/cancel?lang={words.language}",
            data_cancel="",
        ),
        data_job=job.id,
        data_said=words("page.searching"),
    )


def stopped_answer(address: Address, words: Words) -> Html:
    """A search that was cancelled."""
    again = h("a", words("page.again"), href="/" + address.query())
    return h("section", h("p", words("page.cancelled"), " ", again), data_said=words("page.cancelled"))


def ranking_answer(
    ranking: Ranking, data: Data, address: Address, words: Words, *, shown: Sequence[Data],
    band: Data | None, chosen: int | None, base: tuple[Ranking, Ranking] | None,
) -> Html:  # fmt: skip
    """The ranking with its scatter; ``shown``: the plans of the table; ``base``: the answers without and with
    the sliders, to be told apart."""
    best = data["plans"][0] if data["plans"] else None
    said = words("page.no_plan")
    if best is not None:
        said = words(
            "page.said",
            count=f"{data['counts']['feasible']:,}",
            plan=best["name"],
            step=step_time(best["step_s"]),
        )
    parts: list[Html | None] = [
        h("h2", sections.headline(data, words), tabindex="-1"),
        h("p", _in_short(data, words), class_="soft"),
        _moved(base, address, words) if base is not None else None,
        sections.misses(data, words) if best is None else None,
        ranking_table(
            data, words, shown=shown, band=band, chosen=None if chosen is None else chosen + 1,
            cell=_cell(address), extra=Extra(title=words("page.pin"), cell=_pin(address, words)),
        ),
        sections.fidelity_note(data, words),
        tie_note(band, shown, words),
        sections.funnel(data, words),
        sections.misses(data, words) if best is not None else None,
    ]  # fmt: skip
    if best is not None:
        kept = min(len(ranking), MOST_POINTS)
        costs = ranking.costs
        picture = pareto_chart(
            costs.step_s[:kept].tolist(),
            costs.memory_bytes[:kept].tolist(),
            costs.memory_limit_bytes,
            words,
            chosen=chosen if chosen is not None and chosen < kept else None,
            band=band["share"] if band else None,
            more=ranking.counts.feasible - kept,
        )
        parts += [h("h3", words("pareto.title")), sections.figure("pareto", picture)]
    return h("section", parts, id="ranking", data_said=said)


def plan_answer(plan: Data, data: Data, address: Address, words: Words) -> Html:
    """The chosen plan: its numbers and its pictures."""
    pictures: list[Html] = []
    for name, picture, caption in sections.plan_pictures(plan, data, words):
        svg = h(
            "a",
            "SVG",
            href=f"/picture/{name}.svg{address.query(plan=plan['key'])}",
            download=f"{name}.svg",
            aria_label=words("page.svg", name=words(f"{name}.title")),
        )
        pictures += [
            h("h3", words(f"{name}.title"), " ", h("small", svg)),
            sections.figure(name, picture, caption),
        ]
    if plan["pp"] < 2:
        pictures.append(h("p", words("timeline.no_pipeline"), class_="soft"))
    full = h("a", words("page.in_full"), href="/estimate" + address.query(plan=plan["key"], pin=None))
    return h(
        "section",
        h("h2", words("report.plan", rank=plan["rank"], name=plan["name"]), tabindex="-1"),
        sections.plan_facts(plan, data, words),
        h("p", full),
        pictures,
        id="plan",
    )


def compare_answer(found: Data, address: Address, words: Words) -> Html:
    """Two pinned plans side by side."""
    a, b = found["a"], found["b"]
    heads = [h("th", f"#{p['rank']} {p['name']}", scope="col", class_="num") for p in (a, b)]
    heads.append(h("th", words("compare.difference"), scope="col", class_="num"))
    facts = h(
        "table",
        h("thead", h("tr", h("td", ""), heads)),
        h("tbody", _compare_rows(found, words)),
    )
    changed = ", ".join(
        f"{_changed(name, words)} {_said(x, words)} → {_said(y, words)}"
        for name, (x, y) in found["changes"].items()
    )
    slower = b["step_s"] / a["step_s"] - 1
    told = words(
        "compare.told",
        a=f"#{a['rank']}",
        b=f"#{b['rank']}",
        share=f"{abs(slower):.1%}",
        how=words("compare.slower" if slower > 0 else "compare.faster"),
        changes=changed or words("compare.nothing"),
    )
    link = h("a", words("page.own_page"), href="/compare" + address.query())
    return h(
        "section",
        h("h2", words("compare.title"), tabindex="-1"),
        h("p", told),
        h("div", facts, class_="wide"),
        h("p", link),
        id="compare",
    )


def why_form(address: Address, words: Words) -> Html:
    """Where people ask about a plan of their own."""
    field = h(
        "input",
        name="why",
        value=address.values.get("why", ""),
        form="ask",
        placeholder="tp8 pp1",
        autocomplete="off",
        spellcheck="false",
        maxlength=300,
    )
    button = h("button", words("why.ask"), type="submit", form="ask", formaction="/why-not")
    asked = h("p", h("label", h("span", words("why.label")), field), " ", button)
    verdict = None
    if "why" in address.values:
        where = "/why-not" + address.query(pin=None)
        verdict = h("p", h("a", words("page.load"), href=where), data_part=where)
    return h("section", h("h2", words("why.title")), asked, verdict, id="why")


def why_answer(answer: Data, words: Words) -> Html:
    """What stands against a plan, and what was tried that works (``answer`` of a ``why`` task)."""
    found, key = answer["json"], answer["name"]
    plan = found["plan"]
    match found["verdict"]:
        case "invalid":
            body: list[Html] = [
                h("p", words("why.rules", plan=key), class_="bad"),
                h(
                    "ul",
                    [h("li", h("code", b["rule"]), ": ", said(b["reason"], words)) for b in found["broken"]],
                ),
            ]
        case "memory":
            need, excess = format_bytes(plan["memory_bytes"]), format_bytes(found["excess_bytes"])
            body = [h("p", words("why.memory", plan=key, need=need, excess=excess), class_="bad")]
        case "slower":
            told = words(
                "why.slower",
                plan=key,
                step=step_time(plan["step_s"]),
                share=f"{found['slower']:.1%}",
                rank=f"{found['rank']:,}" if found["rank"] else "—",
                feasible=f"{found['feasible']:,}",
            )
            body = [h("p", told), _differences(found["time"], plan["step_s"], words)]
        case "behind":
            first = found["best"]
            told = words(
                f"behind.{found['objective']}",
                plan=key,
                need=format_bytes(plan["memory_bytes"]),
                share=f"{plan['memory_bytes'] / first['memory_bytes'] - 1:.1%}",
                rank=f"{found['rank']:,}" if found["rank"] else "—",
                feasible=f"{found['feasible']:,}",
            )
            body = [h("p", told)]
        case _:
            body = [h("p", words("why.best", plan=key), class_="good")]
    if found["fixes"]:
        body += [
            h("p", words("why.fixes")),
            h("ul", [h("li", _fix(fix, words)) for fix in found["fixes"][:6]]),
        ]
    return h("div", body, role="status")


def _fix(fix: Data, words: Words) -> str:
    """One change that was tried: what to do otherwise, and the plan that comes of it."""
    changes = [
        f"{_changed(c['name'], words)} {_amount(c['name'], c['old'], words)}"
        f" → {_amount(c['name'], c['new'], words)}"
        for c in fix["changes"]
    ]
    told = (step_time(fix["step_s"]), format_bytes(fix["memory_bytes"]))
    kind = f"{words('fix.' + fix['kind'])}: " if fix["kind"] else ""
    return f"{kind}{', '.join(changes)}: {' '.join(fix['plan'].split())}, {told[0]}, {told[1]}"


def _changed(name: str, words: Words) -> str:
    """What people call what was changed; degrees keep their names."""
    return words(f"change.{name}") if f"change.{name}" in words.texts else name.replace("_", " ")


def _amount(name: str, value: Any, words: Words) -> str:
    return format_bytes(value) if name == "memory" else _said(value, words)


def _differences(parts: Any, step_s: float, words: Words) -> Html:
    """The parts that make most of the difference to the best plan."""
    largest = [
        p for p in parts if abs(p["difference"] if "difference" in p else p["b"] - p["a"]) > 1e-3 * step_s
    ]
    told = ", ".join(
        f"{words.part(p['part'])} {'+' if p['b'] > p['a'] else '−'}{step_time(abs(p['b'] - p['a']), step_s)}"
        for p in largest[:6]
    )
    return h("p", told, class_="soft") if told else Html("")


def studies_answer(found: Data, data: Data, words: Words) -> Html:
    """The scaling curve and the sensitivities."""
    whole = {"ranking": data, "points": {"step_s": []}, "chosen": None, "band": None, **found}
    parts: list[Html] = []
    for name, picture, caption in sections.study_pictures(whole, words):
        parts += [h("h3", words(f"{name}.title")), sections.figure(name, picture, caption)]
        if name == "scaling":
            parts.append(sections.scaling_table(found["scaling"]["points"], data["order"], words))
    return join(parts)


def studies_box(address: Address, words: Words) -> Html:
    """Where the studies come when they are opened; without the script, a link to their page."""
    where = "/studies" + address.query(pin=None, why=None)
    return h(
        "details",
        h("summary", words("page.studies")),
        h("p", h("a", words("page.load"), href=where)),
        id="studies",
        data_load=where,
    )


def downloads(plan: Data | None, asked: Asked, address: Address, words: Words) -> Html:
    """What can be taken away: report, job file, launch files, JSON, the command."""
    query = address.query(pin=None, why=None)
    links = [
        h("li", h("a", words("take.report"), href="/report.html" + query)),
        h("li", h("a", words("take.job"), href="/job" + query)),
        h("li", h("a", words("take.json"), href="/plan.json" + query)),
    ]
    command = plan_command(*asked.words, **asked.kinds)
    parts = [h("ul", links), h("p", words("take.command")), h("pre", command)]
    if command.split()[2] == JOB:
        job = job_text(job_table(*asked.words, **asked.kinds))
        parts.append(h("details", h("summary", "job.yaml"), h("pre", job)))
    if plan is not None:
        parts.append(_launch_form(plan, address, words))
    return h("section", h("h2", words("take.title")), parts, id="take")


def _launch_form(plan: Data, address: Address, words: Words) -> Html:
    kept = [(k, v) for k, v in address.values.items() if k not in ("plan", "why", "top")]
    return h(
        "form",
        [h("input", type="hidden", name=k, value=v) for k, v in [*kept, ("plan", plan["key"])]],
        h(
            "label",
            h("span", words("take.target")),
            h("select", [h("option", t) for t in TARGETS], name="to"),
        ),
        " ",
        h(
            "label",
            h("span", words("take.launcher")),
            h("select", [h("option", t) for t in LAUNCHERS], name="launcher"),
        ),
        " ",
        h("button", words("take.launch"), type="submit"),
        method="get",
        action="/launch.zip",
        class_="launch",
    )


def _in_short(data: Data, words: Words) -> str:
    work, model = data["workload"], data["model"]
    told = words(
        "report.workload_fact",
        seq=f"{work['seq']:,}",
        gbs=f"{work['gbs']:,}",
        tokens=f"{work['tokens']:,}",
        precision=work["precision"],
    )
    prices = f"{words('report.cost_model')} {sections.cost_model(data, words)}"
    return f"{model['parameters'] / 1e9:.1f} B · {told} · {prices}"


def _cell(address: Address) -> Callable[[Data], Html]:
    return lambda row: h(
        "a", row["name"], href=f"/{address.query(plan=row['key'])}#plan", data_plan=row["key"]
    )


def _pin(address: Address, words: Words) -> Callable[[Data], Html]:
    def cell(row: Data) -> Html:
        return h(
            "input",
            type="checkbox",
            name="pin",
            value=row["key"],
            form="ask",
            checked=row["key"] in address.pins,
            aria_label=words("page.pin_plan", rank=row["rank"]),
        )

    return cell


def _moved(base: tuple[Ranking, Ranking], address: Address, words: Words) -> Html:
    """The best plan as asked beside the best with the sliders' changes."""
    before, after = base
    if not len(before) or not len(after):
        told = words("page.moved_none")
    else:
        old, new = float(before.costs.step_s[0]), float(after.costs.step_s[0])
        rates = [r.workload.tokens / float(r.costs.step_s[0]) for r in base]
        told = words(
            "page.moved",
            old=step_time(old),
            new=step_time(new),
            share=f"{new / old - 1:+.1%}",
            rate=f"{rates[1] / rates[0] - 1:+.1%}",
        )
    back = h("a", words("page.back"), href="/" + address.without(*LOGS).query(plan=None))
    return h("p", told, " ", back, class_="moved")


def _compare_rows(found: Data, words: Words) -> list[Html]:
    a, b = found["a"], found["b"]

    def seconds(x: float) -> str:
        return step_time(x, a["step_s"])

    return [
        _row(words("table.step"), a["step_s"], b["step_s"], seconds, strong=True),
        *(_row(words.part(r["part"]), r["a"], r["b"], seconds) for r in found["time"]),
        _row(words("table.memory_used"), a["memory_bytes"], b["memory_bytes"], format_bytes, strong=True),
        *(_row(words.part(r["part"]), r["a"], r["b"], format_bytes) for r in found["memory"]),
        _row(words("table.mfu"), a["mfu"], b["mfu"], lambda x: f"{x:.1%}", strong=True),
    ]


def _row(name: str, a: float, b: float, form: Callable[[float], str], *, strong: bool = False) -> Html:
    sign = "+" if b > a else "−" if b < a else ""
    difference = f"{sign}{form(abs(b - a))}" if a != b else "0"
    cells = [
        h("td", form(a), class_="num"),
        h("td", form(b), class_="num"),
        h("td", difference, class_="num"),
    ]
    return h("tr", h("th", name, scope="row"), cells, class_="strong" if strong else None)


def _said(value: Any, words: Words) -> str:
    """One value of a plan; a layout that is not there is an even one."""
    text = "even" if value is None else str(value)
    if isinstance(value, list):
        text = "+".join(map(str, value)) or "none"
    return words.value(text)
