"""The smallest changes that make a plan valid, each tried against all rules before it is offered."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Any

import numpy as np

from meshplan.errors import InputError
from meshplan.model.layers import Moe
from meshplan.plan.divisors import divisors
from meshplan.plan.kinds import CpKind, Schedule, Sharding
from meshplan.plan.plans import DEFAULT_ORDER, Plan, Plans
from meshplan.plan.rules import Rule, Setting, broken
from meshplan.schedule.layout_string import even_split

Column = tuple[Any, ...]

MOST_CHANGES = 3
CLOSEST = 8
"""Values of a dimension that are tried, those nearest to the plan's own."""
_WORKLOAD = ("gbs", "gpus")
"""Changes of the question, offered after those of the plan."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A field of the plan, or ``gbs`` or ``gpus``, and what it becomes."""

    name: str
    old: Any
    new: Any

    @property
    def distance(self) -> float:
        """Doublings from old to new; 1 for a choice that is no number, less for other numbers of a layout."""
        if self.name == "layout" and self.old is not None:
            return 0.25
        numbers = isinstance(self.old, int) and isinstance(self.new, int)
        if not numbers or self.name in ("sp", "schedule", "sharding", "cp_kind"):
            return 1.0
        return abs(math.log2(max(self.new, 1) / max(self.old, 1))) + (0.5 if self.name in _WORKLOAD else 0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Repair:
    """A valid plan close to one that is not; ``setting`` differs only where ``gbs`` or ``gpus`` changed."""

    changes: tuple[Change, ...]
    plan: Plan
    setting: Setting

    @property
    def distance(self) -> tuple[int, float]:
        """Fewest changes first, then the smallest."""
        return len(self.changes), sum(change.distance for change in self.changes)


def repairs(
    setting: Setting,
    plan: Plan,
    rules: Sequence[Rule],
    *,
    order: tuple[str, ...] = DEFAULT_ORDER,
    touching: Sequence[str] = (),
    most: int = 3,
) -> tuple[Repair, ...]:
    """Up to ``most`` nearest plans that pass all ``rules``, with as few changes as there must be.

    ``dp`` follows from the GPUs that the other dimensions leave (unless it did not before), ``schedule``
    from ``vp``. ``touching``: columns of which at least one changes (default: those of the rules that
    ``plan`` breaks). Up to three changes are tried; the empty tuple says that none of them works.
    """
    wrong = broken(setting, plan, rules, order=order)
    columns = set(touching) or {name for rule in wrong for name in rule.columns}
    if "dp" in columns:
        columns |= {"tp", "cp", "pp"}
    if "layout" in columns:
        columns |= {"pp", "vp"}
    search = _Repairs(setting, plan, rules, order)
    aimed = {rule.fix for rule in wrong}

    def distance(repair: Repair) -> tuple[int, float]:
        """Changes of what a broken rule is about come first."""
        count, far = repair.distance
        return count, far - sum(0.5 for change in repair.changes if change.name in aimed)

    for count in range(1, MOST_CHANGES + 1):
        found = search.with_changes(count, columns)
        if found:
            return tuple(sorted(found, key=distance)[:most])
    return ()


class _Repairs:
    def __init__(self, setting: Setting, plan: Plan, rules: Sequence[Rule], order: tuple[str, ...]) -> None:
        self.setting, self.plan, self.rules, self.order = setting, plan, rules, order
        self.values = _values(setting, plan)

    def with_changes(self, count: int, columns: set[str]) -> list[Repair]:
        """Valid plans that differ in ``count`` dimensions, one of them in ``columns``."""
        asked = {**dict.fromkeys(_WORKLOAD, True), **{name: name in columns for name in self.values}}
        asked["gbs"], asked["gpus"] = "mbs" in columns, "dp" in columns
        found: list[Repair] = []
        for names in combinations(self.values, count):
            if any(asked[name] for name in names):
                found += self._tried(names)
        return found

    def _tried(self, names: tuple[str, ...]) -> Iterator[Repair]:
        """Those of the combinations of values of these dimensions that pass every rule."""
        inner = tuple(name for name in names if name not in _WORKLOAD)
        plans = [self._with(dict(zip(inner, v, strict=True))) for v in product(*map(self.values.get, inner))]  # type: ignore[arg-type]
        for settings in product(*(self.values[name] for name in names if name in _WORKLOAD)):
            outer = dict(zip((n for n in names if n in _WORKLOAD), settings, strict=True))
            setting = self._setting(outer)
            if setting is None:
                continue
            mended = [self._with_rest(plan, setting) for plan in plans]
            for i in self._valid(setting, mended):
                changes = tuple(self._changes(mended[i], outer, names))
                if len(changes) == len(names):
                    yield Repair(changes=changes, plan=mended[i], setting=setting)

    def _valid(self, setting: Setting, plans: list[Plan]) -> Iterator[int]:
        rows = np.arange(len(plans))
        table = Plans.of(*plans, order=self.order)
        for rule in self.rules:
            good = rule.passes(setting, table)
            rows, table = rows[good], table.take(good)
            if not len(rows):
                return
        yield from rows.tolist()

    def _with(self, values: Mapping[str, Any]) -> Plan:
        fields = dict(values)
        plan = replace(self.plan, **{k: v for k, v in fields.items() if k != "layout"})
        if "vp" in fields and "schedule" not in fields:
            usual = (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED)
            if plan.schedule in usual:
                plan = replace(plan, schedule=usual[plan.vp > 1])
        layers, stages = len(self.setting.model.layers), plan.pp * plan.vp
        if "layout" in fields:
            uneven = layers >= stages and layers % stages
            return replace(plan, layout=even_split(layers, stages) if uneven else None)
        if plan.layout is not None and len(plan.layout) != stages:
            return replace(plan, layout=None)
        return plan

    def _with_rest(self, plan: Plan, setting: Setting) -> Plan:
        """The plan with the data parallelism that the other dimensions leave, if it had that before."""
        if self.plan.gpus != self.setting.cluster.gpus:
            return plan
        return replace(plan, dp=max(setting.cluster.gpus // (plan.tp * plan.cp * plan.pp), 1))

    def _setting(self, changed: Mapping[str, int]) -> Setting | None:
        setting = self.setting
        try:
            if "gbs" in changed:
                setting = setting._replace(workload=replace(setting.workload, gbs=changed["gbs"]))
            if "gpus" in changed:
                setting = setting._replace(cluster=setting.cluster.with_gpus(changed["gpus"]))
        except InputError:  # such a cluster cannot be
            return None
        return setting

    def _changes(self, plan: Plan, outer: Mapping[str, int], names: tuple[str, ...]) -> Iterator[Change]:
        for name in names:
            if name in _WORKLOAD:
                old = self.setting.workload.gbs if name == "gbs" else self.setting.cluster.gpus
                yield Change(name=name, old=old, new=outer[name])
            elif getattr(plan, name) != getattr(self.plan, name):
                yield Change(name=name, old=getattr(self.plan, name), new=getattr(plan, name))


def _values(setting: Setting, plan: Plan) -> dict[str, Column]:
    """For every dimension the values near the plan's own; ``dp`` is a change of its own only where the
    plan's does not fill the GPUs."""
    model, gpus, gbs = setting.model, setting.cluster.gpus, setting.workload.gbs
    layers = len(model.layers)
    moes = {layer.mlp for layer in model.layers if isinstance(layer.mlp, Moe)}
    size = plan.tp * plan.cp * plan.pp
    found: dict[str, Sequence[Any]] = {
        "tp": divisors(gpus),
        "cp": divisors(gpus),
        "pp": divisors(gpus),
        "vp": range(1, layers // max(plan.pp, 1) + 1),
        "ep": sorted({d for moe in moes for d in divisors(moe.experts)}) or (1,),
        "etp": sorted({d for moe in moes for d in divisors(moe.width) if d <= gpus}) or (1,),
        "mbs": divisors(max(gbs // max(gpus // size, 1), 1)),
        "replicas": divisors(max(gpus // size, 1) * plan.cp),
        "gbs": _batches(gbs, max(gpus // size, 1) * plan.mbs, plan.pp),
        "gpus": _gpus(gpus, size, plan),
    }
    near = {name: _near(values, _own(setting, plan, name)) for name, values in found.items()}
    choices: dict[str, Column] = {
        "sp": (not plan.sp,),
        "cp_kind": tuple(k for k in CpKind if k is not plan.cp_kind),
        "schedule": tuple(k for k in Schedule if k is not plan.schedule),
        "sharding": tuple(k for k in Sharding if k is not plan.sharding),
        "layout": ("even",),
        "recompute_layers": (0,) if plan.recompute_layers else (),
        "recompute_modules": (type(plan.recompute_modules)(0),) if plan.recompute_modules else (),
        "dp": (max(gpus // size, 1),) if gpus % size == 0 and plan.dp * size != gpus else (),
    }
    return {name: values for name, values in {**near, **choices}.items() if values}


def _own(setting: Setting, plan: Plan, name: str) -> int:
    if name == "gbs":
        return setting.workload.gbs
    return setting.cluster.gpus if name == "gpus" else int(getattr(plan, name))


def _near(values: Sequence[int], own: int) -> Column:
    others = sorted((v for v in values if v != own), key=lambda v: abs(math.log2(v / max(own, 1))))
    return tuple(sorted(others[:CLOSEST]))


def _batches(gbs: int, unit: int, pp: int) -> list[int]:
    """Global batches close to ``gbs`` that divide over ``unit``; also in multiples of pp micro-batches."""
    units = (unit, unit * pp, 2 * unit * pp)
    return sorted({k * u for u in units for k in (gbs // u, -(-gbs // u)) if k})


def _gpus(gpus: int, size: int, plan: Plan) -> list[int]:
    """Numbers of GPUs close to ``gpus`` that dense and expert meshes both divide."""
    unit = math.lcm(size, plan.pp * plan.ep * plan.etp)
    return sorted({k * u for u in (size, unit) for k in (gpus // u, -(-gpus // u)) if k})
