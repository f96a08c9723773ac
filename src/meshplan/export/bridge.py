"""Target ``megatron-bridge``: a recipe in Python.

It starts from the library's own recipe of the model and sets every part of the plan. Names as in
Megatron-Bridge 0.6.2 (``recipes/*/__init__.py``, ``training/config.py``, ``training/mixed_precision.py``).
"""

from __future__ import annotations

from typing import Any

from meshplan.errors import InputError
from meshplan.export.environment import environment
from meshplan.export.header import header
from meshplan.export.launch import Fitting, Job, Launch
from meshplan.export.megatron_numerics import is_latent
from meshplan.export.megatron_plan import CP_KINDS, MODULES, STRATEGIES, fit_megatron, hierarchy
from meshplan.export.quoting import python_text
from meshplan.export.torchrun import run_script
from meshplan.model.model import Model
from meshplan.plan.kinds import CpKind, Sharding
from meshplan.plan.plans import ALL_LAYERS, Plan
from meshplan.schedule.layout_string import write_layout

VERSION = "Megatron-Bridge 0.6.2"
MODULE = "meshplan_recipe"
PRECISIONS = {
    "bf16": "bf16_mixed",
    "fp16": "fp16_mixed",
    "fp8": "bf16_with_fp8_current_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}
RECIPES: dict[str, tuple[str, str]] = {
    "llama-2-7b": ("llama", "llama2_7b"),
    "llama-3-8b": ("llama", "llama3_8b"),
    "llama-3-70b": ("llama", "llama3_70b"),
    "llama-3.1-8b": ("llama", "llama31_8b"),
    "llama-3.1-70b": ("llama", "llama31_70b"),
    "llama-3.1-405b": ("llama", "llama31_405b"),
    "llama-3.2-1b": ("llama", "llama32_1b"),
    "llama-3.2-3b": ("llama", "llama32_3b"),
    "llama-3.3-70b": ("llama", "llama31_70b"),
    "qwen2.5-0.5b": ("qwen", "qwen25_500m"),
    "qwen2.5-1.5b": ("qwen", "qwen25_1p5b"),
    "qwen2.5-7b": ("qwen", "qwen25_7b"),
    "qwen2.5-14b": ("qwen", "qwen25_14b"),
    "qwen2.5-32b": ("qwen", "qwen25_32b"),
    "qwen2.5-72b": ("qwen", "qwen25_72b"),
    "qwen3-0.6b": ("qwen", "qwen3_600m"),
    "qwen3-1.7b": ("qwen", "qwen3_1p7b"),
    "qwen3-4b": ("qwen", "qwen3_4b"),
    "qwen3-8b": ("qwen", "qwen3_8b"),
    "qwen3-14b": ("qwen", "qwen3_14b"),
    "qwen3-32b": ("qwen", "qwen3_32b"),
    "qwen3-30b-a3b": ("qwen", "qwen3_30b_a3b"),
    "qwen3-235b-a22b": ("qwen", "qwen3_235b_a22b"),
    "deepseek-v2-lite": ("deepseek", "deepseek_v2_lite"),
    "deepseek-v2": ("deepseek", "deepseek_v2"),
    "deepseek-v3": ("deepseek", "deepseek_v3"),
    "kimi-k2": ("kimi", "kimi_k2"),
    "moonlight-16b-a3b": ("moonlight", "moonlight_16b"),
    "glm-4.5": ("glm", "glm45_355b"),
    "glm-4.5-air": ("glm", "glm45_air_106b"),
    "gpt-3-175b": ("gpt.gpt3_175b", "gpt3_175b"),
    "gpt-oss-20b": ("gpt_oss", "gpt_oss_20b"),
    "gpt-oss-120b": ("gpt_oss", "gpt_oss_120b"),
    "gemma-2-2b": ("gemma", "gemma2_2b"),
    "gemma-2-9b": ("gemma", "gemma2_9b"),
    "gemma-2-27b": ("gemma", "gemma2_27b"),
    "gemma-3-1b": ("gemma", "gemma3_1b"),
}
"""Preset → package or module of ``megatron.bridge.recipes``, and the stem of its ``…_pretrain_config``."""


def preset_of_recipe(name: str) -> str | None:
    """The preset that a recipe function (``llama31_70b_pretrain_config``, or a longer form) stands for."""
    found = [
        (len(stem), preset)
        for preset, (_, stem) in RECIPES.items()
        if name == stem or name.startswith(stem + "_")
    ]
    best = max((size for size, _ in found), default=0)
    return next((preset for size, preset in found if size == best), None)


def export_bridge(job: Job) -> Launch:
    """``run.sh`` and ``meshplan_recipe.py``. Raises ``InputError`` for a model without a recipe there."""
    recipe = RECIPES.get(job.model.name)
    if recipe is None:
        known = ", ".join(sorted(RECIPES))
        raise InputError(f"Megatron-Bridge 0.6.2 has no recipe for {job.model.name}; it has {known}")
    fitting = Fitting(job)
    fit_megatron(fitting)
    precision = job.setting.workload.precision
    if precision not in PRECISIONS:
        fitting.say("precision", precision, "bf16", "Megatron-Bridge has no such recipe")
    title = f"{VERSION} recipe"
    files = {
        "run.sh": run_script(
            job,
            title,
            env=environment(job, megatron=True),
            before=['export PYTHONPATH="$HERE${PYTHONPATH:+:$PYTHONPATH}"'],
            program=f'"$HERE/{MODULE}.py" "$@"',
        ),
        f"{MODULE}.py": _module(job, fitting, recipe, PRECISIONS.get(precision, "bf16_mixed")),
    }
    return Launch(
        target="megatron-bridge",
        version=VERSION,
        files=files,
        main="run.sh",
        written=fitting.plan,
        order=fitting.order,
        notes=tuple(fitting.notes),
    )


def settings(fitting: Fitting, precision: str) -> dict[str, Any]:
    """Every field of the recipe that the plan decides, by its path from the configuration."""
    plan, job = fitting.plan, fitting.job
    workload = job.setting.workload
    found: dict[str, Any] = {
        "train.micro_batch_size": plan.mbs,
        "train.global_batch_size": workload.gbs,
        "dataset.seq_length": workload.seq,
        "model.seq_length": workload.seq,
        "model.tensor_model_parallel_size": plan.tp,
        "model.sequence_parallel": plan.sp and plan.tp > 1,
        "model.context_parallel_size": plan.cp,
        "model.cp_comm_type": CP_KINDS[plan.cp_kind] if plan.cp > 1 else None,
        "model.pipeline_model_parallel_size": plan.pp,
        "model.virtual_pipeline_model_parallel_size": plan.vp if plan.vp > 1 else None,
        "model.pipeline_model_parallel_layout": None
        if plan.layout is None and len(job.model.layers) % (plan.pp * plan.vp) == 0
        else write_layout(job_stages(fitting), mtp_layers=len(job.model.mtp)),
        "model.account_for_embedding_in_pipeline_split": False,
        "model.account_for_loss_in_pipeline_split": False,
        "model.num_layers_in_first_pipeline_stage": None,
        "model.num_layers_in_last_pipeline_stage": None,
        "model.expert_model_parallel_size": plan.ep,
        "model.expert_tensor_parallel_size": plan.etp,
        **_recompute(plan),
        **_sharding(plan),
        "dist.use_tp_pp_dp_mapping": fitting.order[-1] != "pp",
        "mixed_precision": precision,
        **numeric_fields(job.model),
    }
    sizes = hierarchy(fitting) if plan.cp > 1 and plan.cp_kind is CpKind.HIERARCHICAL else None
    if sizes:
        found["model.hierarchical_context_parallel_sizes"] = list(sizes)
    return found


def numeric_fields(model: Model) -> dict[str, Any]:
    """Positions, norms and dropout, as the provider's fields; the rest of them is the library's own.

    Gemma 3 has a provider with both its bases; those stay as the library has them.
    """
    found: dict[str, Any] = {
        "model.attention_dropout": model.attention_dropout,
        "model.hidden_dropout": model.hidden_dropout,
    }
    if model.norm_eps is not None:
        found["model.layernorm_epsilon"] = model.norm_eps
    if model.init_std is not None:
        found["model.init_method_std"] = model.init_std
    rope = model.rope
    if rope is None or rope.local_base is not None:
        return found
    found["model.rotary_base"] = int(rope.base)
    if rope.fraction != 1:
        found["model.rotary_percent"] = rope.fraction
    latent = is_latent(model)
    if rope.kind == "llama3":
        found |= {"model.rope_scaling": True, "model.rope_scaling_factor": rope.factor}
    elif rope.kind == "yarn":
        prefix = "" if latent else "yarn_"
        found["model.rope_type" if latent else "model.position_embedding_type"] = "yarn"
        found |= {
            f"model.{prefix}rotary_scaling_factor": rope.factor,
            f"model.{prefix}original_max_position_embeddings": rope.original or 4096,
            f"model.{prefix}beta_fast": rope.beta_fast,
            f"model.{prefix}beta_slow": rope.beta_slow,
            f"model.{prefix}mscale": rope.mscale,
            f"model.{prefix}mscale_all_dim": rope.mscale_all_dim,
        }
        if not latent:
            found["model.yarn_correction_range_round_to_int"] = rope.truncate
    elif latent:
        found["model.rope_type"] = "rope"
    return found


def job_stages(fitting: Fitting) -> tuple[int, ...]:
    """Layers of each stage of the fitted plan."""
    from meshplan.export.launch import stage_layers

    return stage_layers(fitting.plan, len(fitting.job.model.layers))


def _recompute(plan: Plan) -> dict[str, Any]:
    whole = bool(plan.recompute_layers)
    everything = plan.recompute_layers == ALL_LAYERS
    modules = [name for module, name in MODULES.items() if module & plan.recompute_modules]
    return {
        "model.recompute_granularity": "full" if whole else "selective" if modules else None,
        "model.recompute_method": ("uniform" if everything else "block") if whole else None,
        "model.recompute_num_layers": (1 if everything else plan.recompute_layers // plan.vp)
        if whole
        else None,
        "model.recompute_modules": modules or None,
    }


def _sharding(plan: Plan) -> dict[str, Any]:
    fsdp = plan.sharding >= Sharding.ZERO2
    found: dict[str, Any] = {
        "ddp.use_distributed_optimizer": plan.sharding is not Sharding.DDP,
        "optimizer.use_distributed_optimizer": plan.sharding is not Sharding.DDP,
        "ddp.use_megatron_fsdp": fsdp,
        "dist.use_megatron_fsdp": fsdp,
        "ddp.data_parallel_sharding_strategy": STRATEGIES.get(plan.sharding, "no_shard"),
        "ddp.num_distributed_optimizer_instances": plan.replicas,
        "ddp.overlap_grad_reduce": True,
        "ddp.overlap_param_gather": plan.sharding is not Sharding.DDP,
    }
    if fsdp:
        found["checkpoint.ckpt_format"] = "fsdp_dtensor"
        found["ddp.average_in_collective"] = False
    return found


def _host_and_capacity(fitting: Fitting) -> dict[str, Any]:
    """Fields of offload and expert capacity, where the workload asks for them."""
    workload, found = fitting.job.setting.workload, dict[str, Any]()
    if workload.offload == "optimizer":
        found["optimizer.optimizer_cpu_offload"] = True
        found["optimizer.optimizer_offload_fraction"] = workload.offload_fraction
        found["optimizer.use_precision_aware_optimizer"] = True
    if workload.capacity_factor is not None:
        found["model.moe_expert_capacity_factor"] = workload.capacity_factor
        found["model.moe_pad_expert_input_to_capacity"] = workload.moe_imbalance is None
    return found


def _module(job: Job, fitting: Fitting, recipe: tuple[str, str], precision: str) -> str:
    package, stem = recipe
    function = f"{stem}_pretrain_config"
    lines = [
        header(job, f"{VERSION} recipe; start it with run.sh").rstrip("\n"),
        f"from megatron.bridge.recipes.{package} import {function}",
        "",
        "",
        "def config():",
        '    """The library\'s recipe with this plan; data, tokenizer, learning rate are yours to change."""',
        f"    cfg = {function}()",
    ]
    for path, value in (settings(fitting, precision) | _host_and_capacity(fitting)).items():
        lines.append(f"    cfg.{path} = {python_text(value)}")
    lines += [
        "    cfg.comm_overlap = None  # set per field above",
        "    return cfg",
        "",
        "",
        'if __name__ == "__main__":',
        "    from megatron.bridge.training.gpt_step import forward_step",
        "    from megatron.bridge.training.pretrain import pretrain",
        "",
        "    pretrain(config=config(), forward_step_func=forward_step)",
    ]
    return "\n".join(lines) + "\n"
