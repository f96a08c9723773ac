"""meshplan: how to lay an LLM training run out over GPUs.

The same words as on the command line::

    from meshplan import Space, Workload, cluster_of, load_model, search

    ranking = search(
        load_model("llama-3.1-70b"),
        cluster_of("h100-sxm", 64),
        Workload(seq=8192, gbs=512),
        space=Space(tp=(2, 4, 8)),
    )
    print(ranking.best, ranking.costs.step_s[0])

Names are imported from their rooms when they are first used, so that ``import meshplan`` costs nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as in typing, whose import alone would be most of what this module costs
if TYPE_CHECKING:
    from typing import Any

    from meshplan.cluster.cluster import Cluster as Cluster
    from meshplan.cluster.cluster import Tier as Tier
    from meshplan.cluster.files import load_cluster as load_cluster
    from meshplan.cluster.gpu import Gpu as Gpu
    from meshplan.cluster.presets import cluster_of as cluster_of
    from meshplan.cluster.presets import load_gpu as load_gpu
    from meshplan.cost.costs import CostModel as CostModel
    from meshplan.cost.costs import Costs as Costs
    from meshplan.cost.models import cost_model_named as cost_model_named
    from meshplan.errors import InputError as InputError
    from meshplan.errors import MeshplanError as MeshplanError
    from meshplan.errors import UnknownNameError as UnknownNameError
    from meshplan.model.load import load_model as load_model
    from meshplan.model.model import Model as Model
    from meshplan.plan.kinds import CpKind as CpKind
    from meshplan.plan.kinds import Recompute as Recompute
    from meshplan.plan.kinds import Schedule as Schedule
    from meshplan.plan.kinds import Sharding as Sharding
    from meshplan.plan.mesh import Mesh as Mesh
    from meshplan.plan.plans import Plan as Plan
    from meshplan.plan.plans import Plans as Plans
    from meshplan.plan.rules import Rule as Rule
    from meshplan.plan.space import Space as Space
    from meshplan.plan.workload import Workload as Workload
    from meshplan.report.plan_rows import ranking_data as ranking_data
    from meshplan.search.ranking import Ranking as Ranking
    from meshplan.search.search import search as search

__version__ = "0.1.0"

_ROOMS = {
    "cluster.cluster": ("Cluster", "Tier"),
    "cluster.files": ("load_cluster",),
    "cluster.gpu": ("Gpu",),
    "cluster.presets": ("cluster_of", "load_gpu"),
    "cost.costs": ("CostModel", "Costs"),
    "cost.models": ("cost_model_named",),
    "errors": ("InputError", "MeshplanError", "UnknownNameError"),
    "model.load": ("load_model",),
    "model.model": ("Model",),
    "plan.kinds": ("CpKind", "Recompute", "Schedule", "Sharding"),
    "plan.mesh": ("Mesh",),
    "plan.plans": ("Plan", "Plans"),
    "plan.rules": ("Rule",),
    "plan.space": ("Space",),
    "plan.workload": ("Workload",),
    "report.plan_rows": ("ranking_data",),
    "search.ranking": ("Ranking",),
    "search.search": ("search",),
}
_WHERE = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = sorted(_WHERE)  # noqa: PLE0605 (derived, so that it cannot disagree with the table above)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'meshplan' has no attribute {name!r}")
    from importlib import import_module

    if name == "search":  # also the name of a room: the package itself can be called
        return import_module("meshplan.search")
    value = getattr(import_module(f"meshplan.{_WHERE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
