"""A search of a space too large to price every plan: lower bounds say which need not be priced.

The dimensions are chosen in three rungs: the mesh and the micro-batch, which decide what layers and their
transfers cost; the pipeline; and the details (sharding, its replicas, recomputation). After each rung a
bound of the cost model says how good the plans below a row can be at best. Rows are taken best bound first,
and those that cannot come into the ranking any more are left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from meshplan.cost.costs import Bools, Costs, Floats
from meshplan.plan.kinds import Recompute, Sharding
from meshplan.plan.plans import AUTO_LAYERS, AUTO_LAYOUT, Ints, Plans, chooser
from meshplan.search.bounds import Bounding, floors_of
from meshplan.search.candidates import DETAILS, MESH, PIPELINE, Columns, Join
from meshplan.search.exists import closest_miss
from meshplan.search.objective import complexity
from meshplan.search.pool import Pool
from meshplan.units import format_seconds

LARGE = 150_000
"""Candidates after the rules about the mesh from which bounds are worth their cost."""
FIRST = 1024
"""Rows taken before the bar is looked at for the first time; doubled after each look."""
MOST = 1 << 13
NEAR = 0.02
"""Every plan that is slower than the best by less than this is priced."""
EPSILON = 0.002
"""A plan's details are not varied any more once they could make its step shorter by less than this."""
FAR = 0.1
"""A plan whose layers are cut for other details may gain this much by a cut of its own."""
_PIPELINE, _DETAILS = len(MESH), len(MESH) + len(PIPELINE)

Told = Callable[[str], None]


class Bounded:
    """One search with bounds; ``run`` fills the pool."""

    def __init__(
        self, join: Join, cost_model: Bounding, pool: Pool, *, window: float = 0.0, told: Told | None = None
    ) -> None:
        self.join, self.cost_model, self.setting, self.pool = join, cost_model, join.setting, pool
        self.window, self.told = window, told
        self.priced = 0
        self.size = FIRST
        self.open: list[tuple[Columns, _Tried]] = []
        """Pipelines with the best details found for them, which have no cut of their own yet."""
        self.replicable: list[tuple[Columns, _Tried, Floats]] = []
        """Pipelines with their best details and bounds, whose shards may be worth replicating."""
        self.layouts: dict[tuple[int, ...], int] = {}
        values = join.values
        self.first: Columns = {name: values[name][:1] for name in (*PIPELINE, *DETAILS)}
        self.by_time = pool.objective in ("step", "mfu", "cost")
        gentle = [int(s) for s in values["sharding"] if s <= Sharding.ZERO1]
        self.least = {
            "sharding": gentle[0] if gentle else int(values["sharding"][0]),
            "recompute_layers": 0,
            "recompute_modules": 0,
        }
        self.bounds_pipelines = bool(gentle) and self.by_time
        # As few whole layers as fit, first of all: then nothing else is to be recomputed where none is.
        self.staged = self.by_time and tuple(values["recompute"][0]) == (AUTO_LAYERS, int(Recompute.NONE))

    @property
    def bar(self) -> float:
        """What a plan must not exceed to be priced."""
        return self.pool.least * (1 + NEAR)

    @property
    def far(self) -> float:
        """What a plan may take for whose details no cut of the layers was made yet."""
        return self.bar * (1 + FAR)

    @property
    def wide(self) -> float:
        """The same for the plain plans of meshes: they may be the simplest of those that are as good."""
        return self.pool.least * (1 + max(self.window, NEAR))

    def run(self, meshes: Plans) -> dict[str, int]:
        """Search below these rows; says how many candidates were not priced, by reason.

        ``memory``: below meshes whose weights, gradients, optimizer and loss alone do not fit. ``slow``:
        below rows that cannot come within ``NEAR`` of the best, whatever their details.
        """
        step, memory = floors_of(meshes, self.join, self.cost_model)
        self._tell(f"{len(meshes):,} meshes bounded")
        fits = memory <= self._limit(meshes)
        too_big = int((~fits).sum()) * self.join.rest(_PIPELINE)
        floor = self._of_objective(meshes, step, memory)
        rows = np.flatnonzero(fits)
        rows = rows[np.argsort(floor[rows], kind="stable")]
        at, size = 0, FIRST
        while at < len(rows) and floor[rows[at]] <= self.wide:
            chunk = rows[at : at + size]
            chunk = chunk[floor[chunk] <= self.wide]
            self._plain(meshes.take(chunk))
            chunk = chunk[floor[chunk] <= self.bar]
            self._whole(meshes, floor, chunk)
            at, size = at + size, min(2 * size, MOST)
        self._replicate_all()
        self._own_cuts()
        funnel, pool = self.join.funnel, self.pool
        if not pool.feasible and not pool.too_big:
            miss = closest_miss(self.join, self.cost_model, meshes, memory)
            if miss is not None:
                pool.note_miss(miss)
        known = sum(funnel.removed.values()) + too_big + pool.feasible + pool.too_big
        return {"memory": too_big, "slow": funnel.candidates - known}

    def _limit(self, meshes: Plans) -> float:
        known = getattr(self.cost_model, "memory_limit", None)
        if known is not None:
            return float(known(self.setting.cluster))
        return float(self.cost_model.price(*self.setting, meshes.take(slice(0, 1))).memory_limit_bytes)

    def _of_objective(self, meshes: Plans, step: Floats, memory: Floats) -> Floats:
        match self.pool.objective:
            case "memory":
                return memory
            case "simplicity":
                return complexity(meshes, self.pool.gpus_per_node).astype(np.float64)
        return step

    def _plain(self, meshes: Plans) -> None:
        """Price the plain plan of each mesh: the first choice of everything else."""
        if len(meshes):
            for plans in self.join.below(_PIPELINE, _columns(meshes), only=self.first):
                self._price(plans)

    def _whole(self, meshes: Plans, floor: Floats, rows: Ints) -> None:
        """Every pipeline on these meshes, and the details of those that are good enough. Their layers are cut
        only where stages of equal work would be good enough."""
        if not len(rows):
            return
        columns = {**_columns(meshes.take(rows)), "row": rows}
        pieces = list(self.join.columns_below(_PIPELINE, columns, stop=_DETAILS))
        if not pieces:
            return
        whole = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
        whole = {**_columns(self.join.table(whole), PIPELINE), "floor": floor[whole["row"]]}
        bound, _ = self._bound(whole, 0.0)
        by_bound = np.argsort(bound, kind="stable")
        at = 0
        while at < len(by_bound) and bound[by_bound[at]] <= self.bar:
            size = self.size
            chunk = by_bound[at : at + size]
            some = _some(whole, chunk[bound[chunk] <= self.bar])
            closer, cuts = self._bound(some, self.bar)
            near = closer <= self.bar
            self._details({**_some(some, near), "cut": cuts[near]}, closer[near])
            at, self.size = at + size, min(2 * size, MOST)

    def _bound(self, columns: Columns, bar: float) -> tuple[Floats, Ints]:
        """The bound of each pipeline, and its layout where it may be less than ``bar``: one cut of the layers
        serves all details."""
        plans = self.join.table(columns)
        floor = np.asarray(columns["floor"], dtype=np.float64)
        if not self.bounds_pipelines:
            return floor, plans.layout
        least = plans.replace(**{name: np.full(len(plans), value) for name, value in self.least.items()})
        found, cut = self.cost_model.pipeline_floors(*self.setting, least, bar)
        known = [self.layouts.setdefault(layout, len(self.layouts)) for layout in cut.layouts]
        codes = np.array([*known, AUTO_LAYOUT, -1], dtype=np.int64)[cut.layout]
        return np.maximum(found, floor), codes

    def _details(self, columns: Columns, bound: Floats) -> None:
        """Sharding, replicas and recomputation of these pipelines: the first choice of each, then what could
        be better. Where a plan fits as it is only time is to be gained, by another sharding or replicas;
        where it does not, memory is, by more sharding and by modules to recompute."""
        if not self.staged:
            for plans in self.join.below(_DETAILS, columns):
                plain = self._is_first(plans, PIPELINE) & self._is_first(plans, DETAILS)
                self._price(plans.take(~plain))
            return
        if not len(bound):
            return
        values = self.join.values
        whole = {**columns, "row": np.arange(len(bound))}
        tried = _Tried(len(bound))
        plain = self._is_first(self.join.table(columns), PIPELINE)
        self._note(tried, self._varied(whole, self.first), plain)
        gain = tried.step * (1 - EPSILON) > bound
        short, unmade = gain & tried.short, values["recompute"][:1]
        more = values["sharding"][values["sharding"] > self.first["sharding"][0]]
        others = self._varied(_some(whole, gain & ~tried.short), {"recompute": unmade})
        save = {"replicas": values["replicas"][:1], "sharding": more, "recompute": unmade}
        again = [
            (plans.take(~first), at[~first])
            for plans, at in others
            for first in [self._is_first(plans, DETAILS)]
        ]
        self._note(tried, again + (list(self._varied(_some(whole, short), save)) if len(more) else []))
        self._save_memory(whole, np.flatnonzero(short), tried, bound)

    def _save_memory(self, whole: Columns, rows: Ints, tried: _Tried, bound: Floats) -> None:
        """Modules to recompute with each sharding that needs it; then replicas of the shards of the best of
        these."""
        values = self.join.values
        sets = values["recompute"][1:]
        tables: list[tuple[Plans, Ints]] = []
        for sharding in values["sharding"][values["sharding"] >= self.first["sharding"][0]].tolist():
            # Whole layers keep only their inputs: where that does not fit, modules do not help, unless the
            # stage is so short that the layer computed again is most of what it holds.
            ways = rows[tried.worth(sharding, rows) | self._short_stages(_some(whole, rows))]
            if len(ways) and len(sets):
                only = {
                    "replicas": values["replicas"][:1],
                    "sharding": np.array([sharding]),
                    "recompute": sets,
                }
                tables += self._varied(_some(whole, ways), only)
        self._note(tried, tables)
        open_ = rows[(whole["layout"][rows] == AUTO_LAYOUT) & (tried.how[rows, 1:] != 0).any(axis=1)]
        gain = (tried.step[open_] * (1 - EPSILON) > bound[open_]) & (tried.step[open_] < self.far)
        if gain.any():
            self.open.append((_some(whole, open_[gain]), tried.take(open_[gain])))
        self._later(whole, rows, tried, bound)

    def _later(self, whole: Columns, rows: Ints, tried: _Tried, bound: Floats) -> None:
        """Keep those of these pipelines whose shards may be worth replicating."""
        if len(self.join.values["replicas"]) > 1:
            gain = np.maximum(tried.others[rows], bound[rows]) < tried.step[rows] * (1 - EPSILON)
            kept = rows[gain & (tried.others[rows] <= self.bar)]
            if len(kept):
                self.replicable.append((_some(whole, kept), tried.take(kept), bound[kept]))

    def _replicate_all(self) -> None:
        """Replicas for all that were kept, at once: a table costs as much as a thousand of its rows."""
        if not self.replicable:
            return
        names = self.replicable[0][0]
        columns = {name: np.concatenate([own[name] for own, _, _ in self.replicable]) for name in names}
        tried = _Tried.joined([own for _, own, _ in self.replicable])
        columns["row"] = np.arange(len(tried.step))
        bound = np.concatenate([own for _, _, own in self.replicable])
        self._replicate(columns, columns["row"], tried, bound)

    def _replicate(self, whole: Columns, rows: Ints, tried: _Tried, bound: Floats) -> None:
        """Replicas of the shards, where the transfers of data parallelism are what keeps a plan from being
        good enough."""
        replicas = self.join.values["replicas"]
        if len(replicas) > 1:
            gain = np.maximum(tried.others[rows], bound[rows]) < tried.step[rows] * (1 - EPSILON)
            again = rows[gain & (tried.others[rows] <= self.bar)]
            self._again(_some(whole, again), again, tried, replicas[1:])

    def _own_cuts(self) -> None:
        """At last, the layers cut for what the best details of a pipeline recompute, where that can come near
        the best plan."""
        parts = []
        for columns, tried in self.open:
            near = np.flatnonzero(tried.step < self.far)
            parts.append((_some(columns, near), tried.take(near)))
        count = sum(len(tried.step) for _, tried in parts)
        if not count:
            return
        columns = {name: np.concatenate([own[name] for own, _ in parts]) for name in parts[0][0]}
        columns |= {"row": np.arange(count), "cut": np.full(count, AUTO_LAYOUT)}
        tried = _Tried.joined([own for _, own in parts])
        self._again(columns, columns["row"], tried, self.join.values["replicas"][:1])
        self._replicate(columns, columns["row"], tried, np.zeros(count))

    def _again(self, columns: Columns, rows: Ints, tried: _Tried, replicas: Ints) -> None:
        """The best details of each of these pipelines once more, with these replicas."""
        tables: list[tuple[Plans, Ints]] = []
        for how in map(np.array, sorted(set(map(tuple, tried.how[rows].tolist())))):
            same = (tried.how[rows] == how).all(axis=1)
            only = {"replicas": replicas, "sharding": how[:1], "recompute": how[None, 1:]}
            tables += self._varied(_some(columns, same), only)
        self._note(tried, tables)

    def _note(self, tried: _Tried, tables: Iterable[tuple[Plans, Ints]], known: Bools | None = None) -> None:
        """Price these plans of pipelines together, and note what is found; ``known`` pipelines were priced
        with these details before."""
        some = [(plans, at) for plans, at in tables if len(plans)]
        if some:
            plans, at = (
                Plans.concatenate([plans for plans, _ in some]),
                np.concatenate([at for _, at in some]),
            )
            tried.note(at, plans, self._price(plans, known=None if known is None else known[at]))

    def _short_stages(self, columns: Columns) -> Bools:
        return np.asarray(columns["pp"] * 2 >= len(self.setting.model.layers))

    def _varied(self, columns: Columns, only: Columns) -> Iterator[tuple[Plans, Ints]]:
        """These pipelines with every combination of details, or ``only`` some, and the row each is of."""
        if len(columns["row"]):
            for found in self.join.columns_below(_DETAILS, columns, only=only):
                plans = self.join.table(found)
                yield replace(plans, layout=found["cut"], layouts=tuple(self.layouts)), found["row"]

    def _is_first(self, plans: Plans, names: tuple[str, ...]) -> Bools:
        """Plans with the first choice of each of these dimensions."""
        same = np.ones(len(plans), dtype=np.bool_)
        for name in names:
            value = self.first[name][0]
            if name == "recompute":
                same &= (plans.recompute_layers == value[0]) & (plans.recompute_modules == value[1])
            else:
                same &= getattr(plans, name) == value
        return same

    def _price(self, plans: Plans, known: Bools | None = None) -> Costs:
        """Price these plans and take them into the pool, but for those that it knows."""
        if not len(plans):
            return self.pool.empty
        costs = self.cost_model.price(*self.setting, plans)
        self.pool.add(costs if known is None else costs.take(~known))
        self.priced += len(plans)
        best = f", best {format_seconds(self.pool.least)}" if np.isfinite(self.pool.least) else ""
        self._tell(f"{self.priced:,} plans priced{best}")
        return costs

    def _tell(self, text: str) -> None:
        if self.told is not None:
            self.told(text)


class _Tried:
    """What is known of some pipelines: their best plan so far, and whether memory is what they lack."""

    def __init__(self, count: int) -> None:
        self.step = np.full(count, np.inf)
        self.how = np.zeros((count, 3), dtype=np.int64)
        """Sharding, layers and modules to recompute of the best plan."""
        self.others = np.full(count, np.inf)
        """Seconds of the best plan but for the data parallel transfers."""
        self.short = np.ones(count, dtype=np.bool_)
        """With the first choice of everything it does not fit, or recomputes whole layers."""
        self._short: dict[int, Bools] = {}

    def take(self, rows: Ints) -> _Tried:
        """The best plans of these pipelines."""
        some = _Tried(len(rows))
        some.step, some.how, some.others = self.step[rows], self.how[rows], self.others[rows]
        return some

    @classmethod
    def joined(cls, parts: Sequence[_Tried]) -> _Tried:
        """The best plans of all these."""
        whole = cls(sum(len(part.step) for part in parts))
        whole.step, whole.how, whole.others = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("step", "how", "others")
        )
        return whole

    def note(self, rows: Ints, plans: Plans, costs: Costs) -> None:
        """Take in priced plans, each of one of the pipelines ``rows``."""
        fits, again = costs.fits, costs.plans.recompute_layers > 0
        none = plans.recompute_modules == 0
        for sharding in sorted(set(plans.sharding.tolist())):
            own = none & (plans.sharding == sharding)
            if not own.any():
                continue
            if not self._short:
                self.short[rows[own]] = (~fits | again)[own]
            worth = self._short.setdefault(sharding, np.zeros(len(self.step), dtype=np.bool_))
            worth[rows[own]] = (fits & again)[own]
        better = np.flatnonzero(fits & (costs.step_s < self.step[rows]))
        best = better[np.argsort(-costs.step_s[better], kind="stable")]  # the last one stays
        self.step[rows[best]] = costs.step_s[best]
        self.others[rows[best]] = (costs.step_s - costs.time.get("dp", 0.0))[best]
        how = (plans.sharding[best], plans.recompute_layers[best], plans.recompute_modules[best])
        self.how[rows[best]] = np.stack(how, axis=1)

    def worth(self, sharding: int, rows: Ints) -> Bools:
        """Pipelines that fit with this sharding once whole layers are recomputed."""
        found = self._short.get(sharding)
        return np.zeros(len(rows), dtype=np.bool_) if found is None else found[rows]


def _columns(plans: Plans, more: tuple[str, ...] = ()) -> dict[str, Ints]:
    return {name: getattr(plans, name) for name in (*MESH, *more)}


def _some(columns: Columns, index: Bools | Ints) -> Columns:
    pick = chooser(index)
    return {name: pick(column) for name, column in columns.items()}
