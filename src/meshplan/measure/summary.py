"""Results of a sweep as a ranking: medians, spread, outliers, and which plans are ties."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from meshplan.measure.results import OK, Result

OUTLIER = 3.0
"""Scaled median deviations beyond which a step is an outlier (it stays in; the median does not mind)."""
LEAST_GAP = 0.02
"""Two medians closer than this are a tie whatever the spread."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """One plan over its rounds. ``low`` to ``high``: the rounds' medians, widened to a 95 % interval of the
    median over all steps where that is wider."""

    key: str
    label: str
    outcome: str
    reason: str = ""
    step_s: float = math.nan
    low: float = math.nan
    high: float = math.nan
    rounds: int = 0
    steps: int = 0
    outliers: int = 0
    variation: float = math.nan
    """Scaled median absolute deviation over the median."""
    peak_bytes: int = 0
    """Of the fullest rank: allocated on a GPU, of the process on a CPU."""
    rank: int = 0
    """1 for the fastest; ties share the rank."""
    tied: bool = False
    agreement: str = ""
    folder: str = ""


def summarise(results: Sequence[Result]) -> list[Measured]:
    """Plans that ran from fastest to slowest, then those that did not."""
    keys = list(dict.fromkeys(r.key for r in results))
    found = [_of([r for r in results if r.key == key]) for key in keys]
    ran = sorted((m for m in found if m.outcome == OK), key=lambda m: m.step_s)
    return [*_ranked(ran), *(m for m in found if m.outcome != OK)]


def _of(results: list[Result]) -> Measured:
    good = [r for r in results if r.outcome == OK and r.steps_s]
    last = results[-1]
    if not good:
        return Measured(
            key=last.key, label=last.label, outcome=last.outcome, reason=last.reason, folder=last.folder
        )
    steps = sorted(s for r in good for s in r.steps_s)
    middle = median(steps)
    deviation = 1.4826 * median(abs(s - middle) for s in steps)
    medians = [median(r.steps_s) for r in good]
    low, high = _interval(steps)
    return Measured(
        key=last.key,
        label=last.label,
        outcome=OK,
        step_s=middle,
        reason="; ".join(
            dict.fromkeys(f"round {r.round + 1}: {r.outcome}" for r in results if r.outcome != OK)
        ),
        low=min(*medians, low),
        high=max(*medians, high),
        rounds=len(good),
        steps=len(steps),
        outliers=sum(abs(s - middle) > OUTLIER * max(deviation, 1e-9) for s in steps),
        variation=deviation / middle,
        peak_bytes=_peak(good),
        agreement=good[-1].agreement,
        folder=good[-1].folder,
    )


def _interval(ordered: list[float]) -> tuple[float, float]:
    """Order statistics that hold the median with 95 % confidence (binomial, normal approximation)."""
    n = len(ordered)
    half = 1.96 * math.sqrt(n) / 2
    at = max(int(n / 2 - half), 0)
    return ordered[at], ordered[n - 1 - at]


def _peak(results: list[Result]) -> int:
    each = [m for r in results for m in r.memory]
    return max((int(m.get("allocated_bytes", m.get("process_bytes", 0))) for m in each), default=0)


def _ranked(ran: list[Measured]) -> list[Measured]:
    """Ranks; a plan whose interval overlaps that of the first of its group shares the group's rank."""
    from dataclasses import replace

    groups: list[list[Measured]] = []
    for m in ran:
        if groups and is_tie(groups[-1][0], m):
            groups[-1].append(m)
        else:
            groups.append([m])
    found, at = [], 1
    for group in groups:
        found += [replace(m, rank=at, tied=len(group) > 1) for m in group]
        at += len(group)
    return found


def is_tie(a: Measured, b: Measured) -> bool:
    """Whether the intervals of two plans overlap, or their medians are closer than ``LEAST_GAP``."""
    return b.low <= a.high or abs(b.step_s / a.step_s - 1) < LEAST_GAP
