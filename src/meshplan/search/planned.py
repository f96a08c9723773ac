"""The ranking that every command means by "the best plan": one space, one rule for ties, one certainty."""

from __future__ import annotations

from collections.abc import Sequence

from meshplan.cost.costs import CostModel
from meshplan.plan.rules import Rule, Setting
from meshplan.plan.space import Space
from meshplan.search.band import ranking_band
from meshplan.search.bounded import Told
from meshplan.search.fidelity import SURE, Fidelity
from meshplan.search.objective import Objective
from meshplan.search.ranking import Ranking
from meshplan.search.search import search


def planned(
    setting: Setting,
    *,
    space: Space,
    cost_model: CostModel,
    rules: Sequence[Rule] | None = None,
    sure: int = SURE,
    advise: bool = True,
    fidelity: Fidelity | None = None,
    objective: Objective = "step",
    ties: bool = True,
    told: Told | None = None,
) -> Ranking:
    """``search`` as all commands ask it: of the plans as fast as the fastest within the usual error of the
    cost model the simplest comes first.

    At least ``SURE`` plans are made certain, however few are shown: which plan is first does not depend on
    that. ``ties``: whether ties are broken so; else time alone ranks. Raises ``InputError`` as ``search``.
    """
    return search(
        *setting,
        space=space,
        cost_model=cost_model,
        rules=rules,
        sure=max(sure, SURE),
        advise=advise,
        fidelity=fidelity,
        objective=objective,
        band=ranking_band(cost_model.name, setting.model) if ties else 0.0,
        told=told,
    )
