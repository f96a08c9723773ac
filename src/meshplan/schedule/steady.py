"""Many runs of one schedule, with the middle that repeats left out: what a search asks for.

Between filling and draining a schedule does the same for every few micro-batches. Once all ranks take
exactly as long for that as the time before, more micro-batches only add more of the same, so that the
order of fewer micro-batches tells the time of many. Runs of different counts then share one order,
and are played at once.
"""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from meshplan.schedule.durations import Durations
from meshplan.schedule.generate import SCHEDULES, make_order, usual_group
from meshplan.schedule.graph import Graph, graph
from meshplan.schedule.order import F, Order
from meshplan.schedule.player import SAME_SHIFT, Player
from meshplan.schedule.result import alive
from meshplan.schedule.simulate import play_batch

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_ROUNDS = 4
"""How often the micro-batches of the shorter order go round all ranks: fill, drain, and some between."""
_MOST_AT_ONCE = 1 << 22
"""Actions times runs played at once: 32 MB."""
_SCALAR = 150
"""Actions that are played one by one in the time that a depth of many runs takes."""
_WHOLE = ("gpipe", "looped-bfs")
"""Schedules that do one kind of work for all micro-batches before the next: nothing can be left out."""


class _Short(NamedTuple):
    """The order played for a run: fewer micro-batches, the same group of them."""

    micro_batches: int
    group: int | None


class _Middle(NamedTuple):
    """The stretch of an order that more micro-batches would make longer."""

    start: int
    stop: int
    period: int
    window: int
    micro_batches: int
    """Micro-batches in a period."""


def pipeline_ends(
    name: str,
    *,
    ranks: int,
    vp: int,
    micro_batches: Any,
    forward: Floats,
    backward_input: Floats,
    weight: Floats,
    p2p: Any = 0.0,
    overlap_p2p: bool = True,
    pair_share: float | None = None,
) -> Floats:
    """When every rank ends its last action, (runs, ranks), in the unit of the durations.

    Durations are (runs, stages), ``micro_batches`` and ``p2p`` one number a run or one for all. As
    ``simulate``, to rounding. Raises InputError where the schedule cannot run with these counts.
    """
    runs = len(forward)
    counts = np.broadcast_to(np.asarray(micro_batches, dtype=np.int64), (runs,))
    hops = np.broadcast_to(np.asarray(p2p, dtype=np.float64), (runs,))
    times = (forward, backward_input, weight)
    together = pair_share is not None
    shared: dict[_Short, list[int]] = defaultdict(list)
    for run, count in enumerate(counts.tolist()):
        shared[_shortened(name, ranks, vp, count, together)].append(run)
    ends = np.empty((runs, ranks))
    for short, members in shared.items():
        order = make_order(
            name, ranks=ranks, micro_batches=short.micro_batches, vp=_vp(name, vp), group=short.group,
            unfilled=True,
        )  # fmt: skip
        at_once = max(_MOST_AT_ONCE // len(order), 1)
        for first in range(0, len(members), at_once):
            rows = np.array(members[first : first + at_once])
            more = counts[rows] - short.micro_batches
            f, i, w = (t[rows].T for t in times)
            durations = Durations.of(order, (len(rows),), f, i, w, hops[None, rows], overlap_p2p, pair_share)
            ends[rows] = _ends(order, durations, more)
    return ends


def peak_alive(name: str, *, ranks: int, vp: int, micro_batches: int, activations: Floats) -> Floats:
    """Most activations alive on every rank, (runs, ranks), in the unit of ``activations``, (runs, stages):
    what one micro-batch keeps on each stage, from its forward until its backward is done."""
    short = _shortened(name, ranks, vp, micro_batches, False)
    order = make_order(
        name, ranks=ranks, micro_batches=short.micro_batches, vp=_vp(name, vp), group=short.group,
        unfilled=True,
    )  # fmt: skip
    return alive(order, activations.T).peak.T


def order_of(name: str, *, ranks: int, micro_batches: int, vp: int) -> Order:
    """The order a plan runs: with the usual group, ranks that stay without work accepted."""
    return make_order(
        name, ranks=ranks, micro_batches=micro_batches, vp=_vp(name, vp), unfilled=True,
        group=usual_group(name, ranks=ranks, micro_batches=micro_batches, vp=vp),
    )  # fmt: skip


def _vp(name: str, vp: int) -> int | None:
    kind = SCHEDULES.get(name)
    return vp if kind is None or kind.vp is None or kind.vp != 1 or vp != 1 else None


@lru_cache(maxsize=4096)
def _shortened(name: str, ranks: int, vp: int, micro_batches: int, together: bool) -> _Short:
    """The shortest order with the same middle; the run's own where there is none."""
    group = usual_group(name, ranks=ranks, micro_batches=micro_batches, vp=vp)
    whole = _Short(micro_batches, group)
    if name in _WHOLE:
        return whole
    alone = group is None or vp == 1
    period = 2 if name == "dualpipe" else 1 if alone else group or 1
    least = _ROUNDS * max(ranks, period)
    fewer = max((micro_batches - least) // period, 0) * period
    if not fewer:
        return whole
    short = _Short(micro_batches - fewer, micro_batches - fewer if group == micro_batches else group)
    order = make_order(
        name, ranks=ranks, micro_batches=short.micro_batches, vp=_vp(name, vp), group=short.group,
        unfilled=True,
    )  # fmt: skip
    middle = _middle(order, together)
    return whole if middle is None or fewer % middle.micro_batches else short


@lru_cache(maxsize=512)
def _middle(order: Order, together: bool) -> _Middle | None:
    """Where an order can be made longer: the one stretch in which whole micro-batches repeat."""
    links = graph(order, together=together)
    if len(links.repeats) != 1:
        return None
    start, stop, period, reach, back = links.repeats[0]
    kinds = order.kind[links.sequence[start : start + period]]
    batches, rest = divmod(int((kinds == F).sum()), order.stages)
    window = max(reach, back)
    if rest or not batches or stop - max(window, period) - period < start:
        return None
    return _Middle(start, stop, period, window, batches)


def _ends(order: Order, durations: Durations, more: Ints) -> Floats:
    """(runs, ranks): ends of runs that have ``more`` micro-batches than the order."""
    together = durations.pair_share is not None
    links = graph(order, together=together)
    spent = durations.at(order, links, links.sites.example)
    taken, hop = spent.work + spent.held, spent.hop
    row = links.sites.of[links.sequence]
    last = links.place[order.first[1:] - 1]
    middle = _middle(order, together) if more.any() else None
    if len(more) * len(row) <= _SCALAR * len(links.depths):
        each = enumerate(more.tolist())
        return np.stack([_ends_of_one(links, taken[:, i], hop[:, i], last, middle, n) for i, n in each])
    ends = play_batch(links, taken, hop, row)
    finish: Floats = ends[last].T
    if middle is None:
        return finish
    stop, steady = middle.stop + 1, more == 0
    periods = more // middle.micro_batches
    # What waits for its way there and back goes round all ranks before it does the same again.
    for turn in (1, len(last)):
        long = turn * middle.period
        if middle.stop - long < middle.start or stop < long + middle.window:
            break
        recent = ends[stop - middle.window : stop]
        shifts = recent - ends[stop - middle.window - long : stop - long]
        now = ~steady & (periods % turn == 0) & (np.ptp(shifts, axis=0) <= SAME_SHIFT * recent[-1])
        finish = finish + (np.where(now, periods // turn, 0) * shifts[-1])[:, None]
        steady |= now
    for i in np.flatnonzero(~steady).tolist():
        finish[i] = _ends_of_one(links, taken[:, i], hop[:, i], last, middle, int(more[i]))
    return finish


def _ends_of_one(
    links: Graph, taken: Floats, hop: Floats, last: Ints, middle: _Middle | None, more: int
) -> Floats:
    """One run, action by action."""
    player = Player(links, taken, hop)
    if middle is None or not more:
        return player.play(links.repeats).at(last)
    again = more // middle.micro_batches
    return player.play(links.repeats, again).at(last + again * middle.period)
