"""The shipped numbers come out of the tables again, and the error they claim is the one they have."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from meshplan.cluster.curves import gemm_seconds
from meshplan.cluster.profile import load_profile

ROOT = Path(__file__).parents[2]
TABLES = ROOT.parent / "shared" / "kernels"
GPU = "h100-sxm"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    if not TABLES.is_dir():
        pytest.skip(f"NOT CHECKED: measured kernel tables are not at {TABLES}; the fits cannot be made again")
    if importlib.util.find_spec("scipy") is None:
        pytest.skip("NOT CHECKED: scipy is not installed; the fits cannot be made again")
    whole = ModuleType("tools")
    for name in ("fit_tables", "fit_gemm", "fit_profiles"):
        vars(whole).update(vars(importlib.import_module(name)))
    return whole


@pytest.fixture(scope="module")
def table(tool: ModuleType) -> dict[str, Any]:
    return tool.fit_profile(TABLES, GPU)


def test_the_shipped_file_is_what_the_tool_writes(tool: ModuleType, table: dict[str, Any]) -> None:
    """Every number to 1 %: another CPU may round the search's steps differently."""
    import tomllib

    shipped = tomllib.loads(
        (ROOT / "src/meshplan/cluster/data/profiles" / f"{GPU}.toml").read_text(encoding="utf-8")
    )
    compare(tomllib.loads(tool.toml_of(table)), shipped, "")


def compare(made: Any, shipped: Any, where: str) -> None:
    if isinstance(shipped, dict):
        assert set(made) == set(shipped), where
        for key, value in shipped.items():
            compare(made[key], value, f"{where}.{key}")
    elif isinstance(shipped, list):
        assert len(made) == len(shipped), where
        for i, value in enumerate(shipped):
            compare(made[i], value, f"{where}[{i}]")
    elif isinstance(shipped, float):
        assert made == pytest.approx(shipped, rel=0.01, abs=1e-3 if "fit_error" in where else 0), where
    else:
        assert made == shipped, where


def test_half_the_sample_gives_the_same_curve(tool: ModuleType) -> None:
    """Other rows, fewer of them: predictions move by 3 % at most, the error by a percentage point."""
    spec = tool.spec_of(GPU)
    shipped = load_profile(GPU)
    again = tool.fit_gemm(TABLES, spec, shipped, "bf16", limit=1500)
    claimed = shipped.gemm["bf16"].evidence.fit_error
    assert claimed is not None
    assert again["fit_error"]["mean"] == pytest.approx(claimed.mean, abs=0.01)
    assert again["fit_error"]["median"] == pytest.approx(claimed.median, abs=0.01)
    names = set(again) - {"fit_error", "operand_bytes"}
    other = tool.with_gemm(shipped, "bf16", {n: again[n] for n in names})
    m, n, k = np.random.default_rng(5).integers(2, 64, (3, 2000)) * 256
    ratio = gemm_seconds(other, m, n, k, clock="burst") / gemm_seconds(shipped, m, n, k, clock="burst")
    assert np.max(np.abs(ratio - 1)) < 0.06
    assert np.mean(np.abs(ratio - 1)) < 0.03


@pytest.mark.parametrize("gpu", ["a100-80gb", "b200"])
def test_error_on_all_training_shapes_is_as_claimed(tool: ModuleType, gpu: str) -> None:
    """Computed here from the raw table, without the tool's model function."""
    import csv
    import gzip

    name = tool.spec_of(gpu)["table"]
    with gzip.open(TABLES / f"{name}.gemm.csv.gz", "rt", encoding="utf-8", newline="") as stream:
        rows = np.array(
            [
                (int(r["m"]), int(r["n"]), int(r["k"]), float(r["latency_us"]))
                for r in csv.DictReader(stream)
                if r["dtype"] == "bfloat16"
            ]
        ).T
    m, n, k, us = rows
    layers = (rows[:3].min(axis=0) >= 512) & (2 * m * n * k >= 1e10)
    profile = load_profile(gpu)
    seconds = gemm_seconds(profile, m, n, k, clock="burst")[layers]
    error = np.abs(seconds / (us[layers] * 1e-6) - 1)
    claimed = profile.gemm["bf16"].evidence.fit_error
    assert claimed is not None
    assert np.median(error) == pytest.approx(claimed.median, abs=0.005)
    assert np.mean(error) == pytest.approx(claimed.mean, abs=0.005)
    assert abs(np.median(np.log(seconds / (us[layers] * 1e-6)))) < 0.01  # no bias
