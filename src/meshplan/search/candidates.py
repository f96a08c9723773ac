"""All plans of a space that the rules let through, in blocks, with the count of what each rule removed.

Dimensions are joined one at a time and a rule is applied as soon as its columns are there, so that a
hopeless tensor-parallel degree is dropped once and not again with every micro-batch size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from meshplan.plan.plans import Plan, Plans
from meshplan.plan.rules import Rule, Setting
from meshplan.plan.space import Space

BLOCK = 1 << 16
"""Most rows joined at once; a full table of that length takes 8 MB."""
DIMENSIONS = ("tp", "cp", "pp", "dp", "ep", "etp", "vp", "schedule", "mbs", "sharding", "recompute")
"""In the order they are joined; the first varies slowest."""

Columns = Mapping[str, npt.NDArray[np.int64]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """A plan that a rule removed, from as far down the list of rules as any plan came."""

    rule: Rule
    plan: Plan
    depth: tuple[int, int]
    demand: int


@dataclass(kw_only=True, slots=True)
class Funnel:
    """What became of the candidates; filled while they are enumerated."""

    candidates: int = 0
    removed: dict[str, int] = field(default_factory=dict)
    """Rule id → candidates that broke it and none of the rules before it."""
    example: Example | None = None


def blocks(
    setting: Setting, space: Space, rules: Sequence[Rule], funnel: Funnel, *, layout: int = -1
) -> Iterator[Plans]:
    """Tables of at most ``BLOCK`` valid plans, together in the order of the space's values.

    ``layout`` is that of all plans: even, or ``AUTO_LAYOUT`` for a cost model that chooses. ``funnel`` is
    complete once the iterator is exhausted.
    """
    join = _Join(setting, space, tuple(rules), funnel, layout)
    funnel.candidates = prod(join.sizes)
    funnel.removed = {rule.id: 0 for rule in rules}
    return join.below(0, {})


class _Join:
    """The nested join of all dimensions, depth first."""

    def __init__(
        self, setting: Setting, space: Space, rules: tuple[Rule, ...], funnel: Funnel, layout: int
    ) -> None:
        self.setting, self.space, self.funnel, self.layout = setting, space, funnel, layout
        self.values = _values(setting, space)
        self.sizes = [len(self.values[name]) for name in DIMENSIONS]
        joined = {name: level for level, name in enumerate(DIMENSIONS)}
        joined["recompute_layers"] = joined["recompute_modules"] = joined.pop("recompute")
        depths = [max((joined.get(column, 0) for column in rule.columns), default=0) for rule in rules]
        self.rules = [
            [(i, rule) for i, rule in enumerate(rules) if depths[i] == level]
            for level in range(len(DIMENSIONS))
        ]

    def below(self, level: int, columns: Columns) -> Iterator[Plans]:
        """Join every dimension from ``level`` on to these rows."""
        if level == len(DIMENSIONS):
            yield self._table(columns)
            return
        rows = len(next(iter(columns.values()))) if columns else 1
        at_once = max(BLOCK // self.sizes[level], 1)
        for start in range(0, rows, at_once):
            part = {name: column[start : start + at_once] for name, column in columns.items()}
            kept = self._filter(level, self._join(level, part, min(at_once, rows - start)))
            if len(next(iter(kept.values()))):
                yield from self.below(level + 1, kept)

    def _join(self, level: int, part: Columns, rows: int) -> Columns:
        name = DIMENSIONS[level]
        if name == "dp" and self.space.dp is None:  # what the others leave
            ranks = part["tp"].astype(np.float64) * part["cp"] * part["pp"]
            return {**part, "dp": np.maximum(self.setting.cluster.gpus // ranks, 1).astype(np.int64)}
        values = self.values[name]
        grown = {column: np.repeat(array, len(values)) for column, array in part.items()}
        if name != "recompute":
            return {**grown, name: np.tile(values, rows)}
        layers, modules = np.tile(values, (rows, 1)).T
        return {**grown, "recompute_layers": layers, "recompute_modules": modules}

    def _filter(self, level: int, columns: Columns) -> Columns:
        for position, rule in self.rules[level]:
            plans = self._table(columns)
            passed = rule.passes(self.setting, plans)
            if not passed.all():
                self._count(level, position, rule, plans.take(~passed))
                columns = {name: column[passed] for name, column in columns.items()}
        return columns

    def _count(self, level: int, position: int, rule: Rule, failed: Plans) -> None:
        if not len(failed):
            return
        self.funnel.removed[rule.id] += len(failed) * prod(self.sizes[level + 1 :])
        demand = np.zeros(1, dtype=np.int64) if rule.demand is None else rule.demand(self.setting, failed)
        least = int(np.argmin(demand))
        best = self.funnel.example
        depth = (level, position)
        if best is None or (best.depth, -best.demand) < (depth, -int(demand[least])):
            self.funnel.example = Example(
                rule=rule, plan=failed[least], depth=depth, demand=int(demand[least])
            )

    def _table(self, columns: Columns) -> Plans:
        plans = Plans.from_columns(columns, order=self.space.order)
        return plans if self.layout == -1 else plans.replace(layout=np.full(len(plans), self.layout))


def _values(setting: Setting, space: Space) -> dict[str, Any]:
    degrees = {name: np.array(v, dtype=np.int64) for name, v in space.values(setting).items()}
    return {
        "dp": np.ones(1, dtype=np.int64),
        **degrees,
        "schedule": np.array(space.schedule, dtype=np.int64),
        "sharding": np.array(space.sharding, dtype=np.int64),
        "recompute": np.array(space.recompute, dtype=np.int64),
    }
