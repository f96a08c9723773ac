"""One step of a plan's pipeline for the picture: simulated as the search does, or, from an answer that holds
no durations, from the parts of the plan's time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from meshplan.cost.full.pipeline import Pipelines
from meshplan.cost.full.stages import held_by_ranks
from meshplan.errors import InputError
from meshplan.plan.kinds import Schedule
from meshplan.schedule.generate import make_order
from meshplan.schedule.result import Simulation
from meshplan.schedule.simulate import simulate
from meshplan.schedule.steady import order_of, peak_alive

MOST_ACTIONS = 60_000
"""Beyond, fewer micro-batches are drawn: a picture has only so many pixels."""
ONCE = ("optimizer", "step overhead", "straggler", "dp")
"""Parts that come once a step, after the last micro-batch."""
NOT_WORK = ("bubble", "pp", "imbalance", *ONCE)
FORWARD, BACKWARD = 1 / 3, 2 / 3
"""Shares of a micro-batch's work: the backward pass has twice the FLOP of the forward pass."""


def durations_data(pipes: Pipelines, row: int) -> dict[str, Any]:
    """What ``pipeline_run`` needs of a plan's pipeline: seconds of one micro-batch a stage."""
    p = pipes.plans
    pp, vp = int(p.pp[row]), int(p.vp[row])
    stages = pp * vp
    return {
        "forward": pipes.forward[row, :stages].tolist(),
        "backward_input": pipes.backward_input[row, :stages].tolist(),
        "weight": pipes.weight[row, :stages].tolist(),
        "hop": float(pipes.hop[row]),
        "holds": bool(pipes.holds[row]),
        "tail": pipes.tail[row, :pp].tolist(),
    }


def stages_data(pipes: Pipelines, row: int, schedule: str) -> list[dict[str, Any]]:
    """Memory of every kind of pipeline rank by part, the micro-batches alive counted by simulation; ranks
    that hold the same are one entry."""
    p = pipes.plans
    pp, vp = int(p.pp[row]), int(p.vp[row])
    stages = pp * vp
    alive = pipes.activations[row, :1]
    if stages > 1:
        alive = peak_alive(
            schedule, ranks=pp, vp=vp, micro_batches=int(pipes.micro_batches[row]),
            activations=pipes.activations[row : row + 1, :stages],
        )[0]  # fmt: skip
    kind = Schedule(int(p.schedule[row]))
    held = held_by_ranks(pipes.layers_of(row), pp, kind)
    first, last = {int(pipes.home[row, 0])}, {int(pipes.home[row, stages - 1])}
    if kind is Schedule.DUALPIPE:
        first = last = first | last
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for rank in range(pp):
        memory = {name: float(value[row, rank]) for name, value in pipes.memory.items()}
        memory["activations"] += float(alive[rank])
        memory["fragmentation"] += pipes.fragmentation * float(alive[rank])
        ends = (rank in first, rank in last)
        key = (*ends, *(round(size / 2**20) for size in memory.values()))
        if key in found:
            found[key]["ranks"] += 1
            continue
        found[key] = {
            "ranks": 1,
            "first_rank": rank,
            "layers": sum(held[rank]),
            "layers_of_stages": list(held[rank]),
            "embedding": ends[0],
            "head": ends[1],
            "memory_bytes": sum(memory.values()),
            "memory": memory,
        }
    return list(found.values())


def pipeline_run(plan: Mapping[str, Any]) -> tuple[Simulation, int] | None:
    """The simulated step of a plan (``gather.chosen_data``, or a row of ``plan --json``), and how many
    micro-batches were left out.

    ``None`` for a plan without pipeline, or with a schedule whose order cannot be made for its counts.
    """
    ranks, batches = int(plan["pp"]), int(plan["micro_batches"])
    if ranks < 2:
        return None
    vp = int(plan["vp"])
    drawn = _drawn(ranks, vp, batches)
    known = plan.get("pipeline")
    try:
        if known is not None:
            order = order_of(plan["schedule"], ranks=ranks, micro_batches=drawn, vp=vp)
            times = {name: known[name] for name in ("forward", "backward_input", "weight", "tail")}
            run = simulate(order, **times, p2p=known["hop"], overlap_p2p=not known["holds"])
            return run, batches - drawn
        order = make_order(
            plan["schedule"], ranks=ranks, micro_batches=drawn, vp=vp if vp > 1 else None, unfilled=True
        )
    except InputError:
        return None
    return simulate(order, **_spread(plan, order.stages, order.splits_backward)), batches - drawn


def _spread(plan: Mapping[str, Any], stages: int, split: bool) -> dict[str, Any]:
    """Durations from parts: work spread evenly over stages, the slowest rank's surplus on the last, where the
    head is."""
    time, ranks, batches = plan["time"], int(plan["pp"]), int(plan["micro_batches"])
    work = sum(value for part, value in time.items() if part not in NOT_WORK and part != "recompute")
    again, surplus = time.get("recompute", 0.0), time.get("imbalance", 0.0)
    chunks = stages // ranks
    # ``imbalance`` is the slowest rank's surplus over the mean of all.
    last = (work + surplus) / batches
    others = max((work - surplus / (ranks - 1)) / batches, 0.0)
    share = np.full(stages, others / chunks)
    share[-1] = max(last - others * (chunks - 1) / chunks, 0.0)
    weight = FORWARD * share if split else 0.0 * share
    return {
        "forward": FORWARD * share,
        "backward_input": BACKWARD * share + again / batches / chunks - weight,
        "weight": weight,
        "tail": sum(time.get(part, 0.0) for part in ONCE),
    }


def _drawn(ranks: int, vp: int, batches: int) -> int:
    """Micro-batches to draw: all, or a multiple of the ranks that keeps the picture small."""
    most = MOST_ACTIONS // (3 * ranks * vp)
    if batches <= most:
        return batches
    return max(most // (2 * ranks) * 2 * ranks, 2 * ranks)
