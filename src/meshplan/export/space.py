"""The plans that a target can express: what a search for it looks at, and what it always sets itself."""

from __future__ import annotations

from typing import Any

from meshplan.model.layers import Moe
from meshplan.plan.divisors import divisors
from meshplan.plan.kinds import CpKind, Recompute, Schedule, Sharding
from meshplan.plan.plans import ALL_LAYERS, AUTO_LAYERS
from meshplan.plan.rules import Setting

_WHOLE = ((0, Recompute.NONE), (ALL_LAYERS, Recompute.NONE))
_TORCH = (*_WHOLE, (0, Recompute.OPERATORS))
MOST_STAGES = 12
"""Virtual stages of a rank that a search tries at most."""
MOST_SEQUENCES = 8
"""Sequences in a micro-batch that a search tries at most."""


def framework_space(target: str, setting: Setting) -> dict[str, Any]:
    """Fields of ``Space`` for what a target can express; dimensions left out take every sensible value."""
    layers = len(setting.model.layers)
    vp = tuple(v for v in divisors(layers) if v <= MOST_STAGES) or (1,)
    mbs = tuple(b for b in divisors(setting.workload.gbs) if b <= MOST_SEQUENCES) or (1,)
    experts = any(isinstance(layer.mlp, Moe) for layer in setting.model.layers)
    none: dict[str, Any] = {} if experts else {"ep": (1,), "etp": (1,)}
    usual = {"vp": vp, "mbs": mbs, "schedule": (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED), **none}
    match target:
        case "megatron" | "megatron-bridge":
            return {**usual, "sharding": (Sharding.ZERO1,), "recompute": ((AUTO_LAYERS, Recompute.NONE),)}
        case "torchtitan" | "pytorch":
            return {**usual, "etp": (1,), "sharding": (Sharding.ZERO2, Sharding.ZERO3), "recompute": _TORCH}
        case "deepspeed":
            every = (Sharding.ZERO1, Sharding.ZERO2, Sharding.ZERO3)
            return {
                **usual,
                "vp": (1,),
                "schedule": (Schedule.ONE_F_ONE_B,),
                "sharding": every,
                "recompute": _WHOLE,
            }
        case "accelerate":
            alone: dict[str, Any] = {"pp": (1,), "vp": (1,), "ep": (1,), "etp": (1,), "mbs": mbs}
            sharding = (Sharding.ZERO2, Sharding.ZERO3)
            return {**alone, "schedule": (Schedule.ONE_F_ONE_B,), "sharding": sharding, "recompute": _WHOLE}
    return {}


def framework_columns(target: str) -> dict[str, int]:
    """Columns of ``Plans`` that a target sets by itself, whatever the plan says."""
    match target:
        case "torchtitan" | "pytorch":
            return {"cp_kind": int(CpKind.ALL_GATHER)}
        case "deepspeed":
            return {"cp_kind": int(CpKind.ULYSSES), "sp": 0}
        case "accelerate":
            return {"cp_kind": int(CpKind.ALL_GATHER), "sp": 0}
    return {}
