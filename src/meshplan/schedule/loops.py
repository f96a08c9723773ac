"""Schedules whose stages loop over the ranks: rank r holds stages r, r + p, r + 2p, …

GPipe (arXiv 1811.06965), 1F1B (PipeDream-Flush, arXiv 2006.09503), interleaved 1F1B (Megatron-LM,
arXiv 2104.04473), breadth-first looped (arXiv 2211.05953), ZB-H1 and ZB-H2 (arXiv 2401.10241, section 2).

All but GPipe and the breadth-first one are a single pattern. A rank has n forwards and n backwards,
each in a fixed sequence. It starts with some warm-up forwards, then alternates one forward and one
backward, then drains the backwards. Zero bubble splits each backward and does its weight gradient a
fixed number of backwards later; what is left of them comes last.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from meshplan.schedule.order import B, F, I, Order, Program, W, assemble

Steps = npt.NDArray[np.int64]


def gpipe(*, ranks: int, micro_batches: int) -> Order:
    """Every forward, then every backward, both from micro-batch 0 on."""
    m = np.arange(micro_batches)
    kind = np.repeat([F, B], micro_batches)
    programs = [Program(kind, np.full(2 * micro_batches, r), np.concatenate([m, m])) for r in range(ranks)]
    return assemble("gpipe", stages=ranks, micro_batches=micro_batches, programs=programs)


def looped_bfs(*, ranks: int, micro_batches: int, vp: int) -> Order:
    """All micro-batches through one stage before the next stage; the backward is the mirror image."""
    m = np.tile(np.arange(micro_batches), vp)
    kind = np.repeat([F, B], vp * micro_batches)
    programs = []
    for r in range(ranks):
        stage = np.repeat(np.arange(vp) * ranks + r, micro_batches)
        programs.append(Program(kind, np.concatenate([stage, stage[::-1]]), np.concatenate([m, m[::-1]])))
    return assemble("looped-bfs", stages=ranks * vp, micro_batches=micro_batches, programs=programs)


def one_f_one_b(*, ranks: int, micro_batches: int) -> Order:
    """Rank r runs p - r - 1 forwards ahead."""
    return _alternating("1f1b", ranks, micro_batches, vp=1, group=micro_batches, ahead=1)


def interleaved(*, ranks: int, micro_batches: int, vp: int, group: int) -> Order:
    """Each group of micro-batches goes through all stages of a rank before the next group starts.

    Rank r runs ``2 (p - r - 1) + (vp - 1) · group`` stage forwards ahead.
    """
    return _alternating("interleaved", ranks, micro_batches, vp=vp, group=group, ahead=2)


def zb_h1(*, ranks: int, micro_batches: int, vp: int, group: int) -> Order:
    """1F1B with weight gradients r backwards late on rank r: as many micro-batches alive everywhere."""
    return _alternating("zb-h1", ranks, micro_batches, vp=vp, group=group, ahead=1, late=1)


def zb_h2(*, ranks: int, micro_batches: int) -> Order:
    """Twice the warm-up of 1F1B, weight gradients 2r backwards late on rank r: 2p - 1 alive everywhere."""
    return _alternating("zb-h2", ranks, micro_batches, vp=1, group=micro_batches, ahead=2, late=2)


def _alternating(
    name: str, ranks: int, micro_batches: int, *, vp: int, group: int, ahead: int, late: int | None = None
) -> Order:
    """Warm-up, one forward one backward, drain; ``late`` weight gradients a rank wait for (None: no split).

    The warm-up of rank r is ``ahead · (p - r - 1) + (vp - 1) · group`` forwards.
    """
    chunk, micro_batch = group_steps(micro_batches, vp, group)
    total = len(chunk)
    step = np.arange(total)
    programs = []
    for r in range(ranks):
        warm_up = min(ahead * (ranks - r - 1) + (vp - 1) * group, total)
        # Slots of a sort: step k of the alternation owns 4k .. 4k + 3; the warm-up comes before slot 0.
        forward_at = np.where(step < warm_up, step - warm_up, 4 * (step - warm_up))
        backward_at = 4 * step + 1
        kinds, slots = (
            [np.full(total, F), np.full(total, B if late is None else I)],
            [forward_at, backward_at],
        )
        stages, batches = [chunk * ranks + r, (vp - 1 - chunk) * ranks + r], [micro_batch, micro_batch]
        if late is not None:
            wait = step + late * r
            kinds.append(np.full(total, W))
            slots.append(np.where(wait < total, 4 * wait + 2, 4 * total + step))
            stages.append(stages[1])
            batches.append(micro_batch)
        by_slot = np.argsort(np.concatenate(slots), kind="stable")
        kind, stage, batch = (np.concatenate(columns)[by_slot] for columns in (kinds, stages, batches))
        programs.append(Program(kind, stage, batch))
    return assemble(name, stages=ranks * vp, micro_batches=micro_batches, programs=programs)


def group_steps(micro_batches: int, vp: int, group: int) -> tuple[Steps, Steps]:
    """(chunk, micro-batch) of every forward step: group after group, in a group chunk after chunk."""
    chunks, batches = [], []
    for start in range(0, micro_batches, group):
        size = min(group, micro_batches - start)
        chunks.append(np.repeat(np.arange(vp), size))
        batches.append(np.tile(np.arange(start, start + size), vp))
    return np.concatenate(chunks), np.concatenate(batches)
