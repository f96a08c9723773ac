"""A validation run as figures: errors over all rows, by family, by stack, and beside the handbook's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from meshplan.errors import UnknownNameError
from meshplan.validation.baseline import handbook_outcomes
from meshplan.validation.metrics import Errors, OomTable, Sweep, grouped, oom_table, sweeps
from meshplan.validation.run import Outcome, Run
from meshplan.validation.words import OddWord

FAMILIES = (
    "source",
    "gpu",
    "model",
    "precision",
    "sharding",
    "recompute",
    "release",
    "tier",
    "stack",
    "kind",
)
"""What rows can be grouped by: columns, the stack they are priced with, and ``kind`` (dense or moe)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """Figures of some rows: errors of step time and peak memory, sweeps, out-of-memory verdicts."""

    n: int
    step: Errors
    memory: Errors
    sweeps: tuple[Sweep, ...]
    oom: OomTable

    @classmethod
    def of(cls, outcomes: Iterable[Outcome]) -> Family:
        """The figures of these rows."""
        members = list(outcomes)
        return cls(
            n=len(members),
            step=Errors.of(o.step_error for o in members),
            memory=Errors.of(o.memory_error for o in members),
            sweeps=tuple(sweeps(members)),
            oom=oom_table(members),
        )

    @property
    def mean_tau(self) -> float | None:
        """Mean rank correlation of the sweeps."""
        return float(np.mean([s.tau for s in self.sweeps])) if self.sweeps else None

    @property
    def mean_regret(self) -> float | None:
        """Mean regret of the sweeps, as a fraction."""
        return float(np.mean([s.regret for s in self.sweeps])) if self.sweeps else None


@dataclass(frozen=True, kw_only=True, slots=True)
class StackFigures:
    """One stack's rows, with the scalars that were fitted on published runs."""

    fitted: Mapping[str, float]
    figures: Family


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """Everything ``meshplan validate`` reports."""

    cost_model: str
    rows: int
    used: int
    skipped: Mapping[str, int]
    """Reason → rows, most frequent first."""
    odd: Mapping[OddWord, int]
    """Word that was not understood → rows, most frequent first."""
    whole: Family
    known: Family
    """Rows whose recomputation the source prints."""
    unknown: Family
    """Rows where it does not: the least that fits was assumed."""
    by: Mapping[str, Family]
    grouped_by: tuple[str, ...]
    stacks: Mapping[str, StackFigures]
    handbook: Family
    """The handbook, on the rows it can price."""
    same_rows: Family
    """This cost model on just those."""
    worst: tuple[Outcome, ...]
    """Largest errors of step time, largest first."""


def family_key(names: Sequence[str]) -> Callable[[Outcome], str]:
    """The family of a row: the values of these columns joined by `` / ``. Raises ``UnknownNameError``."""
    for name in names:
        if name not in FAMILIES:
            raise UnknownNameError("family", name, FAMILIES, f"known: {', '.join(FAMILIES)}")

    def value(outcome: Outcome, name: str) -> str:
        if name == "stack":
            return outcome.case.stack.name
        if name == "kind":
            return "moe" if outcome.case.row.whole("experts", 0) else "dense"
        return outcome.case.row.text[name] or "not given"

    return lambda outcome: " / ".join(value(outcome, name) for name in names)


def summarise(
    run: Run, *, by: Sequence[str] = ("source",), worst: int = 0, cost_model: str = "full"
) -> Summary:
    """The figures of ``run`` under ``cost_model`` (``full`` or ``handbook``)."""
    key = family_key(by)
    baseline = handbook_outcomes(o.case for o in run.outcomes)
    skipped = dict(run.skipped.most_common())
    outcomes: Sequence[Outcome] = run.outcomes
    if cost_model == "handbook":
        outcomes = list(baseline.values())
        if len(outcomes) < len(run.outcomes):
            skipped["outside the handbook's equations"] = len(run.outcomes) - len(outcomes)
    by_stack = grouped(outcomes, lambda o: o.case.stack.name)
    ranked = sorted((o for o in outcomes if o.step_error is not None), key=lambda o: -abs(o.step_error or 0))
    return Summary(
        cost_model=cost_model,
        rows=run.rows,
        used=len(outcomes),
        skipped=skipped,
        odd=dict(run.odd.most_common()),
        whole=Family.of(outcomes),
        known=Family.of(o for o in outcomes if "recompute" not in o.case.assumed),
        unknown=Family.of(o for o in outcomes if "recompute" in o.case.assumed),
        by={name: Family.of(members) for name, members in grouped(outcomes, key).items()},
        grouped_by=tuple(by),
        stacks={
            name: StackFigures(fitted=members[0].case.stack.fitted, figures=Family.of(members))
            for name, members in by_stack.items()
        },
        handbook=Family.of(baseline.values()),
        same_rows=Family.of(o for o in outcomes if o.case.row.line in baseline),
        worst=tuple(ranked[:worst]),
    )
