"""What a run is, as plain data: model, workload, plan, settings; a manifest, written and read back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from meshplan.model.layers import Attention, LatentAttention, Layer, Mlp, Moe
from meshplan.model.model import Model
from meshplan.model.rope import Rope
from meshplan.plan.kinds import CpKind, Recompute, Schedule, Sharding
from meshplan.plan.plans import DEFAULT_ORDER, Plan
from meshplan.plan.workload import Workload

SCHEMA_VERSION = 1
KINDS: Mapping[str, Any] = {
    "cp_kind": CpKind, "schedule": Schedule, "sharding": Sharding, "recompute_modules": Recompute,
}  # fmt: skip
_LAYERS = {cls.__name__: cls for cls in (Attention, LatentAttention, Mlp, Moe)}


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSpec:
    """One plan to measure. ``steps`` are timed after ``warmup`` and before ``profiled`` ones."""

    model: Model
    workload: Workload
    plan: Plan
    label: str
    order: tuple[str, ...] = DEFAULT_ORDER
    steps: int = 20
    warmup: int = 2
    profiled: int = 2
    balanced: bool = True
    """Experts get equally many tokens, as benchmarks do."""
    check: bool = True
    """Compare loss and gradients with one process first."""
    device: str = "auto"
    engine: str = "reference"
    command: str = ""
    """The user's launch line or flags, where the engine takes some."""

    @property
    def key(self) -> str:
        """A short name that changes with anything that changes the measurement."""
        text = json.dumps(spec_data(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def reference_key(self) -> str:
        """The same for the run of one process that it must agree with."""
        data = {k: spec_data(self)[k] for k in ("model", "workload", "balanced")}
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:12]

    def reference(self) -> RunSpec:
        """That run of one process."""
        return replace(self, plan=Plan(dp=1), label="one process", profiled=0, steps=0, warmup=0)


def spec_data(spec: RunSpec) -> dict[str, Any]:
    """The run as JSON data."""
    return {
        "schema_version": SCHEMA_VERSION,
        "model": model_data(spec.model),
        "workload": asdict(spec.workload),
        "plan": plan_data(spec.plan),
        **{
            f.name: getattr(spec, f.name) if f.name != "order" else list(spec.order)
            for f in fields(spec)
            if f.name not in ("model", "workload", "plan")
        },
    }


def spec_of(data: Mapping[str, Any]) -> RunSpec:
    """The run that ``spec_data`` wrote."""
    rest = {f.name: data[f.name] for f in fields(RunSpec) if f.name in data}
    return RunSpec(
        **{
            **rest,
            "model": model_of(data["model"]),
            "workload": Workload(**data["workload"]),
            "plan": plan_of(data["plan"]),
            "order": tuple(data["order"]),
        }
    )


def plan_data(plan: Plan) -> dict[str, Any]:
    """A plan's fields; choices by their names."""
    found: dict[str, Any] = {}
    for f in fields(plan):
        value = getattr(plan, f.name)
        found[f.name] = (
            int(value)
            if f.name == "recompute_modules"
            else (value.label if f.name in KINDS else list(value) if isinstance(value, tuple) else value)
        )
    return found


def plan_of(data: Mapping[str, Any]) -> Plan:
    """The plan that ``plan_data`` wrote."""
    values = dict(data)
    for name in ("cp_kind", "schedule", "sharding"):
        values[name] = next(k for k in KINDS[name] if k.label == values[name])
    values["recompute_modules"] = Recompute(values["recompute_modules"])
    values["layout"] = None if values["layout"] is None else tuple(values["layout"])
    return Plan(**values)


def model_data(model: Model) -> dict[str, Any]:
    """A model with each distinct layer once."""
    kinds = list(dict.fromkeys(model.layers))
    plain = {
        f.name: getattr(model, f.name)
        for f in fields(model)
        if f.name not in ("layers", "mtp", "notes", "rope")
    }
    return {
        **plain,
        "rope": None if model.rope is None else asdict(model.rope),
        "kinds": [_layer_data(layer) for layer in kinds],
        "layers": [kinds.index(layer) for layer in model.layers],
    }


def model_of(data: Mapping[str, Any]) -> Model:
    """The model that ``model_data`` wrote."""
    kinds = [_layer_of(k) for k in data["kinds"]]
    rest = {k: v for k, v in data.items() if k not in ("kinds", "layers", "rope")}
    rope = data.get("rope")
    if rope is not None:
        rest["rope"] = Rope(**{**rope, "skips": tuple(rope["skips"])})
    return Model(**rest, layers=tuple(kinds[i] for i in data["layers"]))


def _layer_data(layer: Layer) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for f in fields(layer):
        value = getattr(layer, f.name)
        nested = f.name in ("attention", "mlp") and value is not None
        found[f.name] = {"type": type(value).__name__, **asdict(value)} if nested else value
    return found


def _layer_of(data: Mapping[str, Any]) -> Layer:
    values = dict(data)
    for name in ("attention", "mlp"):
        if values[name] is not None:
            inner = dict(values[name])
            values[name] = _LAYERS[inner.pop("type")](**inner)
    return Layer(**values)
