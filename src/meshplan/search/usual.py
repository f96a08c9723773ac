"""What is searched where nobody says."""

from __future__ import annotations

from meshplan.cost.costs import CostModel
from meshplan.plan.space import Size
from meshplan.search.bounds import can_bound


def usual_size(cost_model: CostModel) -> Size:
    """The space that is searched unless another is asked for: ``small``, and ``plain`` for cost models that
    price no virtual stages and no FSDP."""
    return "small" if can_bound(cost_model) else "plain"
