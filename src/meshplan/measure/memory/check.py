"""One rank's real module run once under fake tensors: what it holds at its fullest, and what it sends.

Nothing is computed and no memory is taken; any world size works. What a fake run cannot see: rounding
and fragmentation of the allocator, the CUDA context, communicators' buffers, library workspaces.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.fsdp import FSDPModule

from meshplan.errors import InputError
from meshplan.measure.executable import check_executable
from meshplan.measure.memory.census import Census, Collective
from meshplan.measure.memory.log import MemoryLog, local_tensors
from meshplan.measure.reference.decoder import Decoder
from meshplan.measure.reference.groups import Groups
from meshplan.measure.reference.loss import loss_context, token_loss
from meshplan.measure.reference.parallel import spread, synchronise
from meshplan.measure.reference.stages import V_SHAPED, stage_ranges, stage_sizes, stages_of_rank
from meshplan.model.layers import Moe
from meshplan.model.model import Model
from meshplan.plan.kinds import Sharding
from meshplan.plan.mesh import Mesh
from meshplan.plan.plans import DEFAULT_ORDER, Plan
from meshplan.plan.workload import Workload
from meshplan.schedule.generate import make_order

ADAM_BYTES = 8
"""Two fp32 moments a parameter; with the fp32 parameter itself, 12."""
PARTS = (
    "weights",
    "gradients",
    "optimizer",
    "activations",
    "loss and workspace",
    "gathered weights",
    "other",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What the run of one pipeline rank showed; bytes.

    ``parts`` at the moment of the peak sum to ``peak_bytes``; ``activations_bytes`` is what one
    micro-batch leaves behind on all of the rank's stages between forward and backward.
    """

    pipeline_rank: int
    parameters: int
    """Elements that the rank's shard holds."""
    gradients_bytes: int
    """The most that is alive between two backwards: accumulated ones, or what the shard keeps."""
    optimizer_bytes: int
    """fp32 parameters and moments."""
    activations_bytes: int
    peak_bytes: int
    parts: Mapping[str, int]
    collectives: Mapping[Collective, int]
    """Calls of the step that was run, of ``micro_batches``."""
    micro_batches: int
    seconds: float


def check_rank(
    model: Model, workload: Workload, plan: Plan, *, pipeline_rank: int = 0, fused: bool = False,
    order: tuple[str, ...] = DEFAULT_ORDER, micro_batches: int | None = None,
) -> Seen:  # fmt: skip
    """Run rank ``pipeline_rank`` (the first of its stage) of ``plan`` for one step under fake tensors.

    ``fused``: activation functions keep their inputs only. ``micro_batches`` cuts the step short, to
    enough for the peak if left out. Raises ``InputError`` for what the reference engine cannot run.
    """
    check_executable(model, workload, plan, pipeline=False)
    if dist.is_initialized():
        raise InputError("a process group is open in this process; a memory check needs its own")
    started = perf_counter()
    sizes = {"tp": plan.tp, "cp": plan.cp, "dp": plan.dp, "pp": plan.pp}
    rank = int(Mesh.of(sizes, order).groups("pp")[0][pipeline_rank])
    dist.init_process_group("fake", rank=rank, world_size=plan.gpus)
    try:
        with _quietly():
            run = _Run(model, workload, plan, pipeline_rank, fused, order)
            count = micro_batches or run.enough()
            return run.go(count, started)
    finally:
        dist.destroy_process_group()
        _forget_groups()


def _without_prefetch(decoder: Decoder) -> None:
    """Each unit prefetches itself, which is there: torch's pipeline gives units back after the last backward,
    so that nothing is left to prefetch, and here they would be gathered again for a micro-batch that is
    over."""
    for module in decoder.modules():
        if isinstance(module, FSDPModule):
            module.set_modules_to_backward_prefetch([module])


def _forget_groups() -> None:
    """Empty what DTensor keeps between runs: it takes two meshes of the same ranks for one, and would call
    the groups of a run that is over (private to torch; without it a second run in a process miscounts)."""
    from torch.distributed.tensor import _redistribute, debug

    for owner, name in ((debug, "_clear_sharding_prop_cache"), (_redistribute, "_gen_transform_infos")):
        found = getattr(owner, name, None)
        clear = getattr(found, "cache_clear", found)
        if clear is not None:
            clear()


class _Run:
    """The stages of one rank, and the log of what they do."""

    def __init__(
        self, model: Model, workload: Workload, plan: Plan, rank: int, fused: bool, order: tuple[str, ...]
    ) -> None:
        self.model, self.workload, self.plan, self.rank = model, workload, plan, rank
        experts = any(isinstance(layer.mlp, Moe) for layer in model.layers)
        self.groups = Groups.of(plan, "cpu", experts=experts, order=order)
        ranges = stage_ranges(len(model.layers), stage_sizes(model, plan))
        ids = stages_of_rank(plan, rank, v_shaped=plan.schedule in V_SHAPED)
        reshard = plan.sharding is Sharding.ZERO3 and plan.pp == 1
        ep, etp = self.groups.size("ep"), self.groups.size("etp")
        self.stages: dict[int, Decoder] = {}
        for i in ids:
            with torch.device("meta"):
                stage = Decoder(model, *ranges[i], seq=workload.seq // plan.cp, fused=fused, ep=ep, etp=etp)
            self.stages[i] = spread(
                stage, self.groups, precision=workload.precision, reshard=reshard,
                fsdp=workload.precision == "bf16" or plan.dp * plan.cp > 1, moe_balanced=True,
            )  # fmt: skip
            if plan.pp > 1:
                _without_prefetch(self.stages[i])
        self.log = MemoryLog(Census(self.groups.named()))
        self.between: list[int] = []
        """Places in the log right after a backward."""
        self.held: dict[tuple[int, int], tuple[Any, Any]] = {}
        """(stage, micro-batch) → input and output, between forward and backward."""

    def enough(self) -> int:
        """Micro-batches after which nothing new can be seen."""
        p, m = self.plan, self.workload.gbs // (self.plan.dp * self.plan.mbs)
        if p.pp == 1:
            return min(m, 2)
        for count in range(min(m, 2 * p.pp * p.vp), m + 1):
            try:
                self._order(count)
            except InputError:
                continue
            return count
        return m

    def _order(self, count: int) -> list[tuple[str, int, int]]:
        p = self.plan
        if p.pp == 1:
            return [(k, 0, i) for i in range(count) for k in "FB"]
        made = make_order(p.schedule.label, ranks=p.pp, micro_batches=count, vp=p.vp)
        return [(a.kind, a.stage, a.micro_batch) for a in made.of_rank(self.rank)]

    def go(self, count: int, started: float) -> Seen:
        """All work of the rank for ``count`` micro-batches, in the schedule's order."""
        log, mode = self.log, FakeTensorMode(allow_non_fake_inputs=True)
        moments: list[int] = []
        with mode, log.watching():
            for decoder in self.stages.values():
                decoder.to_empty(device="cpu")
                for p in decoder.parameters():
                    log.note(p, "weights")
            shard = sum(
                t.numel() for s in self.stages.values() for p in s.parameters() for t in local_tensors(p)
            )
            context = loss_context(self.plan.tp)
            with context():
                for kind, stage, micro in self._order(count):
                    if kind == "F":
                        self._forward(stage, micro)
                        one = {k for k in self.held if k[1] == micro}
                        if len(one) == len(self.stages) and len(self.held) == len(one):
                            moments.append(log.moments - 1)
                    elif kind in "BI":  # the split backward keeps its weight part's inputs a while longer
                        self._backward(stage, micro, last=micro == count - 1)
        curves = log.curves()
        total = np.asarray(sum(curves.values()))
        # Read at the end: what a storage is for may show only when FSDP gives it back.
        kept = curves.get("activations", np.zeros_like(total))
        after_forward = max((int(kept[m]) for m in moments), default=0)
        at = int(np.argmax(total))
        parts = dict.fromkeys(PARTS, 0)
        for name, curve in curves.items():
            part = "loss and workspace" if name == "backward" else name
            parts[part if part in parts else "other"] += int(curve[at])
        adam = ADAM_BYTES * shard
        # The fp32 shard is master and weight in one: it counts as optimizer, as in the cost model.
        parts["optimizer"] += adam + parts.pop("weights")
        return Seen(
            pipeline_rank=self.rank,
            parameters=shard,
            gradients_bytes=max((int(curves["gradients"][m]) for m in self.between), default=0),
            optimizer_bytes=adam + 4 * shard,
            activations_bytes=after_forward,
            peak_bytes=int(total[at]) + adam,
            parts=parts,
            collectives=dict(log.census.counts) if log.census is not None else {},
            micro_batches=count,
            seconds=perf_counter() - started,
        )

    def _forward(self, stage: int, micro: int) -> None:
        decoder, log, p = self.stages[stage], self.log, self.plan
        tokens = self.workload.seq // p.cp
        kind = torch.bfloat16 if self.workload.precision == "bf16" else torch.float32
        with log.phase("other"):
            if decoder.first:
                x = torch.zeros((p.mbs, tokens), dtype=torch.int64)
            else:
                rows = tokens // (p.tp if p.sp else 1)
                x = torch.zeros((p.mbs, rows, self.model.hidden), dtype=kind)
                log.note(x, "activations")
                x.requires_grad_()
            target = torch.zeros((p.mbs, tokens), dtype=torch.int64)
        with log.phase("activations"), _head_apart(decoder, log):
            out = decoder(x)
            if decoder.last:
                with log.phase("loss and workspace"):
                    out = token_loss(out, target, self.workload.tokens)
        self.held[stage, micro] = (x, out)
        self._pass(stage - 1, "recv", x)
        self._pass(stage + 1, "send", out)

    def _pass(self, neighbour: int, kind: str, tensor: torch.Tensor) -> None:
        """Count what a stage hands to one on another rank, or gets from it: torch's schedules pass on a
        stage's input and output as they are."""
        there = 0 <= neighbour < self.plan.pp * self.plan.vp and neighbour not in self.stages
        if there and self.log.census is not None:
            (local,) = local_tensors(tensor)
            self.log.census.add("pp", kind, local.numel() * local.element_size())

    def _backward(self, stage: int, micro: int, *, last: bool) -> None:
        decoder, log = self.stages[stage], self.log
        synchronise(decoder, self.plan, last=last)
        x, out = self.held.pop((stage, micro))
        with log.phase("backward"):
            if decoder.last:
                out.backward()
            else:
                torch.autograd.backward(out, torch.empty_like(out))
        self._pass(stage + 1, "recv", out)
        if x.grad is not None:
            self._pass(stage - 1, "send", x.grad)
        del x, out
        # What backward leaves behind is gradients.
        for serial, _, _ in log._known.values():
            if log.kinds[serial] == "backward":
                log.kinds[serial] = "gradients"
        self.between.append(log.moments - 1)


@contextmanager
def _head_apart(decoder: Decoder, log: MemoryLog) -> Iterator[None]:
    """Logits are counted with the loss, not with the layers' activations."""
    if decoder.head is None:
        yield
        return

    def before(*_args: Any) -> None:
        log.kind = "loss and workspace"

    handle = decoder.head.register_forward_pre_hook(before)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _quietly() -> Iterator[None]:
    """torch warns of calls that are right here (no gradient for some outputs, private groups)."""
    import logging
    import warnings

    logger = logging.getLogger("torch.distributed.tensor")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
