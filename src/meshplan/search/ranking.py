"""What a search answers: the plans that fit, best first, and what became of all others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Literal

from meshplan.cluster.cluster import Cluster
from meshplan.cost.costs import Costs
from meshplan.model.model import Model
from meshplan.plan.plans import Plan
from meshplan.plan.space import Space
from meshplan.plan.workload import Workload
from meshplan.search.fidelity import Simulated


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """What became of the candidates; ``candidates = sum(removed) + memory + feasible``."""

    candidates: int
    removed: Mapping[str, int]
    """Rule id → candidates that broke it and none of the rules before it."""
    memory: int
    """Valid plans that need more memory than there is."""
    feasible: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Miss:
    """A valid plan that does not fit; ``costs`` has this one row."""

    costs: Costs

    @property
    def plan(self) -> Plan:
        """The plan."""
        return self.costs.plans[0]

    @property
    def excess_bytes(self) -> float:
        """Memory it lacks."""
        return float(self.costs.memory_bytes[0]) - self.costs.memory_limit_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Nothing:
    """Why no plan is left, and what would work, each number found by a search of its own."""

    limit: Literal["rules", "memory"]
    """``rules``: no valid plan; ``memory``: valid plans, none fits."""
    reason: str
    """One sentence with the nearest values."""
    smallest_gpus: int | None = None
    """The smallest number of GPUs that works; beyond one node, in whole nodes."""
    fewer_gpus: int | None = None
    """The largest number below the cluster's own that works (searched for ``rules`` only)."""
    more_gpus: int | None = None
    """The smallest number above the cluster's own that works."""
    searched_to: int = 0
    """The largest number of GPUs tried."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranking:
    """The feasible plans, fastest first, as priced by ``cost_model``.

    Plans whose step times agree to one part in 10^9 stand in the order of the space's values (smaller
    tp first, then cp, pp, mbs, ep, etp, vp …).
    """

    model: Model
    cluster: Cluster
    workload: Workload
    space: Space
    cost_model: str
    costs: Costs
    """One row a plan, best first; at most as many as the search was asked to keep."""
    counts: Counts
    closest_miss: Miss | None
    """Of the plans that do not fit, the one that needs the least memory above the limit."""
    nothing: Nothing | None = None
    """Set when no plan fits."""
    simulated: Simulated | None = None
    """How the first plans were simulated; ``None`` where all times are the closed form's."""

    def __len__(self) -> int:
        return len(self.costs.plans)

    def __iter__(self) -> Iterator[Plan]:
        return iter(self.costs.plans)

    @property
    def best(self) -> Plan | None:
        """The fastest plan, or ``None``."""
        return self.costs.plans[0] if len(self) else None

    def _repr_html_(self) -> str:
        """What a notebook shows; drawn by the report room, which this one does not know."""
        html: str = import_module("meshplan.report.notebook").ranking_html(self)
        return html
