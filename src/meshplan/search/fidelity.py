"""The best plans simulated: as many as it takes until no other can be among the first.

A cost model prices all plans in closed form. That form can be wrong by some per cent, but of every plan
it also gives a bound that no simulation goes below: first a coarse one that needs nothing new (the busiest
rank's work), then a closer one from the plan's own stages. Plans are simulated in the order of
their bounds, until the first plans found are faster than every bound that is left.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np

from meshplan.cluster.cluster import Cluster
from meshplan.cost.costs import Bools, CostModel, Costs, Floats
from meshplan.errors import InputError
from meshplan.model.model import Model
from meshplan.plan.plans import Ints, Plans
from meshplan.plan.rules import Setting
from meshplan.plan.workload import Workload
from meshplan.search.objective import BY_TIME, Objective, order, values

Fidelity = Literal["estimate", "simulate"]
"""Whether plans are ranked by the closed form or, the best of them, by simulation."""

SURE = 10
"""Plans at the head of a ranking that are to be certain, if not asked otherwise."""
MOST_SURE = 100
"""Plans that commands ask to be made certain at most, however many are shown."""
AT_ONCE = 32
"""Plans simulated together before it is asked again how many more are needed."""
MOST_CELLS = 400_000
"""Plans times stages whose bounds are worked out together: some 50 MB."""
MOST_BOUNDED = 20_000
MOST_SIMULATED = 2_000
"""Beyond these the search stops and says what it left open."""
_SLACK = 1e-7
"""Bounds and simulations agree to this share where a bound is exact."""


class Pipelined(Protocol):
    """What a cost model's ``pipelines`` returns; see ``cost.full.pipeline.Pipelines``."""

    def bounds(self, costs: Costs) -> Floats:
        """Seconds below which no simulation can be."""
        ...

    def simulated(self, costs: Costs, rows: Ints) -> Costs:
        """Rows as simulated."""
        ...

    def layers_to_fit(self, rows: Ints, limit: float) -> Ints:
        """More recomputed layers, for plans that do not fit."""
        ...


class Simulating(CostModel, Protocol):
    """A cost model that knows the pipelines of its plans."""

    def pipelines(self, model: Model, cluster: Cluster, workload: Workload, plans: Plans) -> Pipelined:
        """The pipelines of plans as priced."""
        ...

    def floor(self, costs: Costs) -> Floats:
        """Seconds below which no simulation of these prices can be."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulated:
    """How the head of a ranking was made."""

    rows: Bools
    """For each plan of the ranking, whether its time is simulated; the others have the closed form's."""
    plans: int
    """Plans simulated."""
    bounded: int
    """Plans whose own bound was worked out; of all others the coarse one was enough."""
    screened: int
    """Plans ranked by the closed form before."""
    sure: int
    """So many plans at the head are certain: no plan that was not simulated can be faster."""
    left_open: int
    """Plans that might still be faster than the last of those asked for; 0 unless a limit was reached."""
    median_error: float
    """Closed form against simulation, in the plans simulated: median and largest absolute share."""
    largest_error: float
    unfit: int
    """Plans that fitted in closed form and do not as simulated."""
    margin: float | None = None
    """Where the search kept only its best plans: by which share the last one kept is slower in closed form
    than the last of those that are certain is as simulated; plans not kept are slower still."""


def can_simulate(cost_model: CostModel) -> bool:
    """Whether a cost model's plans can be simulated."""
    return hasattr(cost_model, "pipelines")


def simulating(cost_model: Any) -> Simulating:
    """The cost model, if it can be simulated; raises ``InputError`` otherwise."""
    if not can_simulate(cost_model):
        raise InputError(
            f"plans of the {cost_model.name} cost model cannot be simulated; use fidelity estimate"
        )
    found: Simulating = cost_model
    return found


def simulate_all(cost_model: CostModel, setting: Setting, costs: Costs, *, auto: bool = False) -> Costs:
    """These plans, priced by ``cost_model``, with time and memory as simulated, in the same order.

    ``auto``: recompute more layers where a plan fits in closed form and does not as simulated.
    """
    model = simulating(cost_model)
    pieces = [_simulate(model, setting, costs.take(rows), auto) for rows in _chunks(costs.plans)]
    order = np.concatenate(_chunks(costs.plans)) if len(costs.plans) else np.zeros(0, dtype=np.int64)
    return Costs.concatenate(pieces).take(np.argsort(order)) if pieces else costs


def refine(
    cost_model: CostModel,
    setting: Setting,
    costs: Costs,
    *,
    sure: int = SURE,
    auto: bool = False,
    objective: Objective = "step",
    complete: bool = True,
) -> tuple[Costs, Simulated]:
    """``costs`` (fitting plans, best first) with the best plans simulated and in their new order.

    Simulated are at least as many as it takes to be certain of the first ``sure``, unless ``MOST_SIMULATED``
    is reached; with an objective other than step time, the first ones. Plans that as simulated do not fit
    are left out. ``auto``: recompute more layers where that lets a plan fit. ``complete``: ``costs`` are all
    plans that fit, not only the best.
    """
    costs, found = _Refining(simulating(cost_model), setting, costs, sure, auto, objective).done()
    return costs, found if complete else replace(found, margin=_margin(costs, found))


def simulate_row(
    cost_model: CostModel,
    setting: Setting,
    costs: Costs,
    simulated: Simulated,
    row: int,
    *,
    auto: bool,
    objective: Objective,
) -> tuple[Costs, Simulated]:
    """A refined ranking with one more plan simulated, one that is wanted for another reason than its time; it
    is left out if it then does not fit."""
    found = _simulate(simulating(cost_model), setting, costs.take(np.array([row])), auto)
    others = np.delete(np.arange(len(costs.step_s)), row)
    fits = bool(found.fits[0])
    rows = np.append(simulated.rows[others], [True] * fits)
    together, places = Costs.concatenate([costs.take(others), found.take(found.fits)]), np.append(others, row)
    first = values(together, objective, setting.cluster.gpus_per_node)
    index = order(first, together.step_s, places[: len(rows)])
    counted = replace(
        simulated, rows=rows[index], plans=simulated.plans + 1, unfit=simulated.unfit + (not fits)
    )
    return together.take(index), counted


class _Refining:
    """The state of one refinement: bounds of all plans, coarse or close, and those simulated."""

    def __init__(
        self,
        model: Simulating,
        setting: Setting,
        costs: Costs,
        sure: int,
        auto: bool,
        objective: Objective,
    ) -> None:
        self.model, self.setting, self.costs = model, setting, costs
        self.sure, self.auto, self.objective = min(sure, len(costs.plans)), auto, objective
        self.bounds = model.floor(costs)
        n = len(self.bounds)
        self.close, self.seen = np.zeros(n, dtype=bool), np.zeros(n, dtype=bool)
        self.time = np.full(n, np.inf)
        """Simulated seconds of plans seen that fit."""
        self.pieces: list[tuple[Ints, Costs]] = []

    def done(self) -> tuple[Costs, Simulated]:
        """Simulate until certain, and put everything in order."""
        self._add(np.arange(min(max(AT_ONCE, self.sure), len(self.bounds))))
        while self.objective in BY_TIME:
            self._bound()
            waiting = np.flatnonzero(~self.seen & (self.bounds < self._goal() * (1 + _SLACK)))
            room = MOST_SIMULATED - int(self.seen.sum())
            if not len(waiting) or room <= 0:
                break
            first = waiting[np.argsort(self.bounds[waiting], kind="stable")]
            self._add(first[: min(AT_ONCE, room)])
        return self._result()

    def _goal(self) -> float:
        """Seconds of the last plan that is to be certain; infinite while too few are known to fit."""
        if not self.sure:
            return 0.0
        return float(np.partition(self.time, self.sure - 1)[self.sure - 1])

    def _bound(self) -> None:
        """Work out the close bounds that matter, up to ``MOST_BOUNDED``."""
        rows = np.flatnonzero(~self.close & (self.bounds < self._goal() * (1 + _SLACK)))
        room = MOST_BOUNDED - int(self.close.sum())
        # Those that may be fastest first, should there be too many.
        rows = rows[np.argsort(self.bounds[rows], kind="stable")][: max(room, 0)]
        for part in _chunks(self.costs.plans.take(rows)):
            some = rows[part]
            costs = self.costs.take(some)
            pipes = self.model.pipelines(*self.setting, costs.plans)
            self.bounds[some] = np.maximum(self.bounds[some], pipes.bounds(costs))
            self.close[some] = True

    def _add(self, rows: Ints) -> None:
        """Simulate these plans."""
        for part in _chunks(self.costs.plans.take(rows)):
            some = rows[part]
            found = _simulate(self.model, self.setting, self.costs.take(some), self.auto)
            self.pieces.append((some, found))
            self.seen[some] = True
            self.time[some] = np.where(found.fits, found.step_s, np.inf)

    def _result(self) -> tuple[Costs, Simulated]:
        if not self.pieces:
            return self.costs, self._report(np.zeros(0, dtype=bool), np.zeros(0), 0)
        rows = np.concatenate([rows for rows, _ in self.pieces])
        found = Costs.concatenate([costs for _, costs in self.pieces])
        fits = found.fits
        same = fits & (found.plans.recompute_layers == self.costs.plans.recompute_layers[rows])
        off = (self.costs.step_s[rows] / found.step_s - 1)[same]
        others = np.flatnonzero(~self.seen)
        # What was not simulated takes at least its bound.
        rest = _at_least(self.costs.take(others), self.bounds[others])
        together = Costs.concatenate([found.take(fits), rest])
        places = np.concatenate([rows[fits], others])
        first = values(together, self.objective, self.setting.cluster.gpus_per_node)
        index = order(first, together.step_s, places)
        simulated = index < int(fits.sum())
        return together.take(index), self._report(simulated, off, int((~fits).sum()))

    def _report(self, simulated: Bools, off: Floats, unfit: int) -> Simulated:
        goal = self._goal()
        waiting = ~self.seen & (self.bounds * (1 + _SLACK) < goal)
        known = np.sort(self.time[np.isfinite(self.time)])
        left = self.bounds[~self.seen].min(initial=np.inf)
        return Simulated(
            rows=simulated,
            plans=int(self.seen.sum()),
            bounded=int(self.close.sum()),
            screened=len(self.bounds),
            sure=int((known <= left * (1 + _SLACK)).sum()),
            left_open=int(waiting.sum()) if np.isfinite(goal) else 0,
            median_error=_median(np.abs(off)) if len(off) else 0.0,
            largest_error=float(np.abs(off).max()) if len(off) else 0.0,
            unfit=unfit,
        )


def _median(values: Floats) -> float:
    """``np.median`` without what it imports (masked arrays), which costs a command 10 ms."""
    low, high = np.sort(values)[[(len(values) - 1) // 2, len(values) // 2]]
    return float((low + high) / 2)


def _margin(costs: Costs, found: Simulated) -> float:
    """By how much the slowest plan in closed form is slower than the last certain one."""
    rest = costs.step_s[~found.rows]
    certain = costs.step_s[found.rows][: max(found.sure, 1)]
    return float(rest.max() / certain[-1] - 1) if len(rest) and len(certain) else 0.0


def _simulate(model: Simulating, setting: Setting, costs: Costs, auto: bool) -> Costs:
    """Simulate, and where memory asks for it and the search may choose, recompute more layers."""
    every = np.arange(len(costs.plans))
    pipes = model.pipelines(*setting, costs.plans)
    found = pipes.simulated(costs, every)
    for _ in range(3 if auto else 0):
        over = np.flatnonzero(~found.fits)
        if not len(over):
            break
        layers = pipes.layers_to_fit(over, costs.memory_limit_bytes)
        layers = np.minimum(layers, _held(setting.model, costs.plans.take(over)))
        if (layers == costs.plans.recompute_layers[over]).all():
            break
        recompute = costs.plans.recompute_layers.copy()
        recompute[over] = layers
        costs = Costs(**{**_fields(costs), "plans": costs.plans.replace(recompute_layers=recompute)})
        again = costs.take(over)
        better = model.pipelines(*setting, again.plans).simulated(again, np.arange(len(over)))
        fine = np.ones(len(every), dtype=np.bool_)
        fine[over] = False
        kept = every[fine]
        found = Costs.concatenate([found.take(kept), better]).take(np.argsort(np.append(kept, over)))
        pipes = model.pipelines(*setting, costs.plans)
    return found


def _held(model: Model, plans: Plans) -> Ints:
    """Layers that the fullest pipeline rank holds at most, for each plan: recomputing more is none."""
    most = -(-len(model.layers) // plans.pp)
    for row in np.flatnonzero(plans.layout >= 0):
        layout, pp = plans.layouts[int(plans.layout[row])], int(plans.pp[row])
        chunks = [layout[i : i + pp] for i in range(0, len(layout), pp)]
        most[row] = sum(max(chunk) for chunk in chunks)
    return np.asarray(most + len(model.mtp))


def _at_least(costs: Costs, bounds: Floats) -> Costs:
    """Costs whose step is not below ``bounds``; what is missing is waiting."""
    missing = np.maximum(bounds - costs.step_s, 0.0)
    if not missing.any():
        return costs
    step = costs.step_s + missing
    time = {**costs.time, "bubble": costs.time["bubble"] + missing}
    return Costs(**{**_fields(costs), "step_s": step, "time": time, "mfu": costs.mfu * costs.step_s / step})


def _fields(costs: Costs) -> dict[str, Any]:
    return {name: getattr(costs, name) for name in Costs.__dataclass_fields__}


def _chunks(plans: Plans) -> list[Ints]:
    """Rows that may be worked on together: plans of about as many stages, and not too many."""
    stages = plans.pp * plans.vp
    order = np.argsort(stages, kind="stable")
    chunks: list[Ints] = []
    start = 0
    while start < len(order):
        # Sizes grow along the chunk: its end decides how many rows there is room for.
        most = np.arange(1, len(order) - start + 1) * stages[order[start:]] <= MOST_CELLS
        size = max(int(np.searchsorted(~most, True)), 1)
        chunks.append(order[start : start + size])
        start += size
    return chunks
