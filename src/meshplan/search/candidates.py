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

from meshplan.plan.plans import AUTO_LAYOUT, Plan, Plans, chooser, is_constant
from meshplan.plan.rules import Rule, Setting
from meshplan.plan.space import Space

BLOCK = 1 << 16
"""Most rows joined at once; a full table of that length takes 8 MB."""
MESH = ("tp", "cp", "pp", "dp", "mbs", "ep", "etp", "cp_kind")
"""What layers and their transfers cost depends on these alone."""
PIPELINE = ("vp", "schedule", "layout")
DETAILS = ("sp", "sharding", "replicas", "recompute")
DIMENSIONS = (*MESH, *PIPELINE, *DETAILS)
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
    setting: Setting, space: Space, rules: Sequence[Rule], funnel: Funnel, *, cuts: bool = False
) -> Iterator[Plans]:
    """Tables of at most ``BLOCK`` valid plans, together in the order of the space's values.

    ``cuts``: the cost model can cut layers over stages (``AUTO_LAYOUT``). ``funnel`` is complete once the
    iterator is exhausted.
    """
    return Join(setting, space, rules, funnel, cuts=cuts).below(0, {})


def candidates(space: Space, setting: Setting) -> int:
    """How many plans a search of the space enumerates or rules out, whatever becomes of them."""
    values = space.values(setting)
    return prod(len(values.get(name, (1,))) for name in DIMENSIONS)


class Join:
    """The nested join of all dimensions, depth first. ``values`` are those of every dimension."""

    def __init__(
        self, setting: Setting, space: Space, rules: Sequence[Rule], funnel: Funnel, *, cuts: bool = False
    ) -> None:
        self.setting, self.space, self.funnel = setting, space, funnel
        self.values = _values(setting, space, cuts=cuts)
        self.sizes = [len(self.values[name]) for name in DIMENSIONS]
        funnel.candidates = prod(self.sizes)
        funnel.removed = {rule.id: 0 for rule in rules}
        self.defaults = dict(_DEFAULTS)
        joined = {name: level for level, name in enumerate(DIMENSIONS)}
        if len(self.values["layout"]) == 1:  # known from the start: rules about layers need not wait
            self.defaults["layout"] = self.values["layout"]
            joined["layout"] = 0
        joined["recompute_layers"] = joined["recompute_modules"] = joined.pop("recompute")
        depths = [max((joined[column] for column in rule.columns), default=0) for rule in rules]
        self.rules = [
            [(i, rule) for i, rule in enumerate(rules) if depths[i] == level]
            for level in range(len(DIMENSIONS))
        ]

    def below(
        self,
        level: int,
        columns: Columns,
        *,
        stop: int = len(DIMENSIONS),
        only: Mapping[str, npt.NDArray[np.int64]] | None = None,
    ) -> Iterator[Plans]:
        """Join every dimension from ``level`` up to ``stop`` to these rows.

        ``only``: values to use for some dimensions instead of all; what rules remove is then not counted.
        """
        return map(self.table, self.columns_below(level, columns, stop=stop, only=only))

    def columns_below(
        self,
        level: int,
        columns: Columns,
        *,
        stop: int = len(DIMENSIONS),
        only: Mapping[str, npt.NDArray[np.int64]] | None = None,
    ) -> Iterator[Columns]:
        """The same as bare columns; those that are no dimension are carried along."""
        if level == stop:
            yield columns
            return
        rows = len(next(iter(columns.values()))) if columns else 1
        at_once = max(BLOCK // self.sizes[level], 1)
        for start in range(0, rows, at_once):
            part = {name: column[start : start + at_once] for name, column in columns.items()}
            joined = self._join(level, part, min(at_once, rows - start), only)
            kept = self._filter(level, joined, counted=only is None)
            if len(next(iter(kept.values()))):
                yield from self.columns_below(level + 1, kept, stop=stop, only=only)

    def rest(self, level: int) -> int:
        """Candidates below one row of the dimensions before ``level``."""
        return prod(self.sizes[level:])

    def table(self, columns: Columns) -> Plans:
        """These columns as plans, the others at their defaults."""
        rows = len(next(iter(columns.values())))
        whole = {name: columns.get(name, row) for name, row in self.defaults.items()}
        full = {name: np.broadcast_to(column, (rows,)) for name, column in whole.items()}
        return Plans(**full, layouts=(), order=self.space.order)

    def _join(self, level: int, part: Columns, rows: int, only: Columns | None) -> Columns:
        name = DIMENSIONS[level]
        if name == "dp" and self.space.dp is None:  # what the others leave
            ranks = part["tp"].astype(np.float64) * part["cp"] * part["pp"]
            return {**part, "dp": np.maximum(self.setting.cluster.gpus // ranks, 1).astype(np.int64)}
        values = (only or {}).get(name, self.values[name])
        if name != "recompute" and len(values) == 1:
            return {**part, name: np.broadcast_to(values, (rows,))}
        grown = {column: _repeated(array, len(values)) for column, array in part.items()}
        if name != "recompute":
            return {**grown, name: np.tile(values, rows)}
        layers, modules = np.tile(values, (rows, 1)).T
        return {**grown, "recompute_layers": layers, "recompute_modules": modules}

    def _filter(self, level: int, columns: Columns, *, counted: bool) -> Columns:
        if not self.rules[level]:
            return columns
        plans = self.table(columns)
        for position, rule in self.rules[level]:
            passed = rule.passes(self.setting, plans)
            if not passed.all():
                if counted:
                    self._count(level, position, rule, plans, passed)
                pick = chooser(passed)
                columns = {name: pick(column) for name, column in columns.items()}
                plans = self.table(columns)
        return columns

    def _count(
        self, level: int, position: int, rule: Rule, plans: Plans, passed: npt.NDArray[np.bool_]
    ) -> None:
        gone = np.flatnonzero(~passed)
        self.funnel.removed[rule.id] += len(gone) * self.rest(level + 1)
        best, depth = self.funnel.example, (level, position)
        if best is not None and (depth < best.depth or (rule.demand is None and depth == best.depth)):
            return
        least, demand = int(gone[0]), 0
        if rule.demand is not None:
            asked = rule.demand(self.setting, plans)[gone]
            least, demand = int(gone[int(np.argmin(asked))]), int(asked.min())
        if best is None or (best.depth, -best.demand) < (depth, -demand):
            self.funnel.example = Example(rule=rule, plan=plans[least], depth=depth, demand=demand)


def _repeated(column: npt.NDArray[np.int64], times: int) -> npt.NDArray[np.int64]:
    """Every entry so many times."""
    if is_constant(column):
        return np.broadcast_to(column[:1], (len(column) * times,))
    return np.repeat(column, times)


_DEFAULTS = {
    name: getattr(Plans.of(Plan()), name)
    for name in Plans.__dataclass_fields__
    if name not in ("layouts", "order")
}
"""One row of every column."""


def _values(setting: Setting, space: Space, *, cuts: bool) -> dict[str, Any]:
    values = dict(space.values(setting))
    codes = [AUTO_LAYOUT if cuts and layout == "auto" else -1 for layout in values.pop("layout")]
    found = {name: np.array(v, dtype=np.int64) for name, v in values.items()}
    return {
        "dp": np.ones(1, dtype=np.int64),
        **found,
        "layout": np.array(tuple(dict.fromkeys(codes)), dtype=np.int64),
    }
