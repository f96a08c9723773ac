"""Figures of a validation run, for people and as data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from meshplan.errors import shown
from meshplan.report.parts import wrap
from meshplan.report.screen import Screen
from meshplan.report.table import Column, table
from meshplan.validation.metrics import OomTable, Sweep
from meshplan.validation.run import Outcome
from meshplan.validation.summary import Family, Summary

SCHEMA_VERSION = 1
MOST_ODD_WORDS = 8
SWEEP_KEY = ("source", "model", "gpu", "gpus", "gbs", "seq", "precision")


def validation_text(summary: Summary, where: str, screen: Screen) -> str:
    """What ``meshplan validate`` prints."""
    lines = [*_counts(summary, where, screen), ""]
    lines += [*_titled("", overview(summary), screen), *_verdicts(summary, screen), ""]
    title = f"by {', '.join(summary.grouped_by)}"
    lines += [*_titled(title, family_columns(summary.by, title), screen), ""]
    lines += [
        *_titled("by stack, with its scalars fitted on published runs", stack_columns(summary), screen),
        "",
    ]
    if summary.whole.sweeps:
        lines += [*_titled("sweeps of five or more plans", sweep_columns(summary), screen), ""]
    if summary.worst:
        lines += [*_titled("largest errors of step time", worst_columns(summary.worst), screen), ""]
    return screen.text("\n".join(lines).rstrip() + "\n")


def validation_data(summary: Summary, where: str) -> dict[str, Any]:
    """The same as plain data; errors are fractions, ``null`` where there is no row."""
    return {
        "schema_version": SCHEMA_VERSION,
        "file": where,
        "cost_model": summary.cost_model,
        "rows": summary.rows,
        "used": summary.used,
        "skipped": dict(summary.skipped),
        "not_understood": [{**asdict(word), "rows": rows} for word, rows in summary.odd.items()],
        **_family_data(summary.whole),
        "recompute_known": _family_data(summary.known),
        "recompute_unknown": _family_data(summary.unknown),
        "grouped_by": list(summary.grouped_by),
        "by": {name: _family_data(family) for name, family in summary.by.items()},
        "stacks": {
            name: {"fitted": dict(stack.fitted), **_family_data(stack.figures)}
            for name, stack in summary.stacks.items()
        },
        "handbook": {**_family_data(summary.handbook), "same_rows": _family_data(summary.same_rows)},
        "worst": [_outcome_data(outcome) for outcome in summary.worst],
    }


def _family_data(family: Family) -> dict[str, Any]:
    return {
        "n": family.n,
        "step": asdict(family.step),
        "memory": asdict(family.memory),
        "sweeps": {
            "n": len(family.sweeps),
            "mean_tau": family.mean_tau,
            "mean_regret": family.mean_regret,
            "each": [_sweep_data(sweep) for sweep in family.sweeps],
        },
        "oom": {**asdict(family.oom), "right": right_verdicts(family.oom)},
    }


def _sweep_data(sweep: Sweep) -> dict[str, Any]:
    names = dict(zip(SWEEP_KEY, sweep.key, strict=True))
    counts = {name: int(names[name]) for name in ("gpus", "gbs", "seq") if names[name].isdecimal()}
    return {**names, **counts, "n": sweep.n, "tau": sweep.tau, "regret": sweep.regret}


def _outcome_data(outcome: Outcome) -> dict[str, Any]:
    case = outcome.case
    return {
        "line": case.row.line,
        "id": case.row.text["id"],
        "source": case.row.text["source"],
        "model": case.row.text["model"],
        "gpu": case.row.text["gpu"],
        "gpus": case.cluster.gpus,
        "stack": case.stack.name,
        "measured_step_s": case.step_s,
        "step_s": outcome.step_s,
        "step_error": outcome.step_error,
        "measured_peak_bytes": case.peak_bytes,
        "memory_bytes": outcome.memory_bytes,
        "memory_error": outcome.memory_error,
        "assumed": list(case.assumed),
    }


def right_verdicts(oom: OomTable) -> float | None:
    """Share of out-of-memory verdicts that were right."""
    total = oom.oom_oom + oom.oom_ran + oom.ran_oom + oom.ran_ran
    return (oom.oom_oom + oom.ran_ran) / total if total else None


# ── tables ───────────────────────────────────────────────────────────────────────────────────────


def overview(summary: Summary) -> list[Column]:
    """Step time and memory over all rows, those with recomputation known and not, and the handbook."""
    lines: dict[str, Family] = {
        summary.cost_model: summary.whole,
        "  recomputation known": summary.known,
        "  recomputation assumed": summary.unknown,
    }
    if summary.cost_model != "handbook":
        lines |= {
            "  rows the handbook can price": summary.same_rows,
            "handbook on those": summary.handbook,
        }
    return family_columns({name: family for name, family in lines.items() if family.n}, "")


def family_columns(families: Mapping[str, Family], title: str) -> list[Column]:
    """One line a family: rows, errors of step time, errors of memory, ranking."""
    found = list(families.values())

    def column(name: str, cells: list[str], priority: int = 0) -> Column:
        return Column(title=name, cells=cells, right=True, priority=priority)

    return [
        Column(title=title, cells=list(families)),
        column("rows", [f"{f.n:,}" for f in found], 4),
        column("time n", [f"{f.step.n:,}" for f in found]),
        column("signed", [_percent(f.step.signed_median, sign=True) for f in found]),
        column("median", [_percent(f.step.median) for f in found]),
        column("mean", [_percent(f.step.mean) for f in found], 3),
        column("P90", [_percent(f.step.p90) for f in found], 1),
        column("mem n", [f"{f.memory.n:,}" for f in found], 3),
        column("mem signed", [_percent(f.memory.signed_median, sign=True) for f in found], 2),
        column("mem median", [_percent(f.memory.median) for f in found], 2),
        column("mem P90", [_percent(f.memory.p90) for f in found], 2),
        column("tau", [_number(f.mean_tau) for f in found], 5),
        column("regret", [_percent(f.mean_regret) for f in found], 5),
    ]


def stack_columns(summary: Summary) -> list[Column]:
    """One line a stack: how many scalars were fitted, which, and the errors they leave."""
    stacks = summary.stacks
    values = [", ".join(f"{name} {value:.3g}" for name, value in s.fitted.items()) for s in stacks.values()]
    first, *rest = family_columns({name: s.figures for name, s in stacks.items()}, "stack")
    return [
        first,
        Column(title="fitted", cells=[str(len(s.fitted)) for s in stacks.values()], right=True),
        *rest[:10],
        Column(title="scalars", cells=values, priority=6),
    ]


def sweep_columns(summary: Summary) -> list[Column]:
    """One line a sweep, the worst ranking first."""
    found = sorted(summary.whole.sweeps, key=lambda s: s.tau)
    return [
        Column(title="source", cells=[s.key[0] for s in found]),
        Column(title="model", cells=[s.key[1] for s in found]),
        Column(title="GPUs", cells=[f"{s.key[3]} {s.key[2]}" for s in found], priority=1),
        Column(title="gbs", cells=[s.key[4] for s in found], right=True, priority=2),
        Column(title="seq", cells=[s.key[5] for s in found], right=True, priority=2),
        Column(title="plans", cells=[str(s.n) for s in found], right=True),
        Column(title="tau", cells=[_number(s.tau) for s in found], right=True),
        Column(title="regret", cells=[_percent(s.regret) for s in found], right=True),
    ]


def worst_columns(outcomes: tuple[Outcome, ...]) -> list[Column]:
    """One line a row: what was measured and what is estimated."""
    rows = [o.case.row for o in outcomes]
    return [
        Column(title="line", cells=[str(row.line) for row in rows], right=True),
        Column(title="id", cells=[row.text["id"] for row in rows]),
        Column(title="stack", cells=[o.case.stack.name for o in outcomes], priority=2),
        Column(title="model", cells=[row.text["model"] for row in rows], priority=1),
        Column(
            title="GPUs",
            cells=[f"{o.case.cluster.gpus:,} {o.case.row.text['gpu']}" for o in outcomes],
            priority=1,
        ),
        Column(title="measured", cells=[f"{o.case.step_s or 0:.4g} s" for o in outcomes], right=True),
        Column(title="estimated", cells=[f"{o.step_s:.4g} s" for o in outcomes], right=True),
        Column(title="error", cells=[_percent(o.step_error, sign=True) for o in outcomes], right=True),
    ]


def _counts(summary: Summary, where: str, screen: Screen) -> Iterator[str]:
    yield screen.bold(f"{where}: {summary.used:,} of {summary.rows:,} rows used")
    if summary.skipped:
        told = " · ".join(f"{count:,} {reason}" for reason, count in summary.skipped.items())
        yield from wrap(f"not used: {told}", screen.width)
    if summary.odd:
        yield from wrap(f"not understood: {_odd_words(summary)}", screen.width)


def _odd_words(summary: Summary) -> str:
    told = [
        f"{word.column} {shown(word.value)} taken as {word.taken_as} ({rows:,} row{'s' if rows > 1 else ''})"
        for word, rows in summary.odd.items()
    ]
    if len(told) > MOST_ODD_WORDS:
        told[MOST_ODD_WORDS:] = [f"{len(told) - MOST_ODD_WORDS:,} more words (all with --json)"]
    return " · ".join(told)


def _verdicts(summary: Summary, screen: Screen) -> Iterator[str]:
    family, oom = summary.whole, summary.whole.oom
    if family.sweeps:
        yield (
            f"{len(family.sweeps)} sweeps: mean Kendall's tau {_number(family.mean_tau)}, "
            f"mean regret of the plan chosen {_percent(family.mean_regret)}"
        )
    yield from wrap(
        f"out of memory: {oom.oom_oom} of {oom.oom_oom + oom.ran_oom} runs that did foreseen,"
        f" {oom.oom_ran} of {oom.oom_ran + oom.ran_ran} that ran refused",
        screen.width,
    )


def _titled(title: str, columns: list[Column], screen: Screen) -> list[str]:
    head, *rows = table(columns, screen.width)
    if not columns[0].title or columns[0].title == title:
        return [screen.bold(head), *rows]
    return [screen.bold(title), screen.dim(head), *rows]


def _percent(value: float | None, *, sign: bool = False) -> str:
    return "" if value is None else f"{100 * value:{'+' if sign else ''}.1f}%"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
