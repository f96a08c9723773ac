"""One plan priced as a search prices it, so that a plan of a ranking and the same plan asked for alone have
the same time and memory, to the digit."""

from __future__ import annotations

import numpy as np

from meshplan.cost.costs import Costs
from meshplan.cost.full.explain import Explanation, explain
from meshplan.cost.full.model import FullModel
from meshplan.plan.plans import AUTO_LAYERS, AUTO_LAYOUT, DEFAULT_ORDER, Plan, Plans
from meshplan.plan.rules import Setting
from meshplan.search.fidelity import Fidelity, simulate_all


def price_one(
    full: FullModel,
    setting: Setting,
    plan: Plan,
    *,
    order: tuple[str, ...] = DEFAULT_ORDER,
    fidelity: Fidelity = "simulate",
    cut: bool = False,
) -> Costs:
    """The price of one plan (a table of one row).

    ``cut``: the layers are cut as in a search, with the least busy busiest rank, whatever the plan's own
    layout; otherwise a plan without a layout has stages as even as they can be. Raises ``InputError`` where
    the schedule cannot run with the plan's counts.
    """
    plans = Plans.of(plan, order=order)
    if cut:
        plans = plans.replace(layout=np.full(1, AUTO_LAYOUT))
    costs = full.price(*setting, plans)
    if fidelity == "simulate":
        costs = simulate_all(full, setting, costs, auto=plan.recompute_layers == AUTO_LAYERS)
    return costs


def explain_one(
    full: FullModel,
    setting: Setting,
    plan: Plan,
    *,
    order: tuple[str, ...] = DEFAULT_ORDER,
    fidelity: Fidelity = "simulate",
    cut: bool = False,
) -> Explanation:
    """The same, taken apart."""
    costs = price_one(full, setting, plan, order=order, fidelity=fidelity, cut=cut)
    return explain(full, *setting, plan, order=order, costs=costs, simulated=fidelity == "simulate")
