"""What a framework can express, dimension by dimension, and what it does when nothing is said."""

from __future__ import annotations

from typing import Any

from meshplan.plan.kinds import CpKind, Recompute, Schedule, Sharding
from meshplan.plan.plans import ALL_LAYERS, AUTO_LAYERS

_WHOLE = ((0, Recompute.NONE), (ALL_LAYERS, Recompute.NONE))
_MODULES = (
    Recompute.NORM, Recompute.MLA_UP_PROJ, Recompute.NORM | Recompute.MLA_UP_PROJ, Recompute.MLP,
    Recompute.MOE_ACT, Recompute.MOE_ACT | Recompute.NORM,
    Recompute.MOE_ACT | Recompute.NORM | Recompute.MLA_UP_PROJ, Recompute.MOE,
)  # fmt: skip
_MEGATRON_RECOMPUTE = ((AUTO_LAYERS, Recompute.NONE), *((0, modules) for modules in _MODULES))
"""Whole layers, as few as fit, or modules; not both."""
_TORCH_SCHEDULES = (
    Schedule.ONE_F_ONE_B, Schedule.GPIPE, Schedule.INTERLEAVED, Schedule.LOOPED_BFS, Schedule.ZB_H1,
    Schedule.ZB_V, Schedule.DUALPIPE_V,
)  # fmt: skip
_FSDP = (Sharding.DDP, Sharding.ZERO2, Sharding.ZERO3)


def framework_values(framework: str) -> dict[str, Any]:
    """Values of ``plan.space.Space`` that a framework can express; dimensions left out are not limited.

    An empty table for ``any`` and for names without limits.
    """
    match framework:
        case "megatron" | "megatron-bridge" | "mindspeed" | "paddle":
            return {
                "schedule": (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED),
                "sharding": tuple(Sharding),
                "recompute": _MEGATRON_RECOMPUTE,
            }
        case "torchtitan" | "pytorch":
            return {
                "cp_kind": (CpKind.ALL_GATHER,) if framework == "torchtitan" else tuple(CpKind)[:2],
                "schedule": _TORCH_SCHEDULES,
                "sharding": _FSDP,
                "recompute": (*_WHOLE, (0, Recompute.OPERATORS)),
                **({"etp": (1,)} if framework == "torchtitan" else {}),
            }
        case "deepspeed":
            return {
                "sp": (False,),
                "cp_kind": (CpKind.ULYSSES,),
                "vp": (1,),
                "schedule": (Schedule.ONE_F_ONE_B,),
                "layout": ("even",),
                "replicas": (1,),
                "recompute": _WHOLE,
            }
        case "accelerate":
            return {
                "sp": (False,),
                "cp_kind": (CpKind.ALL_GATHER,),
                "pp": (1,),
                "vp": (1,),
                "schedule": (Schedule.ONE_F_ONE_B,),
                "sharding": _FSDP,
                "ep": (1,),
                "etp": (1,),
                "recompute": _WHOLE,
            }
    return {}


def usual_shardings(framework: str) -> tuple[Sharding, ...]:
    """Shardings that people try with a framework, the usual one first: ZeRO-1 and FSDP; all where each is one
    setting's difference, as in FSDP2 and DeepSpeed."""
    match framework:
        case "torchtitan" | "pytorch" | "accelerate":
            return (Sharding.ZERO3, Sharding.ZERO2, Sharding.DDP)
        case "deepspeed":
            return (Sharding.ZERO1, Sharding.ZERO3, Sharding.ZERO2)
    return (Sharding.ZERO1, Sharding.ZERO3)


def framework_defaults(framework: str, *, pp: int = 1) -> dict[str, Any]:
    """Fields of ``Plan`` as a framework sets them where the user says nothing."""
    limits = framework_values(framework)
    found: dict[str, Any] = {
        "sp": limits.get("sp", (True,))[0],
        "cp_kind": limits.get("cp_kind", (CpKind.RING,))[0],
        "sharding": Sharding.ZERO1,
    }
    if framework in ("torchtitan", "pytorch", "accelerate"):
        # FSDP keeps what it gathered under a pipeline (torchtitan, docs/fsdp.md).
        found["sharding"] = Sharding.ZERO3 if pp == 1 else Sharding.ZERO2
    return found
