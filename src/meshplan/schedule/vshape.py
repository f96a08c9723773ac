"""Schedules on a V: rank r holds stage r going down and stage 2p-1-r coming back up.

ZB-V is section 6 of the zero-bubble paper (arXiv 2401.10241). V-Half and V-Min follow the method of
"Pipeline Parallelism with Controllable Memory" (arXiv 2405.15362): one micro-batch's passes form a
building block, the block is repeated every six time units (F, B, W of two stages), and the time
between a forward and its backward decides how many activations are alive.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from meshplan.schedule.order import F, I, Order, Program, W, assemble, program

PERIOD = 6
"""Time units of one micro-batch on one rank: forward, input and weight gradient of two stages."""

Row = tuple[int, int, int]


def zb_v(*, ranks: int, micro_batches: int) -> Order:
    """ZB-V: no bubble if forward, input gradient and weight gradient take the same time.

    With fewer than 2p - 1 micro-batches the order is that of 2p - 1, the missing ones left out.
    """
    programs = [program(_zb_v_rank(ranks, r, micro_batches)) for r in range(ranks)]
    return assemble("zb-v", stages=2 * ranks, micro_batches=micro_batches, programs=programs)


def _zb_v_rank(ranks: int, r: int, micro_batches: int) -> list[Row]:
    down, up = r, 2 * ranks - 1 - r
    n = max(micro_batches, 2 * ranks - 1)
    rows: list[Row] = []
    done: dict[tuple[int, int], int] = {}

    def add(stage: int, *kinds: int) -> None:
        for kind in kinds:
            j = done[kind, stage] = done.get((kind, stage), -1) + 1
            rows.append((kind, stage, j))

    for _ in range(2 * (ranks - r) - 1):
        add(down, F)
    for _ in range(r):
        add(up, F)
        add(down, F)
    for _ in range(ranks - r):
        add(up, F, I, W)
    warm_up = 2 * ranks - r - 1
    for k in range(n - ranks):
        if warm_up + k < n:
            add(down, F)
        add(down, I, W)
        add(up, F, I, W)
    for _ in range(r):
        add(down, I)
        add(up, I)
    for _ in range(ranks - r):
        add(down, I, W)
    for _ in range(r):
        add(up, W)
    for _ in range(r):
        add(down, W)
    return [row for row in rows if row[2] < micro_batches]


def v_half(*, ranks: int, micro_batches: int) -> Order:
    """V-Half: ``(p + 2) // 2`` micro-batches alive on a rank, half of 1F1B.

    With an even number of ranks the turn from forward to backward waits three units: the weight
    gradients then fall into slots that keep half a micro-batch less alive. The block is the paper's; its
    authors then also move passes of the first and the last rounds into idle slots where no more memory is
    needed, which is not done here: with equal times the bubble is 0.59 to 0.62 of 1F1B's from 5 ranks on,
    with that step 0.40 to 0.50.
    """
    return _repeated("v-half", ranks, micro_batches, offsets=(2, 1, 2, 1), pause=3 * (ranks % 2 == 0))


def v_min(*, ranks: int, micro_batches: int) -> Order:
    """V-Min: ``(p + 4) // 3`` micro-batches alive on a rank, a third of 1F1B.

    Its passes follow each other so closely that unequal forward and backward times cost a bubble for
    every micro-batch, not only at the ends.
    """
    return _repeated("v-min", ranks, micro_batches, offsets=(1, 1, 1, 1), pause=0)


def _repeated(
    name: str, ranks: int, micro_batches: int, *, offsets: tuple[int, int, int, int], pause: int
) -> Order:
    """The order in which the repeated building block's passes start; its idle slots squeezed out."""
    starts = building_block(ranks, offsets, pause)
    kinds = np.array([F, F, I, I, W, W])
    batch = np.arange(micro_batches)
    programs = []
    for r in range(ranks):
        down, up = r, 2 * ranks - 1 - r
        stages = np.array([down, up, up, down, up, down])
        slots = (starts[r][:, None] + PERIOD * batch).ravel()
        by_slot = np.argsort(slots, kind="stable")
        columns = (np.repeat(kinds, micro_batches), np.repeat(stages, micro_batches), np.tile(batch, 6))
        programs.append(Program(columns[0][by_slot], columns[1][by_slot], columns[2][by_slot]))
    return assemble(name, stages=2 * ranks, micro_batches=micro_batches, programs=programs)


def building_block(ranks: int, offsets: tuple[int, int, int, int], pause: int = 0) -> npt.NDArray[np.int64]:
    """Start slots of one micro-batch, shape (ranks, 6): F down, F up, I up, I down, W up, W down.

    ``offsets`` are the time units between neighbouring ranks on the four legs. A leg starts as soon as
    the one before has ended and no rank would need the same slot (modulo the period) twice; weight
    gradients take the first free slots after their input gradients. ``pause`` units pass between the
    last forward and the first backward.
    """
    position = np.arange(ranks)
    legs: list[npt.NDArray[np.int64]] = [offsets[0] * position]
    for leg in (1, 2, 3):
        # Legs down start at rank 0, legs up at rank p - 1; each begins where the one before ended.
        along = position if leg == 2 else ranks - 1 - position
        turn = ranks - 1 if leg != 2 else 0
        start = int(legs[-1][turn]) + 1 + (pause if leg == 2 else 0)
        while any(((start + offsets[leg] * along - other) % PERIOD == 0).any() for other in legs):
            start += 1
        legs.append(start + offsets[leg] * along)
    block = np.zeros((ranks, 6), dtype=np.int64)
    block[:, :4] = np.stack(legs, axis=1)
    for r in range(ranks):
        taken = {int(t) % PERIOD for t in block[r, :4]}
        for column, after in ((4, block[r, 2]), (5, block[r, 3])):
            slot = int(after) + 1
            while slot % PERIOD in taken:
                slot += 1
            taken.add(slot % PERIOD)
            block[r, column] = slot
    return block
