"""torchtitan settings read back: command line, configuration module, or the TOML of releases before 0.3.

Defaults and rules as in torchtitan 0.3.0 (``config/configs.py``, ``distributed/pipeline_parallel.py``).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from meshplan.errors import InputError, shown
from meshplan.export.found import Found, Settings
from meshplan.export.read_megatron_numerics import differing
from meshplan.export.torchtitan_models import STOCK, preset_of
from meshplan.export.torchtitan_plan import LOOPED_ZERO_BUBBLE, SCHEDULES, ZERO_BUBBLE
from meshplan.model.layers import Attention, Layer, Mlp
from meshplan.model.load import load_model
from meshplan.model.model import Model
from meshplan.model.rope import Rope
from meshplan.plan.kinds import CpKind, Recompute, Schedule, Sharding
from meshplan.plan.plans import ALL_LAYERS, DEFAULT_ORDER

_SCHEDULES = {**{name: schedule for schedule, name in SCHEDULES.items()}, LOOPED_ZERO_BUBBLE: Schedule.ZB_H1}
_SINGLE = (Schedule.ONE_F_ONE_B, Schedule.GPIPE)
_OLD_NAMES = {
    "experimental.pipeline_parallel_degree": "parallelism.pipeline_parallel_degree",
    "experimental.pipeline_parallel_schedule": "parallelism.pipeline_parallel_schedule",
    "experimental.pipeline_parallel_microbatches": "parallelism.pipeline_parallel_microbatches",
    "experimental.context_parallel_degree": "parallelism.context_parallel_degree",
    "training.tensor_parallel_degree": "parallelism.tensor_parallel_degree",
    "training.data_parallel_degree": "parallelism.data_parallel_shard_degree",
    "training.data_parallel_shard_degree": "parallelism.data_parallel_shard_degree",
    "training.data_parallel_replicate_degree": "parallelism.data_parallel_replicate_degree",
    "training.batch_size": "training.local_batch_size",
    "activation_checkpoint.mode": "checkpointing",
}
"""Names of earlier releases."""
_PARALLELISM = (
    "data_parallel_replicate_degree", "data_parallel_shard_degree", "fsdp_reshard_after_forward",
    "enable_fsdp_symm_mem", "tensor_parallel_degree", "enable_sequence_parallel", "spmd_backend",
    "pipeline_parallel_degree", "module_fqns_per_model_part", "pipeline_parallel_first_stage_less_layers",
    "pipeline_parallel_last_stage_less_layers", "pipeline_parallel_layers_per_stage",
    "pipeline_parallel_schedule", "pipeline_parallel_schedule_csv", "pipeline_parallel_microbatch_size",
    "context_parallel_degree", "context_parallel_load_balancer", "context_parallel_ptrr_mask_key",
    "expert_parallel_degree", "pipeline_parallel_microbatches", "expert_tensor_parallel_degree",
    "disable_loss_parallel", "enable_async_tensor_parallel", "context_parallel_rotate_method",
    "pipeline_parallel_split_points", "enable_compiled_autograd", "num_pp_microbatches",
    "pipeline_parallel_expert_parallel_overlap",
)  # fmt: skip
_TRAINING = (
    "local_batch_size", "global_batch_size", "seq_len", "max_norm", "steps", "enable_cpu_offload",
    "disable_cuda_graphs", "dtype", "mixed_precision_param", "mixed_precision_reduce", "gc_freq", "gc_debug",
    "compile", "dataset", "dataset_path", "warmup_steps", "seed", "deterministic", "batch_size",
)  # fmt: skip


def read_torchtitan(settings: Settings, what: str) -> Found:
    """What these settings (``section.field`` → value) say."""
    found = Found(kind="torchtitan", what=what)
    values = {_OLD_NAMES.get(name, name): value for name, value in settings.values.items()}
    module, config = str(values.get("module", "")), str(values.get("config", ""))
    stock = STOCK.get(config, {})
    for name, value in stock.items():
        if name not in values:
            values[name] = found.default(name.rpartition(".")[2], value)
    args = Settings(values, {_OLD_NAMES.get(name, name): m for name, m in settings.missing.items()})
    _model(args, found, module, config)
    found.order = DEFAULT_ORDER
    if args.truth("training.enable_cpu_offload"):
        found.offload = "optimizer"
        found.notes.append(
            "enable_cpu_offload holds the weights in host memory too; they are priced on the GPU"
        )
    found.seq = args.count("training.seq_len") or found.default("seq", 2048)
    gbs = args.count("training.global_batch_size", low=-1)
    local = args.count("training.local_batch_size") or found.default("local batch", 8)
    pp = args.count("parallelism.pipeline_parallel_degree") or 1
    micro = args.count("parallelism.pipeline_parallel_microbatch_size")
    pieces = args.count("parallelism.pipeline_parallel_microbatches")
    if pp > 1 and micro is None:
        micro = local // pieces if pieces else found.default("pipeline micro batch", 1)
    mbs = micro or local if pp > 1 else local
    if local % mbs:
        found.problems.append(f"local_batch_size {local} does not divide into micro-batches of {mbs}")
    found.gbs = gbs if gbs and gbs > 0 else None
    if found.gbs is None:
        found.default("gbs", "local batch × dp")
        found.accumulation = max(1, local // mbs)
    tp = args.count("parallelism.tensor_parallel_degree") or 1
    sp = args.truth("parallelism.enable_sequence_parallel")
    cp = args.count("parallelism.context_parallel_degree") or 1
    found.columns = {
        "tp": tp, "cp": cp, "pp": pp, "mbs": mbs, "sp": sp if sp is not None else True,
        "cp_kind": CpKind.ALL_GATHER, "ep": args.count("parallelism.expert_parallel_degree") or 1, "etp": 1,
    }  # fmt: skip
    _pipeline(args, found, pp)
    _sharding(args, found)
    _recompute(args, found)
    _precision(args, found)
    if pp > 1 and args.truth("training.disable_cuda_graphs") is False:
        found.problems.append("CUDA graphs do not work with a pipeline; set training.disable_cuda_graphs")
    found.unknown = [name for name in settings.values if not _known(name)]
    return found


def _known(name: str) -> bool:
    section, _, field = name.rpartition(".")
    if section == "parallelism":
        return field in _PARALLELISM
    if section == "training":
        return field in _TRAINING or name in _OLD_NAMES
    return True  # other sections do not bear on the plan


def _model(args: Settings, found: Found, module: str, config: str) -> None:
    flavor = args.text("model.flavor") or args.text("flavor") or ""
    name = args.text("model.name") or module
    preset = preset_of(name, flavor=flavor, config=config)
    if preset is not None:
        found.model_name = preset
        found.model = _with_rope(args, load_model(preset), found)
        return
    if isinstance(args.raw("llama"), dict):
        found.model = _with_rope(args, _llama(Settings(args.raw("llama"))), None)
        return
    found.model_name = " ".join(part for part in (name, flavor or config) if part) or None


def _llama(sizes: Settings) -> Model:
    """The plain Llama of a configuration module that meshplan wrote."""

    def size(name: str) -> int:
        value = sizes.count(name)
        if value is None:
            raise InputError(f"{name} is missing, and the other sizes of the model are there")
        return value

    attention = Attention(heads=size("HEADS"), kv_heads=size("KV_HEADS"), head_dim=size("HEAD_DIM"))
    layer = Layer(attention=attention, mlp=Mlp(width=size("FFN")))
    return Model(
        name="model",
        hidden=size("DIM"),
        vocab=size("VOCAB"),
        layers=(layer,) * size("LAYERS"),
        tied_embeddings=bool(sizes.truth("TIED")),
        max_seq=size("MAX_SEQ"),
        norm_eps=sizes.number("EPS", 0, 1),
        activation="silu",
        source="launch configuration",
    )


def _with_rope(args: Settings, model: Model, found: Found | None) -> Model:
    """The model with the rotary embedding that a module sets, and a note where that is another."""
    base = args.number("rope.theta", 1, 1e12)
    if base is None:
        return model
    kind = args.choice("rope.scaling", {"none": "plain", "llama": "llama3", "yarn": "yarn"}) or "plain"
    rope = Rope(base=base, kind=kind)

    def number(name: str, usual: float) -> float:
        value = args.number(f"rope.{name}", 0, 1e9)
        return usual if value is None else value

    if kind == "llama3":
        rope = replace(
            rope,
            factor=number("scaling_factor", 8),
            low=number("low_freq_factor", 1),
            high=number("high_freq_factor", 4),
            original=args.count("rope.original_max_position_embeddings") or 8192,
        )
    elif kind == "yarn":
        known = model.rope or Rope()
        rope = replace(
            rope,
            factor=number("rope_factor", 1),
            beta_fast=number("beta_fast", 32),
            beta_slow=number("beta_slow", 1),
            original=args.count("rope.original_seq_len") or 4096,
            truncate=args.truth("rope.truncate") is not False,
            mscale=known.mscale,
            mscale_all_dim=known.mscale_all_dim,
        )
    said = replace(model, rope=rope)
    if found is not None and (clauses := differing(said, model)):
        found.notes.append(f"not as {model.name} was published: {'; '.join(clauses)}")
    return said


def _pipeline(args: Settings, found: Found, pp: int) -> None:
    name = args.text("parallelism.pipeline_parallel_schedule") or (
        found.default("schedule", "1F1B") if pp > 1 else "1F1B"
    )
    by_case = {known.lower(): schedule for known, schedule in _SCHEDULES.items()}
    schedule = by_case.get(name.lower())
    if schedule is None:
        raise InputError(
            f"pipeline_parallel_schedule must be one of {', '.join(_SCHEDULES)}, not {shown(name)}"
        )
    parts = args.raw("parallelism.module_fqns_per_model_part")
    counts, vp = None, 1
    layers = len(found.model.layers) if found.model else 0
    if pp == 1:
        schedule = Schedule.ONE_F_ONE_B
    elif parts is not None:
        counts = _module_counts(parts)
        if len(counts) % pp:
            found.problems.append(f"{len(counts)} model parts do not divide over pp {pp}")
        elif layers and sum(counts) != layers:
            found.problems.append(f"the model parts hold {sum(counts)} layers, and the model has {layers}")
            vp, counts = max(1, len(counts) // pp), None
        else:
            vp = len(counts) // pp
    else:
        counts, vp = _split(args, found, pp, layers, single=schedule in _SINGLE)
    found.columns |= {"vp": vp, "schedule": schedule, "layout": counts}


def _split(
    args: Settings, found: Found, pp: int, layers: int, *, single: bool
) -> tuple[tuple[int, ...] | None, int]:
    """Stages as torchtitan cuts them: embedding and head weigh as layers, the rest evenly."""
    first = args.count("parallelism.pipeline_parallel_first_stage_less_layers", low=0)
    last = args.count("parallelism.pipeline_parallel_last_stage_less_layers", low=0)
    first, last = 1 if first is None else first, 1 if last is None else last
    each = args.count("parallelism.pipeline_parallel_layers_per_stage")
    whole = layers + first + last
    stages = math.ceil(whole / each) if each else pp * (1 if single else 2)
    if stages % pp:
        found.problems.append(f"{each} layers a stage make {stages} stages, which pp {pp} does not divide")
        return None, 1
    vp = stages // pp
    if each and single != (vp == 1):
        kind = "one stage" if single else "two stages or more"
        found.problems.append(f"{each} layers a stage make {vp} stages a rank, and the schedule takes {kind}")
    base, more = divmod(whole, stages)
    if not layers or base == 0 or max(first, last) > base:
        found.problems.append(
            f"{layers} layers cannot be cut into {stages} stages with ends {first} and {last} short"
        )
        return None, vp
    counts = [base + (stage < more) for stage in range(stages)]
    counts[0] -= first
    counts[-1] -= last
    return tuple(counts), vp


def _module_counts(parts: Any) -> tuple[int, ...]:
    parts = parts if isinstance(parts, list) else [parts]
    counts = []
    for part in parts:
        names = part.split(",") if isinstance(part, str) else part
        if not isinstance(names, list | tuple):
            raise InputError(f"module_fqns_per_model_part must be lists of module names, not {shown(part)}")
        counts.append(sum(str(name).strip().startswith("layers.") for name in names))
    return tuple(counts)


def _sharding(args: Settings, found: Found) -> None:
    replicate = args.count("parallelism.data_parallel_replicate_degree") or 1
    shard = args.count("parallelism.data_parallel_shard_degree", low=-1)
    reshard = args.text("parallelism.fsdp_reshard_after_forward") or "default"
    if reshard not in ("default", "always", "never"):
        raise InputError(f"fsdp_reshard_after_forward must be default, always or never, not {shown(reshard)}")
    if reshard == "default":
        reshard = "never" if found.columns["pp"] > 1 else "always"
        found.default("reshard after forward", reshard)
    sharding = Sharding.ZERO3 if reshard == "always" else Sharding.ZERO2
    if replicate > 1 and shard == 1 and found.columns["cp"] == 1:
        sharding, replicas = Sharding.DDP, 1
    else:
        replicas = replicate
    if shard is None or shard == -1:
        found.default("data_parallel_shard_degree", "all remaining ranks")
    elif shard >= 1:
        found.columns["dp"] = replicate * shard
    found.columns |= {"sharding": sharding, "replicas": replicas}
    if (
        sharding is Sharding.ZERO3
        and found.columns["pp"] > 1
        and found.columns.get("schedule") in ZERO_BUBBLE
    ):
        found.problems.append(
            "zero-bubble schedules with fsdp_reshard_after_forward give wrong gradients in PyTorch; use never"
        )


def _recompute(args: Settings, found: Found) -> None:
    mode = args.text("checkpointing") or found.default("recompute", "selective")
    layers, modules = 0, Recompute.NONE
    if mode == "full":
        layers = ALL_LAYERS
    elif mode == "selective":
        modules = Recompute.OPERATORS
    elif mode not in ("none", "None"):
        found.notes.append(f"activation checkpointing {shown(mode)} is not modelled; priced as selective")
        modules = Recompute.OPERATORS
    found.columns |= {"recompute_layers": layers, "recompute_modules": modules}


def _precision(args: Settings, found: Found) -> None:
    converters = str(args.raw("converters") or args.raw("model.converters") or "").lower()
    if "nvfp4" in converters:
        found.precision = "nvfp4"
    elif "mxfp8" in converters or "mx" in converters.split(","):
        found.precision = "mxfp8"
    elif "float8" in converters:
        found.precision = "fp8"
    else:
        kind = args.text("training.mixed_precision_param") or found.default("precision", "bfloat16")
        found.precision = "fp32" if kind == "float32" else "bf16"
