"""A search of a space too large to price every plan: lower bounds say which need not be priced.

The dimensions are chosen in three rungs: the mesh and the micro-batch, which decide what layers and their
transfers cost; the pipeline; and the details (sharding, its replicas, recomputation). After each rung a
bound of the cost model says how good the plans below a row can be at best, and rows that cannot come into
the ranking are left. The plain plan of every mesh is priced first, so that the bar is high from the start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeGuard

import numpy as np

from meshplan.cluster.cluster import Cluster
from meshplan.cost.costs import Costs, Floats
from meshplan.model.model import Model
from meshplan.plan.kinds import Recompute, Sharding
from meshplan.plan.plans import AUTO_LAYERS, Ints, Plans
from meshplan.plan.workload import Workload
from meshplan.search.candidates import DETAILS, DIMENSIONS, MESH, PIPELINE, Columns, Join
from meshplan.search.objective import complexity
from meshplan.search.pool import Pool

LARGE = 300_000
"""Candidates after the rules about the mesh from which bounds are worth their cost."""
FIRST = 1024
"""Rows of the mesh priced before the bar is looked at for the first time; doubled after each look."""
MOST = 1 << 15
SLACK = 0.02
"""Cuts of layers are chosen with costs rounded to a sixteenth of a layer; a bound that rests on one may be
too high by about as much."""
_PIPELINE, _DETAILS = len(MESH), len(MESH) + len(PIPELINE)

Told = Callable[[str], None]


class Bounding(Protocol):
    """A cost model that knows bounds."""

    def floors(
        self, model: Model, cluster: Cluster, workload: Workload, plans: Plans
    ) -> tuple[Floats, Floats]:
        """Seconds a step takes at least, and bytes a GPU holds at least, on the meshes of these plans."""
        ...

    def least_step(self, model: Model, cluster: Cluster, workload: Workload, costs: Costs) -> Floats:
        """Seconds a step takes at least with the pipelines of these plans."""
        ...

    def price(self, model: Model, cluster: Cluster, workload: Workload, plans: Plans) -> Costs:
        """The price of every plan."""
        ...


def can_bound(cost_model: object) -> TypeGuard[Bounding]:
    """Whether the cost model knows bounds."""
    return hasattr(cost_model, "floors") and hasattr(cost_model, "least_step")


class Bounded:
    """One search with bounds; ``run`` fills the pool."""

    def __init__(
        self, join: Join, cost_model: Bounding, pool: Pool, *, window: float = 0.0, told: Told | None = None
    ) -> None:
        self.join, self.cost_model, self.setting, self.pool = join, cost_model, join.setting, pool
        self.window, self.told = window, told
        self.priced = 0
        values = join.values
        self.plain: Columns = {name: values[name][:1] for name in (*PIPELINE, *DETAILS)}
        gentle = [int(s) for s in values["sharding"] if s <= Sharding.ZERO1]
        self.least = {
            "sp": int(values["sp"].max()),
            "sharding": gentle[0] if gentle else int(values["sharding"][0]),
            "replicas": 1,
            "recompute_layers": 0,
            "recompute_modules": 0,
        }
        self.bounds_pipelines = bool(gentle) and pool.objective in ("step", "mfu", "cost")
        self.auto_first = tuple(values["recompute"][0]) == (AUTO_LAYERS, int(Recompute.NONE))

    def run(self, meshes: Plans) -> dict[str, int]:
        """Search below these rows; says how many candidates were not priced, by reason.

        ``memory``: below meshes whose weights, gradients, optimizer and loss alone do not fit. ``slow``:
        below rows that cannot be as good as the last plan of the ranking, whatever their details.
        """
        step, memory = self._floors(meshes)
        limit = self._limit(meshes)
        small = memory <= limit
        too_big = int((~small).sum()) * self.join.rest(_PIPELINE)
        floor = self._of_objective(meshes, step, memory)
        rows = np.flatnonzero(small)
        rows = rows[np.argsort(floor[rows], kind="stable")]
        looked = self._plain(meshes, floor, rows)
        self._whole(meshes, floor, looked)
        funnel, pool = self.join.funnel, self.pool
        known = sum(funnel.removed.values()) + too_big + pool.feasible + pool.too_big
        return {"memory": too_big, "slow": funnel.candidates - known}

    def _floors(self, meshes: Plans) -> tuple[Floats, Floats]:
        steps, bytes_ = [], []
        most = int(self.join.values["sharding"].max())
        sp = int(self.join.values["sp"].max())
        for start in range(0, len(meshes), MOST):
            part = meshes.take(slice(start, start + MOST))
            n = len(part)
            part = part.replace(sp=np.full(n, sp), sharding=np.full(n, most))
            step, memory = self.cost_model.floors(*self.setting, part)
            steps.append(step)
            bytes_.append(memory)
            self._tell(f"{start + n:,} of {len(meshes):,} meshes bounded")
        return np.concatenate(steps), np.concatenate(bytes_)

    def _limit(self, meshes: Plans) -> float:
        return float(self.cost_model.price(*self.setting, meshes.take(slice(0, 1))).memory_limit_bytes)

    def _of_objective(self, meshes: Plans, step: Floats, memory: Floats) -> Floats:
        match self.pool.objective:
            case "memory":
                return memory
            case "simplicity":
                return complexity(meshes, self.pool.gpus_per_node).astype(np.float64)
        return step

    def _plain(self, meshes: Plans, floor: Floats, rows: Ints) -> Ints:
        """Price the plain plan of each mesh, best bound first, until no bound is good enough."""
        at, size = 0, FIRST
        while at < len(rows) and floor[rows[at]] <= self.pool.threshold(self.window):
            chunk = rows[at : at + size]
            for plans in self.join.below(_PIPELINE, _columns(meshes.take(chunk)), only=self.plain):
                self._price(plans)
            at, size = at + len(chunk), min(2 * size, MOST)
        return rows[:at]

    def _whole(self, meshes: Plans, floor: Floats, rows: Ints) -> None:
        """Everything below the meshes that are still good enough, the best bound first."""
        rows = rows[floor[rows] <= self.pool.threshold()]
        pieces, bounds = [], []
        for start in range(0, len(rows), FIRST):
            chunk = rows[start : start + FIRST]
            columns = {**_columns(meshes.take(chunk)), "row": chunk}
            for found in self.join.columns_below(_PIPELINE, columns, stop=_DETAILS):
                plans = self.join.table(found)
                pieces.append(_columns(plans, PIPELINE))
                bounds.append(self._bound(plans, floor[found["row"]]))
        if not pieces:
            return
        bound = np.concatenate(bounds)
        whole = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
        by_bound = np.argsort(bound, kind="stable")
        at, size = 0, FIRST
        while at < len(by_bound) and bound[by_bound[at]] <= self.pool.threshold():
            chunk = by_bound[at : at + size]
            self._details({name: column[chunk] for name, column in whole.items()})
            at, size = at + len(chunk), min(2 * size, MOST)

    def _bound(self, plans: Plans, floor: Floats) -> Floats:
        if not self.bounds_pipelines:
            return floor
        least = plans.replace(**{name: np.full(len(plans), value) for name, value in self.least.items()})
        costs = self.cost_model.price(*self.setting, least)
        self._count(len(plans))
        found = self.cost_model.least_step(*self.setting, costs) * (1 - SLACK)
        return np.maximum(found, floor)

    def _details(self, columns: Columns) -> None:
        values = self.join.values["recompute"]
        if not self.auto_first or len(values) == 1 or self.pool.objective == "memory":
            for table in self.join.below(_DETAILS, columns):
                self._price(self._new(table))
            return
        for table in self.join.below(_DETAILS, columns, only={"recompute": values[:1]}):
            plans = self._new(table)
            if not len(plans):
                continue
            costs = self._price(plans)
            # Where nothing needs to be recomputed, recomputing some modules only takes time.
            short = plans.take((costs.plans.recompute_layers > 0) | ~costs.fits)
            if len(short):
                held = _columns(short, (*PIPELINE, *DETAILS[:-1]))
                for again in self.join.below(len(DIMENSIONS) - 1, held, only={"recompute": values[1:]}):
                    self._price(again)

    def _new(self, plans: Plans) -> Plans:
        """Those that were not priced as the plain plan of their mesh."""
        known = np.ones(len(plans), dtype=np.bool_)
        for name, value in self.plain.items():
            if name == "recompute":
                known &= (plans.recompute_layers == value[0][0]) & (plans.recompute_modules == value[0][1])
            else:
                known &= getattr(plans, name) == value[0]
        return plans.take(~known)

    def _price(self, plans: Plans) -> Costs:
        costs = self.cost_model.price(*self.setting, plans)
        self.pool.add(costs)
        self._count(len(plans))
        return costs

    def _count(self, plans: int) -> None:
        self.priced += plans
        best = f", best {self.pool.least:.4g}" if np.isfinite(self.pool.least) else ""
        self._tell(f"{self.priced:,} plans priced{best}")

    def _tell(self, text: str) -> None:
        if self.told is not None:
            self.told(text)


def _columns(plans: Plans, more: tuple[str, ...] = ()) -> dict[str, Ints]:
    return {name: getattr(plans, name) for name in (*MESH, *more)}
