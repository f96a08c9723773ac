"""The parts of a report that flags ask for: variants, what if, a whole run, an expert's steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from meshplan.report.markup import Html, h, join
from meshplan.report.parts import step_time
from meshplan.report.run_view import dollars
from meshplan.report.sections import plan_name
from meshplan.report.words import Words
from meshplan.units import format_bytes, format_count, format_seconds

Data = Mapping[str, Any]

KEYS = ("variants", "what_if", "run", "steps")
"""Keys of ``plan --json`` that these sections show."""
DAY = 86400.0


def asked_sections(data: Data, words: Words) -> list[Html]:
    """Those that ``data`` holds, in the order in which the terminal shows them."""
    makers: Mapping[str, Callable[[Any, Data, Words], list[Html]]] = {
        "variants": _variants,
        "what_if": _what_if,
        "run": _run,
        "steps": _steps,
    }
    return [
        part
        for name, make in makers.items()
        if data.get(name)
        for part in (h("h2", words(f"asked.{name}")), *make(data[name], data["ranking"], words))
    ]


def _variants(found: Sequence[Data], ranking: Data, words: Words) -> list[Html]:
    rows = []
    for variant in found:
        best = variant["best"]
        name = words("page.no_plan") if best is None else plan_name(best, variant["order"])
        rows.append(([variant["precision"], variant["order"], name], _figures(best)))
    heads = [words("form.precision"), words("report.order"), words("table.plan")]
    return [_table(heads, rows, words)]


def _what_if(found: Data, ranking: Data, words: Words) -> list[Html]:
    changes = [words("asked.change", name=c["name"], old=c["old"], new=c["new"]) for c in found["changes"]]
    told = {"before": found["before"], "old_plan_after": found["old_plan_after"], "after": found["after"]}
    rows = [
        ([words(f"asked.{name}"), plan_name(plan, ranking["order"])], _figures(plan))
        for name, plan in told.items()
        if plan is not None
    ]
    lines = [h("ul", [h("li", change) for change in changes])]
    if rows:
        lines.append(_table(["", words("table.plan")], rows, words))
    for name in ("before", "after"):
        if found[name] is None:
            lines.append(h("p", words(f"no_plan.{name}"), class_="bad"))
    return lines


def _figures(plan: Data | None) -> list[str]:
    if plan is None:
        return [""] * 4
    return [
        step_time(plan["step_s"]),
        f"{plan['mfu']:.1%}",
        f"{plan['tokens_per_s_per_gpu']:,.0f}",
        format_bytes(plan["memory_bytes"]),
    ]


def _table(heads: Sequence[str], rows: Sequence[tuple[Sequence[str], Sequence[str]]], words: Words) -> Html:
    """Rows of words and figures; the figures are those of ``_figures``."""
    figures = [words(f"table.{name}") for name in ("step", "mfu", "tokens", "memory_used")]
    head = h(
        "tr",
        [h("th", text, scope="col") for text in heads],
        [h("th", text, scope="col", class_="num") for text in figures],
    )
    body = [
        h("tr", [h("td", text) for text in said], [h("td", text, class_="num") for text in numbers])
        for said, numbers in rows
    ]
    return h("div", h("table", h("thead", head), h("tbody", body)), class_="wide")


def _run(run: Data, ranking: Data, words: Words) -> list[Html]:
    """Days by what they go to, and the totals."""
    told = words(
        "asked.run_told",
        tokens=format_count(run["tokens"]), steps=f"{run['steps']:,}", gpus=f"{run['gpus']:,}",
        step=step_time(run["step_s"]),
    )  # fmt: skip
    rows = [
        h(
            "tr",
            h("td", words(f"asked.{name}")),
            h("td", words("asked.days", days=f"{seconds / DAY:,.2f}"), class_="num"),
            h("td", f"{seconds / run['wall_s']:.1%}", class_="num"),
        )
        for name, seconds in {**run["wall"], "wall_s": run["wall_s"]}.items()
        if seconds
    ]
    facts = {
        "gpu_hours": format_count(run["gpu_hours"]),
        "energy": f"{run['energy_j'] / 3.6e9:,.1f} MWh",
        "goodput": f"{run['goodput']:.1%}",
    }
    if run["usd"] is not None:
        facts["money"] = dollars(run["usd"])
    if run["mtbf_s"]:
        facts["mtbf"] = format_seconds(run["mtbf_s"])
    if run["checkpoint_interval_s"]:
        facts["interval"] = format_seconds(run["checkpoint_interval_s"])
    items = [h("div", h("dt", words(f"asked.{k}")), h("dd", v)) for k, v in facts.items()]
    return [
        h("p", told),
        h("div", h("table", h("tbody", rows)), class_="wide"),
        h("dl", items, class_="facts"),
    ]


def _steps(found: Data, ranking: Data, words: Words) -> list[Html]:
    """What each of the expert's steps chose, and where the search chose otherwise."""
    steps = [
        h("li", words(f"walk.{step['name']}"), f": {_found(step['chosen'])}" if step["chosen"] else "")
        for step in found["steps"]
    ]
    lines = [h("ol", steps)]
    if found["end"] is not None:
        step = step_time(found["end"]["step_s"])
        lines.append(h("p", words("asked.end", plan=found["end"]["plan"], step=step)))
    if found["slower"] and found["disagreements"]:
        differs = [
            h("li", words("asked.change", name=d["name"], old=d["expert"], new=d["search"]))
            for d in found["disagreements"]
        ]
        lines += [h("p", words("asked.slower", share=f"{found['slower']:.1%}")), h("ul", differs)]
    return [join(lines)]


def _found(key: str) -> str:
    """A plan's key without the layers that each step finds anew."""
    return key.removesuffix(",recompute=-1")
