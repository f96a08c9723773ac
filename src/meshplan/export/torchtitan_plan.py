"""The plan as torchtitan settings, after what torchtitan cannot do has been changed and said.

Field names and rules as in torchtitan 0.3.0: ``config/configs.py``, ``distributed/parallel_dims.py``,
``distributed/pipeline_parallel.py``, ``distributed/fsdp.py``, ``trainer.py``.
"""

from __future__ import annotations

from typing import Any

from meshplan.export.launch import Fitting, stage_layers
from meshplan.plan.kinds import CpKind, Recompute, Schedule, Sharding
from meshplan.plan.plans import ALL_LAYERS, Plan

SCHEDULES = {
    Schedule.ONE_F_ONE_B: "1F1B",
    Schedule.GPIPE: "GPipe",
    Schedule.INTERLEAVED: "Interleaved1F1B",
    Schedule.LOOPED_BFS: "LoopedBFS",
    Schedule.ZB_V: "ZBVZeroBubble",
    Schedule.DUALPIPE_V: "DualPipeV",
}
"""Names of ``torch.distributed.pipelining``'s schedule classes."""
LOOPED_ZERO_BUBBLE = "InterleavedZeroBubble"
ZERO_BUBBLE = (Schedule.ZB_H1, Schedule.ZB_V, Schedule.DUALPIPE_V)


def fit_torchtitan(fitting: Fitting) -> None:
    """Change what torchtitan 0.3.0 cannot run, and say so."""
    fit_torch_schedule(fitting)
    plan = fitting.plan
    if plan.etp > 1:
        fitting.change("etp", "1", "torchtitan does not split experts over tensor parallelism", etp=1)
    if plan.cp > 1 and plan.cp_kind is not CpKind.ALL_GATHER:
        fitting.change(
            "cp_kind", "all-gather", "torchtitan gathers keys and values under FlexAttention",
            asked=plan.cp_kind.label, cp_kind=CpKind.ALL_GATHER,
        )  # fmt: skip
    fit_torch_sharding(fitting)
    fit_torch_recompute(fitting)
    fitting.default_order("torchtitan's mesh is pp, dp, cp, tp from outside in")


def fit_torch_schedule(fitting: Fitting) -> None:
    """Schedules that ``torch.distributed.pipelining`` has."""
    plan = fitting.plan
    known = plan.schedule in SCHEDULES or (plan.schedule is Schedule.ZB_H1 and plan.vp > 1)
    if plan.pp == 1 or known:
        return
    nearest = Schedule.ZB_V if plan.vp == 2 else Schedule.INTERLEAVED if plan.vp > 1 else Schedule.ONE_F_ONE_B
    fitting.change(
        "schedule", nearest.label, "PyTorch's pipelining has no such schedule",
        asked=plan.schedule.label, schedule=nearest,
    )  # fmt: skip


def fit_torch_sharding(fitting: Fitting) -> None:
    """FSDP2 shards parameters and gradients, over dp · cp; or data parallelism replicates, without cp."""
    plan = fitting.plan
    if plan.replicas > 1 and plan.dp % plan.replicas:
        fitting.change("replicas", "1", "replicas must divide dp", asked=str(plan.replicas), replicas=1)
    plan = fitting.plan
    if plan.dp * plan.cp == 1:
        if plan.sharding < Sharding.ZERO2:  # on one rank there is nothing to shard
            fitting.plan = _with(plan, sharding=Sharding.ZERO2)
    elif plan.sharding is Sharding.DDP and plan.cp > 1:
        fitting.change(
            "sharding", "zero2", "FSDP always shards over context parallel ranks",
            asked="ddp", sharding=Sharding.ZERO2,
        )  # fmt: skip
    elif plan.sharding is Sharding.ZERO1:
        fitting.change(
            "sharding", "zero2", "FSDP2 shards the gradients as well as the optimizer's states",
            asked="zero1", sharding=Sharding.ZERO2,
        )  # fmt: skip
    plan = fitting.plan
    if plan.replicas == plan.dp > 1 and plan.cp == 1 and plan.sharding is not Sharding.DDP:
        fitting.plan = _with(plan, sharding=Sharding.DDP, replicas=1)  # sharded over one rank: the same
    if (
        fitting.plan.pp > 1
        and fitting.plan.schedule in ZERO_BUBBLE
        and fitting.plan.sharding is Sharding.ZERO3
    ):
        fitting.change(
            "sharding", "zero2",
            "zero-bubble schedules with resharded parameters give wrong gradients in PyTorch",
            asked="zero3", sharding=Sharding.ZERO2,
        )  # fmt: skip


def fit_torch_recompute(fitting: Fitting) -> None:
    """Whole layers, all of them, or by operator."""
    plan = fitting.plan
    if 0 < plan.recompute_layers < ALL_LAYERS:
        fitting.change(
            "recompute", "all layers", "torchtitan recomputes every layer or none",
            asked=f"{plan.recompute_layers} layers a rank", recompute_layers=ALL_LAYERS,
            recompute_modules=Recompute.NONE,
        )  # fmt: skip
    elif plan.recompute_modules not in (Recompute.NONE, Recompute.OPERATORS):
        fitting.change(
            "recompute", "by operator", "torchtitan recomputes by operator, not by module",
            asked="by module", recompute_modules=Recompute.OPERATORS,
        )  # fmt: skip


def parallelism_fields(plan: Plan, layers: int) -> dict[str, Any]:
    """Fields of ``ParallelismConfig``."""
    replicate, shard = degrees(plan)
    fields: dict[str, Any] = {
        "data_parallel_replicate_degree": replicate,
        "data_parallel_shard_degree": shard,
        "fsdp_reshard_after_forward": "always" if plan.sharding is Sharding.ZERO3 else "never",
        "tensor_parallel_degree": plan.tp,
        "enable_sequence_parallel": plan.sp,
        "context_parallel_degree": plan.cp,
        "expert_parallel_degree": plan.ep,
        "pipeline_parallel_degree": plan.pp,
    }
    if plan.pp > 1:
        fields |= {
            "pipeline_parallel_schedule": schedule_name(plan),
            "pipeline_parallel_microbatch_size": plan.mbs,
            "module_fqns_per_model_part": stage_modules(plan, layers),
        }
    return fields


def degrees(plan: Plan) -> tuple[int, int]:
    """Ranks that replicate and ranks that shard."""
    if plan.sharding is Sharding.DDP:
        return plan.dp, 1
    return plan.replicas, plan.dp // plan.replicas


def schedule_name(plan: Plan) -> str:
    """The class of ``torch.distributed.pipelining``."""
    return SCHEDULES.get(plan.schedule, LOOPED_ZERO_BUBBLE)


def stage_modules(plan: Plan, layers: int) -> list[list[str]]:
    """Modules of each stage, in model order."""
    parts, start = [], 0
    for size in stage_layers(plan, layers):
        parts.append([f"layers.{i}" for i in range(start, start + size)])
        start += size
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "lm_head"]
    return parts


def training_fields(plan: Plan, micro_batches: int, seq: int, gbs: int, precision: str) -> dict[str, Any]:
    """Fields of ``TrainingConfig``; a pipeline takes all its micro-batches as one local batch."""
    return {
        "local_batch_size": plan.mbs * (micro_batches if plan.pp > 1 else 1),
        "global_batch_size": gbs,
        "seq_len": seq,
        "mixed_precision_param": "float32" if precision == "fp32" else "bfloat16",
        "disable_cuda_graphs": True,
    }


def policy(plan: Plan) -> str:
    """Activation checkpointing: ``full``, ``selective`` or ``none``."""
    if plan.recompute_layers == ALL_LAYERS:
        return "full"
    return "selective" if plan.recompute_modules else "none"


def _with(plan: Plan, **columns: Any) -> Plan:
    from dataclasses import replace

    return replace(plan, **columns)
