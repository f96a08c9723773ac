"""A profile and a cluster file from samples, on top of the shipped profile of the GPU they resemble."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from statistics import median
from typing import Any

import numpy as np

from meshplan.calibrate.fit import (
    Fit,
    GemmFit,
    LinkFit,
    TableFit,
    attention_rate,
    fit_gemm,
    fit_link,
    fit_table,
)
from meshplan.calibrate.samples import Sample
from meshplan.cluster.profile_data import OPS
from meshplan.errors import InputError

STANDS_IN = "h100-sxm"
"""Whose curves stand in for what was not measured."""
NCCL_RING_BASE_S, NCCL_NET_HOP_S, NCCL_HOP_S = 8.4e-6, 2.7e-6, 14.0e-6
"""How ``cluster.collectives`` composes a message's latency from a tier's; inverted here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """Tables of the two files, and what each fit left."""

    profile: dict[str, Any]
    cluster: dict[str, Any]
    fits: tuple[Fit, ...]


def calibration(
    samples: Sequence[Sample], about: Mapping[str, Any], *, name: str, profile_file: str
) -> Calibration:
    """Fit everything. Raises ``InputError`` for samples that are noise or break a law of physics."""
    base = shipped_profile(STANDS_IN)
    hosts = list(about["hosts"])
    per_host = max(hosts.count(h) for h in set(hosts))
    date = str(about["date"])
    proof = {
        "provenance": "measured",
        "date": date,
        "source": f"meshplan calibrate on {len(hosts)} ranks of {len(set(hosts))} hosts, {about['device']}",
    }
    fits: list[Fit] = []
    gemm = {k: fit_gemm(s) for k, s in _by(samples, "matmul", lambda s: s.dtype).items()}
    if not gemm:
        raise InputError("there are no products among the samples")
    main = "bf16" if "bf16" in gemm else next(iter(gemm))
    fits += [g.fit for g in gemm.values()]
    copy, launch = _memory(samples)
    inside = [s for s in samples if s.per_host == s.ranks and s.ranks > 1]
    across = [s for s in samples if s.per_host < s.ranks]
    if len(set(hosts)) > 1 and not across:
        raise InputError(f"the samples of {len(set(hosts))} hosts hold no transfer from one to another")
    local = fit_link([s for s in inside if s.op == "p2p"]) if inside else None
    fits += [replace(local.fit, what="link inside a host")] if local else []
    peak = gemm[main].best
    profile = {
        **base,
        "name": STANDS_IN,
        "why": "written by meshplan calibrate; sections without a measurement of their own are those of"
        f" {STANDS_IN}",
        "gemm": {"bf16": {**base["gemm"]["bf16"], **_gemm(gemm[main], peak), **proof}},
        "grouped": {"bf16": base["grouped"]["bf16"]},
        "memory": {
            **base["memory"],
            "efficiency": 1.0,
            "permute_efficiency": 0.5,
            "launch_s": launch,
            **proof,
        },
        "factors": _factors(base, proof),
        "attention": _attention(base, samples, peak, proof, fits),
    }
    for kind, g in gemm.items():
        if kind != "bf16":
            profile["gemm"][kind] = {**base["gemm"]["bf16"], **_gemm(g, peak), **proof}
    rate = local.bandwidth if local else 1e12
    if inside:
        tables, link = _tables(inside, rate, proof, fits)
        profile["collectives"] = {**base["collectives"], **tables}
        rate = max(rate, link)
    tiers = [_tier("host", per_host, rate, local.latency_s if local else 1e-6)]
    if across:
        wire = fit_link([s for s in across if s.op == "p2p" and s.per_host == 1])
        fits.append(replace(wire.fit, what="link across hosts"))
        tiers.append(_network(wire, len(hosts)))
        profile["across"] = across_tables(across, wire.bandwidth, proof, fits)
        profile["network"] = {**base["network"], "nvls": False, **_shares(across, wire), **proof}
    cluster = {
        "name": name,
        "gpus": len(hosts),
        "gpu": _gpu(about, peak, copy, rate, per_host, profile_file, main),
        "tiers": tiers,
    }
    return Calibration(profile=profile, cluster=cluster, fits=tuple(fits))


def shipped_profile(name: str) -> dict[str, Any]:
    """The table of a profile that ships with meshplan."""
    file = resources.files("meshplan.cluster") / "data" / "profiles" / f"{name}.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


def _by(samples: Sequence[Sample], op: str, key: Any) -> dict[Any, list[Sample]]:
    found: dict[Any, list[Sample]] = {}
    for s in samples:
        if s.op == op:
            found.setdefault(key(s), []).append(s)
    return found


def _gemm(g: GemmFit, peak: float) -> dict[str, Any]:
    """A curve whose tiles cost nothing extra: one core, or one GPU taken as a whole."""
    return {
        "efficiency": min(g.rate / peak, 1.0),
        "overhead_k": 1e-3,
        "medium_tile": 1.0,
        "small_tile": 1.0,
        "quantisation": 0.0,
        "hbm_efficiency": 1.0,
        "start_s": g.start_s,
        "throttle": 1.0,
        "long_kernel": 1.0,
        "fit_error": _error(g.fit),
        "note": "",
    }


def _error(fit: Fit) -> dict[str, Any]:
    return {"median": fit.median_error, "mean": fit.median_error, "points": fit.points, "on": "all samples"}


def _factors(base: Mapping[str, Any], proof: Mapping[str, str]) -> dict[str, Any]:
    found = {k: dict(v) for k, v in base["factors"].items()}
    found["sustained"] = {"value": 1.0, **proof, "note": "samples ran under steady load"}
    return found


def _memory(samples: Sequence[Sample]) -> tuple[float, float]:
    """Bytes/s of a copy, and the least seconds of an operator."""
    copies = [s for s in samples if s.op == "copy"]
    launches = [s for s in samples if s.op == "launch"]
    if not copies or not launches:
        raise InputError("there is no copy or no launch among the samples")
    return median(s.size_bytes / s.median_s for s in copies), median(s.median_s for s in launches)


def _attention(
    base: Mapping[str, Any], samples: Sequence[Sample], peak: float, proof: Mapping[str, str], fits: list[Fit]
) -> dict[str, Any]:
    forward = [s for s in samples if s.op == "attention"]
    if not forward:
        return dict(base["attention"])
    rates, fit = attention_rate(forward, 1.0)
    fits.append(fit)
    backward = [s for s in samples if s.op == "attention_backward"]
    share = 1.0
    if backward:
        back, _ = attention_rate(backward, 2.5)
        share = median(back[w] / rates[w] for w in rates if w in back)
    curve = {
        **base["attention"][base["best_attention"]],
        "head_dims": list(rates),
        "efficiency": [min(r / peak, 1.0) for r in rates.values()],
        "row_overhead": [0.0] * len(rates),
        "tail": 0.0,
        "backward_tail": 0.0,
        "backward_efficiency": share,
        "throttle": 1.0,
        "fit_error": _error(fit),
        **proof,
    }
    return dict.fromkeys(base["attention"], curve)


def _tables(
    inside: Sequence[Sample], rate: float, proof: Mapping[str, str], fits: list[Fit]
) -> tuple[dict[str, Any], float]:
    """Tables of the collectives inside a host, and the fastest that any of them drove its link."""
    found: dict[str, Any] = {}
    link = rate
    for op in (*OPS, "p2p"):
        mine = [s for s in _one_way(inside) if s.op == op and (op != "p2p" or s.ranks == 2)]
        if not mine:
            continue
        table = fit_table(op, mine)
        fits.append(table.fit)
        for n, row in zip(table.ranks, table.seconds, strict=True):
            share = 1.0 if op in ("all_reduce", "p2p") else (n - 1) / n
            link = max(link, *(share * size / s for size, s in zip(table.sizes, row, strict=True)))
        found[op] = {
            "ranks": list(table.ranks),
            "sizes": list(table.sizes),
            "seconds": [list(r) for r in table.seconds],
            "hop_s": 0.0,
            "fit_error": _error(table.fit),
            **proof,
        }
    for table in found.values():
        table["link_bandwidth"] = link * 1.0001
    return found, link * 1.0001


def _one_way(samples: Sequence[Sample]) -> list[Sample]:
    """Messages are timed there and back."""
    return [replace(s, seconds=tuple(t / 2 for t in s.seconds)) if s.op == "p2p" else s for s in samples]


def across_tables(
    samples: Sequence[Sample], bandwidth: float, proof: Mapping[str, str], fits: list[Fit]
) -> dict[str, Any]:
    """Tables of the collectives between hosts, by ranks and ranks of a host; ``bandwidth`` of their NICs."""
    found: dict[str, Any] = {}
    for op in (*OPS, "p2p"):
        groups = _by(_one_way(samples), op, lambda s: (s.ranks, s.per_host))
        if not groups:
            continue
        tables = {key: fit_table(op, mine) for key, mine in sorted(groups.items())}
        sizes = next(iter(tables.values())).sizes
        rows = [_resampled(t, sizes) for t in tables.values()]
        fits += [
            replace(t.fit, what=f"{t.fit.what} across hosts, {per} a host") for (_, per), t in tables.items()
        ]
        errors = [t.fit for t in tables.values()]
        found[op] = {
            "ranks": [n for n, _ in tables],
            "per_node": [per for _, per in tables],
            "sizes": list(sizes),
            "seconds": rows,
            "network_bandwidth": bandwidth,
            "fit_error": _error(max(errors, key=lambda f: f.median_error)),
            **proof,
        }
    return found


def _resampled(found: TableFit, sizes: Sequence[float]) -> list[float]:
    """The table's times at other sizes, rising."""
    times = np.exp(np.interp(np.log(sizes), np.log(found.sizes), np.log(found.seconds[0])))
    return [*(float(t) for t in times[:-1]), max(float(times[-1]), float(times[-2]) * 1.001)]


def _network(wire: LinkFit, gpus: int) -> dict[str, Any]:
    hop = max(wire.latency_s - NCCL_RING_BASE_S, 0.0) / NCCL_NET_HOP_S * NCCL_HOP_S
    return _tier("network", gpus, wire.bandwidth, hop)


def _tier(name: str, span: int, bandwidth: float, latency_s: float) -> dict[str, Any]:
    return {
        "name": name,
        "span": span,
        "bandwidth": f"{bandwidth / 1e9:.6g} GB/s",
        "latency": f"{latency_s * 1e6:.6g} us",
    }


def _shares(across: Sequence[Sample], wire: LinkFit) -> dict[str, float]:
    """What collectives get of the line, from their largest size; above 1 is measured noise."""

    def share(op: str) -> float:
        mine = [s for s in across if s.op == op and s.per_host == 1]
        if not mine:
            return 1.0
        top = max(mine, key=lambda s: s.size_bytes)
        wires = (top.ranks - 1) / top.ranks * top.size_bytes
        return min(wires / max(top.median_s - wire.latency_s, 1e-9) / wire.bandwidth, 1.0)

    return {"efficiency": share("all_gather"), "all_to_all_efficiency": share("all_to_all")}


def _gpu(
    about: Mapping[str, Any],
    peak: float,
    copy: float,
    link: float,
    per_host: int,
    profile_file: str,
    kind: str,
) -> dict[str, Any]:
    """The device as measured; its "peaks" are the best that was seen."""
    rate = f"{peak / 1e12:.6g} TFLOP/s"
    seen = f"measured by meshplan calibrate, {about['date']}"
    return {
        "title": str(about["device"]),
        "profile": profile_file,
        "hbm": f"{int(about['memory_bytes'])} B",
        "hbm_bandwidth": f"{copy / 1e9:.6g} GB/s",
        "scaleup": "host",
        "scaleup_bandwidth": f"{link / 1e9:.6g} GB/s",
        "scaleup_domain": per_host,
        "gpus_per_host": per_host,
        "nic_bandwidth": f"{link / 1e9:.6g} GB/s",
        "host_bandwidth": f"{copy / 1e9:.6g} GB/s",
        "sms": 1,
        "power": "1 W",
        "peak_flops": dict.fromkeys(dict.fromkeys(("bf16", kind, "tf32")), rate),
        "sources": {"peak_flops": f"fastest product, {seen}", "hbm_bandwidth": f"copy, {seen}"},
    }
