"""Fit the efficiency profiles of ``src/meshplan/cluster/data/profiles`` on measured kernel times.

    python tools/fit_profiles.py TABLES --out src/meshplan/cluster/data/profiles [--gpu h100-sxm]

TABLES is a folder of ``GPU.gemm.csv.gz``, ``.attention.csv.gz``, ``.moe.csv.gz`` and ``.nccl.csv.gz``: the
aiconfigurator project's public measurements (github.com/ai-dynamo/aiconfigurator, ``systems/data``,
commit 095f58a5, Apache-2.0), times in µs, one row a shape. Needs scipy. Deterministic: the sample, the
optimizer and the rounding have no freedom. Each curve is fitted on a sample of its table, and the error
written beside it is that of the rows left out; the run prints them all. What no table gives comes from
``profile_facts.toml`` beside this file.

Profiles that are ``like`` another GPU have no table, are written by hand and not touched here.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from meshplan.cluster.curves import attention_seconds, gemm_seconds, grouped_gemm_seconds, quantise_seconds
from meshplan.cluster.presets import load_gpu
from meshplan.cluster.profile import Profile, profile_from
from meshplan.cluster.profile_data import OPS, AttentionCurve, GemmCurve, GroupedCurve

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
    return {"gpu": gpu, "best_known": {}, "wide_ranks_from": "", **facts()["family"][own["family"]], **own}


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


# ── tables and numbers ───────────────────────────────────────────────────────────────────────────


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


# ── matrix multiplication ────────────────────────────────────────────────────────────────────────

_GEMM: Mapping[str, tuple[float, float, float]] = {
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
_OPERAND = {"bf16": 2.0, "fp8": 1.0, "fp8_block": 1.0 + 4 / 128, "nvfp4": 0.5 + 1 / 16}


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
    parameters = {**_GEMM, **({} if name == "bf16" else _CAST)}

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
        "operand_bytes": rounded(_OPERAND[name]),
        "fit_error": {**error, "by_class": by_class["by_class"]},
    }


# ── attention, experts, collectives ──────────────────────────────────────────────────────────────


def attention_rows(tables: Path, spec: Table) -> dict[str, Any]:
    """The table of the kernel and head sizes that are fitted."""
    kernel, dims = spec["attention"]["kernel"], spec["attention"]["head_dims"]
    return read_columns(
        tables / f"{spec['table']}.attention.csv.gz",
        lambda row: row["kernel_source"] == kernel and int(row["head_dim"]) in dims,
    )


def attention_model(
    profile: Profile, kernel: str, rows: Mapping[str, Any], chosen: Any = slice(None)
) -> Floats:
    """Burst seconds, forward."""
    columns = {c: rows[c][chosen] for c in ("batch", "heads", "head_dim", "seq", "kv_heads")}
    return attention_seconds(
        profile,
        batch=columns["batch"],
        heads=columns["heads"],
        kv_heads=columns["kv_heads"],
        head_dim=columns["head_dim"],
        seq_q=columns["seq"],
        kernel=kernel,
        clock="burst",
    ).forward


def fit_attention(tables: Path, spec: Table, base: Profile) -> Table:
    """The GPU's best fused kernel."""
    rows = attention_rows(tables, spec)
    kernel, dims = spec["attention"]["name"], spec["attention"]["head_dims"]
    measured = rows["latency_us"] * 1e-6
    filled = (rows["batch"] * rows["heads"] >= 8) & (rows["seq"] >= 1024)
    chosen = sample([(filled, 2500), (~filled, 700)], f"{spec['table']} attention")
    parameters = {f"efficiency {d}": (0.1, 1.0, 0.55) for d in dims}
    parameters |= {f"row_overhead {d}": (1.0, 2000.0, 350.0) for d in dims}
    parameters |= {"tail": (0.0, 5.0, 0.7), "start_s": (1e-6, 4e-5, 1e-5), "throttle": (0.6, 1.0, 0.9)}

    def curve(values: Mapping[str, float]) -> AttentionCurve:
        return replace(
            base.attention[kernel],
            efficiency=tuple(values[f"efficiency {d}"] for d in dims),
            row_overhead=tuple(values[f"row_overhead {d}"] for d in dims),
            tail=values["tail"],
            start_s=values["start_s"],
            throttle=values["throttle"],
        )

    def model(values: Mapping[str, float], some: Any) -> Floats:
        profile = replace(base, attention={**base.attention, kernel: curve(values)})
        return attention_model(profile, kernel, rows, some)

    values = rounded(solve(lambda v: np.asarray(np.log(model(v, chosen) / measured[chosen])), parameters))
    held_out = np.ones(len(measured), dtype=bool)
    held_out[chosen] = False
    keep = held_out & filled
    classes = {
        "seq below 1024 or fewer than 8 heads": held_out & ~filled,
        "seq 1024-3072": keep & (rows["seq"] < 4096),
        "seq from 4096": keep & (rows["seq"] >= 4096),
    }
    every = model(values, slice(None))
    error = fit_error(
        every[keep], measured[keep], "rows not fitted on, seq from 1024, 8 heads x sequences or more"
    )
    error["by_class"] = fit_error(every, measured, "", classes)["by_class"]
    return {
        "head_dims": [float(d) for d in dims],
        "efficiency": [values[f"efficiency {d}"] for d in dims],
        "row_overhead": [values[f"row_overhead {d}"] for d in dims],
        **{n: values[n] for n in ("tail", "start_s", "throttle")},
        "fit_error": error,
    }


def moe_rows(tables: Path, spec: Table, name: str) -> dict[str, Any]:
    """Balanced rows of one precision, of one rank that holds every expert, 16 tokens an expert or more."""
    dtype = spec["precisions"][name]

    def keep(row: dict[str, str]) -> bool:
        same = row["kernel_source"] == spec["moe"] and row["dtype"] == dtype and row["ep"] == "1"
        tokens = int(row["tokens"]) * int(row["topk"]) / int(row["experts"])
        wide = int(row["moe_ffn"]) >= 256 * int(row["etp"])
        return same and row["distribution"] == "balanced" and tokens >= 16 and wide

    return read_columns(tables / f"{spec['table']}.moe.csv.gz", keep)


def grouped_points(tables: Path, spec: Table, name: str) -> dict[str, Any]:
    """Expert layers with their measured seconds: from the table, or from figures printed elsewhere."""
    if spec["moe"]:
        rows = moe_rows(tables, spec, name)
        pairs = zip(rows["hidden"], rows["moe_ffn"], strict=True)
        return {
            "experts": rows["experts"],
            "tokens": rows["tokens"] * rows["topk"] / rows["experts"],
            "hidden": rows["hidden"],
            "width": rows["moe_ffn"] / rows["etp"],
            "up": np.array([1.0 if (int(h), int(f)) in PLAIN_EXPERTS else 2.0 for h, f in pairs]),
            "seconds": rows["latency_us"] * 1e-6,
        }
    points = [
        (experts, tokens, hidden, width, tflops)
        for hidden, width, experts, *curve in facts()["points"][spec["family"]]["layers"]
        for tokens, tflops in zip(*curve, strict=True)
    ]
    experts, tokens, hidden, width, tflops = (
        np.array(c, dtype=np.float64) for c in zip(*points, strict=True)
    )
    seconds = 6 * hidden * width * tokens * experts / (tflops * 1e12)
    names = ("experts", "tokens", "hidden", "width", "up", "seconds")
    return dict(zip(names, (experts, tokens, hidden, width, np.full(len(points), 2.0), seconds), strict=True))


def grouped_model(base: Profile, name: str, values: Mapping[str, float], points: Mapping[str, Any]) -> Floats:
    """Both products of an expert layer, and around them what the fused kernel does besides: activation
    function and gathering, ``around`` of their full traffic, and a fixed start."""
    curve: GroupedCurve = replace(
        base.grouped[name], efficiency=values["efficiency"], hbm_efficiency=values["hbm_efficiency"]
    )
    profile = replace(base, grouped={name: curve})
    tokens, experts, hidden, width, up = (points[c] for c in ("tokens", "experts", "hidden", "width", "up"))
    products = grouped_gemm_seconds(profile, tokens, experts, up * width, hidden, dtype=name, clock="burst")
    products = products + grouped_gemm_seconds(
        profile, tokens, experts, hidden, width, dtype=name, clock="burst"
    )
    traffic = tokens * experts * (2 * (up + 1) * width + 8 * hidden)
    around = traffic / (0.8 * base.gpu.hbm_bandwidth) * values.get("around", 0.0) + values.get("start", 0.0)
    return np.asarray(products + around)


def fit_grouped(tables: Path, spec: Table, base: Profile, name: str) -> Table:
    """Expert products relative to the dense ones of the same GPU (of H100, where its figures stand in)."""
    if spec["family"] == "ampere":
        return _fit_products(base)
    if spec["family"] == "hopper":
        base = base.on(load_gpu("h100-sxm"))
    points = grouped_points(tables, spec, name)
    parameters = {"efficiency": (0.1, 1.0, 0.7), "hbm_efficiency": (0.3, 1.0, 0.8), "around": (0.0, 1.0, 0.5)}
    parameters["start"] = (1e-6, 2e-4, 1e-5)

    def residual(values: dict[str, float]) -> Floats:
        return np.asarray(np.log(grouped_model(base, name, values, points) / points["seconds"]))

    values = rounded(solve(residual, parameters))
    tokens = points["tokens"]
    classes = {"16-127 tokens an expert": tokens < 128, "128 tokens or more": tokens >= 128}
    on = "all rows, four parameters: these two, activation and gathering, start"
    error = fit_error(grouped_model(base, name, values, points), points["seconds"], on, classes)
    return {
        "efficiency": values["efficiency"],
        "hbm_efficiency": values["hbm_efficiency"],
        "fit_error": error,
    }


def _fit_products(base: Profile) -> Table:
    """One parameter on single grouped products that ran as separate kernels, under sustained load."""
    rows = np.array(facts()["points"]["ampere"]["products"], dtype=np.float64)
    experts, tokens, n, k, share = rows.T
    measured = 2 * experts * tokens * n * k / (share * base.gpu.peak("bf16"))

    def model(values: Mapping[str, float]) -> Floats:
        curve = replace(base.grouped["bf16"], efficiency=values["efficiency"], hbm_efficiency=0.8)
        profile = replace(base, grouped={"bf16": curve})
        return grouped_gemm_seconds(profile, tokens, experts, n, k, kernel="streams")

    bounds = {"efficiency": (0.3, 1.0, 0.9)}
    values = rounded(solve(lambda v: np.asarray(np.log(model(v) / measured)), bounds))
    error = fit_error(model(values), measured, "all points, as separate kernels on streams, sustained")
    return {"efficiency": values["efficiency"], "hbm_efficiency": 0.8, "fit_error": error}


def collective_table(tables: Path, spec: Table, op: str, link: float, nvls: bool) -> Table:
    """Measured times by group size and message size, made to rise; the error is that of leaving every
    other size out and reading it off its neighbours."""
    name = {"all_to_all": "alltoall"}.get(op, op)
    rows = read_columns(tables / f"{spec['table']}.nccl.csv.gz", lambda row: row["op"] == name)
    times = _by_ranks(rows)
    note = ""
    if spec["wide_ranks_from"]:
        wide = _by_ranks(
            read_columns(tables / f"{spec['wide_ranks_from']}.nccl.csv.gz", lambda row: row["op"] == name)
        )
        times = {**{n: t for n, t in wide.items() if n > max(times)}, **times}
        note = f"8 ranks measured on {spec['wide_ranks_from']}: the same NVLink 5, 4 ranks agree within 2 %"
    ranks = sorted(times)
    sizes = sorted(times[ranks[0]])
    seconds = [rising(np.array([times[n][s] for s in sizes])) for n in ranks]
    logs = np.log(np.asarray(sizes))
    model, measured = [], []
    for row in seconds:
        t = np.asarray(row)
        left = np.arange(1, len(sizes) - 1, 2)
        model.append(np.exp(np.interp(logs[left], logs[::2], np.log(t[::2]))))
        measured.append(t[left])
    every = fit_error(
        np.concatenate(model), np.concatenate(measured), "sizes left out and interpolated, 4 KiB to 256 MiB"
    )
    hop = (seconds[-1][0] - seconds[0][0]) / (ranks[-1] - ranks[0])
    return {
        "ranks": ranks,
        "sizes": [float(s) for s in sizes],
        "seconds": rounded([[float(x) for x in row] for row in seconds]),
        "link_bandwidth": link,
        "hop_s": 0.0 if op == "all_reduce" and nvls else rounded(float(max(hop, 0.0))),
        **({"in_switch": True} if op == "all_reduce" and nvls else {}),
        "fit_error": every,
        **({"note": note} if note else {}),
    }


def rising(values: Floats) -> Floats:
    """The mean of the least rising series above ``values`` and the greatest below: rising, unbiased."""
    above = np.maximum.accumulate(values)
    below = np.minimum.accumulate(values[::-1])[::-1]
    return np.asarray((above + below) / 2)


def _by_ranks(rows: Mapping[str, Any]) -> dict[int, dict[int, float]]:
    out: dict[int, dict[int, float]] = {}
    for n, size, us in zip(rows["num_gpus"], rows["message_bytes"], rows["latency_us"], strict=True):
        if size >= 4096:
            out.setdefault(int(n), {})[int(size)] = float(us) * 1e-6
    return out


# ── a whole profile ──────────────────────────────────────────────────────────────────────────────


def proof(provenance: str, what: str) -> Table:
    """The evidence keys of a curve from aiconfigurator's tables."""
    return {"provenance": provenance, "source": AIC.format(what=what), "date": DATE}


def start_table(tables: Path, spec: Table) -> Table:
    """The profile with what is not fitted, and rough values where a fit will write."""
    gpu, family, dims = spec["gpu"], spec["family"], spec["attention"]["head_dims"]
    known = merged(facts()["profile"]["common"], facts()["profile"][family])
    rough = {**{n: p[2] for n, p in _GEMM.items()}, "throttle": _GEMM["long_kernel"][2]}
    gemm = {
        name: {**rough, "operand_bytes": _OPERAND[name], **proof("fitted", f"gemm {dtype}")}
        for name, dtype in spec["precisions"].items()
    }
    attention = {
        "head_dims": [float(d) for d in dims],
        "efficiency": [0.5] * len(dims),
        "row_overhead": [300.0] * len(dims),
        "tail": 0.7,
        "start_s": 1e-5,
        "throttle": 0.9,
        **proof("fitted", f"attention, kernel {spec['attention']['kernel']}"),
    }
    sustained = {"value": rough["throttle"], **proof("fitted", f"gemm of {spec['table']}: {SUSTAINED}")}
    link, nvls = load_gpu(gpu).scaleup_bandwidth, known["network"]["nvls"]
    collectives = {
        op: {**collective_table(tables, spec, op, link, nvls), **proof("measured", f"comm/nccl {op}")}
        for op in OPS
    }
    fitted = {
        "name": gpu,
        "gemm": gemm,
        "grouped": {
            name: {
                "efficiency": 0.8,
                "hbm_efficiency": 0.8,
                **known["grouped"]["bf16"],
                **proof("fitted", f"moe {spec['precisions'][name]}, kernel {spec['moe']}, balanced"),
            }
            for name in spec["grouped"]
        },
        "attention": {spec["attention"]["name"]: attention},
        "collectives": collectives,
        "factors": {"sustained": sustained},
    }
    table = merged(fitted, known)
    if gpu == "h200":  # H100's figures
        table["grouped"]["bf16"]["provenance"] = "assumed"
    return table


SUSTAINED = "rate of products of 10 ms or more over that of 0.1 ms ones"
LOW_PRECISION = (
    "throttle is that of bf16: published fp8 and fp4 training runs are faster than the table's inference "
    "kernels when those run long (long_kernel)"
)


def fit_profile(tables: Path, gpu: str) -> Table:
    """The whole profile of one GPU as a TOML table."""
    spec = spec_of(gpu)
    table = start_table(tables, spec)
    base = profile_from(table, where=f"{gpu}: start values")
    for name in spec["precisions"]:
        curve = merged(table["gemm"][name], fit_gemm(tables, spec, base, name))
        if name != "bf16":
            curve["note"] = LOW_PRECISION
        if name in spec["best_known"]:
            curve = merged(curve, library_of(spec, name, curve))
        table["gemm"][name] = curve
    steady = table["gemm"]["bf16"]["long_kernel"]
    table["factors"]["sustained"]["value"] = steady
    for name in spec["precisions"]:
        table["gemm"][name]["throttle"] = steady
    base = profile_from(table, where=f"{gpu}: with gemm")
    table["attention"][spec["attention"]["name"]] |= fit_attention(tables, spec, base)
    base = profile_from(table, where=f"{gpu}: with attention")
    for name in spec["grouped"]:
        table["grouped"][name] |= fit_grouped(tables, spec, base, name)
    profile_from(table, where=f"{gpu}: fitted")
    return table


def library_of(spec: Table, name: str, curve: Table) -> Table:
    """cuBLAS over the table's inference kernel: best of a shape search over the curve at 8192."""
    best, peak = spec["best_known"][name], load_gpu(spec["gpu"]).peak(name)
    at_8192 = peak * curve["efficiency"] * 8192 / (8192 + curve["overhead_k"])
    source = (
        f"library: {best / 1e12:.0f} TFLOP/s, cuBLAS, best of a shape search (stas00 ml-engineering, MAMF)"
    )
    return {"library": rounded(best / at_8192, 3), "note": f"{LOW_PRECISION}; {source}"}


def header(gpu: str) -> str:
    """The comment on top of the file."""
    return (
        f"# Efficiency profile of {load_gpu(gpu).title}. Made by tools/fit_profiles.py: do not edit.\n"
        "# Shares are of the datasheet in data/gpus; fit_error is |model / measured - 1|; SI units.\n\n"
    )


def errors_of(table: Table) -> list[tuple[str, Table]]:
    """Every curve with a fit error."""
    return [
        (f"{group}.{name}", curve["fit_error"])
        for group in ("gemm", "attention", "grouped", "collectives")
        for name, curve in table[group].items()
        if "fit_error" in curve
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    known = sorted(facts()["gpu"])
    parser = argparse.ArgumentParser(description="Fit the efficiency profiles on measured kernel times.")
    parser.add_argument("tables", type=Path, help="folder with GPU.gemm.csv.gz and its siblings")
    parser.add_argument("--out", type=Path, required=True, help="folder the .toml files go to")
    parser.add_argument("--gpu", choices=known, action="append", help="only this GPU (may be repeated)")
    options = parser.parse_args(argv)
    if not options.tables.is_dir():
        parser.error(f"{options.tables} is not a folder")
    options.out.mkdir(parents=True, exist_ok=True)
    print(f"{'GPU':10} {'curve':38} {'median':>7} {'mean':>7} {'points':>7}")
    for gpu in options.gpu or known:
        table = fit_profile(options.tables, gpu)
        (options.out / f"{gpu}.toml").write_text(header(gpu) + toml_of(table), encoding="utf-8")
        for curve, error in errors_of(table):
            print(f"{gpu:10} {curve:38} {error['median']:7.1%} {error['mean']:7.1%} {error['points']:7}")
            for name, (median, mean, points) in error.get("by_class", {}).items():
                print(f"{'':10}   {name:36} {median:7.1%} {mean:7.1%} {points:7}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
