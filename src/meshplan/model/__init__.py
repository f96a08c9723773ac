"""The model room: what is trained, its sizes, parameters and FLOP; nothing about GPUs or plans.

``load_model`` finds a model by preset name, path or hub name; ``preset_names`` lists the presets.
Everything is imported on first use, so that importing the room costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshplan.model.counts import (
        LayerParameters,
        ModelParameters,
        layer_parameters,
        model_parameters,
        padded_vocab,
    )
    from meshplan.model.flops import flop_per_token, forward_flops
    from meshplan.model.layers import Attention, LatentAttention, Layer, Mlp, Moe
    from meshplan.model.load import load_model
    from meshplan.model.model import Model
    from meshplan.model.presets import preset_names

_HOMES = {
    "Attention": "layers",
    "LatentAttention": "layers",
    "Layer": "layers",
    "LayerParameters": "counts",
    "Mlp": "layers",
    "Model": "model",
    "ModelParameters": "counts",
    "Moe": "layers",
    "flop_per_token": "flops",
    "forward_flops": "flops",
    "layer_parameters": "counts",
    "load_model": "load",
    "model_parameters": "counts",
    "padded_vocab": "counts",
    "preset_names": "presets",
}

__all__ = [
    "Attention",
    "LatentAttention",
    "Layer",
    "LayerParameters",
    "Mlp",
    "Model",
    "ModelParameters",
    "Moe",
    "flop_per_token",
    "forward_flops",
    "layer_parameters",
    "load_model",
    "model_parameters",
    "padded_vocab",
    "preset_names",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
