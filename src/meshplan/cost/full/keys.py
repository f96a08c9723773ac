"""The few things a layer's cost depends on: one key for each distinct combination in a table of plans."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from meshplan.cost.costs import Bools, Floats
from meshplan.plan.plans import Ints


@dataclass(frozen=True, kw_only=True)
class LayerKeys:
    """Columns of distinct combinations; scalars are shared by the whole table."""

    tp: Ints
    sp: Bools
    """Sequence parallelism really on (asked for, and ``tp`` above 1)."""
    cp: Ints
    cp_kind: Ints
    ep: Ints
    etp: Ints
    mbs: Ints
    modules: Ints
    seq: int
    precision: str
    rotary: bool = True
    """Positions enter by rotating q and k in every layer, not by a learned table."""
    clamped: bool = False
    """The experts' SwiGLU is clamped, its gate scaled and its other side raised by one (gpt-oss)."""

    def __len__(self) -> int:
        return len(self.tp)

    def take(self, index: Ints) -> LayerKeys:
        """The keys ``index`` selects."""
        columns = ("tp", "sp", "cp", "cp_kind", "ep", "etp", "mbs", "modules")
        return replace(self, **{name: getattr(self, name)[index] for name in columns})

    @property
    def element_bytes(self) -> float:
        """Bytes of an activation, and of a gathered weight: 4 where nothing is cast below fp32."""
        return 4.0 if self.precision == "fp32" else 2.0

    @cached_property
    def tokens(self) -> Floats:
        """Tokens of one micro-batch on one context-parallel rank."""
        return np.asarray(self.seq * self.mbs / self.cp, dtype=np.float64)

    @cached_property
    def stream_share(self) -> Floats:
        """Share of those tokens whose residual stream a rank holds: 1/tp with SP, else 1."""
        return np.where(self.sp, 1.0 / self.tp, 1.0)

    @cached_property
    def keeps_all(self) -> bool:
        """Whether no key recomputes any module."""
        return not self.modules.any()

    @cached_property
    def none(self) -> Floats:
        """Zero for every key."""
        return np.zeros(len(self))
