"""DualPipe and DualPipeV (DeepSeek-V3, arXiv 2412.19437, and github.com/deepseek-ai/DualPipe).

Both are the same eight phases. DualPipeV folds the model over the ranks (rank r holds stages r and
2p-1-r). DualPipe keeps two copies of the model, fed from both ends: rank r of p holds stage r of the
copy that flows down and stage p-1-r of the copy that flows up, half of the micro-batches each.
"Near" is the stage a rank meets first, "far" the one it meets second.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from meshplan.schedule.order import B, F, I, Order, Program, W, assemble


class _Writer:
    """Writes one rank's program; counts the micro-batches of each stage, queues weight gradients."""

    def __init__(self, near: tuple[int, int], far: tuple[int, int]) -> None:
        # (stage, first micro-batch) of the near and of the far stage
        self.sites = (near, far)
        self.done = {(kind, site): 0 for kind in (F, B) for site in (0, 1)}
        self.waiting: deque[tuple[int, int]] = deque()
        self.rows: list[tuple[int, int, int, bool]] = []

    def add(self, kind: int, site: int, *, paired: bool = False) -> None:
        stage, base = self.sites[site]
        counter = (F if kind == F else B, site)
        micro_batch = base + self.done[counter]
        self.done[counter] += 1
        self.rows.append((kind, stage, micro_batch, paired))
        if kind == I:
            self.waiting.append((stage, micro_batch))

    def pair(self, forward: int, backward: int) -> None:
        self.add(F, forward, paired=True)
        self.add(B, backward)

    def weight(self) -> None:
        if self.waiting:
            self.rows.append((W, *self.waiting.popleft(), False))

    def program(self) -> Program:
        table = np.array(self.rows, dtype=np.int64).reshape(-1, 4)
        return Program(table[:, 0], table[:, 1], table[:, 2], table[:, 3].astype(bool))


def _write(writer: _Writer, depth: int, position: int, micro_batches: int) -> Program:
    """The eight phases of the rank ``position`` places from the end of a fold ``depth`` ranks deep."""
    near, far = 0, 1
    inner, outer = position + 1, depth - position - 1
    for _ in range(2 * outer):
        writer.add(F, near)
    for _ in range(inner):
        writer.add(F, near)
        writer.add(F, far)
    for _ in range(outer):
        writer.add(I, far)
        writer.weight()
        writer.add(F, far)
    for i in range(micro_batches - 2 * depth + inner):
        if i == 0 and outer == 0:
            # The turning rank keeps its first pair apart: its backward can start no earlier.
            writer.add(F, near)
            writer.add(B, far)
        else:
            writer.pair(near, far)
        writer.pair(far, near)
    for _ in range(outer):
        writer.add(B, far)
        writer.pair(far, near)
    split = [2 * i + site >= inner for i in range(inner) for site in (0, 1)]
    for i, late in enumerate(split):
        writer.add(I if late else B, far if i % 2 == 0 else near)
    for _ in range(outer):
        writer.weight()
        writer.add(I, near)
    for _ in range(inner):
        writer.weight()
    return writer.program()


def dualpipe_v(*, ranks: int, micro_batches: int) -> Order:
    """DualPipeV: V placement, at least two micro-batches a rank."""
    programs = [
        _write(_Writer((r, 0), (2 * ranks - 1 - r, 0)), ranks, r, micro_batches) for r in range(ranks)
    ]
    return assemble("dualpipe-v", stages=2 * ranks, micro_batches=micro_batches, programs=programs)


def dualpipe(*, ranks: int, micro_batches: int) -> Order:
    """DualPipe: micro-batches ``0 .. m/2 - 1`` flow down the ranks, the others up."""
    half = micro_batches // 2
    programs = []
    for r in range(ranks):
        down, up = (r, 0), (ranks - 1 - r, half)
        near, far = (down, up) if r < ranks // 2 else (up, down)
        programs.append(_write(_Writer(near, far), ranks // 2, min(r, ranks - 1 - r), half))
    return assemble("dualpipe", stages=ranks, micro_batches=micro_batches, programs=programs)
