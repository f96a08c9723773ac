"""Bridge recipes and override lists, DeepSpeed JSON, accelerate YAML and our own PyTorch module, read back."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from meshplan.errors import InputError, shown
from meshplan.export.bridge import PRECISIONS, preset_of_recipe
from meshplan.export.found import Found, Settings
from meshplan.export.read_megatron import read_megatron
from meshplan.export.torchtitan_plan import LOOPED_ZERO_BUBBLE, SCHEDULES
from meshplan.model.load import load_model
from meshplan.plan.kinds import CpKind, Recompute, Schedule, Sharding
from meshplan.plan.plans import ALL_LAYERS, DEFAULT_ORDER

BRIDGE_FIELDS = {
    "tensor_model_parallel_size": "--tensor-model-parallel-size",
    "sequence_parallel": "--sequence-parallel",
    "context_parallel_size": "--context-parallel-size",
    "cp_comm_type": "--cp-comm-type",
    "hierarchical_context_parallel_sizes": "--hierarchical-context-parallel-sizes",
    "pipeline_model_parallel_size": "--pipeline-model-parallel-size",
    "virtual_pipeline_model_parallel_size": "--num-virtual-stages-per-pipeline-rank",
    "pipeline_model_parallel_layout": "--pipeline-model-parallel-layout",
    "num_layers_in_first_pipeline_stage": "--decoder-first-pipeline-num-layers",
    "num_layers_in_last_pipeline_stage": "--decoder-last-pipeline-num-layers",
    "account_for_embedding_in_pipeline_split": "--account-for-embedding-in-pipeline-split",
    "account_for_loss_in_pipeline_split": "--account-for-loss-in-pipeline-split",
    "expert_model_parallel_size": "--expert-model-parallel-size",
    "expert_tensor_parallel_size": "--expert-tensor-parallel-size",
    "micro_batch_size": "--micro-batch-size",
    "global_batch_size": "--global-batch-size",
    "seq_length": "--seq-length",
    "encoder_seq_length": "--seq-length",
    "recompute_granularity": "--recompute-granularity",
    "recompute_method": "--recompute-method",
    "recompute_num_layers": "--recompute-num-layers",
    "recompute_modules": "--recompute-modules",
    "activations_checkpoint_granularity": "--recompute-granularity",
    "activations_checkpoint_method": "--recompute-method",
    "activations_checkpoint_num_layers": "--recompute-num-layers",
    "use_distributed_optimizer": "--use-distributed-optimizer",
    "use_megatron_fsdp": "--use-megatron-fsdp",
    "data_parallel_sharding_strategy": "--data-parallel-sharding-strategy",
    "num_distributed_optimizer_instances": "--num-distributed-optimizer-instances",
    "use_tp_pp_dp_mapping": "--use-tp-pp-dp-mapping",
    "ckpt_format": "--ckpt-format",
    "num_layers": "--num-layers",
    "hidden_size": "--hidden-size",
    "ffn_hidden_size": "--ffn-hidden-size",
    "num_attention_heads": "--num-attention-heads",
    "num_query_groups": "--num-query-groups",
    "kv_channels": "--kv-channels",
    "vocab_size": "--vocab-size",
    "num_moe_experts": "--num-experts",
    "moe_ffn_hidden_size": "--moe-ffn-hidden-size",
    "moe_router_topk": "--moe-router-topk",
}
"""Last part of a field's path in NeMo and Megatron-Bridge → the Megatron flag that means the same."""
_SHORT = {
    "-tp": "model.tensor_model_parallel_size", "-pp": "model.pipeline_model_parallel_size",
    "-cp": "model.context_parallel_size", "-vp": "model.virtual_pipeline_model_parallel_size",
    "-ep": "model.expert_model_parallel_size", "-etp": "model.expert_tensor_parallel_size",
    "-gb": "train.global_batch_size", "-mb": "train.micro_batch_size", "-sl": "dataset.seq_length",
}  # fmt: skip
"""Short options of Megatron-Bridge's run_recipe.py."""
_OTHER = (
    "train", "dataset", "optimizer", "scheduler", "ddp", "dist", "checkpoint", "logger", "model", "trainer", "data",
    "mixed_precision", "comm_overlap", "tokenizer", "rng", "validation", "optim", "resume", "log", "exp_manager",
)  # fmt: skip


def override_words(words: Sequence[str]) -> dict[str, Any]:
    """``path.to.field=value`` words and the short options of run_recipe.py as fields."""
    values: dict[str, Any] = {}
    for i, word in enumerate(words):
        if word in _SHORT and i + 1 < len(words):
            name, value = _SHORT[word], words[i + 1]
        elif word.startswith("--") and word[2:] in ("recipe", "model_recipe_name") and i + 1 < len(words):
            name, value = "recipe", words[i + 1]
        elif (
            "=" in word
            and not word.startswith("-")
            and word.partition("=")[0].replace(".", "").isidentifier()
        ):
            name, _, value = word.lstrip("+~").partition("=")
        else:
            continue
        if name in values and name != "recipe":
            raise InputError(f"{name} is given twice ({values[name]} and {value}); keep one")
        values[name] = value
    return values


def recipe_fields(tree: ast.Module) -> dict[str, Any]:
    """Assignments ``cfg.a.b = value`` of a recipe module, and the library's recipe it starts from."""
    values: dict[str, Any] = {}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Assign)
            and len(node.targets) == 1
            and isinstance(node.targets[0], ast.Attribute)
        ):
            path = _path(node.targets[0])
            if len(path) < 2:
                continue
            name = ".".join(path[1:])
            try:
                value = ast.literal_eval(node.value)
            except (ValueError, TypeError, MemoryError, RecursionError):
                if path[-1] in BRIDGE_FIELDS:
                    text = shown(ast.unparse(node.value))
                    raise InputError(
                        f"line {node.lineno}: {name} is {text}, not a plain value; it is not evaluated"
                    ) from None
                continue
            values[name] = value
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id.endswith("_config")
        ):
            values.setdefault("recipe", node.func.id)
    return values


def _sets_parallelism(function: ast.FunctionDef) -> bool:
    return any(
        isinstance(node, ast.Attribute) and node.attr in BRIDGE_FIELDS and isinstance(node.ctx, ast.Store)
        for node in ast.walk(function)
    )


def read_bridge(values: Mapping[str, Any], what: str, environment: dict[str, str]) -> Found:
    """What these fields say, in the meaning of the Megatron flags of the same name."""
    flags: dict[str, Any] = {}
    for path, value in values.items():
        flag = BRIDGE_FIELDS.get(path.rpartition(".")[2])
        if flag is None or value in (None, "None", "null", False, "False", "false"):
            continue
        if value in ("True", "true"):
            value = True
        if isinstance(value, str) and value.startswith("[") and value.endswith("]"):
            value = [part.strip(" '\"") for part in value[1:-1].split(",") if part.strip()]
        if isinstance(value, list):
            value = [str(item) for item in value]
        if flag in flags and str(flags[flag]) != str(value) and flag != "--seq-length":
            raise InputError(f"{path} is given twice ({flags[flag]} and {value}); keep one")
        flags[flag] = value
    if "--pipeline-model-parallel-layout" in flags:  # a recipe may say both; the layout decides
        flags.pop("--num-virtual-stages-per-pipeline-rank", None)
    if "--num-query-groups" in flags:
        flags["--group-query-attention"] = True
    distributed = [v for path, v in values.items() if path.endswith("use_distributed_optimizer")]
    if not distributed:
        flags["--use-distributed-optimizer"] = True  # the recipes' own setting
    flags.setdefault("--micro-batch-size", 1)
    sizes_given = "--num-layers" in flags and "--hidden-size" in flags
    if not sizes_given:
        for flag in ("--num-layers", "--hidden-size", "--num-attention-heads"):
            flags.pop(flag, None)
    recipe = str(values.get("recipe") or "")
    preset = preset_of_recipe(recipe) if recipe else None
    known = load_model(preset) if preset else None
    if known is not None and not sizes_given:
        flags["--num-layers"], flags["--hidden-size"] = len(known.layers), known.hidden
        flags["--num-attention-heads"] = next(
            layer.attention.heads for layer in known.layers if layer.attention
        )
        flags["--num-experts"] = _experts(known)
        flags = {flag: value for flag, value in flags.items() if value is not None}
    precision = str(values.get("mixed_precision") or "")
    flags |= _precision_flags(precision)
    if not any(flag in flags for flag in ("--bf16", "--fp16", "--fp8-format")):
        flags["--bf16"] = True
    found = read_megatron(Settings(flags), what, environment)
    found.kind = "megatron-bridge"
    if known is not None and not sizes_given:
        found.model, found.model_name = known, preset
        _drop_model_defaults(found)
    elif recipe:
        found.model_name = recipe
    if not distributed:
        found.default("sharding", Sharding.ZERO1)
    if recipe and not any("tensor_model_parallel_size" in path for path in values):
        found.notes.append(
            f"what the recipe {shown(recipe)} itself sets is not read; Megatron's defaults are taken"
        )
    found.unknown = [path for path in values if path.partition(".")[0] not in _OTHER and path != "recipe"]
    for path, value in values.items():
        field = path.rpartition(".")[2]
        if field in ("num_nodes", "devices") and str(value).isdecimal():
            found.gpus_per_node = int(value) if field == "devices" else found.gpus_per_node
    nodes = next((int(v) for p, v in values.items() if p.endswith("num_nodes") and str(v).isdecimal()), None)
    if nodes and found.gpus_per_node:
        found.gpus = nodes * found.gpus_per_node
    return found


def _experts(model: Any) -> int | None:
    return next((layer.mlp.experts for layer in model.layers if hasattr(layer.mlp, "experts")), None)


def _drop_model_defaults(found: Found) -> None:
    for name in ("normalization", "ffn", "positions", "vocab", "top-k", "expert width"):
        found.defaults.pop(name, None)
    found.notes = [note for note in found.notes if "vocabulary" not in note]


def _precision_flags(name: str) -> dict[str, Any]:
    kinds = {text: kind for kind, text in PRECISIONS.items()}
    kind = kinds.get(name) or ("mxfp8" if "mxfp8" in name else "nvfp4" if "nvfp4" in name else "")
    kind = kind or (
        "fp8" if "fp8" in name else "fp16" if name.startswith("fp16") or name == "16-mixed" else "bf16"
    )
    match kind:
        case "fp16":
            return {"--fp16": True}
        case "fp8":
            return {"--bf16": True, "--fp8-format": "hybrid"}
        case "mxfp8":
            return {"--bf16": True, "--fp8-format": "e4m3", "--fp8-recipe": "mxfp8"}
        case "nvfp4":
            return {"--bf16": True, "--fp4-format": "e2m1"}
        case _:
            return {"--bf16": True}


_ZERO = {0: Sharding.DDP, 1: Sharding.ZERO1, 2: Sharding.ZERO2, 3: Sharding.ZERO3}
_DEEPSPEED_KEYS = (
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "zero_optimization",
    "bf16", "bfloat16", "fp16", "gradient_clipping", "tensor_parallel", "sequence_parallel_size",
    "data_parallel_size", "pipeline", "expert_parallel", "activation_checkpointing", "steps_per_print", "optimizer",
    "scheduler", "wall_clock_breakdown", "communication_data_type", "prescale_gradients", "zero_allow_untested_optimizer",
    "fp32_allreduce", "gradient_predivide_factor", "sparse_gradients", "amp", "flops_profiler", "autotuning", "comms_logger",
    "tensorboard", "wandb", "csv_monitor", "comet", "aio", "checkpoint", "data_types", "data_efficiency", "compression_training",
    "elasticity", "curriculum_learning", "dump_state", "memory_breakdown", "torch_autocast", "compile", "zero_force_ds_cpu_optimizer",
    "hybrid_engine", "seq_parallel_communication_data_type", "timers", "train_gas", "dataloader_drop_last",
    "use_data_before_expert_parallelism", "disable_allgather", "graph_harvesting", "sparse_attention", "mesh_param",
)  # fmt: skip


def read_deepspeed(data: Mapping[str, Any], what: str, script: Settings | None = None) -> Found:
    """A DeepSpeed configuration; ``script`` holds the flags of the training script around it."""
    found = Found(kind="deepspeed", what=what, order=DEFAULT_ORDER)
    facts = data.get("_meshplan")
    args = Settings({name: None if value == "auto" else value for name, value in data.items()})
    zero = Settings(_table(data, "zero_optimization"))
    tensor, pipe = Settings(_table(data, "tensor_parallel")), Settings(_table(data, "pipeline"))
    experts = Settings(_table(data, "expert_parallel"))
    gbs, mbs = args.count("train_batch_size"), args.count("train_micro_batch_size_per_gpu")
    steps = args.count("gradient_accumulation_steps")
    if gbs is None and mbs is None:
        found.problems.append("neither train_batch_size nor train_micro_batch_size_per_gpu is given")
    found.gbs = gbs
    if mbs is None:
        mbs = found.default("micro batch", 1)
    if steps is None:
        steps = None if gbs else found.default("gradient accumulation", 1)
    found.accumulation = steps
    stage = zero.count("stage", low=0, most=3)
    sharding = _ZERO[stage] if stage is not None else found.default("sharding", Sharding.DDP)
    tp = tensor.count("autotp_size", low=0) or 1
    cp = args.count("sequence_parallel_size") or 1
    stages = pipe.raw("stages")
    pp = pipe.count("stages") or 1 if stages != "auto" else 1
    columns: dict[str, Any] = {
        "tp": tp, "sp": tp == 1, "cp": cp, "cp_kind": CpKind.ULYSSES, "pp": pp, "vp": 1, "mbs": mbs,
        "sharding": sharding, "schedule": Schedule.ONE_F_ONE_B,
        "ep": experts.count("autoep_size") or 1 if experts.truth("enabled") else 1,
        "etp": experts.count("expert_tensor_parallel_size") or 1 if experts.truth("enabled") else 1,
    }  # fmt: skip
    checkpointed = (
        "activation_checkpointing" in data or (pipe.count("activation_checkpoint_interval", low=0) or 0) > 0
    )
    if script is not None:
        flag = script.raw("--gradient-checkpointing") or script.raw("--gradient_checkpointing")
        checkpointed |= flag is not None and str(flag).lower() != "false"
    if not checkpointed:
        found.default("recompute", "none")
    columns |= {"recompute_layers": ALL_LAYERS if checkpointed else 0, "recompute_modules": Recompute.NONE}
    if gbs and steps:
        dp, odd = divmod(gbs, mbs * steps)
        if odd or dp == 0:
            found.problems.append(
                f"train_batch_size {gbs} is no multiple of micro batch {mbs} × gradient accumulation {steps}"
            )
        else:
            columns["dp"] = dp
    columns["replicas"] = 1
    shards = zero.count("mics_shard_size", low=-1)
    if shards and shards > 1:
        found.notes.append(
            "mics_shard_size (MiCS) was removed from DeepSpeed in 0.19; releases before it still take it"
        )
        if "dp" in columns:
            columns["replicas"] = max(1, columns["dp"] * cp // shards)
    if pp > 1 and sharding >= Sharding.ZERO2:
        found.problems.append(
            f"ZeRO-{stage} is incompatible with DeepSpeed's pipeline engine (pipeline.stages {pp})"
        )
    found.columns = columns
    bf16, fp16 = (Settings(_table(data, key)) for key in ("bf16", "fp16"))
    if bf16.truth("enabled") and fp16.truth("enabled"):
        found.problems.append("bf16 and fp16 cannot both be enabled")
    found.precision = "bf16" if bf16.truth("enabled") else "fp16" if fp16.truth("enabled") else "fp32"
    if isinstance(facts, Mapping):
        take_facts(found, {str(key): str(value) for key, value in facts.items()})
    found.unknown = [key for key in data if key not in _DEEPSPEED_KEYS and key != "_meshplan"]
    return found


_ACCELERATE_KEYS = (
    "compute_environment", "distributed_type", "mixed_precision", "num_machines", "num_processes", "machine_rank",
    "main_training_function", "rdzv_backend", "same_network", "use_cpu", "fsdp_config", "parallelism_config", "debug",
    "downcast_bf16", "enable_cpu_affinity", "tpu_env", "tpu_use_cluster", "tpu_use_sudo", "gpu_ids", "main_process_ip",
    "main_process_port", "deepspeed_config", "dynamo_config", "fp8_config", "megatron_lm_config", "mpirun_config",
    "tpu_name", "tpu_zone", "command_file", "commands", "tpu_vm",
)  # fmt: skip


def read_accelerate(data: Mapping[str, Any], what: str, script: Settings | None = None) -> Found:
    """An accelerate configuration; ``script`` holds the flags of the training script around it."""
    found = Found(kind="accelerate", what=what, order=DEFAULT_ORDER)
    args = Settings(data)
    kind = args.text("distributed_type") or "NO"
    if kind == "DEEPSPEED":
        raise InputError("this accelerate configuration hands over to DeepSpeed; read its JSON instead")
    fsdp = Settings(_table(data, "fsdp_config"))
    sizes = Settings(_table(data, "parallelism_config"))
    found.gpus, nodes = args.count("num_processes"), args.count("num_machines") or 1
    if found.gpus and found.gpus % nodes == 0:
        found.gpus_per_node = found.gpus // nodes

    def size(name: str) -> int | None:
        return sizes.count(f"parallelism_config_{name}_size")

    replicate, shard, tp, cp = size("dp_replicate") or 1, size("dp_shard"), size("tp") or 1, size("cp") or 1
    sharded = kind == "FSDP"
    if sharded and (fsdp.count("fsdp_version") or 1) == 1:
        found.notes.append("FSDP version 1 is priced as FSDP2")
    reshard = fsdp.raw("fsdp_reshard_after_forward")
    if reshard is None:
        strategy = fsdp.text("fsdp_sharding_strategy")
        reshard = strategy != "SHARD_GRAD_OP" if strategy else found.default("reshard after forward", True)
    elif str(reshard).upper() in ("FULL_SHARD", "HYBRID_SHARD"):
        reshard = True
    elif str(reshard).upper() == "SHARD_GRAD_OP":
        reshard = False
    elif not isinstance(reshard, bool):
        reshard = fsdp.truth("fsdp_reshard_after_forward")
    sharding = Sharding.DDP if not sharded else Sharding.ZERO3 if reshard else Sharding.ZERO2
    if shard is not None:
        found.columns["dp"] = replicate * shard
        if found.gpus and replicate * shard * tp * cp != found.gpus:
            found.problems.append(
                f"dp_replicate {replicate} × dp_shard {shard} × cp {cp} × tp {tp} = {replicate * shard * tp * cp},"
                f" not num_processes {found.gpus}"
            )
    if sharded and (tp > 1 or cp > 1) and replicate > 1 and shard == 1:
        found.problems.append("tp or cp with dp_replicate needs dp_shard above 1")
    whole = fsdp.truth("fsdp_activation_checkpointing")
    if whole is None:
        whole = found.default("recompute", "none") is True
    found.columns |= {
        "tp": tp, "sp": tp == 1, "cp": cp, "cp_kind": CpKind.ALL_GATHER, "pp": 1, "vp": 1, "ep": 1, "etp": 1,
        "sharding": sharding, "replicas": replicate if sharded else 1,
        "recompute_layers": ALL_LAYERS if whole else 0, "recompute_modules": Recompute.NONE,
        "schedule": Schedule.ONE_F_ONE_B,
    }  # fmt: skip
    _script_batch(found, script)
    mixed = args.text("mixed_precision") or found.default("precision", "no")
    found.precision = {"bf16": "bf16", "fp16": "fp16", "fp8": "fp8"}.get(str(mixed), "fp32")
    found.unknown = [key for key in data if key not in _ACCELERATE_KEYS]
    return found


def _script_batch(found: Found, script: Settings | None) -> None:
    script = script or Settings({})
    mbs = script.count("--per_device_train_batch_size") or script.count("--per-device-train-batch-size")
    steps = script.count("--gradient_accumulation_steps") or script.count("--gradient-accumulation-steps")
    found.columns["mbs"] = mbs or found.default("micro batch", 1)
    found.accumulation = steps
    found.seq = found.seq or script.count("--max_length") or script.count("--max_seq_length")


def read_pytorch(tree: ast.Module, what: str) -> Found:
    """The module that the ``pytorch`` target writes: the constants at its top."""
    values: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name in values:
                raise InputError(f"{name} is given twice; keep one")
            try:
                values[name] = ast.literal_eval(node.value)
            except (ValueError, TypeError, MemoryError, RecursionError):
                text = shown(ast.unparse(node.value))
                raise InputError(
                    f"line {node.lineno}: {name} is {text}, not a plain value; it is not evaluated"
                ) from None
    args = Settings(values)
    shape = _pairs(args, "MESH_NAMES", "MESH_SHAPE")
    experts = _pairs(args, "EXPERT_MESH_NAMES", "EXPERT_MESH_SHAPE")
    found = Found(kind="pytorch", what=what)
    replicas = shape.get("dp_replicate", 1)
    dp = shape.get("dp", replicas * shape.get("dp_shard", 1))
    names = {**{s.label: s for s in Sharding}, **{}}
    kinds = {k.label: k for k in CpKind}
    schedules = {**{name: s for s, name in SCHEDULES.items()}, LOOPED_ZERO_BUBBLE: Schedule.ZB_H1}
    bounds = args.raw("STAGE_BOUNDS") or (0,)
    modules = Recompute.NONE
    for word in str(values.get("RECOMPUTE_MODULES", "none")).split("+"):
        modules |= next(
            (m for m in Recompute if (m.name or "").lower().replace("_", "-") == word), Recompute.NONE
        )
    found.columns = {
        "tp": shape.get("tp", 1), "cp": shape.get("cp", 1), "pp": shape.get("pp", 1), "dp": dp, "replicas": replicas,
        "ep": experts.get("ep", 1), "etp": experts.get("etp", 1),
        "sp": bool(args.truth("SEQUENCE_PARALLEL")) or shape.get("tp", 1) == 1,
        "cp_kind": args.choice("CONTEXT_PARALLEL", kinds), "sharding": args.choice("SHARDING", names),
        "schedule": args.choice("SCHEDULE", schedules), "vp": args.count("STAGES_PER_RANK") or 1,
        "layout": tuple(b - a for a, b in zip(bounds, bounds[1:], strict=False)),
        "mbs": args.count("MICRO_BATCH") or 1,
        "recompute_layers": args.count("RECOMPUTE_LAYERS", low=0) or 0, "recompute_modules": modules,
    }  # fmt: skip
    order = [name for name in reversed([n for n in values.get("MESH_NAMES", ()) if n != "dp_shard"])]
    inner = ["dp" if name == "dp_replicate" else name for name in order]
    expert_inner = list(reversed(values.get("EXPERT_MESH_NAMES", ())))
    found.order = _with_ep(inner, expert_inner)
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


def _table(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = data.get(name)
    if value is None or value == "auto":
        return {}
    if not isinstance(value, Mapping):
        raise InputError(f"{name} must be a table, not {shown(value)}")
    return {key: None if item == "auto" and key != "stages" else item for key, item in value.items()}


def _path(node: ast.expr) -> list[str]:
    if isinstance(node, ast.Attribute):
        return [*_path(node.value), node.attr]
    return [node.id] if isinstance(node, ast.Name) else []


def take_facts(found: Found, facts: Mapping[str, str]) -> None:
    """Fill what the file's own settings leave open from the line that meshplan wrote into it."""
    found.model_name = facts.get("model") or found.model_name
    found.gpu = found.gpu or facts.get("gpu")
    found.nic = found.nic or facts.get("nic")
    if "precision" in facts:
        found.precision = found.precision or facts["precision"]
    for name, key in (("gpus", "gpus"), ("gpus_per_node", "gpus-per-node"), ("seq", "seq"), ("gbs", "gbs")):
        text = facts.get(key, "")
        if getattr(found, name) is None and text.isdecimal():
            setattr(found, name, int(text))
