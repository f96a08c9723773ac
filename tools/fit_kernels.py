"""Curves of attention, of experts and of collectives, fitted for ``fit_profiles.py``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from fit_tables import PLAIN_EXPERTS, Floats, Table, facts, fit_error, read_columns, rounded, sample, solve

from meshplan.cluster.curves import attention_seconds, grouped_gemm_seconds
from meshplan.cluster.presets import load_gpu
from meshplan.cluster.profile import Profile
from meshplan.cluster.profile_data import AttentionCurve, GroupedCurve


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
