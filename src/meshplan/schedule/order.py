"""A pipeline schedule as data: for every rank, the order in which it does its work.

An action is a kind of work on one stage for one micro-batch. Kinds: ``F`` forward, ``B`` full
backward, ``I`` the input gradient alone, ``W`` the weight gradient alone (``B`` is ``I`` then ``W``).
Stages count from the embedding; which rank holds a stage follows from whose order names it, so that
loops (rank r holds r, r + p, …), V shapes (r and 2p-1-r) and two copies (DualPipe) need no more words.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

F, B, I, W = range(4)  # noqa: E741  (the papers' letters)
LETTERS = "FBIW"

Ints = npt.NDArray[np.int32]


class Action(NamedTuple):
    """One piece of work; prints as in PyTorch: ``3F0`` is stage 3, forward, micro-batch 0."""

    kind: str
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, weakref_slot=True)
class Order:
    """The work of every rank, rank after rank in flat arrays of equal length.

    Rank ``r`` owns the entries ``first[r]:first[r + 1]``. ``paired`` marks a forward that runs
    together with the backward right after it (DualPipe's overlapped pair). Orders compare by identity.
    """

    name: str
    ranks: int
    stages: int
    micro_batches: int
    kind: npt.NDArray[np.int8]
    stage: Ints
    micro_batch: Ints
    first: Ints
    paired: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.kind)

    def __repr__(self) -> str:
        size = f"{self.ranks} ranks, {self.stages} stages, {self.micro_batches} micro-batches"
        return f"<Order {self.name}: {size}, {len(self)} actions>"

    @property
    def rank(self) -> Ints:
        """The rank of every action."""
        return np.repeat(np.arange(self.ranks, dtype=np.int32), np.diff(self.first))

    @property
    def splits_backward(self) -> bool:
        """Whether any backward is split into input and weight gradient."""
        return bool((self.kind >= I).any())

    def action(self, index: int) -> Action:
        """The action at a flat index."""
        return Action(LETTERS[self.kind[index]], int(self.stage[index]), int(self.micro_batch[index]))

    def of_rank(self, rank: int) -> list[Action]:
        """The actions of one rank, in order."""
        return [self.action(i) for i in range(self.first[rank], self.first[rank + 1])]

    def stages_of(self, rank: int) -> list[int]:
        """The stages a rank works on, in model order."""
        return [int(s) for s in np.unique(self.stage[self.first[rank] : self.first[rank + 1]])]

    def __str__(self) -> str:
        return "\n".join(f"{r}: " + " ".join(map(str, self.of_rank(r))) for r in range(self.ranks))


class Program(NamedTuple):
    """The work of one rank, as a generator makes it: arrays of equal length."""

    kind: npt.NDArray[np.integer]
    stage: npt.NDArray[np.integer]
    micro_batch: npt.NDArray[np.integer]
    paired: npt.NDArray[np.bool_] | None = None


def assemble(name: str, *, stages: int, micro_batches: int, programs: Sequence[Program]) -> Order:
    """The order of these rank programs (not validated: see ``graph``)."""
    lengths = [len(program.kind) for program in programs]
    paired = [
        np.zeros(n, bool) if p.paired is None else p.paired for p, n in zip(programs, lengths, strict=True)
    ]
    return Order(
        name=name,
        ranks=len(programs),
        stages=stages,
        micro_batches=micro_batches,
        kind=np.concatenate([p.kind for p in programs]).astype(np.int8),
        stage=np.concatenate([p.stage for p in programs]).astype(np.int32),
        micro_batch=np.concatenate([p.micro_batch for p in programs]).astype(np.int32),
        first=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
        paired=np.concatenate(paired).astype(bool),
    )


def program(actions: Iterable[tuple[int, int, int]]) -> Program:
    """A rank program from (kind code, stage, micro-batch) triples."""
    table = np.array(list(actions), dtype=np.int64).reshape(-1, 3)
    return Program(table[:, 0], table[:, 1], table[:, 2])
