"""The handbook's estimate of the same rows: the baseline that the full model must beat.

The handbook prices dense models in bf16 under ZeRO-1 with one stage a rank. A row's plan is put into
those terms (interleaving, sharding and module recomputation are dropped); a row with experts, fp8 or
unequal stages has no baseline.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from meshplan.cost.handbook import Handbook
from meshplan.errors import MeshplanError
from meshplan.plan.kinds import CpKind, Recompute, Schedule, Sharding
from meshplan.plan.plans import Plan, Plans
from meshplan.validation.cases import Case
from meshplan.validation.run import Outcome


def handbook_plan(plan: Plan) -> Plan:
    """The plan in the only terms the handbook knows."""
    return replace(
        plan,
        vp=1,
        schedule=Schedule.ONE_F_ONE_B,
        sharding=Sharding.ZERO1,
        replicas=1,
        cp_kind=CpKind.RING,
        ep=1,
        etp=1,
        recompute_modules=Recompute.NONE,
        layout=None,
    )


def handbook_outcomes(cases: Iterable[Case]) -> dict[int, Outcome]:
    """What the handbook says of every case it can price, by the case's line in its file."""
    model, found = Handbook(), {}
    for case in cases:
        try:
            plans = Plans.of(handbook_plan(case.plan))
            costs = model.price(case.model, case.cluster, case.workload, plans)
        except MeshplanError:
            continue
        memory = float(costs.memory_bytes[0])
        found[case.row.line] = Outcome(
            case=case,
            step_s=float(costs.step_s[0]),
            memory_bytes=memory,
            device_bytes=memory,
            limit_bytes=costs.memory_limit_bytes,
            costs=costs,
        )
    return found
