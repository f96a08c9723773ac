"""Step time and activations in flight of every schedule, in closed form over arrays of plans.

Schedules are given by their codes (``CODES``), so that a whole table of plans is priced at once.

The time of an order is its longest chain of waiting actions. For equal stages that chain has one of a
few shapes, each a fixed number of forwards (F), input gradients (B) and weight gradients (W); the
bubble is the longest of them, less the work of one rank. GPipe, 1F1B, interleaved, ZB-H1 and ZB-H2 are
the formulas of the papers (arXiv 2104.04473 section 2.2, 2401.10241 table 2); the shapes of the others
are read off the critical paths of the simulation. With uneven stages ``(p - 1)`` times a stage becomes
the sum over the other ranks. The tests bound the error against the simulation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from meshplan.schedule.generate import smallest_group

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

CODES: dict[str, int] = {
    "gpipe": 0,
    "1f1b": 1,
    "interleaved": 2,
    "looped-bfs": 3,
    "zb-h1": 4,
    "zb-h2": 5,
    "zb-v": 6,
    "v-half": 7,
    "v-min": 8,
    "dualpipe": 9,
    "dualpipe-v": 10,
}
"""The code of every schedule; the same numbers as in the table of plans."""
PAIRED = (CODES["dualpipe"], CODES["dualpipe-v"])
"""Those with overlapped pairs of forward and backward."""

SEARCHED = 11
"""ZB-H2 whose order is searched for the durations (ZB-2p), with ranks that take their optimizer step without
waiting for the others (arXiv 2401.10241, sections 3 and 4): time counts from each rank's own start."""


class _Case(NamedTuple):
    """The inputs of one schedule's formula: arrays of equal length, seconds per micro-batch.

    ``f``, ``b``, ``w`` of the busiest rank; ``fr``, ``br``, ``wr`` of all other ranks together
    (``(p - 1) f`` for equal ranks).
    """

    p: Floats
    v: Floats
    m: Floats
    f: Floats
    b: Floats
    w: Floats
    fr: Floats
    br: Floats
    wr: Floats
    h: Floats
    """A hop, for the schedules whose shapes have hops of their own."""


def step_time(
    schedule: Any,
    p: Any,
    v: Any,
    m: Any,
    f_max: Any,
    b_max: Any,
    w_max: Any,
    f_sum: Any,
    b_sum: Any,
    w_sum: Any,
    p2p: Any = 0.0,
    *,
    overlap_p2p: Any = True,
    pair_share: Any = np.nan,
) -> tuple[Floats, Floats]:
    """Seconds of the pipeline part of a step, and of the bubble in it; every argument broadcasts.

    ``f``, ``b`` and ``w`` are seconds of forward, input gradient and weight gradient for one
    micro-batch: ``_max`` of the busiest rank (all its ``v`` stages together), ``_sum`` of the whole
    model (one copy of it). ``p2p`` is the seconds of one hop between stages; with ``overlap_p2p`` only
    the receiver waits for it, without, the sender does too. The bubble is what the busiest rank
    idles: ``total`` less its work, ``m (f + b + w)_max``.

    ``pair_share`` is what DualPipe's overlapped pairs take, as a share of forward and backward one
    after the other (NaN: they do run one after the other). Its bubble is then the formula of the
    DualPipe repository, ``(p / 2 - 1)(pair + backward - 3 weight)``, and the pairs make the work shorter.

    The step ends when the last rank is done. With ZB-H2 and ZB-V the ranks end one after the other, so
    a run that does not wait for all of them before the next step saves up to ``(p - 1) f`` more.
    """
    columns = np.broadcast_arrays(
        *(
            np.asarray(x, dtype=np.float64)
            for x in (schedule, p, v, m, f_max, b_max, w_max, f_sum, b_sum, w_sum)
        ),
        np.asarray(p2p, dtype=np.float64),
        np.asarray(overlap_p2p, dtype=np.bool_),
        np.asarray(pair_share, dtype=np.float64),
    )
    shape = columns[0].shape
    code, p, v, m, f, b, w, f_sum, b_sum, w_sum, hop, hidden, share = (c.ravel() for c in columns)
    bubble = np.full(code.shape, np.nan)
    work = m * (f + b + w)
    for one in range(len(_BUBBLES)):
        rows = np.flatnonzero(code == one)
        if not len(rows):
            continue
        fr, br, wr = (np.maximum(s[rows] - x[rows], 0.0) for s, x in ((f_sum, f), (b_sum, b), (w_sum, w)))
        case = _Case(p[rows], v[rows], m[rows], f[rows], b[rows], w[rows], fr, br, wr, hop[rows])
        if one in (CODES["v-half"], CODES["v-min"]):
            own, hops = _memory_efficient(_BUBBLES[one], case, hidden[rows]), np.zeros(len(rows))
        else:
            waits, shown = _HOPS[one](case)
            own, hops = _BUBBLES[one](case), np.where(hidden[rows], waits, shown) * hop[rows]
        if one in PAIRED:
            paired = ~np.isnan(share[rows])
            own = np.where(paired, _paired_bubble(case, share[rows]), own)
            work[rows] -= np.where(paired, _time_saved(case, share[rows]), 0.0)
        bubble[rows] = np.where(case.p > 1, own + hops, 0.0)
    return (bubble + work).reshape(shape), bubble.reshape(shape)


def bubbles(
    schedule: Ints,
    p: Ints,
    v: Ints,
    m: Floats,
    f_max: Floats,
    b_max: Floats,
    w_max: Floats,
    f_sum: Floats,
    b_sum: Floats,
    w_sum: Floats,
    p2p: Floats,
    *,
    paired: bool = False,
) -> tuple[Floats, Floats]:
    """Seconds of the bubble of ``step_time`` with hops that take no time, and what hops add to it where only
    the receiver waits for them. Columns of equal length. ``paired``: DualPipe's pairs run as one, and take as
    long as their forward and backward do one after the other."""
    bubble, added = np.zeros(len(p)), np.zeros(len(p))
    fr, br, wr = (np.maximum(s - x, 0.0) for s, x in ((f_sum, f_max), (b_sum, b_max), (w_sum, w_max)))
    whole = _Case(p.astype(np.float64), v.astype(np.float64), m, f_max, b_max, w_max, fr, br, wr, p2p)
    counts = np.bincount(schedule)
    for one in np.flatnonzero(counts).tolist():
        rows: Any = slice(None)
        case = whole
        if counts[one] < len(p):
            rows = np.flatnonzero(schedule == one)
            case = _Case(*(column.take(rows) for column in whole))
        if one in (CODES["v-half"], CODES["v-min"]):
            bubble[rows] = own = _BUBBLES[one](case._replace(h=0.0 * case.h))
            added[rows] = _BUBBLES[one](case) - own
        elif paired and one in PAIRED:
            bubble[rows], added[rows] = _paired_bubble(case, np.ones(1)), _HOPS[one](case)[0] * case.h
        else:
            bubble[rows], added[rows] = _BUBBLES[one](case), _HOPS[one](case)[0] * case.h
    several = np.minimum(p - 1, 1)  # 0 where one rank waits for nobody
    return bubble * several, added * several


def _memory_efficient(bubble: Callable[[_Case], Floats], c: _Case, overlapped: Bools) -> Floats:
    """V-Half and V-Min: a sender that is held makes every forward and input gradient longer by a hop."""
    held = np.where(overlapped, 0.0, 2 * c.h)  # a rank has two stages
    longer = c._replace(
        f=c.f + held, b=c.b + held, fr=c.fr + (c.p - 1) * held, br=c.br + (c.p - 1) * held,
        h=np.where(overlapped, c.h, 0.0),
    )  # fmt: skip
    found: Floats = bubble(longer) + 2 * c.m * held
    return found


def _flush(c: _Case) -> Floats:
    """GPipe and 1F1B: fill and drain, ``(p - 1)(F + B + W)``."""
    return c.fr + c.br + c.wr


def _interleaved(c: _Case) -> Floats:
    """The ramp is one stage of v; too few micro-batches leave a gap for each further stage."""
    gap = (c.v - 1) / c.v * np.maximum(c.p - c.m, 0.0) * (c.f + c.b + c.w)
    return _flush(c) / c.v + gap


def _zb_h1(c: _Case) -> Floats:
    return np.maximum(np.maximum(c.fr + c.br - c.wr, c.br), c.fr) / c.v


def _zb_h2(c: _Case) -> Floats:
    """The last shape is the wait of the first rank for its first gradient, less its forwards meanwhile."""
    ahead = np.minimum(c.m, 2 * c.p - 1) - 1
    return _most(c.fr + c.br - 2 * c.wr, c.fr, c.fr + c.br - ahead * c.f)


def _searched(c: _Case) -> Floats:
    """The wait for the first gradient, less the forwards that two micro-batches a rank leave room for; and
    what the last gradients take to the first rank, less the weight gradients kept for that time."""
    return _most(c.br - c.fr - c.f, c.fr + c.br - (c.m - 1) * c.w, 0 * c.f)


def _zb_v(c: _Case) -> Floats:
    first = 2 * c.fr - c.f
    return (
        _most(
            c.br,
            2 * (c.br - c.wr),
            first - c.br + c.b,
            first + c.b - 2 * c.wr,
            c.b + c.wr - c.w,
            c.f + c.wr - c.w,
        )
        / 2
    )


def _v_half(c: _Case) -> Floats:
    """The last shapes grow with the micro-batches: forward and backward too unequal for the pattern, in which
    two neighbouring ranks, or all of them, wait for each other in turn."""
    even = 1 - c.p % 2
    weights = (c.p - even) * c.w / 2
    others = np.maximum(c.p - 1, 1.0)
    turn = np.maximum(c.p - c.p % 2, 1.0)
    there, back = 2 * (5 * c.p - 4) * c.h, (4 * c.p - 6) * c.h
    f, b = c.fr / others, c.br / others
    all_f, all_b = 2 * (c.f + c.fr) / c.p, 2 * (c.b + c.br) / c.p
    work = c.f + c.b + c.w
    fill_b, fill_f = 2 * (c.fr + c.br) + 5 * c.f - 3 * c.b, 2 * (c.fr + c.br) - 5 * c.f + 7 * c.b
    return (
        _most(
            c.fr + 2 * even * c.f + 3 * c.br - weights + there,
            2 * c.fr + even * c.f + 2 * c.br + even * c.b - weights + there,
            2 * c.fr + c.br + there,
            2 * c.m * (c.b + b + c.w / 2 + 2 * c.h - work) + fill_b + c.w + 2 * back,
            2 * c.m * (c.f + f + c.w / 2 + 2 * c.h - work) + fill_f - weights + 2 * back,
            2 * c.m * (all_b + c.w / turn + 4 * (1 - 1 / turn) * c.h - work) + fill_b + c.w + 2 * back,
            2 * c.m * (all_f + c.w / turn + 4 * (1 - 1 / turn) * c.h - work) + fill_f - weights + 2 * back,
        )
        / 2
    )


def _v_min(c: _Case) -> Floats:
    """As V-Half; here three neighbouring ranks wait for each other as soon as three times the forward or the
    backward is more than a rank's work, with four hops a micro-batch, or as many ranks as threes go into,
    with up to six; where work decides, hops add two to three a micro-batch. Two ranks have shapes of their
    own."""
    weights = (c.wr + 3 * c.w) / 3
    others = np.maximum(c.p - 1, 1.0)
    threes = np.maximum(3 * np.floor(c.p / 3), 1.0)
    near, far = 4.0, 6 * (1 - 1 / threes)
    f, b = c.fr / others, c.br / others
    all_f, all_b = 3 * (c.f + c.fr) / c.p, 3 * (c.b + c.br) / c.p
    work = c.f + c.b + c.w
    there = 2 * c.h * np.maximum(np.where(c.p > 6, 8 / 3, 2.0) * c.m + 4 * c.p - 7, 6 * c.p - 10)
    back = 2 * (4 * c.p - 8) * c.h
    fill_b, fill_f = 2 * (c.fr + c.br) + 2 * c.f - 4 * c.b + c.w, 2 * (c.fr + c.br) - 4 * c.f + 2 * c.b + c.w
    # The pattern of a rank is that of the third one after it.
    third = c.p % 3
    rest = (
        np.where(third == 0, 5 * c.f + 2 * c.b - c.w, np.where(third == 2, c.f - 5 * c.b + 4 * c.w, 0.0)) / 3
    )
    two = _most(
        3 * c.f - c.b + c.w + 2 * (c.m + 1) * c.h,
        2 * c.m * ((c.f + c.w) / 2 + c.b + b + 2 * c.h - work) + 3 * c.f + 4 * c.h,
        2 * c.m * ((c.b + c.w) / 2 + c.f + f + 2 * c.h - work) + 3 * c.b + 4 * c.h,
        2 * c.m * (3 / 4 * (c.f + f + c.b + b) + 2 * c.h - work) + work + 4 * c.h,
    )
    more = _most(
        (8 * c.fr + 5 * c.br) / 3 - weights + rest + there,
        (5 * c.fr + 8 * c.br) / 3 - weights + there,
        (8 * c.fr + 2 * c.br) / 3 + there,
        2 * c.m * (c.b + 2 * b + near * c.h - work) + fill_b + back,
        2 * c.m * (c.f + 2 * f + near * c.h - work) + fill_f + back,
        2 * c.m * (all_b + far * c.h - work) + fill_b + back,
        2 * c.m * (all_f + far * c.h - work) + fill_f + back,
    )
    return np.where(c.p > 2, more, two) / 2


def _dualpipe(c: _Case) -> Floats:
    """A fold over half the ranks: the others' share of the sums is ``(p / 2 - 1) / (p - 1)``."""
    share = np.maximum(c.p / 2 - 1, 0.0) / np.maximum(c.p - 1, 1.0)
    f, b, w = share * c.fr, share * c.br, share * c.wr
    return np.maximum(_most(2 * b - w - c.f, f, b - c.f, f + b - w), 0.0)


def _dualpipe_v(c: _Case) -> Floats:
    return _most(2 * c.br - c.wr - c.f, c.fr, c.fr + c.br - c.wr) / 2


def _paired_bubble(c: _Case, share: Floats) -> Floats:
    """``depth - 1`` times (pair + full backward - 3 weight gradients) of the other ranks' stages; DualPipe
    folds at p / 2. Others that have less to do catch up in the ``2 (2 depth - 1)`` pairs around which the
    ramps turn, until only what weight gradients leave of the backwards is waited for (read off the
    simulation)."""
    several = np.maximum(c.p - 1, 1.0)
    depth = np.where(c.v > 1, c.p, c.p / 2)
    others = np.where(c.v > 1, 1 / c.v, np.maximum(c.p / 2 - 1, 0.0) / several)
    work = c.fr + c.br + c.wr
    behind = np.maximum(c.f + c.b + c.w - work / several, 0.0) * (c.p > 1)
    caught_up = 2 * (2 * depth - 1) * share * behind / c.v
    found = _most(
        others * (share * work + c.br - 2 * c.wr) - caught_up, others * (c.br - c.wr), np.zeros_like(c.p)
    )
    # Pairs that save nothing only add to what must be waited for.
    alone = np.where(c.v > 1, _dualpipe_v(c), _dualpipe(c))
    return np.where(share < 1, found, np.maximum(found, alone))


def _time_saved(c: _Case, share: Floats) -> Floats:
    """By the pairs of the outermost rank, which has the fewest: two a micro-batch less the ramps."""
    depth, chunks = np.where(c.v > 1, c.p, c.p / 2), np.where(c.v > 1, c.m, c.m / 2)
    # A fold of one rank starts with a pair that is kept apart.
    pairs = 2 * (chunks - 2 * depth + 1) + depth - 1 - (depth == 1)
    saved: Floats = pairs * (1 - share) * (c.f + c.b + c.w) / c.v
    return saved


def _most(*shapes: Floats) -> Floats:
    longest: Floats = np.maximum.reduce(shapes)
    return longest


_BUBBLES: list[Callable[[_Case], Floats]] = [
    _flush,
    _flush,
    _interleaved,
    _interleaved,
    _zb_h1,
    _zb_h2,
    _zb_v,
    _v_half,
    _v_min,
    _dualpipe,
    _dualpipe_v,
    _searched,
]

# Hops the step waits for, by schedule: (sender goes on, sender is held). Of the first kind 1F1B has some for
# every micro-batch: it keeps only as many alive as ranks without hops need. V-Half and V-Min have their own.
_HOPS: list[Callable[[_Case], tuple[Floats, Floats]]] = [
    lambda c: (2 * (c.p - 1), 2 * (c.m + c.p - 2)),
    lambda c: (2 * (c.p - 1) * c.m / c.p + 2 * (c.p - 2), 2 * (c.m + c.p) - 5),
    lambda c: (2 * (c.v * c.p - 1), 2 * c.v * c.m),
    lambda c: (2 * (c.p - 1), 2 * (c.v * c.m + c.p - 2)),
    lambda c: (4 * (c.p - 1), 2 * (c.v * c.m + c.p) - 5),
    lambda c: (c.p - 1, 2 * c.m - 5),
    lambda c: (5 * c.p - 7, 4 * c.m),
    lambda c: (0.0 * c.m, 0.0 * c.m),
    lambda c: (0.0 * c.m, 0.0 * c.m),
    lambda c: (5 * c.p / 2 - 3, 2 * c.m + 0.7 * c.p),
    lambda c: (5 * (c.p - 1), 4 * c.m + c.p),
    lambda c: (c.p - 1, 2 * c.m - 5),
]


def in_flight(schedule: Any, p: Any, v: Any, m: Any, rank: Any, group: Any = None) -> Floats:
    """Micro-batches whose activations a rank holds at its peak, in units of all the layers it owns.

    ``rank`` counts from 0 (the one with the embedding). A micro-batch in one of a rank's ``v``
    stages counts ``1 / v``. ``group`` is Megatron's micro-batch group size of the interleaved and
    ZB-H1 schedules (when not given that of ``generate.make_order``: ``p`` where it divides the
    micro-batches). DualPipe keeps two copies of the model: its unit is the stage of one.
    """
    code, p, v, m, i = (np.asarray(x, dtype=np.float64) for x in (schedule, p, v, m, rank))
    n = np.asarray(0.0 if group is None else group, dtype=np.float64)
    alive: Floats | float = np.nan
    for one, held in enumerate(_IN_FLIGHT):
        if (rows := code == one).any():
            if group is None and one in _GROUPED:
                n = _default_group(*np.broadcast_arrays(p, m))
            here = held(p, v, m, i, n)
            alive = here if rows.all() else np.where(rows, here, alive)
    shape = np.broadcast_shapes(*(x.shape for x in (code, p, v, m, i, n)))
    least: Floats = np.broadcast_to(np.minimum(alive, m), shape)
    return least


_IN_FLIGHT: list[Callable[[Floats, Floats, Floats, Floats, Floats], Floats]] = [
    lambda p, v, m, i, n: m,
    lambda p, v, m, i, n: p - i,
    lambda p, v, m, i, n: (2 * (p - i - 1) + (v - 1) * n + 1) / v,
    lambda p, v, m, i, n: m,
    lambda p, v, m, i, n: (p + (v - 1) * n) / v,
    lambda p, v, m, i, n: 2 * p - 1,
    lambda p, v, m, i, n: np.minimum(p, (m + i + 1) / 2),
    lambda p, v, m, i, n: np.floor((p + 2) / 2),
    lambda p, v, m, i, n: np.floor((p + 4) / 3),
    lambda p, v, m, i, n: p + 1,
    lambda p, v, m, i, n: p + 0.5,
]
"""For every schedule, micro-batches a rank holds if there are enough of them: p ranks, v stages a rank, m
micro-batches, rank i, groups of n."""
_GROUPED = (CODES["interleaved"], CODES["zb-h1"])
"""Those whose count depends on the groups."""


def _default_group(p: Floats, m: Floats) -> Floats:
    """Micro-batches that go through a rank's stages together; see ``generate.smallest_group``."""
    even = np.asarray(m / np.maximum(np.floor(m / p), 1.0))
    odd = np.flatnonzero(even != np.floor(even))
    if odd.size:
        flat_p, flat_m, flat = p.ravel()[odd], m.ravel()[odd], even.ravel().copy()
        pairs, of = np.unique(flat_p + 1j * flat_m, return_inverse=True)
        sizes = [smallest_group(int(pair.real), int(pair.imag)) for pair in pairs.tolist()]
        flat[odd] = np.array(sizes, dtype=np.float64)[of]
        even = flat.reshape(even.shape)
    return even
