"""Megatron-Bridge recipes, and override lists of Megatron-Bridge and NeMo, read back.

Fields are translated into the Megatron flags of the same meaning. Recipes are read as syntax trees.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from meshplan.errors import InputError, shown
from meshplan.export.bridge import PRECISIONS, numeric_fields, preset_of_recipe
from meshplan.export.found import Found, Settings
from meshplan.export.megatron_numerics import is_latent
from meshplan.export.read_megatron import known_flags, read_megatron
from meshplan.export.read_megatron_numerics import as_said, differing
from meshplan.export.shell_values import Word
from meshplan.export.trees import literal_of, path_of
from meshplan.model.layers import Moe
from meshplan.model.load import load_model
from meshplan.model.model import Model
from meshplan.plan.kinds import Sharding

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
    "optimizer_cpu_offload": "--optimizer-cpu-offload",
    "optimizer_offload_fraction": "--optimizer-offload-fraction",
    "use_precision_aware_optimizer": "--use-precision-aware-optimizer",
    "moe_expert_capacity_factor": "--moe-expert-capacity-factor",
    "moe_pad_expert_input_to_capacity": "--moe-pad-expert-input-to-capacity",
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
    "attention_dropout": "--attention-dropout",
    "hidden_dropout": "--hidden-dropout",
    "layernorm_epsilon": "--norm-epsilon",
    "init_method_std": "--init-method-std",
    "rotary_base": "--rotary-base",
    "rotary_percent": "--rotary-percent",
    "position_embedding_type": "--position-embedding-type",
    "rope_scaling": "--use-rope-scaling",
    "rope_scaling_factor": "--rope-scaling-factor",
    "seq_len_interpolation_factor": "--rotary-seq-len-interpolation-factor",
    "rope_type": "--rope-type",
    "rotary_scaling_factor": "--rotary-scaling-factor",
    "mscale": "--mscale",
    "mscale_all_dim": "--mscale-all-dim",
    "yarn_rotary_scaling_factor": "--rotary-scaling-factor",
    "yarn_original_max_position_embeddings": "--yarn-original-max-position-embeddings",
    "yarn_beta_fast": "--yarn-beta-fast",
    "yarn_beta_slow": "--yarn-beta-slow",
    "yarn_mscale": "--mscale",
    "yarn_mscale_all_dim": "--mscale-all-dim",
}
"""Last part of a field's path in NeMo and Megatron-Bridge → the Megatron flag that means the same."""

_NUMERIC = frozenset(BRIDGE_FIELDS[name] for name in (
    "attention_dropout", "hidden_dropout", "layernorm_epsilon", "init_method_std", "rotary_base",
    "rotary_percent", "position_embedding_type", "rope_scaling", "rope_scaling_factor", "rope_type",
    "seq_len_interpolation_factor", "rotary_scaling_factor", "mscale", "mscale_all_dim",
))  # fmt: skip
_MODEL_DEFAULTS = (
    "normalization", "ffn", "positions", "vocab", "top-k", "expert width", "norm epsilon", "dropout",
    "kv rank", "qk head", "qk rope head", "v head",
    "rotary base",
)  # fmt: skip
_SHORT = {
    "-tp": "model.tensor_model_parallel_size", "-pp": "model.pipeline_model_parallel_size",
    "-cp": "model.context_parallel_size", "-vp": "model.virtual_pipeline_model_parallel_size",
    "-ep": "model.expert_model_parallel_size", "-etp": "model.expert_tensor_parallel_size",
    "-gb": "train.global_batch_size", "-mb": "train.micro_batch_size", "-sl": "dataset.seq_length",
}  # fmt: skip
"""Short options of Megatron-Bridge's run_recipe.py."""

_OTHER = (
    "train", "dataset", "optimizer", "scheduler", "ddp", "dist", "checkpoint", "logger", "model",
    "trainer", "data", "mixed_precision", "comm_overlap", "tokenizer", "rng", "validation", "optim",
    "resume", "log", "exp_manager",
)  # fmt: skip


def override_words(words: Sequence[Word]) -> Settings:
    """``path.to.field=value`` words and the short options of run_recipe.py as fields.

    Raises ``InputError`` for a field with two values; the same value twice is what it is.
    """
    values: dict[str, Any] = {}
    missing: dict[str, tuple[str, ...]] = {}
    for i, word in enumerate(words):
        text, after = word.text, words[i + 1] if i + 1 < len(words) else None
        name, sep, value = text.lstrip("+~").partition("=")
        if after is not None and text in _SHORT:
            name, value, unknown = _SHORT[text], after.text, after.missing
        elif after is not None and text in ("--recipe", "--model_recipe_name"):
            name, value, unknown = "recipe", after.text, after.missing
        elif sep and not text.startswith("-") and name.replace(".", "").isidentifier():
            unknown = word.missing
        else:
            continue
        if name.rpartition(".")[2] in BRIDGE_FIELDS and (
            values.get(name, value),
            missing.get(name, unknown),
        ) != (value, unknown):
            raise InputError(f"{name} is given twice ({values[name]} and {value}); keep one")
        values[name] = value
        if unknown:
            missing[name] = unknown
    return Settings(values, missing)


def recipe_fields(tree: ast.Module) -> Settings:
    """Assignments ``cfg.a.b = value`` of a recipe module, and the library's recipe it starts from.

    Raises ``InputError`` where the module holds several recipes.
    """
    recipes = [
        node.name for node in tree.body if isinstance(node, ast.FunctionDef) and _sets_parallelism(node)
    ]
    if len(recipes) > 1:
        raise InputError(
            f"it holds {len(recipes)} recipes ({recipes[0]}, {recipes[1]} ...); keep the one you mean"
        )
    values: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            path = path_of(node.targets[0])[1:]
            try:
                values[".".join(path)] = literal_of(node.value, ".".join(path))
            except InputError:
                if path and path[-1] in BRIDGE_FIELDS:
                    raise
        elif isinstance(node, ast.Call) and (called := path_of(node.func)) and called[-1].endswith("_config"):
            values.setdefault("recipe", called[-1])
    values.pop("", None)
    if "recipe" not in values and not any(path.rpartition(".")[2] in BRIDGE_FIELDS for path in values):
        raise InputError("it is a Python file of Megatron-Bridge or NeMo that sets nothing of a run")
    return Settings(values)


def _sets_parallelism(function: ast.FunctionDef) -> bool:
    return any(
        isinstance(node, ast.Attribute) and node.attr in BRIDGE_FIELDS and isinstance(node.ctx, ast.Store)
        for node in ast.walk(function)
    )


def read_bridge(fields: Settings, what: str, environment: dict[str, str]) -> Found:
    """What these fields say, in the meaning of the Megatron flags of the same name."""
    values = fields.values
    flags = _flags(values)
    missing = {
        flag: names
        for path, names in fields.missing.items()
        if (flag := BRIDGE_FIELDS.get(path.rpartition(".")[2])) is not None
    }
    own_optimizer = any(path.endswith("use_distributed_optimizer") for path in values)
    if not own_optimizer:
        flags["--use-distributed-optimizer"] = True  # the recipes' own setting
    recipe = str(values.get("recipe") or "")
    preset = preset_of_recipe(recipe) if recipe else None
    known = None if "--num-layers" in flags else load_model(preset) if preset else None
    own_numbers = set(flags) & _NUMERIC
    if known is not None:
        flags = {**_numbers(known), **flags, **_sizes(known)}
    found = read_megatron(Settings(flags, missing), what, environment)
    found.kind = "megatron-bridge"
    if known is not None:
        _take_recipe_model(found, known, own_numbers)
    elif recipe:
        found.model_name = recipe
    if not own_optimizer:
        found.default("sharding", Sharding.ZERO1)
    if recipe and not any("tensor_model_parallel_size" in path for path in values):
        found.notes.append(
            f"what the recipe {shown(recipe)} itself sets is not read; Megatron's defaults are taken"
        )
    found.unknown = [path for path in values if path.partition(".")[0] not in _OTHER and path != "recipe"]
    _take_gpus(found, values)
    return found


def of_fields(
    values: Mapping[str, Any],
    missing: Mapping[str, tuple[str, ...]],
    known: Model | None,
    what: str,
    environment: dict[str, str],
) -> Found:
    """What fields under Megatron's names say, ``known`` being the model that they train, if it is one."""
    own = {name: value for name, value in values.items() if name not in missing}
    plain = {
        flag: value
        for name, given in own.items()
        if (flag := "--" + name.replace("_", "-")) in known_flags() and (value := _value(given)) is not None
    }
    flags = {"--use-distributed-optimizer": True, **plain, **_flags(own)}
    if known is not None:
        flags = {**_numbers(known), **flags, **_sizes(known)}
    elif "--expert-model-parallel-size" in flags:
        flags.setdefault("--num-experts", 1)  # how many is not known; the model is asked for
    unknown = {
        flag: names
        for name, names in missing.items()
        if (flag := BRIDGE_FIELDS.get(name, "--" + name.replace("_", "-")))
    }
    found = read_megatron(Settings(flags, unknown), what, environment)
    if known is not None:
        _take_recipe_model(found, known, set())
    found.unknown = []
    return found


def _flags(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that have a Megatron flag, as its value; sizes of the model only if all are there."""
    flags: dict[str, Any] = {}
    for path, given in values.items():
        flag = BRIDGE_FIELDS.get(path.rpartition(".")[2])
        value = _value(given)
        if flag is None or value is None:
            continue
        if flag in flags and str(flags[flag]) != str(value) and flag != "--seq-length":
            raise InputError(f"{path} is given twice ({flags[flag]} and {value}); keep one")
        flags[flag] = value
    if "--pipeline-model-parallel-layout" in flags:  # a recipe may say both; the layout decides
        flags.pop("--num-virtual-stages-per-pipeline-rank", None)
    if "--num-query-groups" in flags:
        flags["--group-query-attention"] = True
    if not {"--num-layers", "--hidden-size"} <= set(flags):
        for flag in ("--num-layers", "--hidden-size", "--num-attention-heads"):
            flags.pop(flag, None)
    flags.setdefault("--micro-batch-size", 1)
    return flags | _precision_flags(str(values.get("mixed_precision") or ""))


def _value(given: Any) -> Any:
    """A field's value as that of a flag; ``None`` where the flag would not be there."""
    if given is None or given is False or given in ("None", "null", "False", "false"):
        return None
    if given is True or given in ("True", "true"):
        return True
    if isinstance(given, str) and given.startswith("[") and given.endswith("]"):
        return [part.strip(" '\"") for part in given[1:-1].split(",") if part.strip()]
    return [str(item) for item in given] if isinstance(given, list) else given


def _sizes(model: Model) -> dict[str, Any]:
    """What the arguments need to know of a model that the recipe names."""
    experts = next((layer.mlp.experts for layer in model.layers if isinstance(layer.mlp, Moe)), None)
    sizes: dict[str, Any] = {
        "--num-layers": len(model.layers),
        "--hidden-size": model.hidden,
        "--num-attention-heads": next(layer.attention.heads for layer in model.layers if layer.attention),
    }
    if is_latent(model):
        sizes["--multi-latent-attention"] = True
    return sizes if experts is None else {**sizes, "--num-experts": experts}


def _take_gpus(found: Found, values: Mapping[str, Any]) -> None:
    """``trainer.devices`` and ``trainer.num_nodes`` of NeMo."""
    numbers = {
        path.rpartition(".")[2]: int(value) for path, value in values.items() if str(value).isdecimal()
    }
    found.gpus_per_node = numbers.get("devices", found.gpus_per_node)
    if found.gpus_per_node and "num_nodes" in numbers:
        found.gpus = numbers["num_nodes"] * found.gpus_per_node


def _numbers(known: Model) -> dict[str, Any]:
    """Positions, norms and dropout that the library gives the model, as flags."""
    fields = numeric_fields(known)
    flags = {
        flag: value
        for path, value in fields.items()
        if (flag := BRIDGE_FIELDS.get(path.rpartition(".")[2])) is not None
    }
    return {"--position-embedding-type": "rope" if known.rope else "learned_absolute", **flags}


def _take_recipe_model(found: Found, known: Model, own_numbers: set[str]) -> None:
    """The recipe's model, with the numbers that the file sets itself."""
    read, found.model, found.model_name = found.model, known, known.name
    for name in _MODEL_DEFAULTS:
        found.defaults.pop(name, None)
    found.notes = [note for note in found.notes if "vocabulary" not in note]
    if read is None or not own_numbers:
        return
    said = replace(as_said(read, known), activation=known.activation)
    if said.rope is not None and known.rope is not None:
        same = (said.rope.kind, said.rope.factor) == (known.rope.kind, known.rope.factor)
        rope = replace(known.rope, base=said.rope.base, fraction=said.rope.fraction) if same else said.rope
        said = replace(said, rope=rope)
    found.model = said
    if clauses := differing(said, known):
        found.notes.append(f"not as {known.name} was published: {'; '.join(clauses)}")


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
