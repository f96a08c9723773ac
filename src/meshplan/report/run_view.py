"""A whole training run, for people and as data: days, GPU hours, energy, money, and what failures take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meshplan.goodput.failures import YEAR_S
from meshplan.goodput.phases import PhasedRun, PhaseResult, Transition
from meshplan.goodput.run import WholeRun
from meshplan.plan.plans import Plans
from meshplan.report.parts import step_time, wrap
from meshplan.report.plan_names import plan_names
from meshplan.report.plan_rows import plan_data
from meshplan.report.screen import Screen
from meshplan.report.table import Column, pad, table
from meshplan.report.why_not_view import value_words
from meshplan.report.why_view import indented
from meshplan.units import format_bytes_as_sold, format_count, format_seconds

DAY = 86400.0
KEPT = {
    "none": "nothing changes",
    "batch": "the same plan with another batch: nothing moves, the processes go on",
    "groups": "every rank keeps its weights and shards; new groups, so a restart from a checkpoint",
    "reshard": "tensors are cut anew: save, restart, load resharded",
}
"""Kind of transition → what it means."""
HOW = (
    "resharded loading: Megatron-Core's distributed checkpoints, torch.distributed.checkpoint (torchtitan)"
    " and DeepSpeed's universal checkpoints can; plain per-rank files cannot"
)


def run_lines(run: WholeRun, screen: Screen, title: str = "") -> list[str]:
    """The whole run in a few lines."""
    what = f"{format_count(run.tokens)} tokens" + (f" with {title}" if title else "")
    lines = [screen.bold(f"the whole run: {what}, {run.steps:,} steps on {run.gpus:,} GPUs")]
    lines += _days(run)
    lines += wrap(_totals(run), screen.width)
    lines += [line for text in _assumed(run) for line in wrap(text, screen.width)]
    return lines


def _days(run: WholeRun) -> Iterator[str]:
    """Wall time by what it goes to."""
    losses, rel = run.losses, run.reliability
    ideal = losses.useful_s - run.straggler_s
    rows = [("steps", ideal, f"{step_time(run.step_s)} each")]
    if rel is None:
        rows.append(("wall time", run.wall_s, "nothing fails, no checkpoints"))
    else:
        if run.straggler_s:
            rows.append(("stragglers", run.straggler_s, "the slowest GPU sets the pace"))
        interval = format_seconds(run.interval_s or 0.0)
        young = format_seconds(run.young_s or 0.0)
        how = "as asked" if rel.interval_s is not None else f"best by Daly; by Young {young}"
        rows += [
            ("checkpoints", losses.checkpoints_s, f"{rel.blocking_s:g} s every {interval} ({how})"),
            ("lost work", losses.lost_s, "done since the last checkpoint when a failure came"),
            ("restarts", losses.restarts_s, f"{losses.failures:,.1f} failures, one every {_every(run)}"),
            ("wall time", run.wall_s, f"goodput {run.goodput:.1%}"),
        ]
    size = max(len(name) for name, _, _ in rows)
    for name, seconds, why in rows:
        yield f"  {pad(name, size)}  {seconds / DAY:8.2f} days  {seconds / run.wall_s:6.1%}  {why}"


def _every(run: WholeRun) -> str:
    return format_seconds(run.mtbf_s or 0.0)


def _totals(run: WholeRun) -> str:
    energy = f"{run.energy_j / 3.6e9:,.1f} MWh ({run.power.watts:g} W a GPU)"
    money = "no price known, give --price" if run.usd is None else f"{dollars(run.usd)}"
    if run.price is not None:
        money += f" ({run.price.usd_per_hour:g} $ a GPU hour)"
    return f"{format_count(run.gpu_hours)} GPU hours · {energy} · {money}"


def dollars(usd: float) -> str:
    """An amount of money: ``$4.93 M``."""
    if abs(usd) >= 999_500:
        return f"${usd / 1e6:,.2f} M"
    return f"${usd:,.0f}"


def _assumed(run: WholeRun) -> Iterator[str]:
    rel = run.reliability
    if rel is not None:
        years = rel.gpu_mttf_s / YEAR_S
        size = format_bytes_as_sold(run.checkpoint.size_bytes)
        restart = format_seconds(rel.restart_s + run.checkpoint.transfer_s)
        yield (
            f"assumed: a failure in {years:.1f} years of one GPU (Llama 3's rate), {restart} for a restart"
            f" with loading {size}; --no-failures leaves all that out"
        )
    price = run.price
    told = [f"power: {run.power.source}, boards alone, without hosts and cooling"]
    if price is not None:
        told.append(f"price: {price.source}{f', {price.date}' if price.date else ''}")
    yield "; ".join(told)


def run_data(run: WholeRun) -> dict[str, Any]:
    """The same as plain data: seconds, joules, dollars; the parts of ``wall`` sum to ``wall_s``."""
    losses, rel = run.losses, run.reliability
    return {
        "tokens": run.tokens,
        "steps": run.steps,
        "gpus": run.gpus,
        "step_s": run.step_s,
        "wall_s": run.wall_s,
        "days": run.days,
        "gpu_hours": run.gpu_hours,
        "energy_j": run.energy_j,
        "usd": run.usd,
        "goodput": run.goodput,
        "wall": {
            "steps_s": losses.useful_s - run.straggler_s,
            "stragglers_s": run.straggler_s,
            "checkpoints_s": losses.checkpoints_s,
            "lost_s": losses.lost_s,
            "restarts_s": losses.restarts_s,
        },
        "failures": losses.failures,
        "mtbf_s": run.mtbf_s,
        "checkpoint_interval_s": run.interval_s,
        "young_interval_s": run.young_s,
        "checkpoint_bytes": run.checkpoint.size_bytes,
        "reliability": None
        if rel is None
        else {
            "gpu_mttf_s": rel.gpu_mttf_s,
            "blocking_s": rel.blocking_s,
            "restart_s": rel.restart_s,
            "spread": rel.spread,
        },
        "price": None
        if run.price is None
        else {
            "usd_per_hour": run.price.usd_per_hour,
            "source": run.price.source,
            "date": run.price.date,
        },
        "power": {"watts": run.power.watts, "source": run.power.source},
    }


# ── phases ───────────────────────────────────────────────────────────────────────────────────────


def phases_lines(found: PhasedRun, screen: Screen) -> list[str]:
    """Every phase with its plan, what lies between them, and the totals."""
    phases = found.phases
    order = phases[0].costs.plans.order
    names = plan_names(Plans.of(*(p.costs.plans[0] for p in phases), order=order), order)
    first, *rows = table(
        [
            Column(title="phase", cells=[p.phase.name for p in phases]),
            Column(title="tokens", cells=[format_count(p.phase.tokens) for p in phases], right=True),
            Column(title="seq", cells=[f"{p.phase.workload.seq:,}" for p in phases], right=True),
            Column(title="gbs", cells=[f"{p.phase.workload.gbs:,}" for p in phases], right=True),
            Column(title="GPUs", cells=[f"{p.run.gpus:,}" for p in phases], right=True),
            Column(title="step", cells=[step_time(p.run.step_s) for p in phases], right=True),
            Column(
                title="MFU", cells=[f"{float(p.costs.mfu[0]):.1%}" for p in phases], right=True, priority=1
            ),
            Column(title="days", cells=[f"{p.run.days:,.2f}" for p in phases], right=True),
            Column(title="GPU hours", cells=[format_count(p.run.gpu_hours) for p in phases], right=True),
        ],
        screen.width,
    )
    lines = [screen.bold(first), *rows, "", screen.bold("plans, and what lies between them")]
    moved = False
    for p, name in zip(phases, names, strict=True):
        if p.transition is not None:
            lines += indented(f"→ {_transition(p.transition)}", screen)
            moved |= p.transition.kind == "reshard"
        fits = "" if bool(p.costs.fits[0]) else " (does not fit, by the estimate)"
        lines += wrap(f"{p.phase.name}: {' '.join(name.split())}{fits}", screen.width, indent="    ")
        if p.best is not None:
            gain = float(p.costs.step_s[0] / p.best.step_s[0]) - 1
            other = " ".join(plan_names(p.best.plans, order)[0].split())
            text = f"kept: {other} would be {gain:.1%} faster, which gains less than a restart costs"
            lines += indented(text, screen)
    lines += ["", *wrap(_phase_totals(found), screen.width)]
    if moved:
        lines += wrap(HOW, screen.width)
    last = phases[-1].run
    return [*lines, *(line for text in _assumed(last) for line in wrap(text, screen.width))]


def _transition(move: Transition) -> str:
    text = KEPT[move.kind]
    changed = [f"{name} {value_words(name, a)} → {value_words(name, b)}" for name, a, b in move.changes]
    changed += ["other layers a stage"] if move.recut else []
    if changed:
        text = f"{', '.join(changed)}: {text}"
    if move.seconds:
        text += f", {format_bytes_as_sold(move.size_bytes)}, about {format_seconds(move.seconds)}"
    return text


def _phase_totals(found: PhasedRun) -> str:
    money = "" if found.usd is None else f" · {dollars(found.usd)}"
    return (
        f"in all: {format_count(found.tokens)} tokens · {found.wall_s / DAY:,.1f} days ·"
        f" {format_count(found.gpu_hours)} GPU hours · {found.energy_j / 3.6e9:,.0f} MWh{money}"
    )


def phases_data(found: PhasedRun) -> dict[str, Any]:
    """The same as plain data."""
    return {
        "phases": [_phase_data(p) for p in found.phases],
        "tokens": found.tokens,
        "wall_s": found.wall_s,
        "days": found.wall_s / DAY,
        "gpu_hours": found.gpu_hours,
        "energy_j": found.energy_j,
        "usd": found.usd,
    }


def _phase_data(p: PhaseResult) -> dict[str, Any]:
    workload, move = p.phase.workload, p.transition
    return {
        "name": p.phase.name,
        "seq": workload.seq,
        "gbs": workload.gbs,
        "precision": workload.precision,
        "plan": plan_data(p.costs, 0, workload, p.run.gpus),
        "fits": bool(p.costs.fits[0]),
        "run": run_data(p.run),
        "kept_instead_of": None if p.best is None else plan_data(p.best, 0, workload, p.run.gpus),
        "transition": None
        if move is None
        else {
            "kind": move.kind,
            "changes": [
                {"name": name, "old": value_words(name, old), "new": value_words(name, new)}
                for name, old, new in move.changes
            ],
            "layers_move": move.recut,
            "checkpoint_bytes": move.size_bytes,
            "seconds": move.seconds,
        },
    }
