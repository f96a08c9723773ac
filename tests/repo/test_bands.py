"""The usual errors that make ties are those of the published runs as priced today."""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write_bands", TOOLS / "write_bands.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_bands_are_measured() -> None:
    found = tool()
    today = tomllib.loads(found.bands())
    written = tomllib.loads(found.FILE.read_text(encoding="utf-8"))
    for name, kinds in today.items():
        for kind, entry in kinds.items():
            assert written[name][kind]["runs"] == entry["runs"], "run tools/write_bands.py"
            assert written[name][kind]["median"] == pytest.approx(entry["median"], abs=2e-4), (
                "run tools/write_bands.py"
            )
    assert written.keys() == today.keys()
