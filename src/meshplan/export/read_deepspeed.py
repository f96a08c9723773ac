"""DeepSpeed configurations read back.

Keys and defaults as in DeepSpeed 0.19.8 (``runtime/config.py``, ``runtime/zero/config.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshplan.export.found import Found, Settings, table
from meshplan.export.header import take_facts
from meshplan.plan.kinds import CpKind, Recompute, Schedule, Sharding
from meshplan.plan.plans import ALL_LAYERS, DEFAULT_ORDER

_KEYS = (
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
    "zero_optimization", "bf16", "bfloat16", "fp16", "gradient_clipping", "tensor_parallel",
    "sequence_parallel_size", "data_parallel_size", "pipeline", "expert_parallel",
    "activation_checkpointing", "steps_per_print", "optimizer", "scheduler", "wall_clock_breakdown",
    "communication_data_type", "prescale_gradients", "zero_allow_untested_optimizer", "fp32_allreduce",
    "gradient_predivide_factor", "sparse_gradients", "amp", "flops_profiler", "autotuning",
    "comms_logger", "tensorboard", "wandb", "csv_monitor", "comet", "aio", "checkpoint", "data_types",
    "data_efficiency", "compression_training", "elasticity", "curriculum_learning", "dump_state",
    "memory_breakdown", "torch_autocast", "compile", "zero_force_ds_cpu_optimizer", "hybrid_engine",
    "seq_parallel_communication_data_type", "timers", "train_gas", "dataloader_drop_last",
    "use_data_before_expert_parallelism", "disable_allgather", "graph_harvesting", "sparse_attention",
    "mesh_param",
)  # fmt: skip


def read_deepspeed(data: Mapping[str, Any], what: str, script: Settings | None = None) -> Found:
    """A DeepSpeed configuration; ``script`` holds the flags of the training script around it."""
    found = Found(kind="deepspeed", what=what, order=DEFAULT_ORDER)
    args = Settings({name: None if value == "auto" else value for name, value in data.items()})
    pipe, experts = Settings(table(data, "pipeline")), Settings(table(data, "expert_parallel"))
    tp = Settings(table(data, "tensor_parallel")).count("autotp_size", low=0) or 1
    pp = 1 if pipe.raw("stages") == "auto" else pipe.count("stages") or 1
    folded = bool(experts.truth("enabled"))
    found.columns = {
        "tp": tp, "sp": tp == 1, "pp": pp, "vp": 1, "schedule": Schedule.ONE_F_ONE_B, "replicas": 1,
        "cp": args.count("sequence_parallel_size") or 1, "cp_kind": CpKind.ULYSSES,
        "ep": (experts.count("autoep_size") or 1) if folded else 1,
        "etp": (experts.count("expert_tensor_parallel_size") or 1) if folded else 1,
    }  # fmt: skip
    _batch(args, found)
    _zero(Settings(table(data, "zero_optimization")), found)
    _recompute(data, pipe, script, found)
    _precision(data, found)
    facts = data.get("_meshplan")
    if isinstance(facts, Mapping):
        take_facts(found, {str(key): str(value) for key, value in facts.items()})
    found.unknown = [key for key in data if key not in _KEYS and key != "_meshplan"]
    return found


def _batch(args: Settings, found: Found) -> None:
    """Batch sizes, and the data-parallel ranks that follow from them."""
    gbs, mbs = args.count("train_batch_size"), args.count("train_micro_batch_size_per_gpu")
    steps = args.count("gradient_accumulation_steps")
    if gbs is None and mbs is None:
        found.problems.append("neither train_batch_size nor train_micro_batch_size_per_gpu is given")
    if mbs is None:
        mbs = found.default("micro batch", 1)
    if steps is None and gbs is None:
        steps = found.default("gradient accumulation", 1)
    found.gbs, found.accumulation = gbs, steps
    found.columns["mbs"] = mbs
    if gbs and steps:
        dp, odd = divmod(gbs, mbs * steps)
        if odd or dp == 0:
            found.problems.append(
                f"train_batch_size {gbs} is no multiple of micro batch {mbs} × gradient accumulation {steps}"
            )
        else:
            found.columns["dp"] = dp


def _zero(zero: Settings, found: Found) -> None:
    stage = zero.count("stage", low=0, most=3)
    sharding = Sharding(stage) if stage is not None else found.default("sharding", Sharding.DDP)
    found.columns["sharding"] = sharding
    shards, pp = zero.count("mics_shard_size", low=-1), found.columns["pp"]
    if shards and shards > 1:
        found.notes.append(
            "mics_shard_size (MiCS) was removed from DeepSpeed in 0.19; earlier releases take it"
        )
        if "dp" in found.columns:
            found.columns["replicas"] = max(1, found.columns["dp"] * found.columns["cp"] // shards)
    device = Settings(table(zero.values, "offload_optimizer")).text("device")
    if device not in (None, "none"):
        found.offload = "optimizer"
        share = Settings(table(zero.values, "offload_optimizer")).number("ratio", 0.0, 1.0)
        if share is not None and sharding is Sharding.ZERO3 and share > 0:
            found.offload_fraction = share
        if sharding is Sharding.DDP:
            found.problems.append("offload_optimizer needs zero_optimization.stage 1 or more")
        if device != "cpu":
            found.notes.append(f"offload_optimizer is to {device}; host memory is priced")
    if Settings(table(zero.values, "offload_param")).text("device") not in (None, "none"):
        found.notes.append("offload_param holds the weights in host memory too; they are priced on the GPU")
    if pp > 1 and sharding >= Sharding.ZERO2:
        found.problems.append(
            f"ZeRO-{stage} is incompatible with DeepSpeed's pipeline engine (pipeline.stages {pp})"
        )


def _recompute(data: Mapping[str, Any], pipe: Settings, script: Settings | None, found: Found) -> None:
    interval = pipe.count("activation_checkpoint_interval", low=0) or 0
    whole = "activation_checkpointing" in data or interval > 0
    for flag in ("--gradient-checkpointing", "--gradient_checkpointing") if script is not None else ():
        value = script.raw(flag) if script is not None else None
        whole |= value is not None and str(value).lower() != "false"
    if not whole:
        found.default("recompute", "none")
    found.columns |= {"recompute_layers": ALL_LAYERS if whole else 0, "recompute_modules": Recompute.NONE}


def _precision(data: Mapping[str, Any], found: Found) -> None:
    name = "bf16" if "bf16" in data else "bfloat16"
    bf16, fp16 = (Settings(table(data, key)).truth("enabled") for key in (name, "fp16"))
    if bf16 and fp16:
        found.problems.append("bf16 and fp16 cannot both be enabled")
    found.precision = "bf16" if bf16 else "fp16" if fp16 else "fp32"
