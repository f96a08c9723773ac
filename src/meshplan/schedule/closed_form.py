"""Step time and activations in flight of every schedule, in closed form over arrays of plans.

Schedules are given by their codes (``CODES``), so that a whole table of plans is priced at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

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
) -> tuple[Floats, Floats]:
    """Seconds of the pipeline part of a step, and of the bubble in it; every argument broadcasts.

    ``f``, ``b`` and ``w`` are seconds of forward, input gradient and weight gradient for one
    micro-batch: ``_max`` of the busiest rank (all its ``v`` stages together), ``_sum`` of the whole
    model. ``p2p`` is the seconds of one hop between stages; transfers overlap with compute but the
    receiver waits for them. The bubble is what the busiest rank idles: ``total - m (f + b + w)_max``.
    """
    code, p, v, m = np.broadcast_arrays(*(np.asarray(x, dtype=np.float64) for x in (schedule, p, v, m)))
    f, b, w = (np.asarray(x, dtype=np.float64) for x in (f_max, b_max, w_max))
    # The same on all the other ranks: (p - 1) f for equal ranks.
    f_rest, b_rest, w_rest = (
        np.maximum(np.asarray(s, dtype=np.float64) - x, 0.0) for s, x in ((f_sum, f), (b_sum, b), (w_sum, w))
    )
    hop = np.asarray(p2p, dtype=np.float64)
    full = f_rest + b_rest + w_rest
    ramp = 2 * (p - 1) * hop
    bubbles = [
        full + ramp,
        full + ramp * (1 + (m - 1) / p),
        full / v + ramp,
        full / v + ramp,
        np.maximum(f_rest + b_rest - w_rest, 0.0) + ramp,
        np.maximum(f_rest + b_rest - 2 * w_rest, 0.0) + ramp,
        np.maximum(f_rest + b_rest - 2 * w_rest, 0.0) + ramp,
        full / 2 + ramp,
        full * 2 / 3 + ramp,
        np.maximum((p / 2 - 1) / np.maximum(p - 1, 1) * (f_rest + b_rest + full - 2 * w_rest), 0.0) + ramp,
        np.maximum((p / 2 - 1) / np.maximum(p - 1, 1) * (f_rest + b_rest + full - 2 * w_rest), 0.0) + ramp,
    ]
    bubble = np.select(
        [code == i for i in range(len(bubbles))], [np.where(p > 1, x, 0.0) for x in bubbles], np.nan
    )
    return bubble + m * (f + b + w), bubble


def in_flight(schedule: Any, p: Any, v: Any, m: Any, rank: Any, group: Any = None) -> Floats:
    """Micro-batches whose activations a rank holds at its peak, in units of all the layers it owns.

    ``rank`` counts from 0 (the one with the embedding). A micro-batch in one of a rank's ``v``
    stages counts ``1 / v``. ``group`` is Megatron's micro-batch group size of the interleaved
    schedule (``p`` when not given). DualPipe keeps two copies of the model: its unit is one copy's stage.
    """
    code, p, v, m, i = np.broadcast_arrays(
        *(np.asarray(x, dtype=np.float64) for x in (schedule, p, v, m, rank))
    )
    n = p if group is None else np.asarray(group, dtype=np.float64)
    counts = [
        m,
        np.minimum(m, p - i),
        np.minimum(m * v, np.where(m == n, m * v, 2 * (p - i - 1) + (v - 1) * n + 1)) / v,
        m,
        np.minimum(m, p),
        np.minimum(m, 2 * p - 1),
        np.minimum(m, p),
        np.minimum(m, p / 2 + 1),
        np.minimum(m, p / 3 + 2),
        np.minimum(m, p + 1),
        np.minimum(m, p + 1),
    ]
    return np.asarray(np.select([code == k for k in range(len(counts))], counts, np.nan), dtype=np.float64)
