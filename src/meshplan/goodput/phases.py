"""A run of several phases: a plan for each, what changing plans between them means, and the totals.

Batches grow and contexts lengthen during a run; each phase is a planning question of its own. Where the plan
of the phase before does nearly as well, keeping it is cheaper than a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from meshplan.cost.costs import Costs
from meshplan.errors import InputError
from meshplan.goodput.checkpoint import checkpoint_of
from meshplan.goodput.failures import RESTART_S, Reliability
from meshplan.goodput.money import Power, Price
from meshplan.goodput.run import WholeRun, whole_run
from meshplan.model.counts import model_parameters
from meshplan.plan.plans import Plan
from meshplan.plan.workload import Workload
from meshplan.search.reasons import Case, Wish, answer, asked_again, is_valid


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """What one phase trains: ``tokens`` in steps of ``workload``."""

    name: str
    tokens: float
    workload: Workload
    gpus: int | None = None
    """``None``: as the run."""
    wish: Wish | None = None
    """Fields that the plan must have; ``None``: the best plan, or the one of the phase before."""


Kind = Literal["none", "batch", "groups", "reshard"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Transition:
    """From the plan of one phase to that of the next.

    ``none``: the same plan and batch; ``batch``: the same plan, other micro-batches; ``groups``: every rank
    keeps its weights and shards, in other groups; ``reshard``: tensors are cut anew.
    """

    kind: Kind
    changes: tuple[tuple[str, int, int], ...]
    """Fields of the plan with the old and the new value."""
    recut: bool
    """Whether stages hold other layers than before, with the same pp and vp."""
    size_bytes: float
    """Of the checkpoint that is written and read again."""
    seconds: float
    """Saving, restart and loading."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseResult:
    """One phase, planned. ``costs`` has one row."""

    phase: Phase
    costs: Costs
    run: WholeRun
    transition: Transition | None
    """From the phase before; ``None`` for the first."""
    best: Costs | None
    """The best plan of the phase, where another one is kept because changing does not pay."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PhasedRun:
    """All phases in order."""

    phases: tuple[PhaseResult, ...]

    @property
    def tokens(self) -> float:
        """Of all phases."""
        return sum(p.phase.tokens for p in self.phases)

    @property
    def wall_s(self) -> float:
        """Phases and what lies between them."""
        return sum(p.run.wall_s + (p.transition.seconds if p.transition else 0.0) for p in self.phases)

    @property
    def gpu_hours(self) -> float:
        """GPUs times hours."""
        between = sum(p.transition.seconds * p.run.gpus for p in self.phases if p.transition)
        return sum(p.run.gpu_hours for p in self.phases) + between / 3600

    @property
    def energy_j(self) -> float:
        """Joules of the phases alone."""
        return sum(p.run.energy_j for p in self.phases)

    @property
    def usd(self) -> float | None:
        """Dollars for the GPU hours; ``None`` where there is no price."""
        price = self.phases[0].run.price
        return None if price is None else self.gpu_hours * price.usd_per_hour


def plan_phases(
    case: Case,
    phases: Sequence[Phase],
    *,
    reliability: Reliability | None,
    price: Price | None,
    power: Power,
    told: Callable[[str], None] = lambda text: None,
) -> PhasedRun:
    """A plan for every phase. Raises ``InputError`` for a phase that no plan can run."""
    results: list[PhaseResult] = []
    before: Plan | None = None
    for phase in phases:
        told(f"{phase.name}: seq {phase.workload.seq:,}, gbs {phase.workload.gbs:,}")
        here = case.of(phase.workload)
        if phase.gpus is not None:
            here = here.on(here.cluster.with_gpus(phase.gpus))
        restart = RESTART_S if reliability is None else reliability.restart_s
        best = _best(here, phase)
        costs, kept = _chosen(here, phase, best, before, restart)
        run = whole_run(
            here.model, phase.workload, costs, gpus=here.cluster.gpus, tokens=phase.tokens,
            reliability=reliability, price=price, power=power,
        )  # fmt: skip
        plan = asked_again(costs.plans[0], here.space)
        moved = None if before is None else transition(here, results[-1], plan, before, restart)
        results.append(
            PhaseResult(phase=phase, costs=costs, run=run, transition=moved, best=best if kept else None)
        )
        before = plan
    return PhasedRun(phases=tuple(results))


def _best(case: Case, phase: Phase) -> Costs:
    found = answer(case, phase.wish or {})
    if found.costs is not None and (found.fits or phase.wish is not None):
        return found.costs
    if found.costs is not None:
        raise InputError(f"phase '{phase.name}': no plan fits the memory of {case.cluster.gpus:,} GPUs")
    reasons = "; ".join(b.reason for b in found.broken) or "no plan is valid"
    raise InputError(f"phase '{phase.name}': {reasons}")


def _chosen(
    case: Case, phase: Phase, best: Costs, before: Plan | None, restart_s: float
) -> tuple[Costs, bool]:
    """The plan of the phase before, where changing would gain less than it takes; else the best."""
    if before is None or phase.wish is not None or before.gpus != case.cluster.gpus:
        return best, False
    if not is_valid(case, before):
        return best, False
    try:
        same = case.price(before)
    except InputError:
        return best, False
    steps = phase.tokens / phase.workload.tokens
    gain = (float(same.step_s[0]) - float(best.step_s[0])) * steps
    size = checkpoint_of(model_parameters(case.model).total, case.cluster.gpus)
    keep = bool(same.fits[0]) and gain <= restart_s + 2 * size.transfer_s
    other = asked_again(best.plans[0], case.space) != before
    return (same, other) if keep else (best, False)


def transition(case: Case, before: PhaseResult, plan: Plan, old: Plan, restart_s: float) -> Transition:
    """What it means to go on with ``plan`` after ``old``."""
    names = ("tp", "sp", "cp", "pp", "vp", "dp", "ep", "etp", "mbs", "sharding", "schedule")
    changes = tuple(
        (name, int(getattr(old, name)), int(getattr(plan, name)))
        for name in names
        if getattr(old, name) != getattr(plan, name)
    )
    size = checkpoint_of(model_parameters(case.model).total, case.cluster.gpus)
    moved = {name for name, _, _ in changes}
    recut = old.layout != plan.layout and not moved & {"pp", "vp"}
    changed = moved | ({"layout"} if recut else set())
    same_shards = changed <= {"cp", "dp", "mbs", "schedule", "sp"} and old.cp * old.dp == plan.cp * plan.dp
    kind: Kind = "reshard"
    if not changed:
        kind = "none" if before.phase.workload == case.workload else "batch"
    elif changed <= {"mbs"}:
        kind = "batch"
    elif same_shards:
        kind = "groups"
    moves = kind in ("groups", "reshard")
    return Transition(
        kind=kind,
        changes=changes,
        recut=recut,
        size_bytes=size.size_bytes if moves else 0.0,
        seconds=2 * size.transfer_s + restart_s if moves else 0.0,
    )
