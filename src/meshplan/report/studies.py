"""What if: the best plan as the GPUs grow, and what a little more of each hardware number would bring.

Thin: the search room asks and answers, ``meshplan scale`` and ``plan --sensitivities`` print the same.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from meshplan.cluster.cluster import Cluster
from meshplan.cost.costs import CostModel
from meshplan.errors import InputError
from meshplan.plan.rules import Setting
from meshplan.plan.space import Space
from meshplan.report.scale_view import scale_data
from meshplan.report.why_view import sensitivities_data
from meshplan.search.ranking import Ranking
from meshplan.search.reasons import Case
from meshplan.search.reasons_compare import sensitivities
from meshplan.search.scaling import scaling

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Numbers of GPUs to look at, as multiples of the cluster's own."""
MOST_GPUS = 1 << 20

Told = Callable[[str], None]


def case_of(ranking: Ranking, cost_model: CostModel) -> Case:
    """The question of a ranking, to ask it again."""
    return Case(
        model=ranking.model,
        cluster=ranking.cluster,
        workload=ranking.workload,
        space=ranking.space,
        cost_model=cost_model,
        simulate=ranking.simulated is not None,
        objective=ranking.objective,
        ties=ranking.band > 0,
    )


def scaling_of(
    case: Case, counts: tuple[int, ...], *, told: Told = lambda text: None, known: Ranking | None = None
) -> dict[str, Any]:
    """What ``meshplan scale --no-weak --json`` prints for the same batch on these numbers of GPUs; ``known``:
    the ranking of the question itself."""
    found = scaling(case, counts, (case.workload.gbs,), weak=False, told=told, known=known)
    return scale_data(case, found)


def sensitivities_of(ranking: Ranking, row: int, cost_model: CostModel) -> dict[str, Any]:
    """What ``plan --sensitivities --json`` says, of the plan in this row."""
    return sensitivities_data(sensitivities(case_of(ranking, cost_model), ranking.costs.plans[row]))


def gpu_counts(cluster: Cluster) -> tuple[int, ...]:
    """Numbers of GPUs around the cluster's own, rising, that make whole nodes."""
    counts = {round(cluster.gpus * factor) for factor in FACTORS}
    return tuple(sorted(count for count in counts if _can_be(cluster, count)))


def candidates(space: Space, setting: Setting) -> int:
    """How many plans a search of ``space`` enumerates."""
    return prod(len(values) for values in space.values(setting).values())


def _can_be(cluster: Cluster, gpus: int) -> bool:
    if not 1 <= gpus <= MOST_GPUS:
        return False
    try:
        cluster.with_gpus(gpus)
    except InputError:
        return False
    return True
