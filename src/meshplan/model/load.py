"""Finding a model by what people type: a preset's name, a path, or a name on the Hugging Face hub."""

from __future__ import annotations

from meshplan.model.model import Model
from meshplan.model.presets import preset, preset_name


def load_model(name_or_path: str, *, download: bool = False) -> Model:
    """The model that ``name_or_path`` names.

    Raises ``InputError`` or ``UnknownNameError``.
    """
    return preset(preset_name(name_or_path) or name_or_path)
