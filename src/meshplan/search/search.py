"""The search: enumerate, price, keep the best, explain what is gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from meshplan.cluster.cluster import Cluster
from meshplan.cost.costs import Bools, CostModel, Costs
from meshplan.cost.models import cost_model_named
from meshplan.model.model import Model
from meshplan.plan.plans import AUTO_LAYERS, Ints, Plans
from meshplan.plan.rules import RULES, Rule, Setting
from meshplan.plan.space import Space
from meshplan.plan.workload import Workload
from meshplan.search.advice import nothing_left
from meshplan.search.candidates import Funnel, blocks
from meshplan.search.fidelity import SURE, Fidelity, refine, simulating
from meshplan.search.ranking import Counts, Miss, Ranking
from meshplan.search.ties import by_time

KEEP = 100_000


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
    fidelity: Fidelity = "estimate",
    sure: int = SURE,
) -> Ranking:
    """Every plan of ``space`` that is valid and fits, fastest first.

    ``space``: the values to try for each dimension (default: all divisors). ``cost_model``: what prices
    the plans (default: the one the command line uses). ``rules``: what a plan must satisfy (default:
    ``plan.rules.RULES`` and the cost model's own; of those that are mere good practice, not the ones
    about dimensions that ``space`` chooses). ``keep``: how many of the best plans are kept; the counts
    cover all. ``advise``: when nothing fits, search for the number of GPUs that would. ``fidelity``:
    ``estimate`` ranks by the cost model's closed form; ``simulate`` simulates the pipelines of the best
    plans, as many as it takes to be certain of the first ``sure`` (``search.fidelity``).

    Memory is bounded by blocks of plans and ``keep``, not by the size of the space. No plan is not an
    error: ``Ranking.nothing`` says why. Raises ``InputError`` when the cost model cannot price what the
    space asks for, or cannot simulate.
    """
    setting = Setting(model, cluster, workload)
    space = Space() if space is None else space
    cost_model = cost_model_named() if cost_model is None else cost_model
    if fidelity == "simulate":
        simulating(cost_model)
    rules = _rules(cost_model, space) if rules is None else tuple(rules)
    funnel = Funnel()
    best = _Best(keep, _empty(cluster, space))
    cuts = bool(getattr(cost_model, "chooses_layouts", False))
    for plans in blocks(setting, space, rules, funnel, cuts=cuts):
        best.add(cost_model.price(model, cluster, workload, plans))
    costs, simulated = best.ranked(), None
    if fidelity == "simulate":
        auto = all(layers == AUTO_LAYERS for layers, _ in space.recompute)
        costs, simulated = refine(cost_model, setting, costs, sure=sure, auto=auto)
    unfit = 0 if simulated is None else simulated.unfit
    ranking = Ranking(
        model=model,
        cluster=cluster,
        workload=workload,
        space=space,
        cost_model=cost_model.name,
        costs=costs,
        counts=Counts(
            candidates=funnel.candidates,
            removed=funnel.removed,
            memory=best.too_big + unfit,
            feasible=best.feasible - unfit,
        ),
        closest_miss=best.miss,
        simulated=simulated,
    )
    if len(ranking) or not advise:
        return ranking

    def works(gpus: Cluster) -> bool:
        again = search(
            model, gpus, workload, space=space, cost_model=cost_model, rules=rules, keep=1, advise=False
        )
        return len(again) > 0

    return replace(ranking, nothing=nothing_left(ranking, setting, funnel, works))


def _rules(cost_model: CostModel, space: Space) -> tuple[Rule, ...]:
    own: tuple[Rule, ...] = getattr(cost_model, "rules", ())
    together = dict.fromkeys((*own, *RULES))
    return tuple(r for r in together if not (r.practice and space.chosen.intersection(r.columns)))


def _empty(cluster: Cluster, space: Space) -> Costs:
    """Costs of no plan at all, for when the rules leave nothing to price."""
    none = np.zeros(0)
    return Costs(
        plans=Plans.of(order=space.order),
        step_s=none,
        memory_bytes=none,
        memory_limit_bytes=cluster.memory_bytes,
        mfu=none,
        time={},
        memory={},
    )


class _Best:
    """The best ``keep`` plans so far, how many fitted, and the one that missed by least."""

    def __init__(self, keep: int, empty: Costs) -> None:
        self.keep, self.empty = keep, empty
        self.feasible = 0
        self.too_big = 0
        self.miss: Miss | None = None
        self._pieces: list[tuple[Costs, Ints]] = []
        self._rows = 0

    def add(self, costs: Costs) -> None:
        fits = costs.fits
        if not fits.all():
            self._note_miss(costs, fits)
        places = np.arange(len(fits), dtype=np.int64) + self.feasible + self.too_big
        fitting = int(fits.sum())
        self.feasible += fitting
        self.too_big += len(fits) - fitting
        self._pieces.append((costs.take(fits), places[fits]))
        self._rows += fitting
        if self._rows > 2 * self.keep:
            self._cut()

    def ranked(self) -> Costs:
        """The best plans, fastest first."""
        if not self._pieces:
            return self.empty
        self._cut()
        return self._pieces[0][0]

    def _cut(self) -> None:
        costs = Costs.concatenate([c for c, _ in self._pieces])
        places = np.concatenate([p for _, p in self._pieces])
        index = by_time(costs.step_s, places)[: self.keep]
        self._pieces = [(costs.take(index), places[index])]
        self._rows = len(index)

    def _note_miss(self, costs: Costs, fits: Bools) -> None:
        least = int(np.argmin(np.where(fits, np.inf, costs.memory_bytes)))
        if self.miss is None or costs.memory_bytes[least] < self.miss.costs.memory_bytes[0]:
            self.miss = Miss(costs=costs.take(np.array([least])))
