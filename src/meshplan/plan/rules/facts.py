"""What rules ask of a model, a workload and a table of plans, and how their sentences list numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from meshplan.model.layers import LatentAttention, Mlp, Moe
from meshplan.plan.kinds import Schedule
from meshplan.plan.plans import Plan, Plans
from meshplan.plan.rules.rule import Bools, Setting

Ints = npt.NDArray[np.int64]

INTERLEAVED = (Schedule.INTERLEAVED, Schedule.LOOPED_BFS)
"""Schedules with any number of virtual stages above one."""
TWO_STAGES = (Schedule.ZB_V, Schedule.V_HALF, Schedule.V_MIN, Schedule.DUALPIPE_V)
"""Schedules with two stages a rank, placed on a V: rank r holds stages r and 2 · pp - 1 - r."""


def heads(s: Setting) -> list[int]:
    """Distinct numbers of query heads."""
    return sorted({layer.attention.heads for layer in s.model.layers if layer.attention is not None})


def kv_heads(s: Setting) -> list[int]:
    """Distinct numbers of KV heads."""
    return sorted({layer.attention.kv_heads for layer in s.model.layers if layer.attention is not None})


def mlp_widths(s: Setting) -> list[int]:
    """Distinct widths of dense MLPs."""
    return sorted({layer.mlp.width for layer in s.model.layers if isinstance(layer.mlp, Mlp)})


def moes(s: Setting) -> list[Moe]:
    """Distinct mixtures of experts."""
    return list(dict.fromkeys(layer.mlp for layer in s.model.layers if isinstance(layer.mlp, Moe)))


def has_latent(s: Setting) -> bool:
    """Whether any layer has latent attention."""
    return any(isinstance(layer.attention, LatentAttention) for layer in s.model.layers)


def has_dense(s: Setting) -> bool:
    """Whether any layer has a dense MLP."""
    return any(isinstance(layer.mlp, Mlp) for layer in s.model.layers)


def divide(values: Iterable[int], by: Ints) -> Bools:
    """Whether ``by`` divides every one of ``values``."""
    good = np.ones(by.shape, dtype=np.bool_)
    for value in values:
        good &= value % by == 0
    return good


def every(p: Plans, value: bool) -> Bools:
    """``value`` for every plan."""
    return np.full(len(p), value, dtype=np.bool_)


def is_any(column: Ints, kinds: Iterable[Any]) -> Bools:
    """Whether each code is one of ``kinds``."""
    return np.isin(column, [int(kind) for kind in kinds])


def micro_batches(s: Setting, p: Plans) -> Ints:
    """Micro-batches of a data-parallel rank in one step, rounded down."""
    return np.asarray(s.workload.gbs // np.maximum(p.dp * p.mbs, 1), dtype=np.int64)


def batches(s: Setting, p: Plan) -> int:
    """The same for one plan."""
    return s.workload.gbs // max(p.dp * p.mbs, 1)


def of_layout(p: Plans, values: Iterable[int]) -> Ints:
    """``values`` (one a layout) for every plan; 0 where a plan has no layout."""
    return np.array([*values, 0], dtype=np.int64)[np.maximum(p.layout, -1)]


def listed(values: Iterable[int]) -> str:
    """``8 and 16``."""
    return " and ".join(f"{v:,}" for v in values)


def either(values: Iterable[object]) -> str:
    """``a or b``."""
    return " or ".join(map(str, values))
