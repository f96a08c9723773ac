"""A calibration in words: what was fitted, how well, and what the cluster's links are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from meshplan.calibrate.known import Bent
from meshplan.calibrate.profile import Calibration
from meshplan.calibrate.stack_fit import StackFit
from meshplan.cluster.cluster import Cluster
from meshplan.report.parts import step_time, wrap
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


def bent_text(bent: Sequence[Bent], cluster: Cluster, path: Path, screen: Screen) -> str:
    """What times from elsewhere changed in a shipped profile."""
    return screen.text("\n".join(_bent_lines(bent, cluster, path, screen)) + "\n")


def _bent_lines(bent: Sequence[Bent], cluster: Cluster, path: Path, screen: Screen) -> Iterator[str]:
    yield screen.bold(f"{cluster.gpus:,}× {cluster.gpu.title}, its shipped curves bent to these times")
    yield from table(
        [
            Column(title="curve", cells=[b.what for b in bent]),
            Column(title="points", cells=[f"{b.points:,}" for b in bent], right=True),
            Column(
                title="error before",
                cells=["–" if math.isnan(b.before) else f"{b.before:.1%}" for b in bent],
                right=True,
            ),
            Column(title="after", cells=[f"{b.after:.1%}" for b in bent], right=True),
        ],
        screen.width,
    )
    yield ""
    yield from wrap(f"median errors; use it with --cluster {path}", screen.width)


def stack_data(fit: StackFit, path: Path) -> dict[str, Any]:
    """The fitted scalars, and every plan measured, before, after and held back; plain data."""
    return {
        "file": str(path),
        "fitted": fit.values,
        "median_error": {
            "before": fit.error("before_s"),
            "after": fit.error("after_s"),
            "held_back": fit.error("held_back_s"),
        },
        "plans": [asdict(r) for r in fit.rows],
    }


def stack_text(fit: StackFit, path: Path, screen: Screen) -> str:
    """The same as a table."""
    return screen.text("\n".join(_stack_lines(fit, path, screen)) + "\n")


def _stack_lines(fit: StackFit, path: Path, screen: Screen) -> Iterator[str]:
    yield ""
    yield screen.bold(f"stack {fit.stack.name}: {len(fit.values)} scalars fitted on {len(fit.rows)} plans")
    whole = max(r.measured_s for r in fit.rows)
    yield from table(
        [
            Column(title="plan", cells=[r.label for r in fit.rows]),
            Column(title="measured", cells=[step_time(r.measured_s, whole) for r in fit.rows], right=True),
            *(
                Column(
                    title=title,
                    cells=[f"{getattr(r, name) / r.measured_s - 1:+.0%}" for r in fit.rows],
                    right=True,
                )
                for title, name in (
                    ("before", "before_s"),
                    ("after", "after_s"),
                    ("held back", "held_back_s"),
                )
            ),
        ],
        screen.width,
    )
    yield from wrap(
        f"median error {fit.error('before_s'):.1%} before, {fit.error('after_s'):.1%} after, and"
        f" {fit.error('held_back_s'):.1%} for plans held back: each estimated by a fit on the others",
        screen.width,
    )
    values = ", ".join(f"{k} {v:.3g}" for k, v in fit.values.items())
    yield from wrap(values, screen.width)
    yield ""
    yield from wrap(f"use it with --stack {path}", screen.width)
