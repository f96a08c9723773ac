"""A model with fewer layers, at its true layer shapes."""

from __future__ import annotations

from dataclasses import replace

from meshplan.errors import InputError
from meshplan.model.model import Model


def with_layers(model: Model, layers: int | None) -> Model:
    """``model`` with ``layers`` of its layers, evenly taken so that kinds keep their proportion.

    ``None`` leaves the model as it is. Multi-token prediction is dropped where layers are. Raises
    ``InputError`` when there are not that many.
    """
    have = len(model.layers)
    if layers is None or layers == have:
        return model
    if layers > have:
        raise InputError(f"{model.name} has {have} layers, not {layers}")
    picked = tuple(model.layers[i * have // layers] for i in range(layers))
    return replace(model, name=f"{model.name} ({layers} of {have} layers)", layers=picked, mtp=())
