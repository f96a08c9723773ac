"""The cost models by name."""

from __future__ import annotations

from importlib import import_module
from operator import attrgetter

from meshplan.cost.costs import CostModel
from meshplan.errors import UnknownNameError

DEFAULT = "full"
"""What prices plans unless another is asked for."""
COST_MODELS = {
    "full": "meshplan.cost.full.model:FullModel.of",
    "handbook": "meshplan.cost.handbook:Handbook",
}
"""Name → ``module:factory``, imported when it is used."""


def cost_model_named(name: str = DEFAULT) -> CostModel:
    """The cost model of this name, with its default constants; raises ``UnknownNameError``."""
    if name not in COST_MODELS:
        raise UnknownNameError("cost model", name, COST_MODELS, f"known: {', '.join(COST_MODELS)}")
    module, _, attribute = COST_MODELS[name].partition(":")
    model: CostModel = attrgetter(attribute)(import_module(module))()
    return model
