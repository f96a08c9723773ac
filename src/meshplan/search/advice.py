"""When no plan is left: what stands in the way, and how many GPUs would do, by trying."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from meshplan.cluster.cluster import Cluster
from meshplan.errors import InputError
from meshplan.plan.rules import Setting
from meshplan.search.candidates import Funnel
from meshplan.search.ranking import Nothing, Ranking
from meshplan.units import format_bytes

EVERY_NODE_TO = 64
"""Nodes up to which every count is tried; beyond, counts double until one works."""
MOST_GPUS = 1 << 18

Works = Callable[[Cluster], bool]


def nothing_left(ranking: Ranking, setting: Setting, funnel: Funnel, works: Works) -> Nothing:
    """Why ``ranking`` is empty; ``works(cluster)`` says whether the same search finds a plan there."""
    more = _first(more_gpus(setting.cluster, works), setting.cluster, works)
    miss = ranking.closest_miss
    if miss is not None:
        plan, need = miss.plan, float(miss.costs.memory_bytes[0])
        parts = sorted(miss.costs.memory.items(), key=lambda item: -item[1][0])
        largest = " and ".join(f"{name.replace('_', ' ')} {format_bytes(v[0])}" for name, v in parts[:2])
        reason = (
            f"memory: the smallest of {ranking.counts.memory:,} valid plans (tp {plan.tp}, cp {plan.cp},"
            f" pp {plan.pp}, dp {plan.dp}, mbs {plan.mbs}) needs {format_bytes(need)} a GPU ({largest})"
            f" of the {format_bytes(miss.costs.memory_limit_bytes)} there are"
        )
        return Nothing(limit="memory", reason=reason, more_gpus=more, searched_to=MOST_GPUS)
    example = funnel.example
    reason = "no candidates" if example is None else example.rule.explain(setting, example.plan)
    return Nothing(
        limit="rules",
        reason=reason,
        fewer_gpus=_first(_below(setting.cluster), setting.cluster, works),
        more_gpus=more,
        searched_to=MOST_GPUS,
    )


def more_gpus(cluster: Cluster, works: Works) -> Iterator[int]:
    """Larger counts in the order to try: each up to ``EVERY_NODE_TO`` nodes, then the range below the
    first doubling that works. Beyond one node only whole nodes count."""
    node = cluster.gpus_per_node
    yield from range(cluster.gpus + 1, node + 1)
    nodes = cluster.gpus // node + 1
    yield from (n * node for n in range(max(nodes, 2), EVERY_NODE_TO + 1))
    doubled = max(nodes, EVERY_NODE_TO + 1)
    while doubled * node <= MOST_GPUS:
        if _first([2 * doubled * node], cluster, works):
            yield from (n * node for n in range(doubled, 2 * doubled + 1))
        doubled *= 2


def _below(cluster: Cluster) -> Iterable[int]:
    node = cluster.gpus_per_node
    nodes = (cluster.gpus - 1) // node
    yield from (n * node for n in range(nodes, max(nodes - EVERY_NODE_TO, 1), -1))
    yield from range(min(cluster.gpus - 1, node), 0, -1)


def _first(counts: Iterable[int], cluster: Cluster, works: Works) -> int | None:
    for gpus in counts:
        try:
            if works(cluster.with_gpus(gpus)):
                return gpus
        except InputError:  # such a cluster cannot be
            continue
    return None
