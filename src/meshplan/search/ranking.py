"""What a search answers: the plans that fit, best first, and what became of all others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Literal

import numpy as np

from meshplan.cluster.cluster import Cluster
from meshplan.cost.costs import Bools, Costs
from meshplan.model.model import Model
from meshplan.plan.plans import Ints, Plan
from meshplan.plan.space import Space
from meshplan.plan.workload import Workload
from meshplan.search.fidelity import Simulated
from meshplan.search.objective import Objective, complexity, front, tied


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """What became of the candidates; ``candidates = sum(removed) + memory + feasible + sum(skipped)``."""

    candidates: int
    removed: Mapping[str, int]
    """Rule id → candidates that broke it and none of the rules before it."""
    memory: int
    """Valid plans that need more memory than there is."""
    feasible: int
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Candidates of a large space that bounds spared pricing one by one: ``memory``, on meshes whose states
    alone do not fit; ``slow``, that could not come into the ranking whatever their details."""

    @property
    def priced(self) -> int:
        """Plans priced one by one."""
        return self.memory + self.feasible


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
class Way:
    """A list of changes to the question, as flags to type, and the best plan that a search then found (the
    one row of ``costs``)."""

    flags: tuple[str, ...]
    costs: Costs

    @property
    def plan(self) -> Plan:
        """The plan."""
        return self.costs.plans[0]


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
    ways: tuple[Way, ...] = ()
    """The shortest lists of other changes that leave a plan."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranking:
    """The feasible plans, the best first by ``objective``, as priced by ``cost_model``.

    Plans whose step times agree to one part in 10^9 stand in the order of the space's values (smaller
    tp first, then cp, pp, mbs, ep, etp, vp …).
    """

    model: Model
    cluster: Cluster
    workload: Workload
    space: Space
    cost_model: str
    costs: Costs
    """One row a plan, best first; at most about as many as the search was asked to keep."""
    counts: Counts
    closest_miss: Miss | None
    """Of the plans that do not fit, the one that needs the least memory above the limit."""
    nothing: Nothing | None = None
    """Set when no plan fits."""
    objective: Objective = "step"
    stack: str | None = None
    """Software that the cost model assumes, by the name of its stack; ``None`` where it knows none."""
    band: float = 0.0
    """Plans whose step times differ by less, relatively, are as good: the usual error of the cost model."""
    simulated: Simulated | None = None
    """How the first plans were simulated; ``None`` where all times are the closed form's."""
    against: str = ""
    """Where the rules left no plan at all, what stands against one that comes far: a sentence."""

    def __len__(self) -> int:
        return len(self.costs.plans)

    def __iter__(self) -> Iterator[Plan]:
        return iter(self.costs.plans)

    @property
    def best(self) -> Plan | None:
        """The plan that stands first, or ``None``."""
        return self.costs.plans[0] if len(self) else None

    def take(self, index: Ints) -> Ranking:
        """The ranking with only these of its plans, in this order; the counts stay."""
        simulated = self.simulated
        if simulated is not None:
            simulated = replace(simulated, rows=simulated.rows[index])
        return replace(self, costs=self.costs.take(index), simulated=simulated)

    @property
    def tied(self) -> Bools:
        """For each plan whether it is as good as the fastest within ``band``."""
        return tied(self.costs.step_s, self.band)

    @property
    def complexity(self) -> Ints:
        """For each plan how many things it needs besides data parallelism."""
        return complexity(self.costs.plans, self.cluster.gpus_per_node)

    @property
    def pareto(self) -> Bools:
        """For each plan whether no other is at least as good in step time, memory and simplicity, and better
        in one."""
        return front(self.costs.step_s, self.costs.memory_bytes, self.complexity.astype(np.float64))

    def _repr_html_(self) -> str:
        """What a notebook shows; drawn by the report room, which this one does not know."""
        html: str = import_module("meshplan.report.notebook").ranking_html(self)
        return html
