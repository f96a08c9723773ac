"""Failures and checkpoints: how often to save, and what a run loses to both.

GPUs fail one after the other, independently and at a constant rate, so that the time between failures of a
job of N GPUs is exponential with mean M = MTTF / N. Every interval τ the job stops for δ seconds to take a
checkpoint; a failure costs what was done since the last one, and a restart of R seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from meshplan.errors import InputError
from meshplan.units import format_seconds

YEAR_S = 365.25 * 86400.0
GPU_MTTF_S = 54 * 86400.0 * 16384 / 419
"""Seconds between failures of one GPU and its share of host, network and software: 419 unexpected
interruptions of 16,384 H100 in 54 days (arXiv 2407.21783, table 5), 5.8 GPU-years. Meta's research clusters
had 6.5 failures in 1,000 node-days (arXiv 2410.21680), 3.4 GPU-years."""
BLOCKING_S = 6.3
"""Seconds training stands still for an asynchronous checkpoint: a 7B model under FSDP, down from 148.8 s when
saved at once (https://pytorch.org/blog/reducing-checkpointing-times)."""
RESTART_S = 600.0
"""Seconds from a failure to the start of loading: detection and diagnosis take under 10 minutes on average
(MegaScale, arXiv 2402.15627, 6.3)."""
SPREAD = 0.0086
"""Spread of the speed of GPUs: the slowest of N sets the pace, 1 + spread · sqrt(2 ln N). Fitted on NeMo runs
of up to 8,192 GPUs, as in the stacks that contain it."""
HOPELESS = 40.0
"""Mean times between failures in one interval or restart; beyond, a run does not get anywhere."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reliability:
    """What can go wrong and what a restart costs; seconds throughout."""

    gpu_mttf_s: float = GPU_MTTF_S
    blocking_s: float = BLOCKING_S
    restart_s: float = RESTART_S
    """Without loading the checkpoint, which ``whole_run`` adds."""
    spread: float = SPREAD
    interval_s: float | None = None
    """Between checkpoints; ``None``: the best one (Daly)."""

    def __post_init__(self) -> None:
        for name in ("gpu_mttf_s", "blocking_s", "restart_s", "interval_s"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise InputError(f"{name} must be a positive time in seconds, not {value:g}")
        if not (math.isfinite(self.spread) and 0 <= self.spread < 1):
            raise InputError(f"the spread of GPU speed must be a share from 0 to 1, not {self.spread:g}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Losses:
    """Expected seconds of wall time of a run, by what they go to."""

    useful_s: float
    checkpoints_s: float
    lost_s: float
    """Work done since the last checkpoint when a failure came, and checkpoints cut short."""
    restarts_s: float
    failures: float
    """Expected number of failures."""

    @property
    def wall_s(self) -> float:
        """All of it."""
        return self.useful_s + self.checkpoints_s + self.lost_s + self.restarts_s


def young_interval_s(blocking_s: float, mtbf_s: float) -> float:
    """Computing between two checkpoints, first order: sqrt(2·δ·M) (Young 1974, CACM 17(9))."""
    return math.sqrt(2 * blocking_s * mtbf_s)


def daly_interval_s(blocking_s: float, mtbf_s: float) -> float:
    """The same to higher order (Daly 2006, FGCS 22(3), eq. 37); the mean time between failures where a
    checkpoint takes more than twice that."""
    if blocking_s >= 2 * mtbf_s:
        return mtbf_s
    x = math.sqrt(blocking_s / (2 * mtbf_s))
    return young_interval_s(blocking_s, mtbf_s) * (1 + x / 3 + x * x / 9) - blocking_s


def expected_losses(
    useful_s: float, *, interval_s: float, blocking_s: float, restart_s: float, mtbf_s: float
) -> Losses:
    """What ``useful_s`` seconds of training take in the mean.

    Wall time: M · e^(R/M) · (e^((τ+δ)/M) − 1) · useful/τ (Daly 2006, eq. 20), exact for exponential failures
    that may also strike a restart. Every failure begins a restart that lasts the shorter of R and the time to
    the next failure, M · (1 − e^(−R/M)) in the mean, and there are wall / M failures. Raises ``InputError``
    where failures come so fast that a run makes no progress.
    """
    segment = interval_s + blocking_s
    if max(segment, restart_s) > HOPELESS * mtbf_s:
        raise InputError(
            f"a failure every {format_seconds(mtbf_s)} leaves no time to work: a restart takes"
            f" {format_seconds(restart_s)} and {format_seconds(segment)} pass between checkpoints; a longer"
            " --gpu-mttf, a shorter --restart or --checkpoint, or --no-failures would do"
        )
    wall = mtbf_s * math.exp(restart_s / mtbf_s) * math.expm1(segment / mtbf_s) * useful_s / interval_s
    checkpoints = useful_s / interval_s * blocking_s
    restarts = wall * -math.expm1(-restart_s / mtbf_s)
    return Losses(
        useful_s=useful_s,
        checkpoints_s=checkpoints,
        lost_s=max(wall - useful_s - checkpoints - restarts, 0.0),
        restarts_s=restarts,
        failures=wall / mtbf_s,
    )


def straggling(gpus: int, spread: float) -> float:
    """How much longer a step takes because the slowest of ``gpus`` sets the pace, as a share: the expected
    maximum of n normal values is about sqrt(2 ln n) deviations above their mean."""
    return spread * math.sqrt(2 * math.log(max(gpus, 1)))
