"""Finding a ``config.json`` of the Hugging Face hub: in the local cache, or over the network when asked.

The cache is laid out as ``models--ORGANISATION--NAME/snapshots/REVISION/config.json``; ``HF_HUB_CACHE``,
``HUGGINGFACE_HUB_CACHE``, ``HF_HOME`` and ``XDG_CACHE_HOME`` say where it is, in that order.
"""

from __future__ import annotations

import os
import re
from importlib import import_module
from pathlib import Path

from meshplan.errors import InputError, shown
from meshplan.files import read_text

_REPO = re.compile(r"[A-Za-z0-9][\w.\-]{0,95}/[A-Za-z0-9][\w.\-]{0,95}")
_REVISION = re.compile(r"[\w.\-]{1,200}")


def is_repo(name: str) -> bool:
    """Whether ``name`` has the form of a hub name, ``organisation/name``."""
    return _REPO.fullmatch(name) is not None and ".." not in name


def cache_folder() -> Path:
    """The folder of the hub's local cache."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(variable):
            return Path(os.environ[variable]).expanduser()
    home = os.environ.get("HF_HOME")
    if home:
        return Path(home).expanduser() / "hub"
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(caches).expanduser() / "huggingface" / "hub"


def cached_config(repo: str) -> Path | None:
    """The ``config.json`` of ``repo`` in the local cache, ``None`` when it is not there.

    The revision is what ``refs/main`` names, or the only snapshot there is.
    """
    folder = cache_folder() / f"models--{repo.replace('/', '--')}"
    ref = folder / "refs" / "main"
    revisions: list[str] = []
    if ref.is_file():
        revision = read_text(ref, limit_bytes=1024, what="cache reference").strip()
        if _REVISION.fullmatch(revision):
            revisions = [revision]
    else:
        snapshots = folder / "snapshots"
        revisions = sorted(p.name for p in snapshots.iterdir()) if snapshots.is_dir() else []
    for revision in revisions:
        config = folder / "snapshots" / revision / "config.json"
        if config.is_file():
            return config
    return None


def downloaded_config(repo: str) -> Path:
    """``config.json`` of ``repo``, fetched with ``huggingface_hub`` into its cache.

    ``HF_ENDPOINT``, ``HF_TOKEN`` and ``HF_HUB_OFFLINE`` hold as that library reads them. Raises
    ``InputError`` when the library is missing or the file cannot be had.
    """
    if _offline():
        raise InputError(f"cannot download {shown(repo)}: HF_HUB_OFFLINE is set")
    try:
        hub = import_module("huggingface_hub")
    except ImportError:
        raise InputError(
            f"downloading {shown(repo)} needs the package huggingface_hub: pip install 'meshplan[hub]'"
        ) from None
    try:
        return Path(hub.hf_hub_download(repo, "config.json"))
    except Exception as error:  # the library raises its own, httpx's and OSError
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"cannot download config.json of {shown(repo)}: {reason[:200]}") from None


def _offline() -> bool:
    return any(
        os.environ.get(variable, "").upper() in ("1", "ON", "YES", "TRUE")
        for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    )
