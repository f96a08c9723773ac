"""How many layers each stage of a plan has, and which schedules fold the pipeline. Free of torch."""

from __future__ import annotations

from collections.abc import Iterator

from meshplan.cost.full.stages import V_SHAPED, even_layout
from meshplan.model.model import Model
from meshplan.plan.plans import Plan

__all__ = ["V_SHAPED", "stage_ranges", "stage_sizes", "stages_of_rank"]


def stage_sizes(model: Model, plan: Plan) -> tuple[int, ...]:
    """Layers of each of the ``pp · vp`` stages, in model order."""
    return plan.layout or even_layout(len(model.layers), plan.pp * plan.vp)


def stage_ranges(layers: int, sizes: tuple[int, ...]) -> list[tuple[int, int]]:
    """First and one-past-last layer of each stage."""
    if sum(sizes) != layers:
        raise ValueError(f"{sizes} is not {layers} layers")
    ends, found = 0, []
    for size in sizes:
        found.append((ends, ends + size))
        ends += size
    return found


def stages_of_rank(plan: Plan, rank: int, *, v_shaped: bool) -> Iterator[int]:
    """Stages that a pipeline rank holds: a loop, or a V."""
    for turn in range(plan.vp):
        back = v_shaped and turn % 2
        yield turn * plan.pp + (plan.pp - 1 - rank if back else rank)
