"""Efficiency curves of matrix multiplications, fitted for ``fit_profiles.py``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from fit_tables import Floats, Mask, Table, fit_error, read_columns, rounded, sample, solve

from meshplan.cluster.curves import gemm_seconds, quantise_seconds
from meshplan.cluster.profile import Profile
from meshplan.cluster.profile_data import GemmCurve

GEMM_FIELDS: Mapping[str, tuple[float, float, float]] = {
    "efficiency": (0.2, 1.0, 0.8),
    "overhead_k": (5.0, 3000.0, 150.0),
    "medium_tile": (0.3, 1.0, 0.9),
    "small_tile": (0.1, 1.0, 0.5),
    "quantisation": (0.0, 1.0, 0.4),
    "hbm_efficiency": (0.2, 1.0, 0.75),
    "start_s": (2e-7, 3e-5, 3e-6),
    "long_kernel": (0.4, 1.0, 0.9),
    "throttle_s": (1e-4, 1e-2, 1e-3),
}
_CAST: Mapping[str, tuple[float, float, float]] = {
    "quantise_bytes": (0.5, 20.0, 5.0),
    "quantise_s": (1e-7, 3e-5, 2e-6),
}
OPERAND_BYTES = {"bf16": 2.0, "fp8": 1.0, "fp8_block": 1.0 + 4 / 128, "nvfp4": 0.5 + 1 / 16}


def gemm_rows(tables: Path, spec: Table, name: str) -> dict[str, Any]:
    """The table of one precision. fp8 and fp4 only up to 16,384: no layer trains larger ones so, and the
    inference kernel of the table falls apart there."""
    wanted = spec["precisions"][name]
    limit = np.inf if name == "bf16" else 16384

    def keep(row: dict[str, str]) -> bool:
        return row["dtype"] == wanted and float(row["n"]) <= limit and float(row["k"]) <= limit

    return read_columns(tables / f"{spec['table']}.gemm.csv.gz", keep)


def with_gemm(base: Profile, name: str, values: Mapping[str, float]) -> Profile:
    """``base`` with the parameters of one precision's curve replaced."""
    changes: Table = dict(values)
    curve: GemmCurve = replace(base.gemm[name], **changes)
    return replace(base, gemm={**base.gemm, name: curve})


def gemm_model(profile: Profile, name: str, rows: Mapping[str, Any], chosen: Any = slice(None)) -> Floats:
    """Burst seconds of the table's rows: the product, and for fp8 and fp4 the cast in front of it."""
    m, n, k = (rows[c][chosen] for c in "mnk")
    seconds = gemm_seconds(profile, m, n, k, dtype=name, clock="burst")
    return seconds if name == "bf16" else seconds + quantise_seconds(profile, m * k, dtype=name)


def gemm_masks(rows: Mapping[str, Any]) -> tuple[dict[str, Mask], Mask]:
    """Classes by size that errors are reported for, and the shapes of training layers."""
    m, n, k = rows["m"], rows["n"], rows["k"]
    flop, wide = 2 * m * n * k, np.minimum(np.minimum(m, n), k) >= 256
    classes = {
        "below 1 GFLOP": flop < 1e9,
        "1-10 GFLOP": (flop >= 1e9) & (flop < 1e10),
        "10-100 GFLOP, all sizes from 256": wide & (flop >= 1e10) & (flop < 1e11),
        "0.1-1 TFLOP, all sizes from 256": wide & (flop >= 1e11) & (flop < 1e12),
        "above 1 TFLOP, all sizes from 256": wide & (flop >= 1e12),
    }
    return classes, (np.minimum(np.minimum(m, n), k) >= 512) & (flop >= 1e10)


def fit_gemm(tables: Path, spec: Table, base: Profile, name: str, limit: int = 5000) -> Table:
    """One precision's curve as a TOML table with its held-out error."""
    rows = gemm_rows(tables, spec, name)
    measured = rows["latency_us"] * 1e-6
    m, n, k = rows["m"], rows["n"], rows["k"]
    likely = (2 * m * n * k > 5e9) & (np.minimum(np.minimum(m, n), k) >= 256)
    chosen = sample([(likely, limit * 4 // 5), (~likely, limit // 5)], f"{spec['table']} gemm {name}")
    parameters = {**GEMM_FIELDS, **({} if name == "bf16" else _CAST)}

    def residual(values: dict[str, float]) -> Floats:
        model = gemm_model(with_gemm(base, name, values), name, rows, chosen)
        return np.asarray(np.log(model / measured[chosen]))

    values = rounded(solve(residual, parameters))
    held_out = np.ones(len(measured), dtype=bool)
    held_out[chosen] = False
    model = gemm_model(with_gemm(base, name, values), name, rows)
    classes, training = gemm_masks(rows)
    error = fit_error(
        model[held_out & training],
        measured[held_out & training],
        "rows not fitted on, m, n and k from 512, 10 GFLOP or more",
        None,
    )
    by_class = fit_error(
        model[held_out], measured[held_out], "", {n: c[held_out] for n, c in classes.items()}
    )
    return {
        **values,
        "operand_bytes": rounded(OPERAND_BYTES[name]),
        "fit_error": {**error, "by_class": by_class["by_class"]},
    }
