"""How far off the model usually is: the median error on published runs of the same kind of model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import Any

from meshplan.model.layers import Moe
from meshplan.model.model import Model

_ONE_AT_A_TIME = Lock()
"""So that the requests of a server that has just started wait for one pricing, and do not each make it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Band:
    """``share``: median absolute error of the step time as a fraction, over ``runs`` published runs of
    ``kind`` (``dense`` or ``moe``) models."""

    share: float
    runs: int
    kind: str

    @property
    def data(self) -> dict[str, Any]:
        """As plain data."""
        return {"share": self.share, "runs": self.runs, "kind": self.kind}


def error_band(cost_model: str, model: Model) -> Band | None:
    """The band for this cost model and kind of model; ``None`` where no run of the kind was published.

    Prices the table of runs that ships with meshplan once, which takes about a second.
    """
    with _ONE_AT_A_TIME:
        bands = _bands(cost_model)
    return bands.get("moe" if any(isinstance(x.mlp, Moe) for x in model.layers) else "dense")


@cache
def _bands(cost_model: str) -> Mapping[str, Band]:
    from meshplan.validation.baseline import handbook_outcomes
    from meshplan.validation.figures import own_rows
    from meshplan.validation.metrics import Errors, grouped
    from meshplan.validation.run import run

    outcomes = run(own_rows()).outcomes
    if cost_model == "handbook":
        outcomes = tuple(handbook_outcomes(o.case for o in outcomes).values())
    found = {}
    for kind, members in grouped(
        outcomes, lambda o: "moe" if o.case.row.whole("experts", 0) else "dense"
    ).items():
        errors = Errors.of(o.step_error for o in members)
        if errors.median is not None:
            found[kind] = Band(share=errors.median, runs=errors.n, kind=kind)
    return found
