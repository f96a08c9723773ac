"""Curves from samples: few numbers each, with the error they leave; nonsense is refused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from meshplan.calibrate.samples import Sample
from meshplan.errors import InputError

NOISY = 0.3
"""A curve is refused where the medians it is fitted on are this uncertain: the machine was not quiet."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """Relative error of a curve against its own samples, and their noise."""

    what: str
    points: int
    median_error: float
    noise: float


@dataclass(frozen=True, kw_only=True, slots=True)
class GemmFit:
    """seconds = FLOP / rate + start."""

    rate: float
    start_s: float
    best: float
    """FLOP/s of the fastest product: what the part is taken to be able to do."""
    fit: Fit


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkFit:
    """seconds = latency + bytes / bandwidth."""

    latency_s: float
    bandwidth: float
    fit: Fit


@dataclass(frozen=True, kw_only=True, slots=True)
class TableFit:
    """Times of a collective by ranks and size, made to rise with size."""

    ranks: tuple[int, ...]
    sizes: tuple[float, ...]
    seconds: tuple[tuple[float, ...], ...]
    fit: Fit


def line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Intercept ≥ 0 and slope > 0 of least relative squares (weights 1/y²). Raises ``InputError`` where time
    does not rise with size."""
    xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    design = np.stack([1 / ys, xs / ys], axis=1)
    (start, slope), *_ = np.linalg.lstsq(design, np.ones(len(ys)), rcond=None)
    if start < 0:
        start, slope = 0.0, float(np.sum(xs / ys) / np.sum((xs / ys) ** 2))
    if not (math.isfinite(slope) and slope > 0):
        raise InputError("time does not rise with size: these samples are no measurement of it")
    return float(start), float(slope)


def quality(what: str, samples: Sequence[Sample], said: Sequence[float]) -> Fit:
    """How far the curve is from the samples; raises ``InputError`` for samples that are mostly noise."""
    errors = [abs(a / s.median_s - 1) for a, s in zip(said, samples, strict=True)]
    noise = median(s.noise for s in samples)
    # The median of n has 1.25 / sqrt(n) of the spread of one.
    if median(1.25 * s.noise / math.sqrt(len(s.seconds)) for s in samples) > NOISY:
        raise InputError(
            f"{what}: times of one size vary by {noise:.0%}, too much to fit; calibrate on a quiet machine"
        )
    return Fit(what=what, points=len(samples), median_error=median(errors), noise=noise)


def fit_gemm(samples: Sequence[Sample]) -> GemmFit:
    """Of products of one type."""
    flops = [2.0 * math.prod(s.shape) for s in samples]
    start, slope = line(flops, [s.median_s for s in samples])
    best = max(f / s.median_s for f, s in zip(flops, samples, strict=True))
    rate = min(1 / slope, best)
    said = [start + f / rate for f in flops]
    return GemmFit(rate=rate, start_s=max(start, 1e-9), best=best, fit=quality("matmul", samples, said))


def attention_rate(samples: Sequence[Sample], factor: float) -> tuple[dict[int, float], Fit]:
    """FLOP/s of causal attention by head width: the median over lengths. ``factor``: products over those of
    forward (2.5 for backward)."""
    rates: dict[int, list[float]] = {}
    for s in samples:
        batch, heads, tokens, width = s.shape
        flops = factor * 2.0 * batch * heads * tokens * tokens * width  # two products, half of them masked
        rates.setdefault(width, []).append(flops / s.median_s)
    found = {width: median(values) for width, values in sorted(rates.items())}
    said = [
        factor * 2.0 * s.shape[0] * s.shape[1] * s.shape[2] ** 2 * s.shape[3] / found[s.shape[3]]
        for s in samples
    ]
    return found, quality("attention", samples, said)


def fit_link(samples: Sequence[Sample]) -> LinkFit:
    """Of messages between two ranks, sent there and back (half is one way).

    The bandwidth is that of the largest three sizes, where buffers and token buckets no longer help; the
    latency what the small ones take beyond it.
    """
    ordered = sorted(samples, key=lambda s: s.size_bytes)
    if len({s.size_bytes for s in ordered}) < 2:
        raise InputError("a link needs messages between two ranks (p2p) of two sizes or more")
    large = ordered[-3:]
    _, slope = line([s.size_bytes for s in large], [s.median_s / 2 for s in large])
    small = ordered[: max(len(ordered) // 2, 1)]
    start = max(median(s.median_s / 2 - slope * s.size_bytes for s in small), 0.0)
    said = [2 * (start + slope * s.size_bytes) for s in ordered]
    return LinkFit(latency_s=start, bandwidth=1 / slope, fit=quality("p2p", ordered, said))


def fit_table(op: str, samples: Sequence[Sample]) -> TableFit:
    """A collective's table: medians, rising with size (isotonic, the least change in log time), and the last
    step strictly so."""
    ranks = sorted({s.ranks for s in samples})
    sizes = sorted({round(s.size_bytes) for s in samples if s.ranks == ranks[0]})
    if len(sizes) < 2 or sizes[0] < 1:
        raise InputError(f"{op.replace('_', '-')} needs samples of two sizes or more, each of a byte or more")
    rows = []
    for n in ranks:
        mine = sorted((s for s in samples if s.ranks == n), key=lambda s: s.size_bytes)
        own = [s.size_bytes for s in mine]
        times = rising([s.median_s for s in mine])
        rows.append(tuple(float(t) for t in np.exp(np.interp(np.log(sizes), np.log(own), np.log(times)))))
    rows = [(*row[:-1], max(row[-1], row[-2] * 1.001)) for row in rows]
    said = [float(np.interp(s.size_bytes, sizes, rows[ranks.index(s.ranks)])) for s in samples]
    return TableFit(
        ranks=tuple(ranks),
        sizes=tuple(float(s) for s in sizes),
        seconds=tuple(rows),
        fit=quality(op.replace("_", "-"), samples, said),
    )


def rising(times: Sequence[float]) -> list[float]:
    """The nearest times, in least squares of their logarithms, that never fall (pool adjacent violators)."""
    blocks: list[list[float]] = []
    for t in times:
        blocks.append([math.log(t), 1.0])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            value, weight = blocks.pop()
            last = blocks[-1]
            last[0] = (last[0] * last[1] + value * weight) / (last[1] + weight)
            last[1] += weight
    return [math.exp(value) for value, weight in blocks for _ in range(round(weight))]
