"""What every cost model answers: one price a plan, with the parts it is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from meshplan.cluster.cluster import Cluster
from meshplan.model.model import Model
from meshplan.plan.plans import Plans, chooser
from meshplan.plan.workload import Workload

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """Prices of a table of plans; every array has one entry a plan.

    ``plans`` is the table as priced: what a model decides itself (layers recomputed to fit) is
    filled in. ``time`` (seconds a step) and ``memory`` (bytes on the fullest rank) hold the parts,
    which sum to ``step_s`` and ``memory_bytes``.
    """

    plans: Plans
    step_s: Floats
    memory_bytes: Floats
    memory_limit_bytes: float
    mfu: Floats
    time: Mapping[str, Floats]
    memory: Mapping[str, Floats]
    hidden: Mapping[str, Floats] = field(default_factory=dict)
    """Seconds of communication that computing hides; not part of the step."""
    assumptions: tuple[str, ...] = ()

    @property
    def fits(self) -> Bools:
        """Whether each plan stays within the memory limit."""
        return np.asarray(self.memory_bytes <= self.memory_limit_bytes)

    def take(self, index: Any) -> Costs:
        """The rows ``index`` selects, in that order."""
        pick = chooser(index)
        return Costs(
            plans=self.plans.take(index),
            step_s=pick(self.step_s),
            memory_bytes=pick(self.memory_bytes),
            memory_limit_bytes=self.memory_limit_bytes,
            mfu=pick(self.mfu),
            time={k: pick(v) for k, v in self.time.items()},
            memory={k: pick(v) for k, v in self.memory.items()},
            hidden={k: pick(v) for k, v in self.hidden.items()},
            assumptions=self.assumptions,
        )

    @classmethod
    def concatenate(cls, pieces: Sequence[Costs]) -> Costs:
        """The rows of all pieces (at least one, of one cost model and setting), one after the other."""
        first = pieces[0]

        def parts(name: str) -> Mapping[str, Floats]:
            keys = getattr(first, name)
            return {key: np.concatenate([getattr(p, name)[key] for p in pieces]) for key in keys}

        return cls(
            plans=Plans.concatenate([p.plans for p in pieces]),
            step_s=np.concatenate([p.step_s for p in pieces]),
            memory_bytes=np.concatenate([p.memory_bytes for p in pieces]),
            memory_limit_bytes=first.memory_limit_bytes,
            mfu=np.concatenate([p.mfu for p in pieces]),
            time=parts("time"),
            memory=parts("memory"),
            hidden=parts("hidden"),
            assumptions=first.assumptions,
        )


class CostModel(Protocol):
    """Prices plans. A plan whose ``recompute_layers`` is ``AUTO_LAYERS`` gets the fewest that fit.

    A cost model may also have ``rules``, conditions (``plan.rules.Rule``) outside which its equations
    do not hold; a search then applies them too.
    """

    @property
    def name(self) -> str:
        """The name people type."""
        ...

    def price(self, model: Model, cluster: Cluster, workload: Workload, plans: Plans) -> Costs:
        """The price of every plan in the table."""
        ...
