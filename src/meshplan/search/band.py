"""How far off a cost model usually is: the median error on published runs of the same kind of model.

Plans whose step times differ by less are as good as each other, as far as anyone can tell. The table is
written by ``tools/write_bands.py`` from the runs of ``meshplan validate``.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from meshplan.model.layers import Moe
from meshplan.model.model import Model


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
    """The band for this cost model and kind of model; ``None`` where no run of the kind was published."""
    return _bands().get((cost_model, kind_of(model)))


def ranking_band(cost_model: str, model: Model) -> float:
    """The share of the step time within which plans count as equally good; 0 ranks by time alone, as for
    the textbook's model, whose figures are shown as printed."""
    band = None if cost_model == "handbook" else error_band(cost_model, model)
    return 0.0 if band is None else band.share


def kind_of(model: Model) -> str:
    """``moe`` for a model with experts, else ``dense``."""
    return "moe" if any(isinstance(layer.mlp, Moe) for layer in model.layers) else "dense"


@cache
def _bands() -> dict[tuple[str, str], Band]:
    text = (Path(__file__).parent / "data" / "bands.toml").read_text(encoding="utf-8")
    return {
        (name, kind): Band(share=entry["median"], runs=entry["runs"], kind=kind)
        for name, kinds in tomllib.loads(text).items()
        for kind, entry in kinds.items()
    }
