"""The sections of a report, each a function from the plain data of ``gather.report_data`` to markup."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from meshplan.plan.mesh import Mesh
from meshplan.plan.plans import Plans
from meshplan.report.chart_memory import memory_chart
from meshplan.report.chart_mesh import mesh_chart
from meshplan.report.chart_pareto import pareto_chart
from meshplan.report.chart_scaling import scaling_chart
from meshplan.report.chart_sensitivity import sensitivity_chart
from meshplan.report.chart_shares import shares_chart
from meshplan.report.chart_timeline import ACROSS, timeline_chart
from meshplan.report.chart_waterfall import waterfall_chart
from meshplan.report.cited import cited
from meshplan.report.markup import Html, h, join
from meshplan.report.parts import step_time
from meshplan.report.pipeline_run import pipeline_run
from meshplan.report.plan_names import plan_names
from meshplan.report.said import said
from meshplan.report.saved import order_of_data, plan_of_data
from meshplan.report.timeline_svg import is_folded
from meshplan.report.words import Words
from meshplan.units import format_bandwidth, format_bytes, format_count

Data = Mapping[str, Any]


def headline(ranking: Data, words: Words) -> str:
    """The question in one line."""
    cluster = ranking["cluster"]
    return words(
        "report.headline", model=ranking["model"]["name"], gpus=f"{cluster['gpus']:,}", gpu=cluster["gpu"]
    )


def question(ranking: Data, words: Words) -> Html:
    """What was asked, as facts."""
    model, cluster, work = ranking["model"], ranking["cluster"], ranking["workload"]
    size = format_count(model["parameters"])
    if model["active_parameters"] != model["parameters"]:
        size = words("report.active", total=size, active=format_count(model["active_parameters"]))
    tiers = ", ".join(
        f"{words('report.tier') if t['name'] == 'network' else t['name']} {t['span']:,}"
        f" × {format_bandwidth(t['bandwidth_bytes_per_s'])}"
        for t in cluster["tiers"]
    )
    facts = {
        "model": words("report.model_fact", name=model["name"], size=size, layers=model["layers"]),
        "cluster": words(
            "report.cluster_fact", gpus=f"{cluster['gpus']:,}", gpu=cluster["gpu"],
            node=cluster["gpus_per_node"],
        ),
        "network": tiers,
        "memory": words("report.memory_fact", size=format_bytes(cluster["memory_limit_bytes"])),
        "workload": words(
            "report.workload_fact", seq=f"{work['seq']:,}", gbs=f"{work['gbs']:,}",
            tokens=format_count(work["tokens"]), precision=work["precision"],
        ),
        "cost_model": cost_model(ranking, words),
        "order": ranking["order"],
    }  # fmt: skip
    rows = [
        h("tr", h("th", words(f"report.{name}"), scope="row"), h("td", value))
        for name, value in facts.items()
    ]
    return h("div", h("table", h("tbody", rows)), class_="wide")


def cost_model(ranking: Data, words: Words) -> str:
    """What priced the plans, with the software assumed where that is a part of its name."""
    name, _, stack = str(ranking["cost_model"]).partition(", stack ")
    name = words.value(name, "cost_model")
    return words("report.with_stack", name=name, stack=stack) if stack else name


def funnel(ranking: Data, words: Words) -> Html:
    """What became of the candidates: how many each rule and the memory removed."""
    counts = ranking["counts"]
    removed = [(n, rule) for rule, n in counts["removed"].items() if n]
    removed += [(counts["memory"], words("report.by_memory"))] if counts["memory"] else []
    rows = [
        h("tr", h("td", rule), h("td", f"{n:,}", class_="num"))
        for n, rule in sorted(removed, key=lambda item: -item[0])
    ]
    told = words(
        "report.funnel", candidates=f"{counts['candidates']:,}", feasible=f"{counts['feasible']:,}",
    )  # fmt: skip
    head = h(
        "tr",
        h("th", words("report.removed_by"), scope="col"),
        h("th", words("report.plans"), scope="col", class_="num"),
    )
    table = h("div", h("table", h("thead", head), h("tbody", rows)), class_="wide")
    return join([h("p", told), h("details", h("summary", words("report.removed")), table) if rows else None])


def misses(ranking: Data, words: Words) -> Html:
    """The plan that missed the memory by least, and where nothing fits, why."""
    found: list[Html] = []
    nothing, miss = ranking["nothing"], ranking["closest_miss"]
    if nothing is not None:
        found.append(h("p", words("report.nothing", reason=said(nothing["reason"], words)), class_="bad"))
        if nothing["smallest_gpus"] is not None:
            found.append(h("p", words("report.smallest", gpus=f"{nothing['smallest_gpus']:,}")))
    if miss is not None:
        told = words(
            "report.miss", plan=" ".join(miss.get("name", "").split()),
            need=format_bytes(miss["memory_bytes"]), excess=format_bytes(miss["excess_bytes"]),
        )  # fmt: skip
        found.append(h("p", told, class_="soft"))
    return join(found)


def fidelity_note(ranking: Data, words: Words) -> Html:
    """How many of the first plans were simulated, and what that makes certain."""
    found = ranking.get("fidelity", {})
    if found.get("kind") != "simulate":
        return Html("")
    counts = {name: f"{found[name]:,}" for name in ("simulated", "screened", "sure")}
    key = "report.simulated" if found["sure"] else "report.some_simulated"
    return h("p", words(key, **counts), class_="soft")


def plan_facts(plan: Data, ranking: Data, words: Words) -> Html:
    """The numbers of one plan that people ask for first."""
    limit = format_bytes(ranking["cluster"]["memory_limit_bytes"])
    facts = {
        "step": step_time(plan["step_s"]),
        "mfu": f"{plan['mfu']:.1%}",
        "tokens": f"{plan['tokens_per_s_per_gpu']:,.0f}",
        "memory_used": f"{format_bytes(plan['memory_bytes'])} / {limit}",
        "micro_batches": f"{plan['micro_batches']:,}",
    }
    return h(
        "dl", [h("div", h("dt", words(f"table.{k}")), h("dd", v)) for k, v in facts.items()], class_="facts"
    )


def figure(name: str, picture: Html, caption: str = "") -> Html:
    """A picture with words below; the keyboard can scroll it where it is wider than the screen."""
    return h("figure", picture, h("figcaption", caption) if caption else None, class_=name, tabindex="0")


def plan_pictures(plan: Data, ranking: Data, words: Words) -> Iterator[tuple[str, Html, str]]:
    """Name, picture and caption of everything drawn of one plan."""
    limit = ranking["cluster"]["memory_limit_bytes"]
    note = "" if plan.get("stages_complete", True) else words("memory.fullest_only")
    yield "memory", memory_chart(plan["stages"], limit, words), note
    yield "time", waterfall_chart(plan["time"], plan["hidden"], words), words("time.note")
    yield (
        "mesh",
        mesh_chart(mesh_of(plan, ranking), ranking["cluster"]["gpus_per_node"], words),
        words("mesh.note"),
    )
    run = pipeline_run(plan)
    if run is not None:
        left = words("timeline.cut", count=run[1]) if run[1] else ""
        key = "timeline.exact" if plan.get("pipeline") else "timeline.note"
        told = words(key, simulated=f"{run[0].step:.4g}", priced=f"{plan['step_s']:.4g}")
        middle = words("timeline.middle") if is_folded(run[0], ACROSS) and not left else ""
        note = " ".join(text for text in (left, middle, "" if run[1] else told) if text)
        yield "timeline", timeline_chart(run[0], words), note


def mesh_of(plan: Data, ranking: Data) -> Mesh:
    """The rank mesh of a plan."""
    sizes = {dim: plan[dim] for dim in ("tp", "cp", "dp", "pp")}
    if plan["ep"] * plan["etp"] > 1:
        sizes |= {"ep": plan["ep"], "etp": plan["etp"]}
    return Mesh.of(sizes, order_of_data(ranking["order"]))


def study_pictures(data: Data, words: Words) -> Iterator[tuple[str, Html, str]]:
    """Name, picture and caption of what was found by asking again."""
    ranking, points = data["ranking"], data["points"]
    if points["step_s"]:
        band = data["band"] and data["band"]["share"]
        chosen = data["chosen"]["rank"] - 1 if data["chosen"] else None
        picture = pareto_chart(
            points["step_s"], points["memory_bytes"], ranking["cluster"]["memory_limit_bytes"], words,
            chosen=chosen if chosen is not None and chosen < len(points["step_s"]) else None,
            band=band, more=points["more"],
        )  # fmt: skip
        yield "pareto", picture, ""
    if data["scaling"]:
        points = data["scaling"]["points"]
        yield "scaling", scaling_chart(points, ranking["cluster"]["gpus"], words), ""
        yield "shares", shares_chart(points, ranking["cluster"]["gpus"], words), words("shares.note")
    if data["sensitivities"]:
        yield "sensitivity", sensitivity_chart(data["sensitivities"], words), words("sensitivity.note")


def scaling_table(points: Sequence[Data], order: str, words: Words) -> Html:
    """The scaling curve in figures, with the plan of each point; ``order`` of the dimensions, as in
    ``plan --json``."""
    rows = []
    for point in points:
        plan = point["plan"]
        name = plan_name(plan, order) if plan else said(point["reason"], words)
        figures = ("", "", "", "")
        if plan:
            figures = (
                step_time(plan["step_s"]),
                f"{plan['mfu']:.1%}",
                format_count(point["tokens_per_s"]),
                f"{point['efficiency']:.0%}",
            )
        cells = [h("td", text, class_="num") for text in figures]
        rows.append(h("tr", h("td", f"{point['gpus']:,}", class_="num"), h("td", name), cells))
    heads = [
        words(key) for key in ("scaling.gpus", "table.plan", "table.step", "table.mfu", "scaling.tokens")
    ]
    heads.append(words("scaling.efficiency"))
    head = h("tr", [h("th", t, scope="col", class_="num" if i != 1 else None) for i, t in enumerate(heads)])
    return h("div", h("table", h("thead", head), h("tbody", rows)), class_="wide")


def plan_name(plan: Data, order: str) -> str:
    """A plan of an answer by the name it has in rankings."""
    dims = order_of_data(order)
    return " ".join(plan_names(Plans.of(plan_of_data(plan), order=dims), dims)[0].split())


def evidence(plan: Data, words: Words) -> Html:
    """Every assumption, and every number behind the estimate with how well it is known and its source."""
    order = ("measured", "fitted", "datasheet", "counted", "assumed")
    terms = sorted(
        plan["provenance"],
        key=lambda t: order.index(t["provenance"]) if t["provenance"] in order else len(order),
    )
    rows = [
        h(
            "tr",
            h("td", words(f"known.{t['provenance']}") if t["provenance"] in order else t["provenance"]),
            h("td", ", ".join(words.part(p) for p in t["parts"])),
            h("td", said(t["what"], words) + ("" if t["error"] is None else f" (± {t['error']:.1%})")),
            h("td", cited(t["source"], words) + (f", {t['date']}" if t["date"] else "")),
        )
        for t in terms
    ]
    head = h("tr", [h("th", words(f"known.{n}"), scope="col") for n in ("how", "parts", "what", "source")])
    table = (
        h("div", h("table", h("thead", head), h("tbody", rows), class_="stack"), class_="wide")
        if rows
        else None
    )
    assumed = (
        h("ul", [h("li", said(text, words)) for text in plan["assumptions"]]) if plan["assumptions"] else None
    )
    left = None
    if plan["left_out"]:
        left = [
            h("h3", words("known.left_out")),
            h("ul", [h("li", said(text, words)) for text in plan["left_out"]]),
        ]
    return join([assumed, table, left])
