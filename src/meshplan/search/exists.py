"""Whether any plan of a space fits, without ranking them: what the advice asks for many clusters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from meshplan.cost.costs import CostModel, Floats
from meshplan.plan.plans import Ints, Plans
from meshplan.plan.rules import Rule, Setting
from meshplan.plan.space import Space
from meshplan.search.bounds import Bounding, can_bound, floors_of
from meshplan.search.candidates import MESH, PIPELINE, Columns, Funnel, Join
from meshplan.search.ranking import Miss

MESHES = 512
"""Meshes with the smallest states of which every pipeline is tried; of the others only the plain one."""
_CHUNK = 256


def any_fits(setting: Setting, space: Space, rules: Sequence[Rule], cost_model: CostModel) -> bool:
    """Whether some plan is valid and fits. The plain plan of every mesh is tried, sharded as far as the space
    allows; then every pipeline on the ``MESHES`` meshes whose states are smallest."""
    cuts = bool(getattr(cost_model, "chooses_layouts", False))
    join = Join(setting, space, rules, Funnel(), cuts=cuts)
    if not can_bound(cost_model):
        return any(bool(cost_model.price(*setting, plans).fits.any()) for plans in join.below(0, {}))
    tables = list(join.below(0, {}, stop=len(MESH)))
    if not tables:
        return False
    meshes = Plans.concatenate(tables)
    _, memory = floors_of(meshes, join, cost_model)
    limit = float(cost_model.price(*setting, meshes.take(slice(0, 1))).memory_limit_bytes)
    rows = np.flatnonzero(memory <= limit)
    rows = rows[np.argsort(memory[rows], kind="stable")]
    return any(bool(cost_model.price(*setting, plans).fits.any()) for plans in _smallest(join, meshes, rows))


def closest_miss(join: Join, cost_model: Bounding, meshes: Plans, memory: Floats) -> Miss | None:
    """Of the plans on these meshes, none of which fits, one that needs least memory."""
    rows = np.argsort(memory, kind="stable")[:MESHES]
    best: Miss | None = None
    for plans in _smallest(join, meshes, rows):
        costs = cost_model.price(*join.setting, plans)
        least = int(np.argmin(costs.memory_bytes))
        if best is None or costs.memory_bytes[least] < best.costs.memory_bytes[0]:
            best = Miss(costs=costs.take(np.array([least])))
        if best.costs.memory_bytes[0] <= memory[rows[-1]]:
            break
    return best


def _smallest(join: Join, meshes: Plans, rows: Ints) -> Iterator[Plans]:
    """Plans that need little memory: sharded most, the plain pipelines first."""
    values = join.values
    most = np.array([values["sharding"].max(), values["sharding"][0]])  # of one rank there is but the first
    saving: Columns = {"sharding": np.unique(most)[::-1], "replicas": values["replicas"][:1]}
    plain = {**saving, **{name: values[name][:1] for name in (*PIPELINE, "recompute")}}
    for only, some in ((plain, rows), (saving, rows[:MESHES])):
        for start in range(0, len(some), _CHUNK):
            chunk = meshes.take(some[start : start + _CHUNK])
            yield from join.below(len(MESH), {name: getattr(chunk, name) for name in MESH}, only=only)
