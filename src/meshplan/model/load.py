"""Finding a model by what people type: a preset's name, a path, or a name on the Hugging Face hub."""

from __future__ import annotations

import os
from pathlib import Path

from meshplan.errors import InputError, UnknownNameError, shown
from meshplan.model.model import Model
from meshplan.model.presets import preset, preset_name, preset_names


def load_model(name_or_path: str, *, download: bool = False) -> Model:
    """The model that ``name_or_path`` names.

    Looked for in this order: a preset (or an alias of one); a ``config.json`` or a folder that holds one;
    ``organisation/name`` in the local cache of the Hugging Face hub, and on the hub if ``download``.
    Raises ``UnknownNameError`` for a name that is nowhere and ``InputError`` for a file that cannot be used.
    """
    name = name_or_path.strip()
    if not name:
        raise InputError("a model needs a name or a path")
    if not _is_path(name):
        known = preset_name(name)
        if known is not None:
            return preset(known)
    if _exists(name) or _is_path(name):
        from meshplan.model.hf import read_config

        return read_config(Path(os.path.expanduser(name)))  # noqa: PTH111  (leaves an unknown ~user as it is)
    return _from_hub(name, download=download)


def _is_path(name: str) -> bool:
    """Whether ``name`` can only be a path."""
    return name.startswith((".", "/", "~")) or name.endswith((".json", "/")) or os.sep * 2 in name


def _exists(name: str) -> bool:
    try:
        return Path(name).exists()
    except (OSError, ValueError):
        return False


def _from_hub(name: str, *, download: bool) -> Model:
    from meshplan.model.hub import cached_config, downloaded_config, is_repo

    if is_repo(name):
        from meshplan.model.hf import read_config

        config = cached_config(name)
        if config is None and download:
            config = downloaded_config(name)
        if config is not None:
            return read_config(config, name=name.rpartition("/")[2], source=f"{name} on the Hugging Face hub")
        hint = "it is no preset, no file and not in the local Hugging Face cache (--download fetches it)"
        raise UnknownNameError("model", name, preset_names(), hint)
    if download:
        raise InputError(f"{shown(name)} is not a hub name of the form organisation/name")
    raise UnknownNameError("model", name, preset_names(), "see 'meshplan models' for the known ones")
