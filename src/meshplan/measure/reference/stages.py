"""How many layers each stage of a plan has, and which schedules fold the pipeline. Free of torch."""

from __future__ import annotations

from meshplan.cost.full.stages import V_SHAPED, even_layout
from meshplan.model.model import Model
from meshplan.plan.plans import Plan

__all__ = ["V_SHAPED", "stage_sizes"]


def stage_sizes(model: Model, plan: Plan) -> tuple[int, ...]:
    """Layers of each of the ``pp · vp`` stages, in model order."""
    return plan.layout or even_layout(len(model.layers), plan.pp * plan.vp)
