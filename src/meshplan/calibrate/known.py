"""A shipped profile bent to measurements that people already have: its form, their numbers.

A curve keeps the shape that it was shipped with and takes the rate (and the start of a kernel) that leaves
the least error on the samples; collectives inside a host become the table that was measured.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from meshplan.calibrate.fit import Fit, fit_table, quality
from meshplan.calibrate.profile import across_tables, shipped_profile
from meshplan.calibrate.samples import Sample
from meshplan.cluster.cluster import Cluster
from meshplan.cluster.curves import attention_seconds, gemm_seconds
from meshplan.cluster.profile import Profile, load_profile
from meshplan.cluster.profile_data import OPS
from meshplan.errors import InputError

MOST = 3000
"""Samples of one curve that are fitted on, evenly taken."""
LEAST_SIDE = 256
"""Of a product: smaller ones are latencies, which training does not see."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bent:
    """One curve: median error of the shipped curve and of the new one, on how many samples."""

    what: str
    points: int
    before: float
    after: float


def bent_profile(
    gpu: str, samples: Sequence[Sample], proof: Mapping[str, str]
) -> tuple[dict[str, Any], tuple[Bent, ...]]:
    """The profile's table with every curve that the samples say something of. Raises ``InputError`` for
    noise."""
    table, profile = copy.deepcopy(shipped_profile(gpu)), load_profile(gpu)
    found: list[Bent] = []
    for dtype in sorted({s.dtype for s in samples if s.op == "matmul"}):
        if dtype in profile.gemm:
            found += _gemm(
                table, profile, dtype, [s for s in samples if s.op == "matmul" and s.dtype == dtype], proof
            )
    attention = [s for s in samples if s.op == "attention"]
    for kernel in sorted({s.dtype or profile.best_attention for s in attention}):
        mine = [s for s in attention if (s.dtype or profile.best_attention) == kernel]
        if kernel in profile.attention:
            found += _attention(table, profile, kernel, mine, proof)
    for op in OPS:
        inside = [s for s in samples if s.op == op and s.per_host == s.ranks]
        if inside:
            found.append(_collective(table, profile, op, inside, proof))
    return table, tuple(found)


def bent_cluster(
    base: Cluster, samples: Sequence[Sample], proof: Mapping[str, str], *, name: str, file: str
) -> tuple[dict[str, Any], dict[str, Any], tuple[Bent, ...]]:
    """Tables of profile (to stand in ``file``) and cluster, and what was bent. Raises ``InputError`` for a
    GPU without a shipped profile."""
    gpu = base.gpu.like or base.gpu.name
    if gpu.endswith(".toml"):
        raise InputError(
            f"cluster {base.name} has a profile of its own, and times from elsewhere bend a shipped one;"
            " give --gpu"
        )
    profile, bent = bent_profile(gpu, samples, proof)
    across = [s for s in samples if s.per_host < s.ranks]
    if across:
        if len(base.tiers) < 2:
            raise InputError(f"the times across hosts need a cluster of more than {base.tiers[0].span} GPUs")
        fits: list[Fit] = []
        profile["across"] = across_tables(across, base.tiers[1].bandwidth, proof, fits)
        bent += tuple(Bent(what=f.what, points=f.points, before=math.nan, after=f.median_error) for f in fits)
    if not bent:
        raise InputError("none of the times is of a product, attention or collective that the GPU has")
    table = {
        "name": name,
        "gpus": base.gpus,
        "gpu": {"like": base.gpu.name, "title": base.gpu.title, "profile": file},
        "tiers": [
            {
                "name": t.name,
                "span": t.span,
                "bandwidth": f"{t.bandwidth / 1e9:.6g} GB/s",
                "latency": f"{t.latency_s * 1e6:.6g} us",
            }
            for t in base.tiers
        ],
    }
    return profile, table, bent


def _thin(samples: Sequence[Sample]) -> list[Sample]:
    return list(samples[:: -(-len(samples) // MOST)])


def _gemm(
    table: dict[str, Any], profile: Profile, dtype: str, samples: Sequence[Sample], proof: Mapping[str, str]
) -> list[Bent]:
    some = _thin([s for s in samples if min(s.shape) >= LEAST_SIDE])
    if len(some) < 3:
        return []
    m, n, k = (np.array([s.shape[i] for s in some]) for i in range(3))
    measured = np.array([s.median_s for s in some])
    curve = profile.gemm[dtype]

    def off(efficiency: float, start_s: float) -> float:
        gemm = {**profile.gemm, dtype: replace(curve, efficiency=efficiency, start_s=start_s)}
        said = gemm_seconds(replace(profile, gemm=gemm), m, n, k, dtype=dtype, clock="burst")
        return float(np.median(np.abs(np.log(said / measured))))

    top = min(1.0, 1.0 / curve.library)
    efficiency, start = curve.efficiency, curve.start_s
    for _ in range(3):
        efficiency = _least(lambda e, s=start: off(e, s), 0.02, top)  # type: ignore[misc]
        start = _least(lambda s, e=efficiency: off(e, s), 1e-7, 1e-4)  # type: ignore[misc]
    before, after = off(curve.efficiency, curve.start_s), off(efficiency, start)
    if after >= before:
        efficiency, start, after = curve.efficiency, curve.start_s, before
    _put(table, ("gemm", dtype), {"efficiency": efficiency, "start_s": start}, proof, after, len(some))
    return [
        Bent(what=f"matmul {dtype}", points=len(some), before=math.expm1(before), after=math.expm1(after))
    ]


def _attention(
    table: dict[str, Any], profile: Profile, kernel: str, samples: Sequence[Sample], proof: Mapping[str, str]
) -> list[Bent]:
    curve, found = profile.attention[kernel], []
    values = list(curve.efficiency)
    ratios: dict[int, list[float]] = {}
    errors = []
    for s in _thin(samples):
        batch, heads, seq, width = s.shape
        if width not in curve.head_dims or seq < 1024:
            continue
        said = attention_seconds(
            profile, batch=batch, heads=heads, head_dim=width, seq_q=seq, kernel=kernel, clock="burst"
        )
        ratios.setdefault(width, []).append(float(said.forward) / s.median_s)
    for width, each in ratios.items():
        at, by = curve.head_dims.index(width), median(each)
        values[at] = min(values[at] * by, 1.0)
        errors += [(abs(r - 1), abs(r / by - 1)) for r in each]
    if errors:
        before, after = (median(e[i] for e in errors) for i in (0, 1))
        _put(table, ("attention", kernel), {"efficiency": values}, proof, after, len(errors))
        found.append(Bent(what=f"attention {kernel}", points=len(errors), before=before, after=after))
    return found


def _collective(
    table: dict[str, Any], profile: Profile, op: str, samples: Sequence[Sample], proof: Mapping[str, str]
) -> Bent:
    from meshplan.cluster.collectives import collective_seconds

    made = fit_table(op, samples)
    said = [
        float(collective_seconds(profile, op, s.size_bytes, ranks=s.ranks, ranks_per_node=s.ranks))
        for s in samples
    ]
    before = quality(op, samples, said).median_error
    values = {
        "ranks": list(made.ranks),
        "sizes": list(made.sizes),
        "seconds": [list(r) for r in made.seconds],
        "link_bandwidth": profile.gpu.scaleup_bandwidth,
        "in_switch": False,
    }
    _put(table, ("collectives", op), values, proof, made.fit.median_error, made.fit.points)
    return Bent(what=op.replace("_", "-"), points=len(samples), before=before, after=made.fit.median_error)


def _put(
    table: dict[str, Any], path: tuple[str, str], values: Mapping[str, Any], proof: Mapping[str, str],
    error: float, points: int,
) -> None:  # fmt: skip
    section = table.setdefault(path[0], {}).setdefault(path[1], {})
    quality_ = {"median": error, "mean": error, "points": points, "on": "all samples"}
    section.update({**values, **proof, "fit_error": quality_, "note": ""})


def _least(f: Callable[[float], float], low: float, high: float) -> float:
    """Where ``f`` is least between two positive numbers: a golden section of the logarithm."""
    a, b, ratio = math.log(low), math.log(high), (math.sqrt(5) - 1) / 2
    c, d = b - ratio * (b - a), a + ratio * (b - a)
    fc, fd = f(math.exp(c)), f(math.exp(d))
    for _ in range(30):
        if fc < fd:
            b, d, fd = d, c, fc
            c = b - ratio * (b - a)
            fc = f(math.exp(c))
        else:
            a, c, fc = c, d, fd
            d = a + ratio * (b - a)
            fd = f(math.exp(d))
    return math.exp((a + b) / 2)
