"""What the fits of ``fit_profiles.py`` share: its tables and facts, TOML with few digits, the optimizer and
its samples."""

from __future__ import annotations

import csv
import gzip
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Table = dict[str, Any]

AIC = "aiconfigurator {what}, github.com/ai-dynamo/aiconfigurator commit 095f58a5 (Apache-2.0)"
DATE = "2026-08-21"
SEED = 20260821
PLAIN_EXPERTS = {(2688, 1856), (2048, 5120), (8192, 5120), (1024, 2688), (4096, 2688)}
"""(hidden, width) of the Nemotron models in the MoE tables, whose experts have no gate."""


@cache
def facts() -> Table:
    """``profile_facts.toml``."""
    return tomllib.loads((Path(__file__).parent / "profile_facts.toml").read_text(encoding="utf-8"))


def spec_of(gpu: str) -> Table:
    """What to fit for ``gpu``: its own entry over its family's."""
    own = facts()["gpu"][gpu]
    plain = {"gpu": gpu, "best_known": {}, "wide_ranks_from": "", "nccl": ""}
    return {**plain, **facts()["family"][own["family"]], **own}


def merged(*tables: Mapping[str, Any]) -> Table:
    """Nested tables, later ones over earlier ones; shares nothing with them."""
    out: Table = {}
    for table in tables:
        for key, value in table.items():
            both = isinstance(value, Mapping) and isinstance(out.get(key), Mapping)
            out[key] = (
                merged(out[key], value) if both else merged(value) if isinstance(value, Mapping) else value
            )
    return out


def read_columns(path: Path, where: Callable[[dict[str, str]], bool]) -> dict[str, Any]:
    """Columns of the rows of a ``.csv.gz`` that ``where`` keeps: floats where they are numbers."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if where(row)]
    columns: dict[str, Any] = {}
    for name in rows[0] if rows else ():
        values = [row[name] for row in rows]
        try:
            columns[name] = np.array([float(v) for v in values])
        except ValueError:
            columns[name] = np.array(values)
    return columns


def rounded(value: Any, digits: int = 4) -> Any:
    """Numbers to ``digits`` significant digits, so that a rerun writes the same file."""
    if isinstance(value, dict):
        return {k: rounded(v, digits) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(v, digits) for v in value]
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    return value


def toml_of(table: Table, prefix: str = "") -> str:
    """``table`` as TOML: plain keys first, then sub-tables."""
    lines = [f"{key} = {_toml_value(v)}" for key, v in table.items() if not _is_section(key, v)]
    text = "\n".join(lines) + ("\n" if lines else "")
    for key, value in table.items():
        if _is_section(key, value):
            name = f"{prefix}{key}"
            body = toml_of(value, f"{name}.")
            plain = any(not _is_section(k, v) for k, v in value.items())
            text += (f"\n[{name}]\n" if plain else "") + body
    return text


def _is_section(key: str, value: Any) -> bool:
    return isinstance(value, dict) and key not in ("fit_error", "by_class")


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_toml_key(k)} = {_toml_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        nested = any(isinstance(v, list) for v in value)
        inner = (",\n  " if nested else ", ").join(_toml_value(v) for v in value)
        return f"[\n  {inner},\n]" if nested else f"[{inner}]"
    return f"{value:.9g}" if isinstance(value, float) else repr(value)


def _toml_key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() else f'"{key}"'


def fit_error(model: Floats, measured: Floats, on: str, classes: Mapping[str, Any] | None = None) -> Table:
    """Median and mean of |model / measured − 1|, and the same by class."""
    error = np.abs(model / measured - 1)

    def row(chosen: Any) -> list[Any]:
        some = error[chosen]
        return [round(float(np.median(some)), 4), round(float(np.mean(some)), 4), len(some)]

    median, mean, points = row(slice(None))
    out: Table = {"median": median, "mean": mean, "points": points, "on": on}
    if classes:
        out["by_class"] = {name: row(chosen) for name, chosen in classes.items() if np.any(chosen)}
    return out


def solve(
    residual: Callable[[dict[str, float]], Floats], parameters: Mapping[str, tuple[float, float, float]]
) -> dict[str, float]:
    """Robust least squares (soft L1 beyond 5 %): ``parameters`` name → (low, high, start).

    Those that span more than a factor of 20 are searched by their logarithm.
    """
    names = list(parameters)
    logs = {n: lo > 0 and hi / lo > 20 for n, (lo, hi, _) in parameters.items()}

    def forward(name: str, value: float) -> float:
        return float(np.log(value)) if logs[name] else value

    def values(x: Floats) -> dict[str, float]:
        return {n: float(np.exp(v)) if logs[n] else float(v) for n, v in zip(names, x, strict=True)}

    result = least_squares(
        lambda x: residual(values(x)),
        [forward(n, parameters[n][2]) for n in names],
        bounds=(
            [forward(n, p[0]) for n, p in parameters.items()],
            [forward(n, p[1]) for n, p in parameters.items()],
        ),
        loss="soft_l1",
        f_scale=0.05,
        diff_step=1e-3,
        x_scale="jac",
    )
    return values(result.x)


def sample(groups: Sequence[tuple[Mask, int]], salt: str) -> npt.NDArray[np.int64]:
    """Row numbers to fit on: of each mask at most so many, and at most half of what it holds."""
    rng = np.random.default_rng([SEED, *salt.encode()])
    picked = [
        rng.permutation(np.flatnonzero(m))[: min(count, max(int(m.sum()) // 2, 1))] for m, count in groups
    ]
    return np.sort(np.concatenate(picked))
