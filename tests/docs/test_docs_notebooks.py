"""The notebooks: stored without output, and every cell runs in a kernel of its own."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "notebooks").glob("*.ipynb"))
MISSING = [name for name in ("nbclient", "nbformat", "ipykernel") if importlib.util.find_spec(name) is None]
EXECUTE = """
import sys, nbformat
from nbclient import NotebookClient
book = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(book, timeout=240, kernel_name="python3").execute()
nbformat.write(book, sys.argv[2])
"""


def test_there_are_two_without_output() -> None:
    assert len(NOTEBOOKS) == 2
    for file in NOTEBOOKS:
        cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
        code = [cell for cell in cells if cell["cell_type"] == "code"]
        assert len(code) >= 5
        assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


@pytest.mark.skipif(
    bool(MISSING), reason=f"THE NOTEBOOKS ARE NOT RUN: {', '.join(MISSING)} missing (extra 'docs')"
)
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_every_cell_runs(file: Path, tmp_path: Path) -> None:
    out = tmp_path / file.name
    done = subprocess.run(
        [sys.executable, "-c", EXECUTE, str(file), str(out)],
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    cells = json.loads(out.read_text(encoding="utf-8"))["cells"]
    outputs = [o for cell in cells if cell["cell_type"] == "code" for o in cell["outputs"]]
    assert any("<svg" in "".join(o.get("data", {}).get("text/html", "")) for o in outputs)
    assert not any(o["output_type"] == "error" for o in outputs)
