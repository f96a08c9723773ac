"""Prices every row of a file, and keeps what was skipped and why."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from meshplan.cost.costs import Costs
from meshplan.cost.full.model import FullModel
from meshplan.cost.full.readings import readings
from meshplan.errors import MeshplanError
from meshplan.plan.plans import Plans
from meshplan.validation.cases import Case, SkippedError, case_of
from meshplan.validation.rows import Row
from meshplan.validation.words import OddWord, odd_tier, odd_words


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One row priced: what was measured and what is estimated, seconds and bytes."""

    case: Case
    step_s: float
    memory_bytes: float
    """As the source counts it: allocated, reserved or on the device (``Case.memory_kind``)."""
    device_bytes: float
    limit_bytes: float
    costs: Costs

    @property
    def step_error(self) -> float | None:
        """Estimated over measured step time, less 1."""
        return None if not self.case.step_s else self.step_s / self.case.step_s - 1

    @property
    def memory_error(self) -> float | None:
        """Estimated over measured peak memory, less 1."""
        return None if not self.case.peak_bytes else self.memory_bytes / self.case.peak_bytes - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """All rows of a file: outcomes, and reasons with how many rows each."""

    rows: int
    outcomes: tuple[Outcome, ...]
    skipped: Counter[str]
    first_skip: tuple[int, str, str] | None
    """Line, column (or ``""``) and reason of the first row that could not be used."""
    odd: Counter[OddWord]
    """Words that were not understood, and in how many rows."""


def run(
    rows: Iterable[Row], *, keep: Callable[[Row], bool] = lambda row: True, stack: str | None = None
) -> Run:
    """Prices the rows that ``keep`` lets through; rows of one problem and stack are priced together."""
    skipped: Counter[str] = Counter()
    first_skip: tuple[int, str, str] | None = None
    odd: Counter[OddWord] = Counter()
    cases: list[Case] = []
    count = 0
    for row in rows:
        count += 1
        if not keep(row):
            skipped["not selected"] += 1
            odd.update(odd_tier(row))
            continue
        try:
            cases.append(case_of(row, stack=stack))
        except (SkippedError, MeshplanError) as reason:
            skipped[str(reason)] += 1
            first_skip = first_skip or (row.line, getattr(reason, "column", ""), str(reason))
    outcomes = tuple(price_cases(cases, skipped))
    for outcome in outcomes:
        odd.update(odd_words(outcome.case))
    return Run(rows=count, outcomes=outcomes, skipped=skipped, first_skip=first_skip, odd=odd)


def price_cases(cases: Sequence[Case], skipped: Counter[str] | None = None) -> list[Outcome]:
    """The estimate for every case, in order. Cases that cannot be priced (a GPU without curves) are left
    out and counted in ``skipped``; without it the error is raised."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for i, case in enumerate(cases):
        groups[_problem(case)].append(i)
    found: dict[int, Outcome] = {}
    for members in groups.values():
        first = cases[members[0]]
        plans = Plans.of(*(cases[i].plan for i in members))
        gbs = np.array([cases[i].workload.gbs for i in members], dtype=np.int64)
        model = FullModel(stack=first.stack)
        try:
            costs = model.price_batches(first.model, first.cluster, first.workload, plans, gbs)
        except MeshplanError as reason:
            if skipped is None:
                raise
            skipped[str(reason)] += len(members)
            continue
        buffers = model.gather_buffers(first.model, first.cluster, first.workload, plans)
        for at, i in enumerate(members):
            found[i] = _outcome(cases[i], costs.take(slice(at, at + 1)), float(buffers[at]))
    return [found[i] for i in sorted(found)]


def _problem(case: Case) -> Hashable:
    """What rows must share to be priced in one table."""
    c = case.cluster
    return case.model, c.gpu.name, c.gpus, c.tiers, case.workload.seq, case.workload.precision, case.stack.key


def _outcome(case: Case, costs: Costs, buffers: float) -> Outcome:
    seen = readings(
        {part: float(value[0]) for part, value in costs.memory.items()},
        limit=costs.memory_limit_bytes, cached=case.stack.cached, buffers=buffers,
    )  # fmt: skip
    return Outcome(
        case=case,
        step_s=float(costs.step_s[0]),
        memory_bytes=float(getattr(seen, case.memory_kind)),
        device_bytes=float(costs.memory_bytes[0]),
        limit_bytes=costs.memory_limit_bytes,
        costs=costs,
    )
