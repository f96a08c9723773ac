"""A rule of validity: an id, where it holds, a vectorised predicate and a sentence with nearest values.

A rule that fails a plan can say which values would pass; it finds them by asking its own predicate,
so that a sentence never offers what the rule would refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from meshplan.cluster.cluster import Cluster
from meshplan.model.model import Model
from meshplan.plan.plans import DEFAULT_ORDER, Plan, Plans
from meshplan.plan.workload import Workload

Bools = npt.NDArray[np.bool_]
Severity = Literal["error", "warning"]


class Setting(NamedTuple):
    """What plans are judged against."""

    model: Model
    cluster: Cluster
    workload: Workload


class Source(NamedTuple):
    """Where a framework checks a rule, or where the rule is derived: file and function or section."""

    framework: str
    """A name of ``registry.FRAMEWORKS``; ``any``: whatever the framework."""
    where: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One condition of validity.

    ``passes(setting, plans)`` answers for every plan; it may read only ``columns`` of the table, so
    that a search can apply it as soon as those are known. ``words(setting, plan)`` says why ``plan``
    fails. ``fix`` is the column whose nearest passing values the sentence offers.
    """

    id: str
    """Stable: it never gets another meaning, and a rule that goes takes its id with it."""
    title: str
    columns: tuple[str, ...]
    passes: Callable[[Setting, Plans], Bools]
    words: Callable[[Setting, Plan], str]
    sources: tuple[Source, ...] = ()
    """One for every framework that the rule holds for."""
    severity: Severity = "error"
    """``warning``: it runs, and is rarely wise. A search leaves such plans out, unless the user chose the
    values of a dimension that the rule is about."""
    fix: str = ""
    demand: Callable[[Setting, Plans], npt.NDArray[np.int64]] | None = None
    """How much each failing plan asks for; the one that asks least makes the best example."""
    meaning: bool = False
    """Without it the numbers of a plan make no sense: holds for every framework, named in a source or not."""
    written: bool = False
    """About something that our launch files write another way: a choice that the framework does not have
    and they replace (and say so), or stages that they spell out layer by layer."""

    @property
    def practice(self) -> bool:
        """Good practice, not necessity."""
        return self.severity == "warning"

    @property
    def frameworks(self) -> tuple[str, ...]:
        """Names of the frameworks that the rule holds for; ``any`` is one of them."""
        return tuple(dict.fromkeys(source.framework for source in self.sources))

    def explain(self, setting: Setting, plan: Plan, order: tuple[str, ...] = DEFAULT_ORDER) -> str:
        """Why ``plan`` fails, and the nearest values of ``fix`` that pass this rule."""
        values = self.nearest(setting, plan, order)
        if self.fix == "sp":  # a switch, not a number
            return self.words(setting, plan)
        offer = f"; {self.fix} {' or '.join(map(str, values))} would" if values else ""
        return self.words(setting, plan) + offer

    def nearest(self, setting: Setting, plan: Plan, order: tuple[str, ...] = DEFAULT_ORDER) -> list[int]:
        """The closest value of ``fix`` below and above the plan's own that pass; at most one each."""
        if not self.fix:
            return []
        own = int(getattr(plan, self.fix))
        values = np.arange(1, min(max(2 * own, 64), 1 << 16) + 1)
        table = (
            Plans.of(plan, order=order)
            .take(np.zeros(len(values), dtype=np.int64))
            .replace(**{self.fix: values})
        )
        good = values[self.passes(setting, table)]
        return [int(v) for v in (*good[good < own][-1:], *good[good > own][:1])]


def broken(
    setting: Setting, plan: Plan, rules: Iterable[Rule], *, order: tuple[str, ...] = DEFAULT_ORDER
) -> list[Rule]:
    """The rules that ``plan`` breaks, in order; ``order`` is that of its mesh."""
    table = Plans.of(plan, order=order)
    return [rule for rule in rules if not rule.passes(setting, table)[0]]
