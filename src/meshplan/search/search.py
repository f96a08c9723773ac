"""The search: enumerate, price, keep the best, explain what is gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from meshplan.cluster.cluster import Cluster
from meshplan.cost.costs import CostModel, Costs
from meshplan.cost.models import cost_model_named, stack_name
from meshplan.model.model import Model
from meshplan.plan.plans import AUTO_LAYERS, Ints, Plans
from meshplan.plan.rules import Rule, Setting, rules_of
from meshplan.plan.space import Space
from meshplan.plan.workload import Workload
from meshplan.search.advice import nothing_left
from meshplan.search.bounded import LARGE, NEAR, Bounded, Told
from meshplan.search.bounds import can_bound
from meshplan.search.candidates import MESH, Funnel, Join
from meshplan.search.cuts import own_cuts
from meshplan.search.exists import any_fits
from meshplan.search.fidelity import (
    SURE,
    Fidelity,
    Simulated,
    can_simulate,
    refine,
    simulate_row,
    simulating,
)
from meshplan.search.objective import ROOMY, Objective, complexity, ranks, tied
from meshplan.search.pool import Pool, no_costs
from meshplan.search.ranking import Counts, Ranking
from meshplan.search.same import no_effect_rules
from meshplan.search.ways import ways_out

KEEP = 100_000
LARGE_KEEP = 2000
MESHES = 100
"""Meshes of a large space whose best plan is kept, however many better plans there are."""


def search(
    model: Model,
    cluster: Cluster,
    workload: Workload,
    *,
    space: Space | None = None,
    cost_model: CostModel | None = None,
    rules: Sequence[Rule] | None = None,
    keep: int = KEEP,
    advise: bool = True,
    fidelity: Fidelity | None = None,
    sure: int = SURE,
    objective: Objective = "step",
    band: float = 0.0,
    told: Told | None = None,
) -> Ranking:
    """Every plan of ``space`` that is valid and fits, the best first.

    ``space``: the values to try for each dimension (default: all divisors). ``cost_model``: what prices
    the plans (default: the one the command line uses). ``rules``: what a plan must satisfy (default:
    those of the framework of ``space`` and the cost model's own; of those that are mere good practice, not
    the ones about dimensions that ``space`` chooses). ``keep``: how many of the best plans are kept; the
    counts cover all. ``advise``: when nothing fits, search for the number of GPUs that would. ``fidelity``:
    ``estimate`` ranks by the cost model's closed form; ``simulate`` simulates the pipelines of the best
    plans, as many as it takes to be certain of the first ``sure`` (``search.fidelity``); left out, it is
    simulate where the cost model can, as on the command line.

    ``objective``: what ranks the plans: ``step`` (``mfu`` and ``cost`` follow from it on one cluster),
    ``memory`` or ``simplicity``. ``band``: plans whose step times differ by less, relatively, are tied, and
    the simplest of those tied with the fastest comes first, one that nearly fills the memory (``ROOMY``) only
    where all of them do. ``told`` is told what is going on.

    A large space is not priced plan by plan: where the cost model knows bounds, plans that cannot come into
    the ranking are left (``Ranking.counts.skipped``). Those within ``bounded.NEAR`` of the best are priced
    all; about ``LARGE_KEEP`` plans are kept, among them the best found on each of ``MESHES`` meshes.

    Memory is bounded by blocks of plans and ``keep``, not by the size of the space. No plan is not an
    error: ``Ranking.nothing`` says why. Raises ``InputError`` when the cost model cannot price what the
    space asks for, or cannot simulate.
    """
    space = Space() if space is None else space
    cost_model = cost_model_named(framework=space.framework) if cost_model is None else cost_model
    setting = Setting(model, cluster, workload)
    if fidelity is None:
        fidelity = "simulate" if can_simulate(cost_model) else "estimate"
    if fidelity == "simulate":
        simulating(cost_model)
    rules = _rules(cost_model, space, setting) if rules is None else tuple(rules)
    funnel = Funnel()
    cuts = bool(getattr(cost_model, "chooses_layouts", False))
    join = Join(setting, space, rules, funnel, cuts=cuts)
    pool, skipped = _explored(join, cost_model, keep, objective, band, told)
    costs, simulated = pool.ranked(), None
    auto = all(layers == AUTO_LAYERS for layers, _ in space.recompute)
    if skipped and cuts and set(space.layout) == {"auto"}:
        costs = own_cuts(cost_model, setting, costs, auto=auto, objective=objective)
    if fidelity == "simulate":
        complete = len(costs.step_s) == pool.feasible and not skipped.get("slow")
        costs, simulated = refine(
            cost_model, setting, costs, sure=sure, auto=auto, objective=objective, complete=complete
        )
        if skipped and objective in ("step", "mfu", "cost"):
            simulated = _within(simulated, costs, pool.least * (1 + NEAR))
    simpler = _simplest_first(costs, objective, band, cluster)
    # The plan shown first is simulated, also where it is first for its simplicity.
    while simulated is not None and len(simpler) and not simulated.rows[simpler[0]]:
        costs, simulated = simulate_row(
            cost_model, setting, costs, simulated, int(simpler[0]), auto=auto, objective=objective
        )
        simpler = _simplest_first(costs, objective, band, cluster)
    if simulated is not None:
        simulated = replace(simulated, rows=simulated.rows[simpler])
    unfit = 0 if simulated is None else simulated.unfit
    example = funnel.example if not len(simpler) and pool.miss is None else None
    against = "" if example is None else example.rule.explain(setting, example.plan)
    ranking = Ranking(
        model=model,
        cluster=cluster,
        workload=workload,
        space=space,
        cost_model=cost_model.name,
        stack=stack_name(cost_model),
        costs=costs.take(simpler),
        counts=Counts(
            candidates=funnel.candidates,
            removed=funnel.removed,
            memory=pool.too_big + unfit,
            feasible=pool.feasible - unfit,
            skipped=skipped,
        ),
        closest_miss=pool.miss,
        objective=objective,
        band=band,
        simulated=simulated,
        against=against,
    )
    if len(ranking) or not advise:
        return ranking

    def works(gpus: Cluster) -> bool:
        return any_fits(setting._replace(cluster=gpus), space, rules, cost_model)

    def possible(other: Setting, wider: Space) -> bool:
        return any_fits(other, wider, _rules(cost_model, wider, other), cost_model)

    def ask(other: Setting, wider: Space) -> Ranking | None:
        if not possible(other, wider):
            return None
        return search(
            *other,
            space=wider,
            cost_model=cost_model,
            advise=False,
            objective=objective,
            fidelity=fidelity,
            sure=1,
            band=band,
        )

    nothing = nothing_left(ranking, setting, funnel, works)
    if not can_bound(cost_model):  # the textbook prices no other space
        return replace(ranking, nothing=nothing)
    ways = ways_out(setting, space, ask, possible, memory=nothing.limit == "memory")
    return replace(ranking, nothing=replace(nothing, ways=ways))


def _explored(
    join: Join, cost_model: CostModel, keep: int, objective: Objective, band: float, told: Told | None
) -> tuple[Pool, dict[str, int]]:
    """The best plans below a join, and the candidates that bounds spared pricing."""
    setting = join.setting
    node, order = setting.cluster.gpus_per_node, join.space.order
    empty = no_costs(Plans.of(order=order), setting.cluster.memory_bytes)
    pool = Pool(keep, empty, objective=objective, gpus_per_node=node)
    if not can_bound(cost_model):
        for plans in join.below(0, {}):
            pool.add(cost_model.price(*setting, plans))
        return pool, {}
    meshes = list(join.below(0, {}, stop=len(MESH)))
    if sum(map(len, meshes)) * join.rest(len(MESH)) > LARGE:
        pool = Pool(
            min(keep, LARGE_KEEP), empty, objective=objective, gpus_per_node=node, meshes=min(keep, MESHES)
        )
        return pool, Bounded(join, cost_model, pool, window=band, told=told).run(Plans.concatenate(meshes))
    for mesh in meshes:
        for plans in join.below(len(MESH), {name: getattr(mesh, name) for name in MESH}):
            pool.add(cost_model.price(*setting, plans))
    return pool, {}


def _rules(cost_model: CostModel, space: Space, setting: Setting) -> tuple[Rule, ...]:
    own: tuple[Rule, ...] = getattr(cost_model, "rules", ())
    together = dict.fromkeys((*own, *rules_of(space.framework)))
    found = [r for r in together if not (r.practice and space.chosen.intersection(r.columns))]
    if space.size == "plain":
        return tuple(found)
    return (*found, *no_effect_rules(space.values(setting), open_vp=space.vp is None))


def _within(simulated: Simulated, costs: Costs, bar: float) -> Simulated:
    """What is certain where only plans up to ``bar`` seconds were all priced (in closed form)."""
    first = costs.step_s[simulated.rows]
    sure = min(simulated.sure, int((first <= bar).sum()))
    return replace(
        simulated, sure=sure, margin=float(bar / first[max(sure, 1) - 1] - 1) if len(first) else None
    )


def _simplest_first(costs: Costs, objective: Objective, band: float, cluster: Cluster) -> Ints:
    """Indices with the simplest of the plans tied with the fastest within ``band`` in front, the fastest of
    equally simple ones, but one that nearly fills the memory only where all of them do; all others stay in
    their order."""
    every = np.arange(len(costs.step_s))
    if objective not in ("step", "mfu", "cost") or not band or not len(every):
        return every
    ties = np.flatnonzero(tied(costs.step_s, band))
    simple = complexity(costs.plans.take(ties), cluster.gpus_per_node)
    full = costs.memory_bytes[ties] > ROOMY * costs.memory_limit_bytes
    first = ties[np.lexsort((ranks(costs.step_s[ties]), simple, full))[0]]
    return np.append(first, every[every != first])
