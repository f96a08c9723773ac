"""One step of a plan's pipeline, simulated from the parts of its priced time, for the picture.

The parts say what ranks spend on average and what the slowest has more. The picture spreads work evenly
over stages and gives the slowest's surplus to the last, where the head is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshplan.errors import InputError
from meshplan.schedule.generate import make_order
from meshplan.schedule.result import Simulation
from meshplan.schedule.simulate import simulate

MOST_ACTIONS = 60_000
"""Beyond, fewer micro-batches are drawn: a picture has only so many pixels."""
ONCE = ("optimizer", "step overhead", "straggler", "dp")
"""Parts that come once a step, after the last micro-batch."""
NOT_WORK = ("bubble", "pp", "imbalance", *ONCE)
FORWARD, BACKWARD = 1 / 3, 2 / 3
"""Shares of a micro-batch's work: the backward pass has twice the FLOP of the forward pass."""


def pipeline_run(plan: Mapping[str, Any]) -> tuple[Simulation, int] | None:
    """The simulated step of a plan (a row of ``plan --json``), and how many micro-batches were left out.

    ``None`` for a plan without pipeline, or with a schedule whose order cannot be made for its counts.
    """
    ranks, batches = int(plan["pp"]), int(plan["micro_batches"])
    if ranks < 2:
        return None
    vp = int(plan["vp"])
    drawn = _drawn(ranks, vp, batches)
    try:
        order = make_order(
            plan["schedule"], ranks=ranks, micro_batches=drawn, vp=vp if vp > 1 else None, unfilled=True
        )
    except InputError:
        return None
    time = plan["time"]
    work = sum(value for part, value in time.items() if part not in NOT_WORK and part != "recompute")
    again, surplus = time.get("recompute", 0.0), time.get("imbalance", 0.0)
    chunks = order.stages // ranks
    # ``imbalance`` is the slowest rank's surplus over the mean of all.
    last = (work + surplus) / batches
    others = max((work - surplus / (ranks - 1)) / batches, 0.0)
    share = [others / chunks] * (order.stages - 1) + [max(last - others * (chunks - 1) / chunks, 0.0)]
    split = order.splits_backward
    forward = [FORWARD * s for s in share]
    backward = [BACKWARD * s + again / batches / chunks for s in share]
    weight = [FORWARD * s if split else 0.0 for s in share]
    tail = sum(time.get(part, 0.0) for part in ONCE)
    run = simulate(
        order,
        forward=forward,
        backward_input=[b - w for b, w in zip(backward, weight, strict=True)],
        weight=weight,
        tail=tail,
    )
    return run, batches - drawn


def _drawn(ranks: int, vp: int, batches: int) -> int:
    """Micro-batches to draw: all, or a multiple of the ranks that keeps the picture small."""
    most = MOST_ACTIONS // (3 * ranks * vp)
    if batches <= most:
        return batches
    return max(most // (2 * ranks) * 2 * ranks, 2 * ranks)
