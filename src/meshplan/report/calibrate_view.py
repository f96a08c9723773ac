"""A calibration in words: what was fitted, how well, and what the cluster's links are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from meshplan.calibrate.profile import Calibration
from meshplan.cluster.cluster import Cluster
from meshplan.report.parts import wrap
from meshplan.report.screen import Screen
from meshplan.report.table import Column, table


def calibration_text(made: Calibration, cluster: Cluster, path: Path, screen: Screen) -> str:
    """Tables of fits and links, and how to use the file."""
    return screen.text("\n".join(_lines(made, cluster, path, screen)) + "\n")


def _lines(made: Calibration, cluster: Cluster, path: Path, screen: Screen) -> Iterator[str]:
    gpu = cluster.gpu
    yield screen.bold(f"{cluster.gpus}× {gpu.title}, measured")
    product, copy = gpu.peak_flops["bf16"] / 1e9, gpu.hbm_bandwidth / 1e9
    yield f"fastest product {product:,.0f} GFLOP/s · copy {copy:.3g} GB/s"
    yield ""
    yield from table(
        [
            Column(title="link", cells=[t.name for t in cluster.tiers]),
            Column(title="ranks", cells=[f"{t.span}" for t in cluster.tiers], right=True),
            Column(title="GB/s", cells=[f"{t.bandwidth / 1e9:.3g}" for t in cluster.tiers], right=True),
            Column(title="latency µs", cells=[f"{t.latency_s * 1e6:.3g}" for t in cluster.tiers], right=True),
        ],
        screen.width,
    )
    yield ""
    yield from table(
        [
            Column(title="curve", cells=[f.what for f in made.fits]),
            Column(title="points", cells=[str(f.points) for f in made.fits], right=True),
            Column(title="median error", cells=[f"{f.median_error:.1%}" for f in made.fits], right=True),
            Column(title="noise", cells=[f"{f.noise:.1%}" for f in made.fits], right=True),
        ],
        screen.width,
    )
    yield ""
    yield from wrap(
        f"use it with --cluster {path}; curves that were not measured are those of another GPU, as the"
        " profile says beside each",
        screen.width,
    )
