from __future__ import annotations

from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def shared_handbook() -> str:
    file = REPO.parent / "shared" / "cases" / "handbook.md"
    if not file.is_file():
        pytest.skip("../shared/cases/handbook.md is not here: the copied figures were not compared with it")
    return file.read_text(encoding="utf-8")
