"""The module that the ``pytorch`` target writes, read back from the constants at its top."""

from __future__ import annotations

import ast
from itertools import pairwise
from typing import Any

from meshplan.errors import InputError, shown
from meshplan.export.found import Found, Settings
from meshplan.export.torchtitan_plan import LOOPED_ZERO_BUBBLE, SCHEDULES
from meshplan.export.trees import literal_of
from meshplan.plan.kinds import CpKind, Recompute, Schedule, Sharding
from meshplan.plan.plans import DEFAULT_ORDER


def read_pytorch(tree: ast.Module, what: str) -> Found:
    """The module that the ``pytorch`` target writes: the constants at its top."""
    values: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name in values:
                raise InputError(f"{name} is given twice; keep one")
            values[name] = literal_of(node.value, name)
    args = Settings(values)
    shape = _pairs(args, "MESH_NAMES", "MESH_SHAPE")
    experts = _pairs(args, "EXPERT_MESH_NAMES", "EXPERT_MESH_SHAPE")
    found = Found(kind="pytorch", what=what)
    replicas = shape.get("dp_replicate", 1)
    dp = shape.get("dp", replicas * shape.get("dp_shard", 1))
    names = {s.label: s for s in Sharding}
    kinds = {k.label: k for k in CpKind}
    schedules = {name: s for s, name in SCHEDULES.items()} | {LOOPED_ZERO_BUBBLE: Schedule.ZB_H1}
    bounds = args.raw("STAGE_BOUNDS") or (0,)
    modules = Recompute.NONE
    for word in str(values.get("RECOMPUTE_MODULES", "none")).split("+"):
        modules |= next(
            (m for m in Recompute if (m.name or "").lower().replace("_", "-") == word), Recompute.NONE
        )
    found.columns = {
        "tp": shape.get("tp", 1), "cp": shape.get("cp", 1), "pp": shape.get("pp", 1), "dp": dp,
        "replicas": replicas,
        "ep": experts.get("ep", 1), "etp": experts.get("etp", 1),
        "sp": bool(args.truth("SEQUENCE_PARALLEL")) or shape.get("tp", 1) == 1,
        "cp_kind": args.choice("CONTEXT_PARALLEL", kinds), "sharding": args.choice("SHARDING", names),
        "schedule": args.choice("SCHEDULE", schedules), "vp": args.count("STAGES_PER_RANK") or 1,
        "layout": tuple(b - a for a, b in pairwise(bounds)),
        "mbs": args.count("MICRO_BATCH") or 1,
        "recompute_layers": args.count("RECOMPUTE_LAYERS", low=0) or 0, "recompute_modules": modules,
    }  # fmt: skip
    outer = [name for name in values.get("MESH_NAMES", ()) if name != "dp_shard"]
    inner = ["dp" if name == "dp_replicate" else name for name in reversed(outer)]
    found.order = _with_ep(inner, list(reversed(values.get("EXPERT_MESH_NAMES", ()))))
    found.seq, found.gbs = args.count("SEQ"), args.count("GLOBAL_BATCH")
    found.precision = args.text("PRECISION")
    return found


def _with_ep(inner: list[str], expert_inner: list[str]) -> tuple[str, ...]:
    """The order of both foldings: ep goes where the experts' mesh has it, next to dp."""
    if "dp" not in inner:
        return DEFAULT_ORDER
    before = (
        expert_inner.index("ep") < expert_inner.index("edp") if {"ep", "edp"} <= set(expert_inner) else True
    )
    at = inner.index("dp") + (0 if before else 1)
    return (*inner[:at], "ep", *inner[at:])


def _pairs(args: Settings, names: str, sizes: str) -> dict[str, int]:
    keys, values = args.raw(names), args.raw(sizes)
    if not isinstance(keys, tuple) or not isinstance(values, tuple) or len(keys) != len(values):
        raise InputError(f"{names} and {sizes} must be tuples of the same length")
    if not all(isinstance(v, int) and v >= 1 for v in values):
        raise InputError(f"{sizes} must hold whole numbers from 1 on, not {shown(values)}")
    return dict(zip(keys, values, strict=True))
