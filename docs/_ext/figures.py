"""Words that pages work with: price a plan, say a number, draw a picture with the report's own functions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from meshplan import Mesh, Plan, Space, Workload, cluster_of, load_model
from meshplan.cluster.profile import profile_of
from meshplan.cost.full.context import Context
from meshplan.cost.full.explain import Explanation, explain
from meshplan.cost.full.layers import price_layers
from meshplan.cost.full.model import FullModel
from meshplan.cost.full.stack import load_stack
from meshplan.plan.kinds import CpKind, Recompute, Schedule, Sharding
from meshplan.plan.plans import Plans
from meshplan.report.chart_memory import memory_chart
from meshplan.report.chart_mesh import mesh_chart
from meshplan.report.chart_scaling import scaling_chart
from meshplan.report.chart_shares import shares_chart
from meshplan.report.chart_timeline import timeline_chart
from meshplan.report.chart_waterfall import waterfall_chart
from meshplan.report.estimate_view import stage_data
from meshplan.report.markup import Html
from meshplan.report.scale_view import scale_data
from meshplan.report.svg import WIDTH, box, canvas, dots, legend, line, polyline, text, text_width, ticks
from meshplan.report.words import words_in
from meshplan.schedule.generate import make_order
from meshplan.schedule.result import Simulation
from meshplan.schedule.simulate import simulate
from meshplan.search.reasons import Case
from meshplan.search.scaling import scaling

STACK = "megatron-core-2025"
FILLS = ("c1", "c2", "c3", "c4", "c5", "c6")


def names(language: str) -> dict[str, Any]:
    """The namespace that every page starts with."""
    words = words_in(language)
    return {
        "np": np, "math": math, "Plan": Plan, "Workload": Workload, "cluster_of": cluster_of,
        "load_model": load_model, "Mesh": Mesh, "CpKind": CpKind, "Recompute": Recompute,
        "Schedule": Schedule, "Sharding": Sharding,
        "ask": ask, "price": price, "layers": layers, "load_stack": load_stack, "profile_of": profile_of,
         "pipeline": pipeline, "lines": lines, "bars": bars,
        "gib": gib, "mib": mib, "gb": gb, "pc": pc, "sec": sec, "ms": ms, "us": us, "num": num, "bn": bn,
        "memory": lambda found: memory_chart(
            [stage_data(stage) for stage in found.stages], found.costs.memory_limit_bytes, words
        ),
        "waterfall": lambda found: waterfall_chart(time_of(found), hidden_of(found), words),
        "mesh": lambda sizes, node=8, order="tp-cp-ep-dp-pp": mesh_chart(Mesh.of(sizes, order), node, words),
        "timeline": lambda run: timeline_chart(run, words),
        "grown": grown,
        "curve": lambda points: scaling_chart(points, 0, words),
        "shares": lambda points: shares_chart(points, 0, words),
        "time_of": time_of, "hidden_of": hidden_of, "memory_of": memory_of, "words": words,
    }  # fmt: skip


def ask(
    model: str = "llama-3.1-70b", *, gpu: str = "h100-sxm", gpus: int = 64, seq: int = 8192, gbs: int = 512,
    precision: str = "bf16",
) -> SimpleNamespace:  # fmt: skip
    """A question: model, cluster and workload."""
    return SimpleNamespace(
        model=load_model(model),
        cluster=cluster_of(gpu, gpus),
        workload=Workload(seq=seq, gbs=gbs, precision=precision),  # type: ignore[arg-type]
    )


def price(question: SimpleNamespace, *, stack: str = STACK, **plan: Any) -> Explanation:
    """One plan in full; ``dp`` is what the other degrees leave of the GPUs."""
    used = plan.get("tp", 1) * plan.get("cp", 1) * plan.get("pp", 1)
    plan.setdefault("dp", question.cluster.gpus // used)
    return explain(FullModel.of(stack), question.model, question.cluster, question.workload, Plan(**plan))


def layers(question: SimpleNamespace, *, stack: str = STACK, **plan: Any) -> list[SimpleNamespace]:
    """What one layer of each kind costs on one rank for one micro-batch: bytes kept (``kept``, ``full``,
    ``input``, ``parts``), seconds by part (``forward``, ``backward``, ``hidden``, ``host``)."""
    used = plan.get("tp", 1) * plan.get("cp", 1) * plan.get("pp", 1)
    plan.setdefault("dp", question.cluster.gpus // used)
    context = Context(
        model=question.model, cluster=question.cluster, workload=question.workload,
        plans=Plans.of(Plan(**plan)), profile=profile_of(question.cluster.gpu),
        stack=load_stack(stack).for_precision(question.workload.precision),
    )  # fmt: skip
    priced = price_layers(context)
    at = int(priced.of_plan[0])

    def row(parts: Mapping[str, Any]) -> dict[str, float]:
        return {name: float(np.broadcast_to(value, (at + 1,))[at]) for name, value in parts.items()}

    return [
        SimpleNamespace(
            kind=kind, parts=row(a.parts), forward=row(t.forward), backward=row(t.backward),
            hidden=row(t.hidden),
            **row({"kept": a.kept, "full": a.full, "input": a.input, "host": t.host, "whole": t.whole}),
        )
        for kind, a, t in zip(context.kinds, priced.activations, priced.times, strict=True)
    ]  # fmt: skip


def time_of(found: Explanation) -> dict[str, float]:
    """Seconds of a step by part."""
    return {name: float(value[0]) for name, value in found.costs.time.items()}


def hidden_of(found: Explanation) -> dict[str, float]:
    """Seconds hidden behind computing, by part."""
    return {name: float(value[0]) for name, value in found.costs.hidden.items()}


def memory_of(found: Explanation) -> dict[str, float]:
    """Bytes of the fullest rank by part."""
    return {name: float(value[0]) for name, value in found.costs.memory.items()}


def pipeline(
    name: str = "1f1b", *, ranks: int = 4, micro_batches: int = 8, vp: int | None = None, forward: Any = 1.0,
    backward_input: Any = 1.0, weight: Any = 1.0, p2p: Any = 0.0,
) -> Simulation:  # fmt: skip
    """A schedule, simulated."""
    order = make_order(name, ranks=ranks, micro_batches=micro_batches, vp=vp)
    return simulate(order, forward=forward, backward_input=backward_input, weight=weight, p2p=p2p)


@cache
def grown(gpus: tuple[int, ...], **question: Any) -> tuple[dict[str, Any], ...]:
    """The best plan on each of these numbers of GPUs with the same batch, as ``meshplan scale --json``."""
    asked = ask(gpus=gpus[-1], **question)
    case = Case(
        model=asked.model, cluster=asked.cluster, workload=asked.workload, space=Space(),
        cost_model=FullModel.of(),
    )  # fmt: skip
    found = scaling(case, gpus, (asked.workload.gbs,), weak=False)
    return tuple(scale_data(case, found)["points"])


def gib(value: float, digits: int = 1) -> str:
    """Bytes in GiB."""
    return f"{float(value) / 2**30:,.{digits}f} GiB"


def mib(value: float, digits: int = 0) -> str:
    """Bytes in MiB."""
    return f"{float(value) / 2**20:,.{digits}f} MiB"


def gb(value: float, digits: int = 1) -> str:
    """Bytes in GB of 10^9."""
    return f"{float(value) / 1e9:,.{digits}f} GB"


def pc(share: float, digits: int = 1) -> str:
    """A share in per cent."""
    return f"{100 * float(share):.{digits}f} %"


def sec(value: float, digits: int = 2) -> str:
    """Seconds."""
    return f"{float(value):,.{digits}f} s"


def ms(value: float, digits: int = 2) -> str:
    """Seconds as milliseconds."""
    return f"{1e3 * float(value):,.{digits}f} ms"


def us(value: float, digits: int = 0) -> str:
    """Seconds as microseconds."""
    return f"{1e6 * float(value):,.{digits}f} µs"


def num(value: float, digits: int = 0) -> str:
    """A number with separators."""
    return f"{float(value):,.{digits}f}"


def bn(value: float, digits: int = 2) -> str:
    """A count in billions."""
    return f"{float(value) / 1e9:,.{digits}f} billion"


_LEFT, _RIGHT, _TOP, _HEIGHT = 58.0, 14.0, 26.0, 190.0


def lines(
    x: Sequence[float], series: Mapping[str, Sequence[float]], *, across: str, up: str, title: str,
    log: bool = True,
) -> Html:  # fmt: skip
    """A curve a name over ``x`` (logarithmic unless told otherwise), drawn with the report's primitives."""
    where = [math.log2(v) if log else float(v) for v in x]
    top = 1.1 * max(max(values) for values in series.values())
    base, low, high = _TOP + _HEIGHT, where[0], where[-1]

    def at(value: float) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * (value - low) / (high - low)

    def y(value: float) -> float:
        return base - _HEIGHT * value / top

    body: list[Html] = [text(0, 12, up, "small soft")]
    for value in ticks(top, 5):
        body += [line(_LEFT, y(value), WIDTH - _RIGHT, y(value), "grid")]
        body += [text(_LEFT - 6, y(value) + 4, f"{value:,.6g}", "small soft end")]
    body.append(line(_LEFT, base, WIDTH - _RIGHT, base, "axis"))
    end = -math.inf
    for value, place in zip(x, where, strict=True):
        label = f"{value:,g}"
        if at(place) - end > text_width(label, 11) / 2:
            body.append(text(at(place), base + 15, label, "small soft mid"))
            end = at(place) + text_width(label, 11) / 2 + 6
    body.append(text(WIDTH - _RIGHT, base + 31, across, "small soft end"))
    for fill, values in zip(FILLS, series.values(), strict=False):
        points = [(at(place), y(float(v))) for place, v in zip(where, values, strict=True)]
        body += [polyline(points, f"path s{fill}"), dots(points, f"s{fill}")]
    swatches, height = legend([(f, "", n) for f, n in zip(FILLS, series, strict=False)], 0, base + 42, WIDTH)
    told = "; ".join(
        f"{name}: " + ", ".join(f"{a:,g} {float(v):,.4g}" for a, v in zip(x, values, strict=True))
        for name, values in series.items()
    )
    return canvas(
        "lines", body, swatches, height=base + 42 + height, title=title, desc=f"{up}, {across}. {told}."
    )


def bars(rows: Mapping[str, Mapping[str, float]], *, unit: str, title: str) -> Html:
    """A stacked bar a row; the parts of all rows in one order."""
    parts = list(dict.fromkeys(part for row in rows.values() for part in row))
    left = min(max(text_width(name, 12) for name in rows) + 12, 190.0)
    top = max(sum(row.values()) for row in rows.values())
    scale = (WIDTH - left - 64) / top
    body: list[Html] = []
    for i, (name, row) in enumerate(rows.items()):
        y, x = 6.0 + 30 * i, left
        body.append(text(left - 8, y + 17, name, "small end"))
        for j, part in enumerate(parts):
            width = row.get(part, 0.0) * scale
            if width > 0:
                hint = f"{part}: {row[part]:,.3g} {unit}"
                body.append(box(x, y + 2, max(width - 0.8, 0.3), 22, FILLS[j % 6], hint))
            x += width
        body.append(text(x + 6, y + 17, f"{sum(row.values()):,.3g} {unit}", "small"))
    y = 12.0 + 30 * len(rows)
    swatches, height = legend([(FILLS[j % 6], "", part) for j, part in enumerate(parts)], 0, y, WIDTH)
    told = "; ".join(
        f"{name}: " + ", ".join(f"{p} {v:,.3g}" for p, v in row.items()) for name, row in rows.items()
    )
    return canvas("bars", body, swatches, height=y + height + 4, title=title, desc=f"{told}; {unit}.")
