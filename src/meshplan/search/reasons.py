"""One planning question, and what a part of a plan that somebody has in mind comes to in it.

A *wish* is some fields of ``Plan`` with their values: ``{"tp": 8, "pp": 1}``. What it leaves open is chosen
as the search would choose it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from meshplan.cluster.cluster import Cluster
from meshplan.cluster.profile import profile_of
from meshplan.cost.costs import CostModel, Costs
from meshplan.cost.full.model import FullModel
from meshplan.errors import InputError
from meshplan.model.model import Model
from meshplan.plan.divisors import divisors
from meshplan.plan.kinds import Recompute, Schedule, Sharding
from meshplan.plan.plans import ALL_LAYERS, AUTO_LAYERS, AUTO_LAYOUT, Plan, Plans
from meshplan.plan.rules import GBS_DIVIDES, Rule, Setting, broken, rules_of
from meshplan.plan.space import Space
from meshplan.plan.workload import Workload
from meshplan.search.fidelity import SURE, can_simulate, simulate_all
from meshplan.search.objective import Objective
from meshplan.search.planned import planned
from meshplan.search.ranking import Ranking
from meshplan.search.search import search

Wish = Mapping[str, Any]

DEGREES = ("tp", "cp", "pp", "dp", "ep", "etp", "vp", "mbs")
V_SHAPED = (Schedule.ZB_V, Schedule.V_HALF, Schedule.V_MIN, Schedule.DUALPIPE_V)
LAYER_RULES = ("layers-divide-pp", "layers-divide-vp")
"""Rules about equal stages, which a layout of one's own replaces."""
KEEP = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A planning question with the cost model that answers it."""

    model: Model
    cluster: Cluster
    workload: Workload
    space: Space
    cost_model: CostModel
    rules: tuple[Rule, ...] | None = None
    """What plans must satisfy; ``None``: what the search asks for by itself."""
    simulate: bool = False
    """Whether times are those of simulated pipelines, where the cost model can simulate them."""
    objective: Objective = "step"
    """What ``ranked`` ranks by."""
    ties: bool = True
    """Whether ``ranked`` puts the simplest of tied plans first; else time alone ranks."""

    @property
    def setting(self) -> Setting:
        """What plans are judged against."""
        return Setting(self.model, self.cluster, self.workload)

    def search(self, space: Space | None = None, *, keep: int = KEEP, sure: int = SURE) -> Ranking:
        """The plans of ``space`` (default: the question's own) that are valid and fit, fastest first."""
        return search(
            *self.setting,
            space=self.space if space is None else space,
            cost_model=self.cost_model,
            rules=self.rules,
            keep=keep,
            advise=False,
            fidelity="simulate" if self._simulates else "estimate",
            sure=sure,
        )

    def ranked(self, space: Space | None = None) -> Ranking:
        """What ``meshplan plan`` answers: of the plans as fast as the fastest within the usual error, the
        simplest comes first. ``space``: default the question's own."""
        return planned(
            self.setting,
            space=self.space if space is None else space,
            cost_model=self.cost_model,
            rules=self.rules,
            advise=False,
            fidelity="simulate" if self._simulates else "estimate",
            objective=self.objective,
            ties=self.ties,
        )

    @property
    def _simulates(self) -> bool:
        return self.simulate and can_simulate(self.cost_model)

    def price(self, *plans: Plan) -> Costs:
        """The price of these plans, valid or not; where the cost model can cut the layers, it does so for
        plans without a layout."""
        table = Plans.of(*plans, order=self.space.order)
        if chooses_layouts(self.cost_model):
            table = table.replace(layout=np.where(table.layout < 0, AUTO_LAYOUT, table.layout))
        costs = self.cost_model.price(*self.setting, table)
        if not self._simulates:
            return costs
        auto = [plan.recompute_layers == AUTO_LAYERS for plan in plans]
        if all(auto) or not any(auto):
            return simulate_all(self.cost_model, self.setting, costs, auto=all(auto))
        rows = [costs.take(np.array([i])) for i in range(len(plans))]
        return Costs.concatenate(
            [
                simulate_all(self.cost_model, self.setting, row, auto=a)
                for row, a in zip(rows, auto, strict=True)
            ]
        )

    def on(self, cluster: Cluster) -> Case:
        """The same question on another cluster. Curves are shares of a datasheet: where the GPU's datasheet
        was changed by hand, they follow it."""
        return replace(self, cluster=cluster, cost_model=on_gpu(self.cost_model, cluster))

    def of(self, workload: Workload) -> Case:
        """The same question for another batch, sequence length or precision."""
        return replace(self, workload=workload)


def on_gpu(cost_model: CostModel, cluster: Cluster) -> CostModel:
    """The cost model with its curves, if it has any, on this cluster's GPU."""
    if not isinstance(cost_model, FullModel):
        return cost_model
    profile = cost_model.profile
    if profile is None or profile.name not in (cluster.gpu.name, cluster.gpu.like):
        profile = profile_of(cluster.gpu)
    return replace(cost_model, profile=profile.on(cluster.gpu))


def chooses_layouts(cost_model: CostModel) -> bool:
    """Whether the cost model cuts the layers over the stages by itself."""
    return bool(getattr(cost_model, "chooses_layouts", False))


@dataclass(frozen=True, kw_only=True, slots=True)
class Broken:
    """A rule that a plan breaks, and the sentence that says so with the nearest values that pass."""

    rule: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a wish comes to. ``costs`` has one row, or is ``None`` where no plan with it is valid."""

    wish: Wish
    plan: Plan
    """The best plan with the wish; the one that needs least memory where none fits; the plain one where none
    is valid."""
    costs: Costs | None
    broken: tuple[Broken, ...]
    """Set where no plan is valid."""
    plans: int
    """Plans with the wish that fit."""

    @property
    def fits(self) -> bool:
        """Whether there is such a plan and it fits the memory."""
        return self.costs is not None and bool(self.costs.fits[0])


def answer(case: Case, wish: Wish) -> Answer:
    """The best plan that agrees with ``wish``; failing that, the nearest to one and what is wrong with it."""
    wish = whole(wish)
    wrong = _layout(case, plain(case, wish))
    if wrong:
        return Answer(wish=wish, plan=plain(case, wish), costs=None, broken=wrong, plans=0)
    ranking = with_wish(case, wish, ties=True)
    if len(ranking):
        costs = ranking.costs.take(slice(0, 1))
        return Answer(wish=wish, plan=costs.plans[0], costs=costs, broken=(), plans=ranking.counts.feasible)
    if ranking.closest_miss is not None:
        costs = ranking.closest_miss.costs
        return Answer(wish=wish, plan=costs.plans[0], costs=costs, broken=(), plans=0)
    plan = plain(case, wish)
    return Answer(wish=wish, plan=plan, costs=None, broken=reasons_against(case, plan, wish), plans=0)


def whole(wish: Wish) -> Wish:
    """``wish`` with what a layout of its own says of pipeline and virtual stages."""
    layout = wish.get("layout")
    if layout is None or ("pp" in wish and "vp" in wish):
        return wish
    stages, found = len(layout), dict(wish)
    if "pp" in wish or "vp" in wish:
        given, other = ("pp", "vp") if "pp" in wish else ("vp", "pp")
        found[other] = max(stages // wish[given], 1)
    else:
        found |= {"pp": stages, "vp": 1}
    return found


def with_wish(case: Case, wish: Wish, *, keep: int = KEEP, ties: bool = False) -> Ranking:
    """The plans that agree with ``wish``, fastest first; of those simulated only the first is certain.
    ``ties``: as ``Case.ranked`` instead, whose first may be a simpler one."""
    space, pins = wished(case.space, wish)
    if not pins:
        return case.ranked(space) if ties else case.search(space, keep=keep, sure=1)
    pinned = replace(case, cost_model=Pinned(base=case.cost_model, pins=pins))
    if "layout" in pins:
        pinned = replace(pinned, rules=_without_layer_rules(case, wish))
    return pinned.ranked(space) if ties else pinned.search(space, keep=keep, sure=1)


def _without_layer_rules(case: Case, wish: Wish) -> tuple[Rule, ...]:
    rules = errors_of(case)
    chosen = case.space.chosen | set(wish)
    return tuple(
        r for r in rules if r.id not in LAYER_RULES and not (r.practice and chosen.intersection(r.columns))
    )


def wished(space: Space, wish: Wish) -> tuple[Space, dict[str, Any]]:
    """The part of ``space`` that agrees with ``wish``, and the fields that a space has no dimension for."""
    names = {f.name for f in fields(Space)}
    found: dict[str, Any] = {}
    pins: dict[str, Any] = {}
    for name, value in wish.items():
        if name in ("recompute_layers", "recompute_modules"):
            continue
        if name in names and name != "layout":
            found[name] = (value,)
        else:
            pins[name] = value
    if "recompute_layers" in wish or "recompute_modules" in wish:
        layers = wish.get("recompute_layers", AUTO_LAYERS if space.recompute[0][0] == AUTO_LAYERS else 0)
        found["recompute"] = ((layers, wish.get("recompute_modules", Recompute.NONE)),)
    found |= _schedule(wish, space)
    return replace(space, **found), pins


def _schedule(wish: Wish, space: Space) -> dict[str, Any]:
    """Virtual stages and schedule go together: one of them given says what the other may be."""
    schedule, vp = wish.get("schedule"), wish.get("vp")
    if schedule is None and vp is not None and vp > 1 and space.schedule == (Schedule.ONE_F_ONE_B,):
        return {"schedule": (Schedule.INTERLEAVED,)}
    if schedule is None or vp is not None:
        return {}
    if schedule in V_SHAPED:
        return {"vp": (2,)}
    interleaved = schedule in (Schedule.INTERLEAVED, Schedule.LOOPED_BFS)
    return {"vp": None if interleaved else (1,)}


def plain(case: Case, wish: Wish) -> Plan:
    """The plan that says no more than ``wish``: every other degree 1, the GPUs left over in ``dp``."""
    given = dict(wish)
    ranks = int(np.prod([given.get(name, 1) for name in ("tp", "cp", "pp")], dtype=np.float64))
    given.setdefault("dp", max(case.cluster.gpus // max(ranks, 1), 1))
    vp = given.get("vp", 1)
    given.setdefault("schedule", Schedule.INTERLEAVED if vp > 1 else Schedule.ONE_F_ONE_B)
    given.setdefault("sharding", case.space.sharding[0] if case.space.sharding else Sharding.ZERO1)
    return Plan(**given)


def errors_of(case: Case) -> tuple[Rule, ...]:
    """What a plan must satisfy: the rules of the question or of the framework of its space, and the cost
    model's own."""
    own: tuple[Rule, ...] = getattr(case.cost_model, "rules", ())
    asked = rules_of(case.space.framework) if case.rules is None else case.rules
    return tuple(dict.fromkeys((*own, *asked)))


def is_valid(case: Case, plan: Plan, *, batch: bool = True) -> bool:
    """Whether ``plan`` breaks no rule but those of good practice; ``batch=False`` does not ask about the
    global batch."""
    rules = [r for r in errors_of(case) if not r.practice and (batch or r.id != GBS_DIVIDES.id)]
    if plan.layout is not None or chooses_layouts(case.cost_model):
        rules = [r for r in rules if r.id not in LAYER_RULES]
    return not broken(case.setting, plan, rules, order=case.space.order)


def reasons_against(case: Case, plan: Plan, wish: Wish) -> tuple[Broken, ...]:
    """The rules that ``plan`` breaks, in words."""
    rules = errors_of(case)
    chosen = case.space.chosen | set(wish)
    asked = [r for r in rules if not (r.practice and chosen.intersection(r.columns))]
    if plan.layout is not None or chooses_layouts(case.cost_model):
        asked = [r for r in asked if r.id not in LAYER_RULES]
    uneven = _gpus(case, plan, wish)
    if uneven:  # dp is then a number that nobody asked for
        asked = [r for r in asked if "dp" not in r.columns]
    wrong = [
        Broken(rule=r.id, reason=r.explain(case.setting, plan))
        for r in broken(case.setting, plan, asked, order=case.space.order)
    ]
    return (*uneven, *_layout(case, plan), *wrong)


def _gpus(case: Case, plan: Plan, wish: Wish) -> tuple[Broken, ...]:
    """Degrees that leave no whole number of data-parallel ranks, and the nearest value of the last one that
    does."""
    gpus, ranks = case.cluster.gpus, plan.tp * plan.cp * plan.pp
    if "dp" in wish or gpus % ranks == 0:
        return ()
    name = next((n for n in ("pp", "cp", "tp") if n in wish and gpus % wish[n]), None)
    name = name or next((n for n in ("pp", "cp", "tp") if n in wish), "tp")
    others = ranks // int(getattr(plan, name))
    own = int(getattr(plan, name))
    good = [] if gpus % others else divisors(gpus // others)
    near = [*[d for d in good if d < own][-1:], *[d for d in good if d > own][:1]]
    offer = f"; {name} {' or '.join(map(str, near))} would" if near else ""
    product = f"tp {plan.tp} × cp {plan.cp} × pp {plan.pp} = {ranks:,}"
    return (Broken(rule="gpus-product", reason=f"{product} does not divide {gpus:,} GPUs{offer}"),)


def _layout(case: Case, plan: Plan) -> tuple[Broken, ...]:
    layout, layers = plan.layout, len(case.model.layers)
    if layout is None:
        return ()
    if len(layout) != plan.pp * plan.vp:
        stages = plan.pp * plan.vp
        reason = f"the layout has {len(layout)} stages, and pp {plan.pp} × vp {plan.vp} is {stages}"
        return (Broken(rule="layout-stages", reason=reason),)
    if sum(layout) != layers:
        reason = f"the layout has {sum(layout)} layers in all, and {case.model.name} has {layers}"
        return (Broken(rule="layout-layers", reason=reason),)
    return ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Pinned:
    """A cost model that prices every plan with some fields as given."""

    base: CostModel
    pins: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The base's."""
        return self.base.name

    def __getattr__(self, name: str) -> Any:
        """Rules, layouts, pipelines: the base's own, if it has them."""
        if name not in ("rules", "chooses_layouts", "pipelines", "floor"):
            raise AttributeError(name)
        return getattr(self.base, name)

    def price(self, model: Model, cluster: Cluster, workload: Workload, plans: Plans) -> Costs:
        """As the base, after the fields are set. A layout that does not have ``pp · vp`` stages, or not all
        layers, is an ``InputError``."""
        n = len(plans)
        pins = dict(self.pins)
        layout = pins.pop("layout", None)
        columns: dict[str, Any] = {k: np.full(n, int(v), dtype=np.int64) for k, v in pins.items()}
        if layout is not None:
            stages = plans.pp * plans.vp
            if (stages != len(layout)).any() or sum(layout) != len(model.layers):
                raise InputError(
                    f"a layout of {len(layout)} stages and {sum(layout)} layers needs pp × vp = {len(layout)}"
                    f" and a model of {sum(layout)} layers; {model.name} has {len(model.layers)}"
                )
            columns |= {"layout": np.zeros(n, dtype=np.int64), "layouts": (tuple(layout),)}
        return self.base.price(model, cluster, workload, plans.replace(**columns))


def asked_again(plan: Plan, space: Space) -> Plan:
    """``plan`` as it was asked for: where layers to recompute were left open, they are again."""
    layers = {n for n, modules in space.recompute if modules == plan.recompute_modules}
    open_ = AUTO_LAYERS in layers and plan.recompute_layers not in layers - {AUTO_LAYERS}
    if open_ and plan.recompute_layers < ALL_LAYERS:
        return replace(plan, recompute_layers=AUTO_LAYERS)
    return plan
