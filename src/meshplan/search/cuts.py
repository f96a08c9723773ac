"""The layers of each plan kept by a large search, cut for that plan and no other.

A large search cuts the layers of a pipeline once for all the details of its plans, and in coarse parts of a
layer. Of the plans it keeps, each is priced once more with the cut it gets when it is asked for alone.
"""

from __future__ import annotations

import numpy as np

from meshplan.cost.costs import CostModel, Costs
from meshplan.plan.plans import AUTO_LAYERS, AUTO_LAYOUT
from meshplan.plan.rules import Setting
from meshplan.search.objective import Objective, order, values


def own_cuts(
    cost_model: CostModel, setting: Setting, costs: Costs, *, auto: bool, objective: Objective
) -> Costs:
    """``costs`` (best first) with the layers of every pipeline cut anew, in their new order; plans that then
    do not fit stay as they were, and of plans that become the same one is left. ``auto``: as few layers are
    recomputed as fit."""
    rows = np.flatnonzero(costs.plans.pp > 1)
    if not len(rows):
        return costs
    plans = costs.plans.take(rows).replace(layout=np.full(len(rows), AUTO_LAYOUT))
    if auto:
        plans = plans.replace(recompute_layers=np.full(len(rows), AUTO_LAYERS))
    again = cost_model.price(*setting, plans)
    fits = again.fits
    kept = np.delete(np.arange(len(costs.step_s)), rows[fits])
    together = Costs.concatenate([costs.take(kept), again.take(fits)])
    places = np.append(kept, rows[fits])
    p = together.plans
    columns = [getattr(p, name) for name in type(p).__dataclass_fields__ if name not in ("layouts", "order")]
    _, first = np.unique(np.stack(columns)[:, np.argsort(places, kind="stable")], axis=1, return_index=True)
    single = together.take(np.argsort(places, kind="stable")[first])
    value = values(single, objective, setting.cluster.gpus_per_node)
    return single.take(order(value, single.step_s, first))
