"""A whole run from the time of a step: days, GPU hours, energy and money, with and without failures."""

from __future__ import annotations

import math
from dataclasses import dataclass

from meshplan.cost.costs import Costs
from meshplan.errors import InputError
from meshplan.goodput.checkpoint import Checkpoint, checkpoint_of
from meshplan.goodput.failures import (
    Losses,
    Reliability,
    daly_interval_s,
    expected_losses,
    straggling,
    young_interval_s,
)
from meshplan.goodput.money import Power, Price
from meshplan.model.counts import model_parameters
from meshplan.model.model import Model
from meshplan.plan.workload import Workload

MOST_TOKENS = 1e18


@dataclass(frozen=True, kw_only=True, slots=True)
class WholeRun:
    """A run of ``steps`` equal steps."""

    tokens: float
    steps: int
    gpus: int
    step_s: float
    """As estimated; stragglers, where the estimate has none, come on top."""
    straggler_s: float
    """Seconds of the whole run that the slowest GPU adds."""
    losses: Losses
    """``useful_s`` contains ``straggler_s``."""
    reliability: Reliability | None
    """``None``: nothing fails."""
    mtbf_s: float | None
    interval_s: float | None
    young_s: float | None
    checkpoint: Checkpoint
    price: Price | None
    power: Power

    @property
    def wall_s(self) -> float:
        """From the first step to the last."""
        return self.losses.wall_s

    @property
    def days(self) -> float:
        """The same in days."""
        return self.wall_s / 86400

    @property
    def gpu_hours(self) -> float:
        """GPUs times hours, idle ones too."""
        return self.gpus * self.wall_s / 3600

    @property
    def energy_j(self) -> float:
        """Joules at the power of ``power``, all the time."""
        return self.gpus * self.wall_s * self.power.watts

    @property
    def usd(self) -> float | None:
        """Dollars; ``None`` where there is no price."""
        return None if self.price is None else self.gpu_hours * self.price.usd_per_hour

    @property
    def goodput(self) -> float:
        """Share of the wall time that would be enough on a cluster of equal GPUs that never fail."""
        return (self.losses.useful_s - self.straggler_s) / self.wall_s


def whole_run(
    model: Model,
    workload: Workload,
    costs: Costs,
    *,
    gpus: int,
    tokens: float,
    reliability: Reliability | None,
    price: Price | None,
    power: Power,
) -> WholeRun:
    """Train on ``tokens`` tokens with the plan of ``costs``' first row; whole steps are counted.

    ``reliability=None`` leaves out failures, checkpoints and stragglers. Raises ``InputError`` for fewer
    tokens than one, more than ``MOST_TOKENS``, or failures that leave no time to work.
    """
    if not (math.isfinite(tokens) and 1 <= tokens <= MOST_TOKENS):
        raise InputError(f"tokens must be from 1 to {MOST_TOKENS:g}, not {tokens:g}")
    step = float(costs.step_s[0])
    steps = math.ceil(tokens / workload.tokens * (1 - 1e-12))
    checkpoint = checkpoint_of(model_parameters(model).total, gpus)
    straggler = 0.0
    losses = Losses(useful_s=steps * step, checkpoints_s=0.0, lost_s=0.0, restarts_s=0.0, failures=0.0)
    mtbf = interval = young = None
    if reliability is not None:
        if "straggler" not in costs.time:
            straggler = steps * step * straggling(gpus, reliability.spread)
        mtbf = reliability.gpu_mttf_s / gpus
        young = young_interval_s(reliability.blocking_s, mtbf)
        # A checkpoint must be written before the next one is taken.
        best = max(daly_interval_s(reliability.blocking_s, mtbf), checkpoint.transfer_s)
        interval = reliability.interval_s or best
        losses = expected_losses(
            steps * step + straggler,
            interval_s=interval,
            blocking_s=reliability.blocking_s,
            restart_s=reliability.restart_s + checkpoint.transfer_s,
            mtbf_s=mtbf,
        )
    return WholeRun(
        tokens=tokens, steps=steps, gpus=gpus, step_s=step, straggler_s=straggler, losses=losses,
        reliability=reliability, mtbf_s=mtbf, interval_s=interval, young_s=young, checkpoint=checkpoint,
        price=price, power=power,
    )  # fmt: skip
