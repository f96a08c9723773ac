"""Cost models that know lower bounds of what they will say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeGuard

import numpy as np

from meshplan.cluster.cluster import Cluster
from meshplan.cost.costs import Costs, Floats
from meshplan.model.model import Model
from meshplan.plan.plans import Plans
from meshplan.plan.workload import Workload

if TYPE_CHECKING:
    from meshplan.search.candidates import Join

ROWS = 1 << 15


class Bounding(Protocol):
    """A cost model that knows bounds."""

    def floors(
        self, model: Model, cluster: Cluster, workload: Workload, plans: Plans
    ) -> tuple[Floats, Floats]:
        """Seconds a step takes at least, and bytes a GPU holds at least, on the meshes of these plans."""
        ...

    def pipeline_floors(
        self, model: Model, cluster: Cluster, workload: Workload, plans: Plans, bar: float
    ) -> tuple[Floats, Plans]:
        """Seconds a step takes at least with the pipelines of these plans, and the plans with their layouts
        chosen where it may be less than ``bar``."""
        ...

    def price(self, model: Model, cluster: Cluster, workload: Workload, plans: Plans) -> Costs:
        """The price of every plan."""
        ...


def can_bound(cost_model: object) -> TypeGuard[Bounding]:
    """Whether the cost model knows bounds."""
    return hasattr(cost_model, "floors") and hasattr(cost_model, "pipeline_floors")


def floors_of(meshes: Plans, join: Join, cost_model: Bounding) -> tuple[Floats, Floats]:
    """Lower bounds of step time and memory on each mesh, sharded as far as the space allows."""
    most, steps, sizes = int(join.values["sharding"].max()), [], []
    for start in range(0, len(meshes), ROWS):
        part = meshes.take(slice(start, start + (ROWS)))
        step, memory = cost_model.floors(*join.setting, part.replace(sharding=np.full(len(part), most)))
        steps.append(step)
        sizes.append(memory)
    return np.concatenate(steps), np.concatenate(sizes)
