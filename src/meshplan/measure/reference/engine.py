"""A training run with exactly one plan: modules, data, schedule, optimizer, step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from meshplan.measure.executable import SCHEDULES, check_executable
from meshplan.measure.reference.context import zigzag
from meshplan.measure.reference.decoder import Decoder
from meshplan.measure.reference.groups import Groups
from meshplan.measure.reference.loss import loss_context, token_loss
from meshplan.measure.reference.parallel import initialise, spread, synchronise
from meshplan.measure.reference.stages import V_SHAPED, stage_ranges, stage_sizes, stages_of_rank
from meshplan.model.layers import Moe
from meshplan.model.model import Model
from meshplan.plan.kinds import Schedule, Sharding
from meshplan.plan.plans import DEFAULT_ORDER, Plan
from meshplan.plan.workload import Workload

SINGLE = (Schedule.GPIPE, Schedule.ONE_F_ONE_B)
"""Schedules of one stage a rank, which torch gives a stage instead of a list."""
SEED = 20250101


def token_batch(model: Model, workload: Workload) -> torch.Tensor:
    """The global batch, the same on every rank: (gbs, seq + 1) token ids."""
    generator = torch.Generator().manual_seed(SEED)
    return torch.randint(model.vocab, (workload.gbs, workload.seq + 1), generator=generator)


class Engine:
    """One rank of a run. Make it on every rank of an initialised process group of ``plan.gpus`` ranks.

    Raises ``InputError`` for a plan that cannot be run; see ``executable``.
    """

    def __init__(
        self, model: Model, workload: Workload, plan: Plan, *, device: str = "cpu",
        order: tuple[str, ...] = DEFAULT_ORDER, balanced: bool = False,
    ) -> None:  # fmt: skip
        check_executable(model, workload, plan)
        self.model, self.workload, self.plan, self.device = model, workload, plan, device
        experts = any(isinstance(layer.mlp, Moe) for layer in model.layers)
        self.groups = Groups.of(plan, device.split(":", maxsplit=1)[0], experts=experts, order=order)
        self.stages = self._build(balanced=balanced)
        self.schedule = self._pipeline() if plan.pp > 1 else None
        self.optimizers = list(_optimizers(self.stages.values()))
        self.inputs, self.targets = self._data()
        self.loss = torch.zeros((), device=device)

    @property
    def micro_batches(self) -> int:
        """Micro-batches a rank runs in a step."""
        return self.workload.gbs // (self.plan.dp * self.plan.mbs)

    def _build(self, *, balanced: bool) -> dict[int, Decoder]:
        plan, groups = self.plan, self.groups
        ranges = stage_ranges(len(self.model.layers), stage_sizes(self.model, plan))
        v_shaped = plan.schedule in V_SHAPED
        positions = zigzag(self.workload.seq, plan.cp, groups.at("cp"))
        built: dict[int, Decoder] = {}
        for i in sorted(stages_of_rank(plan, groups.at("pp"), v_shaped=v_shaped)):
            with torch.device("meta"):
                stage = Decoder(
                    self.model, *ranges[i], seq=self.workload.seq // plan.cp,
                    ep=groups.size("ep"), etp=groups.size("etp"),
                )  # fmt: skip
            initialise(stage, groups, self.device)
            stage.set_positions(positions.to(self.device))
            built[i] = spread(
                stage, groups, precision=self.workload.precision, moe_balanced=balanced,
                reshard=plan.sharding is Sharding.ZERO3 and plan.pp == 1,
                fsdp=self.workload.precision == "bf16" or plan.dp * plan.cp > 1 or groups.size("edp") > 1,
            )  # fmt: skip
        return built

    def _data(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids and targets of this rank: (its sequences, its tokens)."""
        plan, whole = self.plan, token_batch(self.model, self.workload)
        rows = self.workload.gbs // plan.dp
        first = self.groups.at("dp") * rows
        own = whole[first : first + rows]
        at = zigzag(self.workload.seq, plan.cp, self.groups.at("cp"))
        return own[:, at].to(self.device), own[:, at + 1].to(self.device)

    def _pipeline(self) -> Any:
        from torch.distributed import pipelining

        plan = self.plan
        stages = [
            pipelining.PipelineStage(
                module, i, plan.pp * plan.vp, torch.device(self.device), group=self.groups.group("pp")
            )
            for i, module in self.stages.items()
        ]
        kind = getattr(pipelining, f"Schedule{SCHEDULES[plan.schedule]}")
        single = plan.schedule in SINGLE
        return kind(
            stages[0] if single else stages, self.micro_batches, loss_fn=self._loss, scale_grads=False
        )

    def _loss(self, logits: Any, target: torch.Tensor) -> torch.Tensor:
        return token_loss(logits, target, self.workload.tokens)

    def step(self, *, update: bool = True) -> torch.Tensor:
        """Forward and backward of the whole batch and, with ``update``, an optimizer step; this rank's
        share of the loss (0 where it has no head). Gradients stay until the next step."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        with torch.profiler.record_function("step:forward and backward"), loss_context(self.plan.tp)():
            loss = self._plain() if self.schedule is None else self._scheduled()
        if update:
            with torch.profiler.record_function("step:optimizer"):
                for optimizer in self.optimizers:
                    optimizer.step()
        return loss

    def _plain(self) -> torch.Tensor:
        (stage,) = self.stages.values()
        total, count = torch.zeros((), device=self.device), self.micro_batches
        pairs = zip(self.inputs.split(self.plan.mbs), self.targets.split(self.plan.mbs), strict=True)
        for i, (x, y) in enumerate(pairs):
            synchronise(stage, self.plan, last=i == count - 1)
            loss = self._loss(stage(x), y)
            loss.backward()
            total = total + _plain_tensor(loss.detach())
        return total

    def _scheduled(self) -> torch.Tensor:
        assert self.schedule is not None
        held = self.stages.values()
        first, last = any(s.first for s in held), any(s.last for s in held)
        losses: list[torch.Tensor] = []
        args = (self.inputs,) if first else ()
        more = {"target": self.targets, "losses": losses} if last else {}
        self.schedule.step(*args, **more, return_outputs=False)
        total = torch.zeros((), device=self.device)
        for loss in losses:
            total = total + _plain_tensor(loss.detach())
        return total

    def whole_loss(self, share: torch.Tensor) -> float:
        """The batch's loss from every rank's share: a sum over data and context, on the ranks with the head,
        handed to all."""
        value = share.detach().clone()
        if self.groups.at("tp") > 0:
            value.zero_()
        dist.all_reduce(value)
        return float(value)

    def gradients(self) -> Iterator[tuple[str, torch.Tensor, tuple[slice, ...] | None]]:
        """Name, whole gradient and, of routed experts, where this rank's part belongs; collective over all
        ranks. What several ranks hold alike is yielded on each."""
        for stage in self.stages.values():
            for name, p in stage.named_parameters():
                grad = p.grad if p.grad is not None else torch.zeros_like(p)
                whole = grad.full_tensor() if isinstance(grad, DTensor) else grad
                yield name, whole.detach().cpu().float(), self._place(name, whole)

    def _place(self, name: str, whole: torch.Tensor) -> tuple[slice, ...] | None:
        if ".experts." not in name:
            return None
        at = [0] * whole.dim()
        at[0] = self.groups.at("ep") if self.groups.experts is not None else 0
        wide = 1 if name.endswith("w2") else 2
        at[wide] = self.groups.at("etp") if self.groups.experts is not None else 0
        return tuple(slice(i * n, (i + 1) * n) for i, n in zip(at, whole.shape, strict=True))


def _plain_tensor(value: Any) -> torch.Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value  # type: ignore[no-any-return,unused-ignore]


def _optimizers(stages: Any) -> Iterator[torch.optim.Optimizer]:
    """AdamW, one for each mesh that parameters live on: fused loops do not mix meshes."""
    groups: dict[object, list[nn.Parameter]] = {}
    for stage in stages:
        for p in stage.parameters():
            mesh = p.device_mesh if isinstance(p, DTensor) else None
            groups.setdefault(mesh, []).append(p)
    for parameters in groups.values():
        yield torch.optim.AdamW(parameters, lr=1e-4, foreach=True)
