"""What if: the best plan as the GPUs grow, and what a little more of each hardware number would bring.

Both ask the search again. Where the space is large they look around the best plan only (every degree
halved, kept, doubled), and say so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

from meshplan.cluster.cluster import Cluster
from meshplan.cost.costs import CostModel
from meshplan.errors import InputError
from meshplan.plan.plans import AUTO_LAYERS, Plan, Plans
from meshplan.plan.rules import Setting
from meshplan.plan.space import DEGREES, Space
from meshplan.search.ranking import Ranking
from meshplan.search.reasons import on_gpu
from meshplan.search.search import search

CHANGE = 0.1
"""How much more of a hardware number: a tenth."""
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Numbers of GPUs to look at, as multiples of the cluster's own."""
LARGE = 300_000
"""Candidates from which the studies look around the best plan only."""
MOST_GPUS = 1 << 20


def scaling(ranking: Ranking, cost_model: CostModel) -> dict[str, Any]:
    """The best plan for the same batch on a quarter to eight times the GPUs.

    ``points``: ``gpus``, ``step_s``, ``mfu``, ``tokens_per_s`` and ``plan`` (all ``None`` where no plan is
    possible); ``around``: whether only plans near the best one were looked at.
    """
    around = _is_large(ranking)
    points = []
    for factor in FACTORS:
        cluster = _resized(ranking.cluster, round(ranking.cluster.gpus * factor))
        if cluster is None:
            continue
        again = _again(ranking, cluster, cost_model, around)
        point: dict[str, Any] = {
            "gpus": cluster.gpus,
            **dict.fromkeys(("step_s", "mfu", "tokens_per_s", "plan")),
        }
        if again is not None and len(again):
            step = float(again.costs.step_s[0])
            point |= {"step_s": step, "mfu": float(again.costs.mfu[0]), "plan": again.best}
            point["tokens_per_s"] = ranking.workload.tokens / step
        points.append(point)
    return {"points": points, "around": around}


def sensitivities(ranking: Ranking, chosen: int, cost_model: CostModel) -> dict[str, Any]:
    """Change of the step time, as a share, for a tenth more of each hardware number.

    ``rows``: ``name``, ``same_plan`` (the chosen plan priced again) and ``best_plan`` (the best plan of a new
    search against the best now; ``None`` where there is none).
    """
    around = _is_large(ranking)
    plan = ranking.costs.plans[chosen]
    table = Plans.of(plan, order=ranking.space.order)
    now, best_now = float(ranking.costs.step_s[chosen]), float(ranking.costs.step_s[0])
    rows = []
    for name, more in HARDWARE.items():
        cluster = more(ranking.cluster, 1 + CHANGE)
        if cluster == ranking.cluster:
            continue
        model = on_gpu(cost_model, cluster)
        costs = model.price(ranking.model, cluster, ranking.workload, table)
        again = _again(ranking, cluster, model, around)
        best = None if again is None or not len(again) else float(again.costs.step_s[0]) / best_now - 1
        rows.append({"name": name, "same_plan": float(costs.step_s[0]) / now - 1, "best_plan": best})
    return {"rows": rows, "change": CHANGE, "around": around}


def _peak(cluster: Cluster, factor: float) -> Cluster:
    peaks = {precision: value * factor for precision, value in cluster.gpu.peak_flops.items()}
    return replace(cluster, gpu=replace(cluster.gpu, peak_flops=peaks))


def _hbm_bandwidth(cluster: Cluster, factor: float) -> Cluster:
    return replace(cluster, gpu=replace(cluster.gpu, hbm_bandwidth=cluster.gpu.hbm_bandwidth * factor))


def with_memory(cluster: Cluster, factor: float) -> Cluster:
    """The cluster with that many times the memory on every GPU."""
    gpu = cluster.gpu
    more = replace(gpu, hbm_bytes=gpu.hbm_bytes * factor, usable_hbm_bytes=gpu.usable_hbm_bytes * factor)
    return replace(cluster, gpu=more)


def _scaleup(cluster: Cluster, factor: float) -> Cluster:
    first, *outer = cluster.tiers
    gpu = replace(cluster.gpu, scaleup_bandwidth=cluster.gpu.scaleup_bandwidth * factor)
    return replace(cluster, gpu=gpu, tiers=(replace(first, bandwidth=first.bandwidth * factor), *outer))


def _network(cluster: Cluster, factor: float) -> Cluster:
    first, *outer = cluster.tiers
    return replace(cluster, tiers=(first, *(replace(t, bandwidth=t.bandwidth * factor) for t in outer)))


HARDWARE: dict[str, Callable[[Cluster, float], Cluster]] = {
    "peak": _peak,
    "hbm_bandwidth": _hbm_bandwidth,
    "hbm": with_memory,
    "scaleup": _scaleup,
    "network": _network,
}
"""Hardware numbers by name, each with the cluster that has ``factor`` times as much of it."""


def _is_large(ranking: Ranking) -> bool:
    setting = Setting(ranking.model, ranking.cluster, ranking.workload)
    return candidates(ranking.space, setting) > LARGE


def candidates(space: Space, setting: Setting) -> int:
    """How many plans a search of ``space`` enumerates."""
    sizes = {name: len(values) for name, values in space.values(setting).items()}
    for name in ("schedule", "sharding", "recompute"):
        sizes.setdefault(name, len(getattr(space, name) or (1,)))
    return prod(sizes.values())


def around_plan(plan: Plan, space: Space) -> Space:
    """The values near ``plan``: its degrees halved, kept and doubled, its own choices; layers to recompute as
    few as fit."""
    degrees: dict[str, Any] = {}
    for name in DEGREES:
        own = int(getattr(plan, name))
        if name == "dp":
            continue
        given = getattr(space, name)
        near = dict.fromkeys(v for v in (own // 2, own, 2 * own) if v >= 1)
        degrees[name] = tuple(v for v in near if given is None or v in given) or (own,)
    return replace(
        space,
        **degrees,
        dp=space.dp,
        schedule=(plan.schedule,),
        sharding=(plan.sharding,),
        recompute=((AUTO_LAYERS, plan.recompute_modules),),
    )


def _again(ranking: Ranking, cluster: Cluster, cost_model: CostModel, around: bool) -> Ranking | None:
    best = ranking.best
    space = around_plan(best, ranking.space) if around and best is not None else ranking.space
    try:
        return search(
            ranking.model, cluster, ranking.workload, space=space, cost_model=cost_model, keep=1, advise=False
        )
    except InputError:  # such a question cannot be asked
        return None


def _resized(cluster: Cluster, gpus: int) -> Cluster | None:
    if not 1 <= gpus <= MOST_GPUS:
        return None
    try:
        return cluster.with_gpus(gpus)
    except InputError:
        return None
