"""The best plans so far: how many fitted, which missed by least, and what a new plan must beat."""

from __future__ import annotations

import numpy as np

from meshplan.cost.costs import Bools, Costs, Floats
from meshplan.plan.plans import Ints, Plans
from meshplan.search.objective import Objective, order, values
from meshplan.search.ranking import Miss

SLOW = 1.5
"""A plan that does not fit, and takes longer than the fastest one by more than this factor, is a miss of no
use to anybody: the further beyond, the more memory it counts as."""
MOST_MISSES = 256

MESH_COLUMNS = ("tp", "cp", "pp", "dp", "ep", "etp")
"""What makes two plans the same mesh: another only fills it otherwise."""


class Pool:
    """The best ``keep`` plans by an objective, and the best of each of the first ``meshes`` meshes."""

    def __init__(
        self,
        keep: int,
        empty: Costs,
        *,
        objective: Objective = "step",
        gpus_per_node: int = 8,
        meshes: int = 0,
    ) -> None:
        self.keep, self.empty, self.meshes = keep, empty, meshes
        self.objective: Objective = objective
        self.gpus_per_node = gpus_per_node
        self.feasible = 0
        self.too_big = 0
        self.least = np.inf
        """The smallest value of the objective so far."""
        self._fastest = np.inf
        self._misses: list[Costs] = []
        """Plans too large of which none needs less memory and is faster."""
        self._pieces: list[tuple[Costs, Ints]] = []
        self._rows = 0

    def add(self, costs: Costs) -> None:
        """Take in a priced table; its rows come after all earlier ones."""
        fits = costs.fits
        if not fits.all():
            self._note_miss(costs, fits)
        places = np.arange(len(fits), dtype=np.int64) + self.feasible + self.too_big
        fitting = int(fits.sum())
        self.feasible += fitting
        self.too_big += len(fits) - fitting
        if not fitting:
            return
        kept = costs if fitting == len(fits) else costs.take(fits)
        self.least = min(self.least, float(values(kept, self.objective, self.gpus_per_node).min()))
        self._fastest = min(self._fastest, float(kept.step_s.min()))
        self._pieces.append((kept, places[fits]))
        self._rows += fitting
        if self._rows > 2 * self.keep + 4 * self.meshes:
            self._cut()

    def ranked(self) -> Costs:
        """The best plans, the best first."""
        if not self._pieces:
            return self.empty
        self._cut()
        return self._pieces[0][0]

    def _cut(self) -> None:
        costs = Costs.concatenate([c for c, _ in self._pieces])
        places = np.concatenate([p for _, p in self._pieces])
        index = order(values(costs, self.objective, self.gpus_per_node), costs.step_s, places)
        keep = index[: self.keep]
        if self.meshes and len(index) > self.keep:
            keys = mesh_keys(costs.plans)[index]
            _, first = np.unique(keys, return_index=True)
            best = np.sort(first)[: self.meshes]
            keep = index[np.append(np.arange(self.keep), best[best >= self.keep])]
        self._pieces = [(costs.take(keep), places[keep])]
        self._rows = len(keep)

    @property
    def miss(self) -> Miss | None:
        """Of the plans that do not fit the one that exceeds the memory least, among those that would be fast
        enough to be wished for (``SLOW``)."""
        if not self._misses:
            return None
        costs = Costs.concatenate(self._misses)
        far = np.maximum(costs.step_s / (SLOW * self._fastest), 1.0)
        return Miss(costs=costs.take(np.array([int(np.argmin(costs.memory_bytes * far))])))

    def note_miss(self, miss: Miss) -> None:
        """Take in a plan that does not fit, and was not priced with the others."""
        self._misses.append(miss.costs)

    def _note_miss(self, costs: Costs, fits: Bools) -> None:
        rows = np.flatnonzero(~fits)
        self._misses.append(costs.take(rows[_front(costs.memory_bytes[rows], costs.step_s[rows])]))
        if sum(len(piece.step_s) for piece in self._misses) > MOST_MISSES:
            whole = Costs.concatenate(self._misses)
            front = _front(whole.memory_bytes, whole.step_s)
            self._misses = [whole.take(front[:MOST_MISSES])]


def _front(memory: Floats, step: Floats) -> Ints:
    """Rows than which no other needs less memory and takes less time, the smallest first."""
    by_memory = np.lexsort((step, memory))
    sorted_step = step[by_memory]
    best = np.minimum.accumulate(sorted_step)
    first = np.append(True, sorted_step[1:] < best[:-1])
    return np.asarray(by_memory[first], dtype=np.int64)


def mesh_keys(plans: Plans) -> Ints:
    """A number for each plan that is equal for plans on the same mesh."""
    key = np.zeros(len(plans), dtype=np.int64)
    for name in MESH_COLUMNS:
        key = key * 1_000_003 + getattr(plans, name)
    return key


def first_of_mesh(plans: Plans) -> Ints:
    """Rows that are the first of their mesh, in order."""
    _, first = np.unique(mesh_keys(plans), return_index=True)
    return np.sort(first).astype(np.int64)


def no_costs(plans: Plans, limit_bytes: float) -> Costs:
    """Costs of no plan at all, for when the rules leave nothing to price."""
    none: Floats = np.zeros(0)
    return Costs(
        plans=plans,
        step_s=none,
        memory_bytes=none,
        memory_limit_bytes=limit_bytes,
        mfu=none,
        time={},
        memory={},
    )
