"""A plan in the words people type."""

from __future__ import annotations

from collections.abc import Sequence

from meshplan.plan.kinds import CpKind, Schedule, Sharding
from meshplan.plan.plans import ALL_LAYERS, Plans
from meshplan.report.plan_rows import module_names
from meshplan.schedule.layout_string import short_layout

LONGEST_LAYOUT = 16
"""Characters of a layout in a row of the table."""


def plan_names(plans: Plans, order: Sequence[str], *, short: bool = False) -> list[str]:
    """Each plan in words people type, inner to outer: ``tp4 cp2 dp4 pp2 mbs1``; what is usual is left out,
    in ``short`` also that virtual stages are interleaved."""
    moe = bool((plans.ep > 1).any() or (plans.etp > 1).any())
    dims = [dim for dim in order if dim != "ep"] + (["ep", "etp"] if moe else [])
    dims += (["vp"] if bool((plans.vp > 1).any()) else []) + ["mbs"]
    words = [[f"{dim}{value}" for value in getattr(plans, dim)] for dim in dims]
    sizes = [max((len(word) for word in column), default=0) for column in words]
    names = []
    for i in range(len(plans)):
        name = " ".join(column[i].ljust(size) for column, size in zip(words, sizes, strict=True))
        names.append(" ".join([name, *_extras(plans, i, short)]).rstrip())
    return names


def _extras(plans: Plans, i: int, short: bool) -> list[str]:
    schedule, sharding = Schedule(int(plans.schedule[i])), Sharding(int(plans.sharding[i]))
    usual = schedule is Schedule.ONE_F_ONE_B or (short and schedule is Schedule.INTERLEAVED)
    words = [schedule.label] if plans.pp[i] > 1 and not usual else []
    kind = CpKind(int(plans.cp_kind[i]))
    words += [kind.label] if plans.cp[i] > 1 and kind is not CpKind.RING else []
    words += [sharding.label] if sharding is not Sharding.ZERO1 else []
    words += [f"replicas{int(plans.replicas[i])}"] if plans.replicas[i] > 1 else []
    layers = int(plans.recompute_layers[i])
    words += [f"re{layers}" if layers < ALL_LAYERS else "re-all"] if layers else []
    words += [_stages(plans, i)] if plans.layout[i] >= 0 else []
    return words + module_names(int(plans.recompute_modules[i]))


def _stages(plans: Plans, i: int) -> str:
    """Layers of each stage, alike ones together; where that is long, that there is more to say."""
    short = short_layout(plans.layouts[int(plans.layout[i])])
    return short if len(short) <= LONGEST_LAYOUT else "uneven"
