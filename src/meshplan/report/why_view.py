"""Why this plan and not that one, for people and as data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from meshplan.cost.costs import Costs
from meshplan.cost.models import priced_by, stack_name
from meshplan.report.part_words import MEANING, MEMORY_MEANING, memory_reason, reason
from meshplan.report.parts import step_time, wrap
from meshplan.report.plan_names import plan_names
from meshplan.report.plan_rows import cluster_data, model_data, plan_data, workload_data, workload_words
from meshplan.report.screen import Screen, printable
from meshplan.report.table import Column, pad, table
from meshplan.search.reasons import Case
from meshplan.search.reasons_compare import Comparison, Difference, Sensitivities
from meshplan.search.reasons_flip import Flip
from meshplan.units import format_bandwidth, format_bytes, format_flops

SCHEMA_VERSION = 1
SMALL = 0.002
"""Parts that differ by less than this share of the step, or of the memory, are left out of the words."""
TELLING = 0.05
"""Parts with this share of all that differs are shown, however small they are."""
REST = "everything else"
FAR = 16.0
"""Changes by more than this factor are named without their numbers."""
GIB = 2.0**30


def why_text(
    case: Case,
    found: Comparison,
    names: tuple[str, str],
    sensitivities: Sensitivities,
    turning: Sequence[Flip],
    tie: float | None,
    screen: Screen,
) -> str:
    """What ``meshplan why`` prints. ``names``: what the plans are (``the best plan`` …)."""
    lines = [*head(case, screen), "", *_sides(case, found, names), ""]
    whole = float(found.a.step_s[0])
    rounded = replace(found, time=tuple(_shown(found.time, time_unit(whole))))
    lines += [*wrap(_verdict(found, tie), screen.width), *wrap(summary(rounded), screen.width), ""]
    lines += [*_parts(case, found, screen, memory=False), ""]
    lines += [*_parts(case, found, screen, memory=True), ""]
    lines += [*binding_lines(found.a, sensitivities, screen), ""]
    lines += flip_lines(case, turning, found.a.memory_limit_bytes, screen)
    return screen.text("\n".join(lines).rstrip() + "\n")


def why_data(
    case: Case,
    found: Comparison,
    names: tuple[str, str],
    sensitivities: Sensitivities,
    turning: Sequence[Flip],
    tie: float | None,
) -> dict[str, Any]:
    """The same as plain data: seconds, bytes, bytes/s, FLOP/s; differences are b less a."""
    return {
        "schema_version": SCHEMA_VERSION,
        **question_data(case, found.a.memory_limit_bytes),
        "a": {"name": names[0], **plan_data(found.a, 0, case.workload, case.cluster.gpus)},
        "b": {"name": names[1], **plan_data(found.b, 0, case.workload, case.cluster.gpus)},
        "slower": found.slower,
        "tie_share": tie,
        "time": [difference_data(d, reason, case, found) for d in found.time],
        "memory": [difference_data(d, memory_reason, case, found) for d in found.memory],
        "hidden": [{"part": d.part, "a": d.a, "b": d.b, "more": d.more} for d in found.hidden],
        "sensitivities": sensitivities_data(sensitivities),
        "flips": [flip_data(flip) for flip in turning],
    }


def question_data(case: Case, limit: float) -> dict[str, Any]:
    """Model, cluster and workload as plain data."""
    return {
        "model": model_data(case.model),
        "cluster": cluster_data(case.cluster, limit),
        "workload": workload_data(case.workload),
        "cost_model": case.cost_model.name,
        "stack": stack_name(case.cost_model),
    }


def head(case: Case, screen: Screen) -> list[str]:
    """The question in two lines."""
    cluster, workload = case.cluster, case.workload
    node = f" in nodes of {cluster.gpus_per_node}" if cluster.gpus > cluster.gpus_per_node else ""
    tiers = ", ".join(f"{t.name} {format_bandwidth(t.bandwidth)}" for t in cluster.tiers)
    ask = workload_words(workload)
    return [
        screen.bold(printable(f"{case.model.name} on {cluster.gpus:,}× {cluster.gpu.title}{node}")),
        *wrap(f"{tiers} · {ask} · {priced_by(case.cost_model)}", screen.width),
    ]


# ── the two plans ────────────────────────────────────────────────────────────────────────────────


def _sides(case: Case, found: Comparison, names: tuple[str, str]) -> Iterator[str]:
    both = Costs.concatenate([_alike(found.a, found.b), _alike(found.b, found.a)])
    words = plan_names(both.plans, case.space.order)
    for i, (mark, name) in enumerate(zip("AB", names, strict=True)):
        fits = "" if bool(both.fits[i]) else ", does not fit"
        yield f"{mark}  {words[i]}  {name}"
        yield (
            f"   step {step_time(float(both.step_s[i]))} · MFU {float(both.mfu[i]):.1%} ·"
            f" {format_bytes(float(both.memory_bytes[i]))} of"
            f" {format_bytes(both.memory_limit_bytes)}{fits}"
        )


def same_plan(case: Case, costs: Costs) -> str:
    """The plan of the first row, its step and memory."""
    name = " ".join(plan_names(costs.plans.take(slice(0, 1)), case.space.order)[0].split())
    need, limit = format_bytes(float(costs.memory_bytes[0])), format_bytes(costs.memory_limit_bytes)
    if not bool(costs.fits[0]):
        return f"{name}, which does not fit: {need} of {limit}"
    return f"{name}, {step_time(float(costs.step_s[0]))} a step, {need} of {limit}"


def _alike(costs: Costs, other: Costs) -> Costs:
    """One row with all parts that either plan has, so that both make one table."""
    zero = np.zeros(1)

    def filled(name: str) -> dict[str, Any]:
        own, more = getattr(costs, name), getattr(other, name)
        return {part: own.get(part, zero) for part in dict.fromkeys((*own, *more))}

    row = costs.take(slice(0, 1))
    return replace(row, time=filled("time"), memory=filled("memory"), hidden=filled("hidden"))


def _verdict(found: Comparison, tie: float | None) -> str:
    a, b = float(found.a.step_s[0]), float(found.b.step_s[0])
    if not bool(found.b.fits[0]):
        need = float(found.b.memory_bytes[0]) - found.b.memory_limit_bytes
        more = f"B needs {format_bytes(need)} more than there is"
        return f"{more}; if it fitted, its step would take {b / a:.2f} × A's."
    word = "longer" if b >= a else "shorter"
    unit = time_unit(a)
    apart = abs(round(b / unit) - round(a / unit)) * unit  # as the printed steps have it
    text = f"B's step is {step_time(apart, a)} ({abs(found.slower):.1%}) {word} than A's."
    if tie is not None:
        within = abs(found.slower) <= tie
        text += (
            f" That is within the ±{tie:.1%} by which the model is usually off: they are tied until measured."
            if within
            else f" The model is usually off by ±{tie:.1%}, less than that."
        )
    return text


def summary(found: Comparison) -> str:
    """The largest differences of the step in one sentence."""
    whole = float(found.a.step_s[0])
    told = [d for d in found.time if abs(d.more) >= SMALL * whole and d.part != REST]
    costs = [f"{_name(d.part)} {step_time(d.more, whole)}" for d in told if d.more > 0][:3]
    saves = [f"{_name(d.part)} {step_time(-d.more, whole)}" for d in told if d.more < 0][:3]
    if not costs:
        return f"B saves {', '.join(saves)}." if saves else "No part of the step differs by much."
    saved = f"; it saves {', '.join(saves)}" if saves else ""
    return f"B spends more on {', '.join(costs)}{saved}."


def _parts(case: Case, found: Comparison, screen: Screen, *, memory: bool) -> Iterator[str]:
    """A table of the parts, which sum to the whole as printed, and for those that differ what makes them
    differ."""
    parts = found.memory if memory else found.time
    whole = max(sum(d.a for d in parts), 1e-12)
    shown = _shown(parts, GIB / 100 if memory else time_unit(whole))
    total = Difference(part="sum", a=sum(d.a for d in shown), b=sum(d.b for d in shown))

    def value(v: float) -> str:
        return f"{v / GIB:.2f}" if memory else step_time(v, whole)

    cells = [*shown, total]
    unit = " (GiB, fullest GPU)" if memory else ""
    first, *body = table(
        [
            Column(title=f"{'memory' if memory else 'time'}{unit}", cells=[_name(d.part) for d in cells]),
            Column(title="A", cells=[value(d.a) for d in cells], right=True),
            Column(title="B", cells=[value(d.b) for d in cells], right=True),
            Column(title="B − A", cells=[_signed(d.more, value) for d in cells], right=True),
        ],
        screen.width,
    )
    yield screen.bold(first)
    yield from body
    differs = sum(abs(d.more) for d in shown)
    told = [d for d in shown if abs(d.more) >= min(SMALL * whole, TELLING * differs) and d.part != REST]
    yield from _because(case, found, [d for d in told if d.more], value, screen, memory=memory)


def time_unit(whole: float) -> float:
    """What ``step_time`` rounds parts of ``whole`` seconds to."""
    return (0.1 if whole >= 100 else 0.01) if whole >= 1 else 1e-4


def _shown(parts: Sequence[Difference], unit: float) -> list[Difference]:
    """The parts that matter and everything else, in whole ``unit``s that sum to the rounded sums."""
    there = [d for d in parts if d.a > 0 or d.b > 0]
    whole, differs = sum(d.a for d in there), sum(abs(d.more) for d in there)
    shown = [
        d for d in there if max(d.a, d.b) >= SMALL * whole or abs(d.more) >= max(TELLING * differs, unit)
    ]
    same = [round(d.a / unit) == round(d.b / unit) for d in shown]
    rest = len(shown) < len(there)
    sums = (sum(d.a for d in there), sum(d.b for d in there))
    a, b = (
        whole_units([getattr(d, side) for d in shown], total, unit, rest=rest, last=same)
        for side, total in zip("ab", sums, strict=True)
    )
    names = [*(d.part for d in shown), REST]
    found = [Difference(part=n, a=x * unit, b=y * unit) for n, x, y in zip(names, a, b, strict=True)]
    return found if found[-1].a or found[-1].b else found[:-1]


def whole_units(
    values: Sequence[float], total: float, unit: float, *, rest: bool, last: Sequence[bool]
) -> list[int]:
    """``values`` rounded to whole ``unit``s, and after them what is left of the rounded ``total``.

    Where nothing is left out (no ``rest``), or the values are more than the total, those that were rounded
    farthest give way instead, one unit each, the ones that are to be ``last`` only where others do not do;
    none falls below zero.

    >>> whole_units([0.34, 0.33, 0.13], 0.8, 0.1, rest=False, last=[False] * 3)
    [4, 3, 1, 0]
    >>> whole_units([0.34, 0.34], 0.8, 0.1, rest=True, last=[False] * 2)
    [3, 3, 2]
    >>> whole_units([0.0, 0.36, 0.36], 0.7, 0.1, rest=False, last=[False, True, True])
    [0, 3, 4, 0]
    """
    found = [round(value / unit) for value in values]
    left = round(total / unit) - sum(found)
    if rest and left >= 0:
        return [*found, left]
    sign = 1 if left > 0 else -1
    can = [i for i in range(len(values)) if found[i] + sign >= 0]
    for i in sorted(can, key=lambda i: (last[i], sign * (found[i] - values[i] / unit)))[: abs(left)]:
        found[i] += sign
    return [*found, 0]


def _because(
    case: Case,
    found: Comparison,
    told: list[Difference],
    value: Callable[[float], str],
    screen: Screen,
    *,
    memory: bool,
) -> Iterator[str]:
    plans = found.a.plans[0], found.b.plans[0]
    say = memory_reason if memory else reason
    for d in told:
        left, right = (say(d.part, plan, case.setting) for plan in plans)
        what = (MEMORY_MEANING if memory else MEANING).get(d.part, "")
        unit = " GiB" if memory else ""
        text = f"{_signed(d.more, value)}{unit} {_name(d.part)}"
        text += f" ({what})" if what else ""
        if left and not (d.a and d.b):
            text += f": {f'A {left}' if d.a else f'B {right}'}; {'B' if d.a else 'A'} has none"
        elif left != right:
            text += f": A {left or 'has none'}; B {right or 'has none'}"
        elif left:
            text += f": both {left}{_apart(case, found)}"
        yield from indented(text, screen)


def _apart(case: Case, found: Comparison) -> str:
    """What else the plans differ in, where the numbers of a part are the same for both."""
    words = (
        plan_names(costs.plans.take(slice(0, 1)), case.space.order)[0].split() for costs in (found.a, found.b)
    )
    left, right = words
    only_a, only_b = ([w for w in own if w not in other] for own, other in ((left, right), (right, left)))
    if not only_a and not only_b:
        return ""
    return f"; A is {' '.join(only_a) or 'plain'}, B {' '.join(only_b) or 'plain'}"


def indented(text: str, screen: Screen) -> list[str]:
    """``text`` wrapped, two columns in, its later lines two more."""
    return [f"  {line}" for line in wrap(text, screen.width - 2)]


def _name(part: str) -> str:
    return part.replace("_", " ")


def _signed(more: float, value: Callable[[float], str]) -> str:
    text = value(abs(more))
    return text if not any(ch in "123456789" for ch in text) else ("+" if more >= 0 else "−") + text


# ── what binds, and what would turn the order round ──────────────────────────────────────────────


def binding_lines(costs: Costs, found: Sensitivities, screen: Screen) -> Iterator[str]:
    """What the step waits for: per cent of it for a per cent of each hardware number."""
    row = found.binding
    yield screen.bold("what A waits for: 1 % more of it makes the step shorter by")
    size = max(len(r.resource.title) for r in (*found.rows,))
    for r in found.rows:
        mark = "  (the binding one)" if r is row else ""
        yield f"  {pad(r.resource.title, size)}  {abs(round(r.per_cent, 2)):6.2f} %{mark}"
    rest = abs(round(found.fixed, 2))
    yield f"  {pad('none of these', size)}  {rest:6.2f} %  (launches, latency, fixed times)"
    used, limit = float(costs.memory_bytes[0]), costs.memory_limit_bytes
    room = f"memory: {format_bytes(used)} of {format_bytes(limit)} in use"
    if abs(found.memory) > 1e-6:
        room += f"; a tenth more would make the step {-found.memory:.1%} shorter (fewer layers recomputed)"
    else:
        room += "; more of it would not change this plan's step"
    yield from wrap(room, screen.width)


def flip_lines(case: Case, turning: Sequence[Flip], limit: float, screen: Screen) -> Iterator[str]:
    """Under which changes B beats A; ``limit``: bytes of a GPU that a plan may fill now."""
    if not turning:
        yield from wrap(
            "no change of one hardware number up to 64 times, nor of the batch, makes B the faster one",
            screen.width,
        )
        return
    yield screen.bold("B would be the better one (one change at a time, both priced again)")
    near = [flip for flip in turning if 1 / FAR <= flip.factor <= FAR] or list(turning[:1])
    for flip in near:
        yield from indented(f"with {flip_words(flip, limit)}", screen)
    if len(near) < len(turning):
        far = ", ".join(flip.title for flip in turning if flip not in near)
        yield from indented(f"only far from what there is: {far}", screen)


def memory_words(old: float, new: float, limit: float) -> str:
    """A change of the board's memory and what is usable of it, where that is ``limit`` bytes now. Rounded up,
    so that what is asked for with the number that stands here has room."""
    then = math.ceil(new / GIB * 10 - 1e-6) * GIB / 10
    usable = f"{format_bytes(limit * new / old)} usable instead of {format_bytes(limit)}"
    return f"{format_bytes(then)} instead of {format_bytes(old)} ({usable})"


def flip_words(flip: Flip, limit: float) -> str:
    """The change and both steps then."""
    forms: dict[str, Callable[[float], str]] = {
        "peak": format_flops, "hbm_bandwidth": format_bandwidth, "scaleup": format_bandwidth,
        "network": format_bandwidth, "gbs": lambda v: f"{v:,.0f}",
    }  # fmt: skip
    a = f"A {step_time(flip.a_step_s)}" if flip.fits_a else "A does not fit"
    b = f"B {step_time(flip.b_step_s)}" if flip.fits_b else "B does not fit"
    if flip.name == "memory":
        return f"{flip.title} {memory_words(flip.now, flip.value, limit)}: {b}, {a}"
    form = forms[flip.name]
    return f"{flip.title} {form(flip.value)} instead of {form(flip.now)} ({_times(flip.factor)} ×): {b}, {a}"


def _times(factor: float) -> str:
    """Two digits, and of factors near 1 as many as tell them from it."""
    for digits in range(2, 6):
        text = f"{factor:.{digits}g}"
        if float(text) != 1.0:
            break
    return text


def difference_data(d: Difference, say: Any, case: Case, found: Comparison) -> dict[str, Any]:
    """One part of two plans."""
    a, b = (say(d.part, costs.plans[0], case.setting) for costs in (found.a, found.b))
    return {"part": d.part, "a": d.a, "b": d.b, "more": d.more, "because_a": a, "because_b": b}


def sensitivities_data(found: Sensitivities) -> dict[str, Any]:
    """Per cent of step time for a per cent of each hardware number."""
    return {
        "binding": found.binding.resource.name,
        "rows": [
            {"name": row.resource.name, "amount": row.amount, "per_cent": row.per_cent} for row in found.rows
        ],
        "fixed": found.fixed,
        "tenth_more_memory": found.memory,
    }


def flip_data(flip: Flip) -> dict[str, Any]:
    """One turning point."""
    return {
        "name": flip.name,
        "now": flip.now,
        "value": flip.value,
        "factor": flip.factor,
        "a_step_s": flip.a_step_s,
        "b_step_s": flip.b_step_s,
        "a_fits": flip.fits_a,
        "b_fits": flip.fits_b,
    }
