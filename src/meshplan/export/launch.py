"""What is launched and what comes of it: a job, the files of a target, and what the target could not say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from meshplan.errors import InputError
from meshplan.model.layers import Moe
from meshplan.model.model import Model
from meshplan.plan.kinds import CpKind, Recompute, Schedule, Sharding
from meshplan.plan.plans import ALL_LAYERS, AUTO_LAYERS, DEFAULT_ORDER, Plan
from meshplan.plan.rules import Setting
from meshplan.schedule.layout_string import even_split


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A question with the plan that answers it; ``order`` is that of the mesh, from inside out.

    ``name`` becomes the name of the job where a launcher wants one; ``asked_model`` what the user called
    the model, so that it can be found again; ``stack`` the software that was asked for, by name. Raises
    ``InputError`` for a plan that still leaves the layers to recompute open.
    """

    setting: Setting
    plan: Plan
    order: tuple[str, ...] = DEFAULT_ORDER
    name: str = "meshplan"
    asked_model: str = ""
    stack: str | None = None

    def __post_init__(self) -> None:
        if self.plan.recompute_layers == AUTO_LAYERS:
            raise InputError("the layers to recompute are still open; price the plan first")

    @property
    def model(self) -> Model:
        """What is trained."""
        return self.setting.model

    @property
    def nodes(self) -> int:
        """Hosts that run processes."""
        return max(1, self.setting.cluster.gpus // self.gpus_per_node)

    @property
    def gpus_per_node(self) -> int:
        """Processes on a host: the GPUs it drives (4 for a tray of an NVL72, not the 72 of the domain)."""
        cluster = self.setting.cluster
        host = min(cluster.gpu.gpus_per_host, cluster.gpus_per_node)
        return next(n for n in range(min(host, cluster.gpus), 0, -1) if cluster.gpus % n == 0)

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a data-parallel rank in one step."""
        return self.setting.workload.gbs // (self.plan.dp * self.plan.mbs)

    @property
    def hub_name(self) -> str:
        """What a trainer of Hugging Face loads: a preset's name on the hub, or what was asked for."""
        found = re.match(r"https://huggingface\.co/([\w.-]+/[\w.-]+)/", self.model.source)
        return found[1] if found else self.asked_model or self.model.name

    @property
    def stages(self) -> tuple[int, ...]:
        """Layers of each stage, in model order."""
        return stage_layers(self.plan, len(self.model.layers))


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """One part of the job that the target cannot express.

    ``change`` holds the columns of ``Plan`` that are written otherwise, so that the difference can be
    priced; it is empty for parts of the model or the workload.
    """

    part: str
    asked: str
    written: str
    why: str
    change: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """The files of one target. ``main`` is the one to start; those that end in ``.sh`` are executable.

    ``written`` is the plan as the target will run it, ``order`` likewise; both equal the job's where
    there are no notes about them.
    """

    target: str
    version: str
    files: Mapping[str, str]
    main: str
    written: Plan
    order: tuple[str, ...]
    notes: tuple[Note, ...] = ()


class Fitting:
    """Makes a plan fit a target, and remembers what had to change and why."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.plan = plain(job.plan, job.model)
        self.order = job.order
        self.notes: list[Note] = []

    def change(self, part: str, written: str, why: str, *, asked: str = "", **columns: Any) -> None:
        """Write ``columns`` instead of what was asked; ``written`` says it for people."""
        before = ", ".join(f"{name} {_said(getattr(self.plan, name))}" for name in columns)
        self.plan = plain(replace(self.plan, **columns), self.job.model)
        self.notes.append(
            Note(part=part, asked=asked or before or part, written=written, why=why, change=columns)
        )

    def say(self, part: str, asked: str, written: str, why: str) -> None:
        """Something about the model or the workload that the target cannot express."""
        self.notes.append(Note(part=part, asked=asked, written=written, why=why))

    def leave_capacity(self, why: str) -> None:
        """The capacity of experts, where the workload asks for one, is the user's own script's to set."""
        capacity = self.job.setting.workload.capacity_factor
        if capacity is not None:
            self.say("capacity factor", f"{capacity:g}", "for your script", why)

    def default_order(self, why: str, order: tuple[str, ...] = DEFAULT_ORDER) -> None:
        """The target has one order of the mesh only."""
        if _flat(self.order) != _flat(order):
            written = "-".join(order)
            self.notes.append(Note(part="order", asked="-".join(self.order), written=written, why=why))
        self.order = order


def plain(plan: Plan, model: Model) -> Plan:
    """The same plan with what has no effect at its default, so that equal plans compare equal.

    Without tensor parallelism there is no sequence parallelism to choose, without context parallelism
    no kind of it, without a pipeline no schedule; an even layout is no layout, unless stages at its ends
    have no layers; recomputing at least as many layers as a rank has is recomputing all.
    """
    stages = stage_layers(plan, len(model.layers))
    even = stages == even_split(len(model.layers), len(stages)) and len(stages) <= len(model.layers)
    even |= plan.layout is None
    fullest = max(sum(stages[rank :: plan.pp]) for rank in range(plan.pp))
    layers = ALL_LAYERS if plan.recompute_layers >= max(fullest, 1) else plan.recompute_layers
    has_experts = any(isinstance(layer.mlp, Moe) for layer in model.layers)
    return replace(
        plan,
        sp=plan.sp or plan.tp == 1,
        cp_kind=plan.cp_kind if plan.cp > 1 else CpKind.RING,
        vp=plan.vp if plan.pp > 1 else 1,
        schedule=plan.schedule if plan.pp > 1 else Schedule.ONE_F_ONE_B,
        layout=None if even or plan.pp == 1 else plan.layout,
        replicas=plan.replicas if plan.dp * plan.cp > 1 and plan.sharding is not Sharding.DDP else 1,
        ep=plan.ep if has_experts else 1,
        etp=plan.etp if has_experts else 1,
        recompute_layers=layers,
        recompute_modules=Recompute.NONE if layers == ALL_LAYERS else plan.recompute_modules,
    )


def stage_layers(plan: Plan, layers: int) -> tuple[int, ...]:
    """Layers of each of the ``pp · vp`` stages, in model order."""
    return plan.layout if plan.layout is not None else even_split(layers, plan.pp * plan.vp)


def counted(plan: Plan, layers: int) -> Plan:
    """The same plan with a number in place of "every layer of the stage"."""
    if plan.recompute_layers != ALL_LAYERS:
        return plan
    stages = stage_layers(plan, layers)
    return replace(plan, recompute_layers=max(sum(stages[rank :: plan.pp]) for rank in range(plan.pp)))


def recompute_words(plan: Plan) -> str:
    """What a plan recomputes, as people type it: ``none``, ``full``, ``4``, ``mlp+moe-act``."""
    names = [m.name.lower().replace("_", "-") for m in Recompute if m & plan.recompute_modules and m.name]
    layers = plan.recompute_layers
    words = (["full"] if layers == ALL_LAYERS else [str(layers)] if layers else []) + names
    return "+".join(words) or "none"


def _said(value: Any) -> str:
    return str(getattr(value, "label", value))


def _flat(order: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dim for dim in order if dim != "ep")
