"""The choices of a plan that are not numbers, each with its code in the table of plans."""

from __future__ import annotations

from enum import IntEnum, IntFlag


class Schedule(IntEnum):
    """Order of forward and backward work in the pipeline."""

    GPIPE = 0
    ONE_F_ONE_B = 1
    INTERLEAVED = 2
    LOOPED_BFS = 3
    ZB_H1 = 4
    ZB_H2 = 5
    ZB_V = 6
    V_HALF = 7
    V_MIN = 8
    DUALPIPE = 9
    DUALPIPE_V = 10

    @property
    def label(self) -> str:
        """The name people type: ``1f1b``, ``zb-h1``, ``dualpipe-v``."""
        return "1f1b" if self is Schedule.ONE_F_ONE_B else self.name.lower().replace("_", "-")

    @classmethod
    def named(cls, text: str) -> Schedule | None:
        """The schedule people mean by ``text``: its label however it is spelt (``ZBV``, ``dual_pipe``), or
        the name another paper or PyTorch's classes give it; ``None`` for no schedule."""
        plain = "".join(ch for ch in text.lower() if ch.isalnum()).removeprefix("schedule")
        known = _OTHER_NAMES.get(plain)
        return known if known is not None else next((s for s in cls if _plain(s.label) == plain), None)


def _plain(label: str) -> str:
    return label.replace("-", "")


_OTHER_NAMES = {
    "afab": Schedule.GPIPE,
    "pipedreamflush": Schedule.ONE_F_ONE_B,
    "oneforwardonebackward": Schedule.ONE_F_ONE_B,
    "interleaved1f1b": Schedule.INTERLEAVED,
    "1f1binterleaved": Schedule.INTERLEAVED,
    "1f1bvpp": Schedule.INTERLEAVED,
    "bfs": Schedule.LOOPED_BFS,
    "breadthfirst": Schedule.LOOPED_BFS,
    "breadthfirstlooped": Schedule.LOOPED_BFS,
    "loopedbreadthfirst": Schedule.LOOPED_BFS,
    "zerobubbleh1": Schedule.ZB_H1,
    "zb1p": Schedule.ZB_H1,
    "zerobubbleh2": Schedule.ZB_H2,
    "zb2p": Schedule.ZB_H2,
    "zerobubblev": Schedule.ZB_V,
    "zbvzerobubble": Schedule.ZB_V,
    "vzb": Schedule.ZB_V,
}
"""Other names by their letters and digits."""


class Sharding(IntEnum):
    """What data parallelism shards: nothing, optimizer states, and gradients, and parameters."""

    DDP = 0
    ZERO1 = 1
    ZERO2 = 2
    ZERO3 = 3

    @property
    def label(self) -> str:
        """The name people type: ``ddp``, ``zero1`` …"""
        return self.name.lower()


class CpKind(IntEnum):
    """How context parallelism exchanges keys and values."""

    RING = 0
    ALL_GATHER = 1
    ULYSSES = 2
    HIERARCHICAL = 3

    @property
    def label(self) -> str:
        """The name people type: ``ring``, ``all-gather`` …"""
        return self.name.lower().replace("_", "-")


class Recompute(IntFlag):
    """Modules whose activations are thrown away and computed again in the backward pass.

    Whole layers are counted apart (``Plans.recompute_layers``).
    """

    NONE = 0
    CORE_ATTN = 1
    NORM = 2
    MLP_ACT = 4
    MOE_ACT = 8
    MLA_UP_PROJ = 16
    MLP = 32
    MOE = 64
    SHARED_EXPERTS = 128
    OPERATORS = 256
    """torch's selective checkpointing by operator: attention and every second matrix multiplication kept."""
