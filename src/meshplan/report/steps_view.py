"""The expert's walk in words, with the numbers of one problem, and where the search ends up elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from meshplan.cost.costs import Costs
from meshplan.model.counts import model_parameters
from meshplan.plan.plans import Plan
from meshplan.report.parts import step_time, wrap
from meshplan.report.plan_key import plan_key
from meshplan.report.plan_names import plan_names
from meshplan.report.screen import Screen
from meshplan.report.table import Column, table
from meshplan.report.why_view import indented, summary
from meshplan.search.reasons import Case
from meshplan.search.reasons_walk import Disagreement, Step, Tried, Walk
from meshplan.units import format_bytes, format_count

GIB = 2.0**30
TITLES = {
    "states": "1. fit the model's states",
    "activations": "2. fit the activations",
    "data": "3. give the rest to data parallelism",
    "pipeline": "4. tune the pipeline",
    "measure": "5. measure",
}
MOST_ROWS = 6


def steps_lines(case: Case, found: Walk, screen: Screen) -> list[str]:
    """What ``--explain-steps`` prints."""
    lines = [screen.bold("step by step, as an expert goes")]
    for step in found.steps:
        lines += [screen.bold(TITLES[step.name]), *_say(case, step, found, screen)]
    lines += ["", *_end(case, found, screen)]
    return lines


def _say(case: Case, step: Step, found: Walk, screen: Screen) -> Iterator[str]:
    match step.name:
        case "states":
            yield from _states(case, step, screen)
        case "activations":
            yield from _activations(case, step, screen)
        case "data":
            yield from indented(_data(case, step), screen)
        case "pipeline":
            yield from _pipeline(step, screen)
        case "measure":
            yield from indented(
                f"{found.ranking.counts.feasible:,} plans fit; the few best by estimate are run for some"
                " steps under a profiler, and the fastest of them is taken",
                screen,
            )


def _states(case: Case, step: Step, screen: Screen) -> Iterator[str]:
    parameters = model_parameters(case.model).total
    limit = step.facts["limit_bytes"]
    yield from indented(
        f"{format_count(parameters)} parameters; weights, gradients and optimizer states (ZeRO-1: the last"
        f" sharded over dp · cp) must stay under {format_bytes(limit)} a GPU",
        screen,
    )
    yield from _table(step.tried, screen, ("ep", "tp", "pp"), "states GiB", states=True)
    if step.chosen is None:
        yield from indented(
            "nothing tried is small enough: more GPUs, or sharded parameters (ZeRO-3)", screen
        )


def _activations(case: Case, step: Step, screen: Screen) -> Iterator[str]:
    seq, tokens = case.workload.seq, step.facts["cp_tokens"]
    yield from indented(
        f"one micro-batch of {seq:,} tokens, sequence parallel with tp; cp while a rank keeps {tokens:,.0f}"
        " tokens; layers recomputed only as many as do not fit",
        screen,
    )
    yield from _table(step.tried, screen, ("ep", "tp", "cp", "pp"), "all GiB", states=False)
    if step.chosen is None:
        yield from indented("nothing tried fits with its activations", screen)


def _table(
    tried: Sequence[Tried], screen: Screen, dims: tuple[str, ...], title: str, *, states: bool
) -> list[str]:
    """The last plans tried, the one that worked at the end."""
    shown = tried[-MOST_ROWS:]
    left = len(tried) - len(shown)
    if not shown:
        return []
    dims = tuple(d for d in dims if d in ("tp", "pp") or any(getattr(t.plan, d) > 1 for t in tried))
    columns = [
        Column(title=dim, cells=[str(getattr(t.plan, dim)) for t in shown], right=True)
        for dim in (*dims, "dp")
    ]
    value = [t.states_bytes if states else t.memory_bytes for t in shown]
    columns.append(Column(title=title, cells=[f"{v / GIB:.1f}" for v in value], right=True))
    if not states:
        columns.append(Column(title="recomputed", cells=[str(t.recomputed) for t in shown], right=True))
    columns.append(Column(title="", cells=["fits" if t.enough else "too much" for t in shown]))
    more = [f"… {left} more before these"] if left else []
    return [f"    {line}" for line in (*more, *table(columns, screen.width - 4))]


def _data(case: Case, step: Step) -> str:
    f = step.facts
    dp, micro = int(f["dp"]), int(f["micro_batches"])
    return (
        f"dp {dp:,} is what the {case.cluster.gpus:,} GPUs leave; gbs {int(f['gbs']):,} = dp {dp:,} ×"
        f" mbs {int(f['mbs'])} × {micro:,} micro-batches"
    )


def _pipeline(step: Step, screen: Screen) -> Iterator[str]:
    f = step.facts
    if int(f["pp"]) == 1:
        yield from indented("pp 1: there is no pipeline", screen)
        return
    micro = f"{int(f['micro_batches']):,} micro-batches"
    yield from indented(f"pp {int(f['pp'])} and {micro}: {f['bubble']:.1%} of the step is bubble", screen)
    better = [t for t in step.tried if t.plan.vp > 1 and t.enough]
    if better:
        told = ", ".join(f"vp {t.plan.vp} {step_time(t.step_s)}" for t in better[:4])
        first = step.tried[0].step_s
        yield from indented(f"interleaved stages instead of {step_time(first)} a step: {told}", screen)
    if step.chosen is not None and step.chosen.vp > 1:
        yield from indented(f"so vp {step.chosen.vp}", screen)


def _end(case: Case, found: Walk, screen: Screen) -> Iterator[str]:
    if found.end is None:
        yield from wrap("The walk ends without a plan.", screen.width)
    else:
        name = plan_names(found.end.plans, case.space.order)[0]
        fits = "" if bool(found.end.fits[0]) else ", which does not fit after all"
        yield from wrap(f"The walk ends at {name}: {step_time(_step(found.end))} a step{fits}.", screen.width)
    if found.comparison is None:
        return
    best = found.comparison.a
    name = plan_names(best.plans, case.space.order)[0]
    if not found.disagreements or found.comparison.slower <= 1e-9:
        yield from wrap("The search ends there too.", screen.width)
        return
    yield from wrap(
        f"The search, which tries all of them, ends at {name}: {step_time(_step(best))}; the expert's plan"
        f" (B) takes {found.comparison.slower:.1%} longer. {summary(found.comparison)}",
        screen.width,
    )
    for d in found.disagreements:
        yield from indented(_disagreement(found, d), screen)


def _disagreement(found: Walk, d: Disagreement) -> str:
    text = f"{d.name} {d.search} instead of {d.expert}"
    if d.alone is None:
        reason = d.broken[0].reason if d.broken else "it is not valid"
        return f"{text}: not on its own ({reason}), only with the other changes"
    if not d.alone.enough:
        return (
            f"{text}: alone it does not fit ({format_bytes(d.alone.memory_bytes)}), which is why the walk"
            " went past it; together with the other changes it does"
        )
    end = _step(found.end) if found.end is not None else 0.0
    change = d.alone.step_s / end - 1
    word = "shorter" if change < 0 else "longer"
    return f"{text}: alone, a step {abs(change):.1%} {word} ({step_time(d.alone.step_s)})"


def _step(costs: Costs) -> float:
    return float(costs.step_s[0])


def steps_data(found: Walk) -> dict[str, Any]:
    """The same as plain data."""
    return {
        "steps": [
            {
                "name": step.name,
                "chosen": _key(step.chosen),
                "facts": dict(step.facts),
                "tried": [
                    {
                        "plan": plan_key(t.plan),
                        "states_bytes": t.states_bytes,
                        "memory_bytes": t.memory_bytes,
                        "recomputed_layers": t.recomputed,
                        "step_s": t.step_s,
                        "enough": t.enough,
                    }
                    for t in step.tried
                ],
            }
            for step in found.steps
        ],
        "end": None
        if found.end is None
        else {"plan": plan_key(found.end.plans[0]), "step_s": _step(found.end)},
        "slower": None if found.comparison is None else found.comparison.slower,
        "disagreements": [
            {
                "name": d.name,
                "expert": d.expert,
                "search": d.search,
                "alone_step_s": None if d.alone is None else d.alone.step_s,
                "alone_fits": None if d.alone is None else d.alone.enough,
                "broken": [b.reason for b in d.broken],
            }
            for d in found.disagreements
        ],
    }


def _key(plan: Plan | None) -> str | None:
    return None if plan is None else plan_key(plan)
