"""The way an expert walks, with the numbers of one problem, and where the search ends up elsewhere.

Fit the model's states, fit the activations, give the rest to data parallelism under the global batch, tune
the pipeline, measure. Each step tries plans in the order in which people do and stops at the first that
works; the same cost model prices them and all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from meshplan.cost.costs import Costs
from meshplan.errors import InputError
from meshplan.model.layers import Moe
from meshplan.plan.divisors import divisors
from meshplan.plan.kinds import Schedule
from meshplan.plan.plans import AUTO_LAYERS, Plan
from meshplan.search.ranking import Ranking
from meshplan.search.reasons import LAYER_RULES, Broken, Case, asked_again, is_valid, reasons_against
from meshplan.search.reasons_compare import Comparison, compare

STATES = ("weights", "gradients", "weights_and_gradients", "optimizer")
"""Parts of the memory that stay all step long and do not depend on the batch."""
CP_TOKENS = 4096
"""Tokens that a context-parallel rank should keep."""
LARGE_BUBBLE = 0.05
"""Share of the step above which an expert works on the pipeline."""
MOST_TRIED = 40
Name = Literal["states", "activations", "data", "pipeline", "measure"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Tried:
    """A plan that a step looked at: what it needs of what matters there, and whether that was enough."""

    plan: Plan
    states_bytes: float
    memory_bytes: float
    recomputed: int
    step_s: float
    enough: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One step of the walk: the plans it tried, in order, and the numbers that decided."""

    name: Name
    tried: tuple[Tried, ...] = ()
    chosen: Plan | None = None
    facts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Disagreement:
    """A dimension in which the search's best plan differs from the expert's, and what the expert's plan comes
    to with that one value of the search's."""

    name: str
    expert: int
    search: int
    alone: Tried | None
    """``None`` where that plan is not valid."""
    broken: tuple[Broken, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Walk:
    """All steps, and how their end compares with the best plan of the search."""

    steps: tuple[Step, ...]
    end: Costs | None
    """The expert's plan, priced; ``None`` where the walk finds none."""
    ranking: Ranking
    comparison: Comparison | None
    """The search's best plan (a) and the expert's (b)."""
    disagreements: tuple[Disagreement, ...]


def walk(case: Case) -> Walk:
    """Walk through ``case`` as an expert would."""
    ranking = case.ranked()
    states = _fit_states(case)
    steps = [states]
    end: Plan | None = None
    if states.chosen is not None:
        activations = _fit_activations(case, states.chosen)
        steps.append(activations)
        end = activations.chosen
    if end is not None:
        steps.append(_give_rest_to_data(case, end))
        tuned = _tune_pipeline(case, end)
        steps.append(tuned)
        end = tuned.chosen or end
    steps.append(Step(name="measure", facts={"plans": float(ranking.counts.feasible)}))
    costs = None if end is None else case.price(end)
    best = ranking.costs.take(slice(0, 1)) if len(ranking) else None
    comparison = None if costs is None or best is None else compare(best, costs)
    differing = () if end is None or best is None else tuple(_disagreements(case, end, best.plans[0]))
    return Walk(
        steps=tuple(steps), end=costs, ranking=ranking, comparison=comparison, disagreements=differing
    )


# ── the steps ────────────────────────────────────────────────────────────────────────────────────


def _ladder(case: Case) -> Iterator[Plan]:
    """Plans in the order in which people give up simplicity for memory: data parallelism with sharded
    optimizer states alone; experts over the node; tensor parallelism in the node; stages; experts wider."""
    gpus, node = case.cluster.gpus, case.cluster.gpus_per_node
    experts = {layer.mlp.experts for layer in case.model.layers if isinstance(layer.mlp, Moe)}
    spread = sorted(set.intersection(*(set(divisors(e)) for e in experts))) if experts else [1]
    near, far = [e for e in spread if e <= node], [e for e in spread if e > node]
    tensor = [1] if experts else [t for t in divisors(gpus) if t <= node]
    stages = [p for p in divisors(gpus) if p <= len(case.model.layers)]
    for ep in near:
        yield _plan(case, ep=ep)
    for tp in tensor[1:]:
        yield _plan(case, tp=tp, ep=near[-1])
    for pp in stages[1:]:
        for ep in (near[-1], *far):
            yield _plan(case, tp=tensor[-1], pp=pp, ep=ep)


def _plan(case: Case, *, tp: int = 1, cp: int = 1, pp: int = 1, ep: int = 1) -> Plan:
    return Plan(
        tp=tp, cp=cp, pp=pp, ep=ep, dp=max(case.cluster.gpus // (tp * cp * pp), 1),
        recompute_layers=AUTO_LAYERS,
    )  # fmt: skip


def _tried(case: Case, plan: Plan, *, batch: bool = True) -> Tried | None:
    """``plan`` priced; ``None`` where it is not valid or cannot be priced."""
    if not is_valid(case, plan, batch=batch):
        return None
    try:
        costs = case.price(plan)
    except InputError:
        return None
    return Tried(
        plan=plan,
        states_bytes=sum(float(costs.memory[part][0]) for part in STATES if part in costs.memory),
        memory_bytes=float(costs.memory_bytes[0]),
        recomputed=max(int(costs.plans.recompute_layers[0]), 0),
        step_s=float(costs.step_s[0]),
        enough=bool(costs.fits[0]),
    )


def _limit(case: Case) -> float:
    return case.price(_plan(case)).memory_limit_bytes


def _fit_states(case: Case) -> Step:
    """The first plan of the ladder whose weights, gradients and optimizer states fit the memory."""
    limit, tried = _limit(case), []
    for plan in _ladder(case):
        row = _tried(case, plan, batch=False)
        if row is None:
            continue
        row = replace(row, enough=row.states_bytes <= limit)
        tried.append(row)
        if row.enough or len(tried) == MOST_TRIED:
            break
    chosen = tried[-1].plan if tried and tried[-1].enough else None
    return Step(name="states", tried=tuple(tried), chosen=chosen, facts={"limit_bytes": limit})


def _fit_activations(case: Case, start: Plan) -> Step:
    """From there on, the first plan that fits with its activations: as it is, else over more
    context-parallel ranks while each keeps ``CP_TOKENS``, else with as few layers recomputed as fit."""
    tried: list[Tried] = []
    chosen: Plan | None = None
    started = False
    for plan in _ladder(case):
        started = started or plan == start
        if not started:
            continue
        rows = [row for p in _with_context(case, plan) if (row := _tried(case, p)) is not None]
        tried += rows
        fitting = [row for row in rows if row.enough]
        if fitting:
            chosen = min(fitting, key=lambda row: (row.recomputed > 0, row.plan.cp)).plan
            break
        if len(tried) >= MOST_TRIED:
            break
    return Step(
        name="activations", tried=tuple(tried), chosen=chosen,
        facts={"limit_bytes": _limit(case), "cp_tokens": float(CP_TOKENS)},
    )  # fmt: skip


def _with_context(case: Case, plan: Plan) -> Iterator[Plan]:
    yield plan
    cp = 2
    while case.workload.seq >= CP_TOKENS * cp and plan.tp * plan.pp * cp <= case.cluster.gpus:
        if case.cluster.gpus % (plan.tp * plan.pp * cp) == 0:
            yield _plan(case, tp=plan.tp, cp=cp, pp=plan.pp, ep=plan.ep)
        cp *= 2


def _give_rest_to_data(case: Case, plan: Plan) -> Step:
    micro = case.workload.gbs // (plan.dp * plan.mbs)
    return Step(
        name="data",
        chosen=plan,
        facts={"dp": plan.dp, "gbs": case.workload.gbs, "mbs": plan.mbs, "micro_batches": micro},
    )


def _tune_pipeline(case: Case, plan: Plan) -> Step:
    """Virtual stages, where the pipeline waits and the cost model can price them."""
    now = _tried(case, plan)
    if plan.pp == 1 or now is None:
        return Step(name="pipeline", chosen=plan, facts={"pp": plan.pp})
    costs = case.price(plan)
    bubble = float(costs.time["bubble"][0] / costs.step_s[0])
    tried = [now]
    if bubble > LARGE_BUBBLE:
        for vp in divisors(len(case.model.layers)):
            if vp > 1 and vp * plan.pp <= len(case.model.layers):
                row = _tried(case, replace(plan, vp=vp, schedule=Schedule.INTERLEAVED))
                tried += [] if row is None else [row]
    best = min((row for row in tried if row.enough), key=lambda row: row.step_s, default=now)
    micro = case.workload.gbs // (plan.dp * plan.mbs)
    return Step(
        name="pipeline",
        tried=tuple(tried),
        chosen=best.plan,
        facts={"pp": plan.pp, "micro_batches": micro, "bubble": bubble},
    )


# ── where the search ends up elsewhere ───────────────────────────────────────────────────────────


def _disagreements(case: Case, end: Plan, best: Plan) -> Iterator[Disagreement]:
    """Each degree that differs, alone on the expert's plan; data parallelism takes what is left."""
    for name in ("tp", "cp", "pp", "ep", "vp", "mbs"):
        expert, found = int(getattr(end, name)), int(getattr(best, name))
        if expert != found:
            values = {"tp": end.tp, "cp": end.cp, "pp": end.pp} | {name: found}
            ranks = values["tp"] * values["cp"] * values["pp"]
            changed: dict[str, Any] = {name: found, "dp": max(case.cluster.gpus // ranks, 1)}
            plan = replace(asked_again(end, case.space), **changed)
            alone = _tried(case, plan)
            against = () if alone is not None else reasons_against(case, plan, {name: found})
            wrong = tuple(b for b in against if b.rule not in LAYER_RULES)
            yield Disagreement(name=name, expert=expert, search=found, alone=alone, broken=wrong)
