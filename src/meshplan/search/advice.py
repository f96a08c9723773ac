"""When no plan is left: what stands in the way, and how many GPUs would do, by trying."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from meshplan.cluster.cluster import Cluster
from meshplan.errors import InputError
from meshplan.plan.rules import Setting
from meshplan.search.candidates import Funnel
from meshplan.search.ranking import Miss, Nothing, Ranking
from meshplan.units import format_bytes

EVERY_NODE = 128
"""Whole nodes in a row of which every count is tried; beyond, counts double until one works."""
MOST_GPUS = 1 << 18

Works = Callable[[Cluster], bool]


def nothing_left(ranking: Ranking, setting: Setting, funnel: Funnel, works: Works) -> Nothing:
    """Why ``ranking`` is empty; ``works(cluster)`` says whether the same search finds a plan there."""
    cluster, miss = setting.cluster, ranking.closest_miss
    smallest = _first(_above(0, cluster, works), cluster, works)
    more = smallest
    if smallest is not None and smallest <= cluster.gpus:
        more = _first(_above(cluster.gpus, cluster, works), cluster, works)
    if miss is not None:
        return Nothing(
            limit="memory",
            reason=_memory_reason(ranking, miss),
            smallest_gpus=smallest,
            more_gpus=more,
            searched_to=MOST_GPUS,
        )
    example = funnel.example
    below = smallest is not None and smallest < cluster.gpus
    return Nothing(
        limit="rules",
        reason="no candidates" if example is None else example.rule.explain(setting, example.plan),
        smallest_gpus=smallest,
        fewer_gpus=_first(_below(cluster), cluster, works) if below else None,
        more_gpus=more,
        searched_to=MOST_GPUS,
    )


def _memory_reason(ranking: Ranking, miss: Miss) -> str:
    plan, need = miss.plan, float(miss.costs.memory_bytes[0])
    parts = sorted(miss.costs.memory.items(), key=lambda item: -item[1][0])
    unpriced = ranking.counts.skipped.get("memory", 0)  # of which not every rule was asked
    count, kind = ranking.counts.memory + unpriced, "plans" if unpriced else "valid plans"
    largest = ", ".join(f"{name.replace('_', ' ')} {format_bytes(v[0])}" for name, v in parts[:2])
    return (
        f"memory: the smallest of {count:,} {kind} (tp {plan.tp}, cp {plan.cp},"
        f" pp {plan.pp}, dp {plan.dp}, mbs {plan.mbs}) needs {format_bytes(need)} a GPU ({largest})"
        f" of the {format_bytes(miss.costs.memory_limit_bytes)} there are"
    )


def _above(gpus: int, cluster: Cluster, works: Works) -> Iterator[int]:
    """Larger counts in the order to try them: any within a node, then whole nodes."""
    node = _node(cluster)
    yield from range(gpus + 1, node + 1)
    first = max(gpus // node + 1, 2)
    yield from (n * node for n in range(first, first + EVERY_NODE))
    nodes = first + EVERY_NODE
    while nodes * node <= MOST_GPUS:
        if _first([2 * nodes * node], cluster, works):
            yield from (n * node for n in range(nodes, 2 * nodes + 1))
        nodes *= 2


def _below(cluster: Cluster) -> Iterator[int]:
    """Smaller counts, the largest first."""
    node = _node(cluster)
    nodes = (cluster.gpus - 1) // node
    yield from (n * node for n in range(nodes, max(nodes - EVERY_NODE, 1), -1))
    yield from range(min(cluster.gpus - 1, node), 0, -1)


def _node(cluster: Cluster) -> int:
    """GPUs of a whole node, also where the cluster has fewer."""
    return (cluster.described or cluster.tiers)[0].span


def _first(counts: Iterable[int], cluster: Cluster, works: Works) -> int | None:
    for gpus in counts:
        try:
            if works(cluster.with_gpus(gpus)):
                return gpus
        except InputError:  # such a cluster cannot be
            continue
    return None
