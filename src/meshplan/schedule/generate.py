"""The schedules by name: their rules, and the orders they make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from meshplan.errors import InputError, UnknownNameError
from meshplan.plan.kinds import Schedule
from meshplan.schedule import dualpipe, loops, vshape
from meshplan.schedule.order import Order


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleKind:
    """What a schedule accepts.

    ``vp`` are the stages a rank holds (None: any number from 1); ``least`` is the fewest
    micro-batches a rank (0: any number will do); ``even`` asks for even ranks and micro-batches.
    """

    name: str
    make: Callable[..., Order]
    about: str
    vp: int | None = 1
    least: int = 0
    even: bool = False
    grouped: bool = False

    @property
    def default_vp(self) -> int:
        """Stages a rank when none are asked for."""
        return self.vp or (1 if self.name == "zb-h1" else 2)


_KINDS = (
    ScheduleKind(name="gpipe", make=loops.gpipe, about="all forwards, then all backwards"),
    ScheduleKind(name="1f1b", make=loops.one_f_one_b, about="one forward, one backward", least=1),
    ScheduleKind(
        name="interleaved", make=loops.interleaved, about="1F1B over several stages a rank", vp=None, least=1,
        grouped=True,
    ),
    ScheduleKind(name="looped-bfs", make=loops.looped_bfs, about="stage by stage, looped", vp=None),
    ScheduleKind(
        name="zb-h1", make=loops.zb_h1, about="1F1B with weight gradients in the bubble", vp=None, least=1,
        grouped=True,
    ),
    ScheduleKind(name="zb-h2", make=loops.zb_h2, about="zero bubble for twice the activations", least=1),
    ScheduleKind(name="zb-v", make=vshape.zb_v, about="zero bubble on a V, 1F1B's activations", vp=2),
    ScheduleKind(name="v-half", make=vshape.v_half, about="half of 1F1B's activations", vp=2, least=1),
    ScheduleKind(name="v-min", make=vshape.v_min, about="a third of 1F1B's activations", vp=2, least=1),
    ScheduleKind(
        name="dualpipe", make=dualpipe.dualpipe, about="two copies fed from both ends", least=2, even=True
    ),
    ScheduleKind(
        name="dualpipe-v", make=dualpipe.dualpipe_v, about="DualPipe folded onto one copy", vp=2, least=2
    ),
)  # fmt: skip

SCHEDULES: dict[str, ScheduleKind] = {kind.name: kind for kind in _KINDS}
"""Every schedule by the name people type."""


def schedule_name(text: str) -> str:
    """The key in ``SCHEDULES`` of a schedule as people spell it; raises ``UnknownNameError``."""
    if text in SCHEDULES:
        return text
    found = Schedule.named(text)
    if found is None:
        raise UnknownNameError("schedule", text, SCHEDULES, hint="known are " + ", ".join(SCHEDULES))
    return found.label


MOST_ACTIONS = 6_000_000
"""Beyond any real pipeline: 64 ranks × 4 stages × 1,024 micro-batches are 0.8 million."""


def make_order(
    name: str,
    *,
    ranks: int,
    micro_batches: int,
    vp: int | None = None,
    group: int | None = None,
    unfilled: bool = False,
) -> Order:
    """The order of a schedule over ``ranks`` pipeline ranks, ``vp`` stages each.

    ``group`` is the number of micro-batches that go through a rank's stages together (interleaved
    and zb-h1; Megatron's ``microbatch_group_size_per_vp_stage``). Left out, it is the number of ranks or,
    where that does not divide the micro-batches, the micro-batches of a round as in PyTorch, or else the
    smallest that Megatron accepts: see ``smallest_group``.
    ``unfilled`` accepts fewer micro-batches than ranks, which leave most ranks idle.
    The same arguments return the same object. Raises InputError where the schedule's rules forbid it.
    """
    kind = SCHEDULES[schedule_name(name)]
    if ranks < 1:
        raise InputError(f"a pipeline needs at least 1 rank, not {ranks}")
    if micro_batches < 1:
        raise InputError(f"a step needs at least 1 micro-batch, not {micro_batches}")
    stages = _stages_per_rank(kind, vp)
    _check_counts(kind, ranks, micro_batches, unfilled)
    if 3 * ranks * stages * micro_batches > MOST_ACTIONS:
        fits = MOST_ACTIONS // (3 * ranks * stages)
        raise InputError(
            f"forward, input and weight gradient of {micro_batches:,} micro-batches on {ranks:,} ranks ×"
            f" {stages:,} stages are more than {MOST_ACTIONS:,} actions, the most a simulation takes"
            + (f"; {fits:,} micro-batches would do" if fits else "")
        )
    size = _group_size(kind, ranks, micro_batches, stages, group)
    return _made(kind.name, ranks, micro_batches, stages, size)


@lru_cache(maxsize=65536)
def usual_group(name: str, *, ranks: int, micro_batches: int, vp: int) -> int | None:
    """The group size of a schedule when it is not asked for; ``None`` for schedules without groups."""
    if not SCHEDULES[name].grouped:
        return None
    return micro_batches if vp == 1 else smallest_group(ranks, micro_batches)


@lru_cache(maxsize=65536)
def smallest_group(ranks: int, micro_batches: int) -> int:
    """Micro-batches that go through a rank's stages together: those of equal rounds, if there are some;
    else the fewest that leave no last group smaller than the ranks."""
    even, rest = divmod(micro_batches, max(1, micro_batches // ranks))
    if not rest:
        return even
    sizes = range(ranks, micro_batches + 1)
    return next(g for g in sizes if not micro_batches % g or micro_batches % g >= ranks)


@lru_cache(maxsize=512)
def _made(name: str, ranks: int, micro_batches: int, vp: int, group: int) -> Order:
    kind = SCHEDULES[name]
    more = {"vp": vp} if kind.vp is None else {}
    if kind.grouped:
        more["group"] = group
    return kind.make(ranks=ranks, micro_batches=micro_batches, **more)


def _stages_per_rank(kind: ScheduleKind, vp: int | None) -> int:
    if vp is None:
        return kind.default_vp
    if vp < 1:
        raise InputError(f"a rank holds at least 1 stage, not {vp}")
    if kind.vp is not None and vp != kind.vp:
        plural = "stage" if kind.vp == 1 else "stages"
        raise InputError(
            f"schedule '{kind.name}' has exactly {kind.vp} {plural} a rank, not {vp}: use {kind.vp}"
        )
    return vp


def _check_counts(kind: ScheduleKind, ranks: int, micro_batches: int, unfilled: bool) -> None:
    if kind.even and ranks % 2:
        near = f"{ranks - 1} or {ranks + 1}" if ranks > 1 else "2"
        raise InputError(f"schedule '{kind.name}' needs an even number of ranks, not {ranks}: use {near}")
    # DualPipe's phases need their micro-batches; the others only lose time.
    least = kind.least * ranks if kind.least > 1 or not unfilled else 1
    if micro_batches < least:
        each = "as many micro-batches as ranks" if kind.least == 1 else f"{kind.least} micro-batches a rank"
        raise InputError(
            f"schedule '{kind.name}' over {ranks} ranks needs at least {each}, {least}, not {micro_batches}"
        )
    if kind.even and micro_batches % 2:
        raise InputError(
            f"schedule '{kind.name}' needs an even number of micro-batches, not {micro_batches}: "
            f"use {max(micro_batches - 1, least)} or {micro_batches + 1}"
        )


def _group_size(kind: ScheduleKind, ranks: int, micro_batches: int, vp: int, group: int | None) -> int:
    if not kind.grouped:
        if group is not None:
            raise InputError(f"schedule '{kind.name}' has no micro-batch group size; leave it out")
        return micro_batches
    if group is None:
        return usual_group(kind.name, ranks=ranks, micro_batches=micro_batches, vp=vp) or micro_batches
    # Fewer than the ranks only as one round: a second would wait for the first, still under way.
    low = min(ranks, micro_batches)
    if not low <= group <= micro_batches:
        raise InputError(
            f"the micro-batch group size must be from {low} (ranks) to {micro_batches} (micro-batches), "
            f"not {group}"
        )
    rest = micro_batches % group
    if rest and rest < ranks:
        works = [
            g for g in range(low, micro_batches + 1) if not micro_batches % g or micro_batches % g >= ranks
        ]
        near = sorted(works, key=lambda g: abs(g - group))[:3]
        raise InputError(
            f"with a micro-batch group size of {group}, {micro_batches} micro-batches leave a last group "
            f"of {rest}, fewer than the {ranks} ranks: use a group of {' or '.join(map(str, sorted(near)))}"
        )
    return group
