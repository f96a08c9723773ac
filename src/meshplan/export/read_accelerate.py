"""accelerate configurations read back.

Keys and defaults as in accelerate 1.15.0 (``commands/config/config_args.py``, ``parallelism_config.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshplan.errors import InputError
from meshplan.export.found import Found, Settings, table
from meshplan.plan.kinds import CpKind, Recompute, Schedule, Sharding
from meshplan.plan.plans import ALL_LAYERS, DEFAULT_ORDER

_KEYS = (
    "compute_environment", "distributed_type", "mixed_precision", "num_machines", "num_processes",
    "machine_rank", "main_training_function", "rdzv_backend", "same_network", "use_cpu", "fsdp_config",
    "parallelism_config", "debug", "downcast_bf16", "enable_cpu_affinity", "tpu_env", "tpu_use_cluster",
    "tpu_use_sudo", "gpu_ids", "main_process_ip", "main_process_port", "deepspeed_config",
    "dynamo_config", "fp8_config", "megatron_lm_config", "mpirun_config", "tpu_name", "tpu_zone",
    "command_file", "commands", "tpu_vm",
)  # fmt: skip

_STRATEGIES = {"FULL_SHARD": True, "HYBRID_SHARD": True, "SHARD_GRAD_OP": False}
"""Names that FSDP 1 had for resharding."""


def read_accelerate(data: Mapping[str, Any], what: str, script: Settings | None = None) -> Found:
    """An accelerate configuration; ``script`` holds the flags of the training script around it."""
    found = Found(kind="accelerate", what=what, order=DEFAULT_ORDER)
    args = Settings(data)
    kind = args.text("distributed_type") or "NO"
    if kind == "DEEPSPEED":
        raise InputError("this accelerate configuration hands over to DeepSpeed; read its JSON instead")
    found.gpus, nodes = args.count("num_processes"), args.count("num_machines") or 1
    if found.gpus and found.gpus % nodes == 0:
        found.gpus_per_node = found.gpus // nodes
    _degrees(Settings(table(data, "parallelism_config")), found, sharded=kind == "FSDP")
    _fsdp(Settings(table(data, "fsdp_config")), found, sharded=kind == "FSDP")
    _script_batch(found, script)
    mixed = args.text("mixed_precision") or found.default("precision", "no")
    found.precision = str(mixed) if mixed in ("bf16", "fp16", "fp8") else "fp32"
    found.unknown = [key for key in data if key not in _KEYS]
    return found


def _degrees(sizes: Settings, found: Found, *, sharded: bool) -> None:
    def size(name: str) -> int | None:
        return sizes.count(f"parallelism_config_{name}_size")

    replicate, shard, tp, cp = size("dp_replicate") or 1, size("dp_shard"), size("tp") or 1, size("cp") or 1
    if shard is not None:
        found.columns["dp"] = replicate * shard
        ranks = replicate * shard * tp * cp
        if found.gpus and ranks != found.gpus:
            found.problems.append(
                f"dp_replicate {replicate} × dp_shard {shard} × cp {cp} × tp {tp} = {ranks},"
                f" not num_processes {found.gpus}"
            )
    if sharded and (tp > 1 or cp > 1) and replicate > 1 and shard == 1:
        found.problems.append("tp or cp with dp_replicate needs dp_shard above 1")
    found.columns |= {
        "tp": tp, "sp": tp == 1, "cp": cp, "cp_kind": CpKind.ALL_GATHER, "pp": 1, "vp": 1, "ep": 1, "etp": 1,
        "replicas": replicate if sharded else 1, "schedule": Schedule.ONE_F_ONE_B,
    }  # fmt: skip


def _fsdp(fsdp: Settings, found: Found, *, sharded: bool) -> None:
    if sharded and (fsdp.count("fsdp_version") or 1) == 1:
        found.notes.append("FSDP version 1 is priced as FSDP2")
    reshard = fsdp.raw("fsdp_reshard_after_forward")
    if reshard is None:
        strategy = fsdp.text("fsdp_sharding_strategy")
        reshard = strategy != "SHARD_GRAD_OP" if strategy else found.default("reshard after forward", True)
    elif isinstance(reshard, str) and reshard.upper() in _STRATEGIES:
        reshard = _STRATEGIES[reshard.upper()]
    else:
        reshard = fsdp.truth("fsdp_reshard_after_forward")
    whole = fsdp.truth("fsdp_activation_checkpointing")
    if whole is None:
        found.default("recompute", "none")
    found.columns |= {
        "sharding": Sharding.DDP if not sharded else Sharding.ZERO3 if reshard else Sharding.ZERO2,
        "recompute_layers": ALL_LAYERS if whole else 0, "recompute_modules": Recompute.NONE,
    }  # fmt: skip


def _script_batch(found: Found, script: Settings | None) -> None:
    script = script or Settings({})
    mbs = script.count("--per_device_train_batch_size") or script.count("--per-device-train-batch-size")
    steps = script.count("--gradient_accumulation_steps") or script.count("--gradient-accumulation-steps")
    found.columns["mbs"] = mbs or found.default("micro batch", 1)
    found.accumulation = steps
    found.seq = found.seq or script.count("--max_length") or script.count("--max_seq_length")
