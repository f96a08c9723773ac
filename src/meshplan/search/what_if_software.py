"""Changes to the software behind an estimate: overlap, kernels, balance, another stack."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from meshplan.cost.costs import CostModel
from meshplan.cost.full.model import FullModel
from meshplan.cost.full.stack import Stack, load_stack
from meshplan.cost.handbook import Handbook
from meshplan.errors import InputError, shown

TP_HIDDEN = 0.62
"""Share of tensor-parallel transfers that splitting a batch in halves hides: 75 % forward and 50 % backward
(Domino, arXiv 2409.15241, as in huggingface/nanotron pull request 284)."""
EP_HIDDEN = 0.93
"""Share of the all-to-all that overlapping one micro-batch's forward with another's backward hides
(arXiv 2603.07685)."""
_SHARES: Mapping[str, tuple[str, float]] = {
    "overlap_tp": ("tp_exposed", TP_HIDDEN), "overlap_ep": ("ep_exposed", EP_HIDDEN),
}  # fmt: skip
"""Change → the scalar of a stack that says how much of it stays exposed, and the share that *on* hides."""
_NAMES = {
    "overlap_cp": "cp_overlap", "overlap_dp": "dp_overlap", "overlap_pp": "p2p_overlap",
    "overlap_fsdp": "fsdp_overlap", "imbalance": "moe_imbalance",
}  # fmt: skip
_HANDBOOK = {"overlap_dp": "dp_hidden", "overlap_pp": "pp_hidden", "matmul": "matmul_efficiency"}
_FIXED = ("name", "title", "family", "sources")


@dataclass(frozen=True, kw_only=True, slots=True)
class Changed:
    """One thing that was changed, as it was and as it is now, for people."""

    name: str
    old: str
    new: str


def known_software(model: CostModel) -> list[str]:
    """What ``software`` can change in this cost model."""
    if isinstance(model, Handbook):
        return list(_HANDBOOK)
    if not isinstance(model, FullModel):
        return []
    own = [f.name for f in fields(Stack) if f.name not in _FIXED]
    return ["stack", *_SHARES, *_NAMES, *own]


def told_software(model: CostModel) -> list[str]:
    """Of what ``software`` can change, what has a name of its own: the scalars of a stack are left out."""
    return list(_HANDBOOK) if isinstance(model, Handbook) else ["stack", *_SHARES, *_NAMES]


def software(model: CostModel, name: str, value: str) -> tuple[CostModel, Changed] | None:
    """The cost model after the change; ``None`` where it has nothing of this name. Raises ``InputError``."""
    if isinstance(model, Handbook) and name in _HANDBOOK:
        field = _HANDBOOK[name]
        found: dict[str, Any] = {field: _share(name, value, getattr(Handbook(), field))}
        return replace(model, **found), _changed_share(name, getattr(model, field), found[field])
    if not isinstance(model, FullModel) or name not in known_software(model):
        return None
    if name == "stack":
        then = load_stack(value)
        return replace(model, stack=then), Changed(name=name, old=model.stack.name, new=then.name)
    if name in _SHARES:
        field, on = _SHARES[name]
        share = _share(name, value, on)
        found = {field: 1 - share}
        changed = _changed_share(name, 1 - getattr(model.stack, field), share)
        return replace(model, stack=replace(model.stack, **found)), changed
    field = _NAMES.get(name, name)
    old = getattr(model.stack, field)
    found = {field: _typed(name, value, old)}
    if name == "overlap_dp" and not found[field]:  # FSDP's transfers are data parallelism's as well
        found["fsdp_overlap"] = 0.0
    changed = Changed(name=name, old=_said(old), new=_said(found[field]))
    return replace(model, stack=replace(model.stack, **found)), changed


def factor_of(text: str) -> float | None:
    """``2x``, ``0.5x``, ``+10%``, ``-10%`` as a factor; ``None``: not one. Raises ``InputError`` for one that
    leaves nothing."""
    body = text.strip().lower()
    try:
        if body.endswith(("x", "×")):
            found = float(body[:-1])
        elif body.endswith("%") and body[:1] in ("+", "-"):
            found = 1 + float(body[:-1]) / 100
        else:
            return None
    except ValueError:
        return None
    if not (math.isfinite(found) and found > 0):
        raise InputError(f"--what-if: {shown(text)} is no factor above 0")
    return found


def _changed_share(name: str, old: float, new: float) -> Changed:
    word = "of peak" if name == "matmul" else "hidden"
    return Changed(name=name, old=f"{old:.0%} {word}", new=f"{new:.0%} {word}")


def _share(name: str, value: str, on: float) -> float:
    if value.lower() in ("on", "true", "yes"):
        return on
    if value.lower() in ("off", "false", "no"):
        return 0.0
    try:
        found = float(value.removesuffix("%")) / (100 if value.endswith("%") else 1)
    except ValueError:
        found = math.nan
    if not 0 <= found <= 1:
        raise InputError(f"--what-if {name} must be on, off or a share from 0 to 1, not {shown(value)}")
    return found


def _typed(name: str, value: str, old: object) -> object:
    if isinstance(old, bool):
        if value.lower() not in ("on", "off", "true", "false", "yes", "no"):
            raise InputError(f"--what-if {name} must be on or off, not {shown(value)}")
        return value.lower() in ("on", "true", "yes")
    if isinstance(old, float | int):
        factor = factor_of(value)
        try:
            return float(value) if factor is None else old * factor
        except ValueError:
            raise InputError(f"--what-if {name} must be a number, not {shown(value)}") from None
    return value


def _said(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)
