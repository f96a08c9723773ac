"""Why not this plan, for people and as data: the verdict, what is wrong, and changes that were tried."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from meshplan.plan.kinds import CpKind, Recompute, Schedule, Sharding
from meshplan.plan.plans import ALL_LAYERS, AUTO_LAYERS, Plans
from meshplan.report.part_words import memory_reason
from meshplan.report.parts import step_time, wrap
from meshplan.report.plan_names import plan_names
from meshplan.report.plan_rows import plan_data
from meshplan.report.screen import Screen
from meshplan.report.why_view import (
    SCHEMA_VERSION,
    difference_data,
    flip_data,
    flip_lines,
    head,
    indented,
    memory_words,
    question_data,
    summary,
)
from meshplan.search.objective import complexity
from meshplan.search.reasons import Case, Wish
from meshplan.search.reasons_not import QUESTION, Change, Fix, WhyNot
from meshplan.units import format_bytes

KINDS: dict[str, Any] = {"schedule": Schedule, "sharding": Sharding, "cp_kind": CpKind}
MOST_FIXES = 6


def why_not_text(case: Case, found: WhyNot, tie: float | None, screen: Screen) -> str:
    """What ``meshplan why-not`` prints."""
    name = plan_names(Plans.of(found.answer.plan, order=case.space.order), case.space.order)[0]
    lines = [*head(case, screen), "", f"why not {wish_words(found.answer.wish)}?"]
    if found.answer.costs is not None:
        lines += wrap(
            f"the best such plan: {name}" if found.answer.fits else f"its smallest: {name}", screen.width
        )
    lines += ["", *_verdict(case, found, tie, screen), "", *_fixes(found, screen)]
    if found.verdict == "slower":
        lines += ["", *flip_lines(case, found.flips, found.ranking.costs.memory_limit_bytes, screen)]
    return screen.text("\n".join(lines).rstrip() + "\n")


def why_not_data(case: Case, found: WhyNot, tie: float | None) -> dict[str, Any]:
    """The same as plain data."""
    costs, best = found.answer.costs, found.ranking
    limit = best.costs.memory_limit_bytes
    gpus = case.cluster.gpus
    return {
        "schema_version": SCHEMA_VERSION,
        **question_data(case, limit),
        "wish": {name: value_words(name, value) for name, value in found.answer.wish.items()},
        "objective": case.objective,
        "verdict": found.verdict,
        "plan": None if costs is None else plan_data(costs, 0, case.workload, gpus),
        "broken": [{"rule": b.rule, "reason": b.reason} for b in found.answer.broken],
        "excess_bytes": None
        if costs is None or found.answer.fits
        else float(costs.memory_bytes[0]) - costs.memory_limit_bytes,
        "best": plan_data(best.costs, 0, case.workload, gpus) if len(best) else None,
        "rank": found.rank,
        "feasible": best.counts.feasible,
        "slower": found.slower,
        "tie_share": tie,
        "time": []
        if found.comparison is None
        else [difference_data(d, memory_reason, case, found.comparison) for d in found.comparison.time],
        "fixes": [_fix_data(fix) for fix in found.fixes],
        "flips": [flip_data(flip) for flip in found.flips],
    }


def _fix_data(fix: Fix) -> dict[str, Any]:
    plans = fix.costs.plans
    return {
        "changes": [
            {"name": c.name, "old": value_words(c.name, c.old), "new": value_words(c.name, c.new)}
            for c in fix.changes
        ],
        "kind": fix.kind,
        "plan": plan_names(plans, plans.order)[0],
        "step_s": float(fix.costs.step_s[0]),
        "mfu": float(fix.costs.mfu[0]),
        "memory_bytes": float(fix.costs.memory_bytes[0]),
    }


def wish_words(wish: Wish) -> str:
    """``tp 1, pp 8``."""
    return ", ".join(f"{_label(name)} {value_words(name, value)}" for name, value in wish.items())


def _label(name: str) -> str:
    return {"recompute_layers": "recomputed layers", "recompute_modules": "recomputed modules"}.get(
        name, name.replace("_", " ")
    )


def value_words(name: str, value: Any) -> Any:
    """A value by the name people type."""
    if name in KINDS:
        return KINDS[name](int(value)).label
    if name == "recompute_layers":
        return {AUTO_LAYERS: "auto", ALL_LAYERS: "all"}.get(int(value), int(value))
    if name == "recompute_modules":
        names = [m.name.lower().replace("_", "-") for m in Recompute if m.name and m & int(value)]
        return "+".join(names) or "none"
    if name == "layout":
        return "left open" if value is None else ",".join(map(str, value))
    return value


def change_words(change: Change, limit: float) -> str:
    """``tp 2 instead of 1``; ``limit``: bytes of a GPU that a plan may fill now."""
    old, new = value_words(change.name, change.old), value_words(change.name, change.new)
    if change.name == "memory":
        return f"memory of a GPU {memory_words(old, new, limit)}"
    if change.name == "offload":
        return "optimizer states in host memory (--offload optimizer)"
    form = (lambda v: f"{v:,}") if change.name in ("gpus", "gbs", "seq") else str
    if change.name == "gpus":
        return f"{form(new)} GPUs instead of {form(old)}"
    return f"{_label(change.name)} {form(new)} instead of {form(old)}"


def _verdict(case: Case, found: WhyNot, tie: float | None, screen: Screen) -> Iterator[str]:
    costs = found.answer.costs
    match found.verdict:
        case "invalid":
            yield screen.bold("not valid: no such plan can run")
            for wrong in found.answer.broken:
                yield from indented(f"{wrong.reason} [{wrong.rule}]", screen)
        case "memory":
            assert costs is not None
            need, limit = float(costs.memory_bytes[0]), costs.memory_limit_bytes
            yield screen.bold(
                f"does not fit: {format_bytes(need)} a GPU, {format_bytes(need - limit)} more than the"
                f" {format_bytes(limit)} there are"
            )
            parts = sorted(costs.memory.items(), key=lambda item: -float(item[1][0]))[:3]
            for part, values in parts:
                because = memory_reason(part, costs.plans[0], case.setting)
                text = f"{format_bytes(float(values[0]))} {part.replace('_', ' ')}"
                yield from indented(f"{text}{f': {because}' if because else ''}", screen)
        case "best":
            yield from _best(found, tie, screen)
        case "slower":
            yield from _slower(found, tie, screen)
        case "behind":
            yield from _behind(case, found, screen)


def _best(found: WhyNot, tie: float | None, screen: Screen) -> Iterator[str]:
    """That it is the plan that ``meshplan plan`` puts first, or as good as that one."""
    assert found.answer.costs is not None
    own, first = found.answer.costs, found.ranking.costs.take(slice(0, 1))
    fastest = found.rank == 1
    name = plan_names(first.plans, first.plans.order)[0] if len(found.ranking) else ""
    if not name or plan_names(own.plans, own.plans.order)[0] == name:
        yield screen.bold(f"it is the best plan{'' if fastest else ': the simplest of the fastest'}")
        return
    less = 1 - float(own.step_s[0]) / float(first.step_s[0])
    yield screen.bold(f"it fits, and is {'the fastest plan' if fastest else 'one of the fastest plans'}")
    within = "" if tie is None else f" of ±{tie:.1%}"
    yield from wrap(
        f"It takes {less:.1%} less than {' '.join(name.split())}, which comes first because it is simpler or"
        f" leaves more memory: the two are tied within the model's usual error{within}.",
        screen.width,
    )


def _behind(case: Case, found: WhyNot, screen: Screen) -> Iterator[str]:
    """By how much the best plan is better, where what plans are ranked by is not time."""
    assert found.comparison is not None
    a, b = found.comparison.a, found.comparison.b
    if case.objective == "memory":
        own, least = float(b.memory_bytes[0]), float(a.memory_bytes[0])
        more = f"{own / least - 1:.1%} more than the best plan's {format_bytes(least)}"
        yield screen.bold(f"it fits, and needs more memory: {format_bytes(own)} a GPU, {more}")
    else:
        own, least = (int(complexity(costs.plans, case.cluster.gpus_per_node)[0]) for costs in (b, a))
        needs = f"it needs {own} {'thing' if own == 1 else 'things'} beside data parallelism"
        yield screen.bold(f"it fits, and is less simple: {needs}, the best plan {least}")
    yield from wrap(_place(found), screen.width)
    yield from wrap(summary(found.comparison), screen.width)


def _place(found: WhyNot) -> str:
    assert found.comparison is not None
    best = found.comparison.a.plans
    rank = f"{found.rank:,}" if found.rank is not None else f"more than {len(found.ranking):,}"
    name = plan_names(best, best.order)[0]
    return f"number {rank} of {found.ranking.counts.feasible:,}; the best is A, {name}; this one is B"


def _slower(found: WhyNot, tie: float | None, screen: Screen) -> Iterator[str]:
    assert found.comparison is not None
    a, b = float(found.comparison.a.step_s[0]), float(found.comparison.b.step_s[0])
    yield screen.bold(
        f"it fits, and is slower: {step_time(b)} a step, {b / a - 1:.1%} more than the best plan's"
        f" {step_time(a)}"
    )
    yield from wrap(_place(found), screen.width)
    yield from wrap(summary(found.comparison), screen.width)
    if tie is not None and b / a - 1 <= tie:
        yield from wrap(
            f"The model is usually off by ±{tie:.1%}: the two are tied until somebody measures them.",
            screen.width,
        )


def _fixes(found: WhyNot, screen: Screen) -> Iterator[str]:
    if found.verdict == "best":
        return
    if not found.fixes:
        what = {"slower": "make it faster", "behind": "make it better"}.get(found.verdict, "make it work")
        yield f"no change of one or two of these was found that would {what}"
        return
    title = {"slower": "what makes it faster", "behind": "what makes it better"}.get(
        found.verdict, "what makes it work"
    )
    yield screen.bold(f"{title} (each searched for again)")
    limit = found.ranking.costs.memory_limit_bytes
    plans = [fix for fix in found.fixes if fix.changes[0].name not in QUESTION]
    others = [fix for fix in found.fixes if fix.changes[0].name in QUESTION]
    for fix in plans[: max(MOST_FIXES - len(others), 2)]:
        yield from indented(f"{_kind(fix, found)}{_fixed(fix, limit)}", screen)
    if others:
        yield "  or, with the plan as asked" if plans else "  with the plan as asked"
        for fix in others:
            yield from (
                f"  {line}" for line in indented(_fixed(fix, limit), replace(screen, width=screen.width - 2))
            )


def _kind(fix: Fix, found: WhyNot) -> str:
    """What a fix is the most of; of the fastest, among which plans."""
    wish = found.answer.wish
    if fix.kind not in ("fastest", "best"):
        return f"{fix.kind}: " if fix.kind else ""
    count = sum(change.name in wish for change in fix.changes)
    names = list(dict.fromkeys(_label(name) for name in wish))
    which = " or ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)
    many = {0: "more sharding", 1: f"another {which}"}.get(count, f"{count} of {', '.join(names)} changed")
    return f"{fix.kind} with {many}: "


def _fixed(fix: Fix, limit: float) -> str:
    words = " and ".join(change_words(change, limit) for change in fix.changes)
    rest = ", the rest chosen anew" if fix.kind in ("fastest", "best") and not fix.kept else ""
    step, need = step_time(float(fix.costs.step_s[0])), format_bytes(float(fix.costs.memory_bytes[0]))
    name = plan_names(fix.costs.plans, fix.costs.plans.order)[0]
    return f"{words}{rest}: {name}, step {step}, {need}"
