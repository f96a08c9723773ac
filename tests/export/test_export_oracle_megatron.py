"""What we write, held against megatron-core itself: its configuration classes, layouts and, where the wheel
carries it (0.17 and later, Python 3.12), the argument parser with all its checks.

Needs torch and megatron-core; skipped, loudly, where they are not installed.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import warnings
from typing import Any

import export_oracles as oracles
import export_samples as samples
import pytest

from meshplan.errors import InputError
from meshplan.export.launch import Job, stage_layers
from meshplan.export.megatron import export_megatron
from meshplan.export.targets import export
from meshplan.plan.kinds import Schedule, Sharding
from meshplan.plan.rules import broken, framework_rules

pytestmark = [*oracles.ALL, oracles.MEGATRON]
PARSER = oracles.PARSER


EXPLAINED = {
    "megatron-ulysses-kv-heads": "raised by TransformerEngine's attention (a2a)",
    "ulysses-heads": "raised by TransformerEngine's attention (a2a)",
    "tp-divides-shared-experts": "checked by the layers when the model is built, as for a dense MLP",
    "megatron-optimizer-instances": "asserted when process groups are made (core/parallel_state.py)",
    "hierarchical-cp-sizes": "raised by TransformerEngine's attention (a2a+p2p)",
    "tp-divides-mlp": (
        "checked by the layers when the model is built (core/tensor_parallel/layers.py, divide)"
    ),
    "etp-divides-expert": "checked by the experts when the model is built (core/transformer/moe/experts.py)",
    "sp-divides-seq": "checked when activations are scattered (core/tensor_parallel/mappings.py)",
    "megatron-moe-needs-sp": "raised in the forward pass of an MoE layer (core/transformer/moe/moe_layer.py)",
    "megatron-interleaved-batches": "raised by the schedule (core/pipeline_parallel/schedules.py)",
    "stages-have-layers": "Megatron takes empty stages",
    "gbs-divides": "raised by the micro-batch calculator (core/num_microbatches_calculator.py)",
}
"""Rules of ours that the configuration classes do not check, and where Megatron does."""


def arguments(job: Job) -> dict[str, list[str]]:
    """The exported argument list as flag → values."""
    import shlex

    found: dict[str, list[str]] = {}
    for line in export_megatron(job).files["megatron.args"].splitlines():
        if line.startswith("--"):
            flag, *values = shlex.split(line)
            found[flag] = values
    return found


def transformer_config(args: dict[str, list[str]]) -> Any:
    """``TransformerConfig`` from our flags, as ``core_transformer_config_from_args`` makes it."""
    import torch
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

    def one(flag: str) -> int | None:
        return int(args[flag][0]) if flag in args else None

    fields: dict[str, Any] = {
        "num_layers": one("--num-layers"),
        "hidden_size": one("--hidden-size"),
        "ffn_hidden_size": one("--ffn-hidden-size"),
        "num_attention_heads": one("--num-attention-heads"),
        "num_query_groups": one("--num-query-groups"),
        "kv_channels": one("--kv-channels"),
        "gated_linear_unit": "--swiglu" in args or "--quick-geglu" in args,
        "activation_func": activation(args),
        "layernorm_epsilon": float(args.get("--norm-epsilon", ["1e-5"])[0]),
        "attention_dropout": float(args["--attention-dropout"][0]),
        "hidden_dropout": float(args["--hidden-dropout"][0]),
        "init_method_std": float(args.get("--init-method-std", ["0.02"])[0]),
        "no_rope_freq": int(args["--no-rope-freq"][0]) if "--no-rope-freq" in args else None,
        "add_bias_linear": "--disable-bias-linear" not in args,
        "tensor_model_parallel_size": one("--tensor-model-parallel-size"),
        "sequence_parallel": "--sequence-parallel" in args,
        "context_parallel_size": one("--context-parallel-size"),
        "cp_comm_type": args.get("--cp-comm-type", ["p2p"])[0],
        "pipeline_model_parallel_size": one("--pipeline-model-parallel-size"),
        "virtual_pipeline_model_parallel_size": one("--num-virtual-stages-per-pipeline-rank"),
        "num_layers_in_first_pipeline_stage": one("--decoder-first-pipeline-num-layers"),
        "num_layers_in_last_pipeline_stage": one("--decoder-last-pipeline-num-layers"),
        "pipeline_model_parallel_layout": args.get("--pipeline-model-parallel-layout", [None])[0],
        "expert_model_parallel_size": one("--expert-model-parallel-size"),
        "expert_tensor_parallel_size": one("--expert-tensor-parallel-size"),
        "num_moe_experts": one("--num-experts"),
        "moe_ffn_hidden_size": one("--moe-ffn-hidden-size"),
        "moe_router_topk": one("--moe-router-topk") or 2,
        "moe_grouped_gemm": "--moe-grouped-gemm" in args,
        "moe_token_dispatcher_type": args.get("--moe-token-dispatcher-type", ["alltoall"])[0],
        "moe_shared_expert_intermediate_size": one("--moe-shared-expert-intermediate-size"),
        "moe_router_score_function": args.get("--moe-router-score-function", ["softmax"])[0],
        "moe_router_enable_expert_bias": "--moe-router-enable-expert-bias" in args,
        "moe_router_num_groups": one("--moe-router-num-groups"),
        "moe_router_group_topk": one("--moe-router-group-topk"),
        "mtp_num_layers": one("--mtp-num-layers"),
        "recompute_granularity": args.get("--recompute-granularity", [None])[0],
        "recompute_method": args.get("--recompute-method", [None])[0],
        "recompute_num_layers": one("--recompute-num-layers"),
        "recompute_modules": args.get("--recompute-modules"),
        "bf16": True,
        "params_dtype": torch.bfloat16,
        "pipeline_dtype": torch.bfloat16,
        "normalization": args["--normalization"][0],
        "bias_activation_fusion": False,
        "apply_rope_fusion": False,
    }
    kind = TransformerConfig
    if "--multi-latent-attention" in args:
        kind = MLATransformerConfig
        fields |= {
            "multi_latent_attention": True,
            "q_lora_rank": one("--q-lora-rank"),
            "kv_lora_rank": one("--kv-lora-rank"),
            "qk_head_dim": one("--qk-head-dim"),
            "qk_pos_emb_head_dim": one("--qk-pos-emb-head-dim"),
            "v_head_dim": one("--v-head-dim"),
            "rope_type": args["--rope-type"][0],
            "rotary_base": one("--rotary-base"),
            "rotary_scaling_factor": float(args.get("--rotary-scaling-factor", ["1"])[0]),
            "mscale": float(args.get("--mscale", ["1"])[0]),
            "mscale_all_dim": float(args.get("--mscale-all-dim", ["0"])[0]),
        }
        fields.pop("kv_channels")
        fields.pop("num_query_groups")
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        return kind(**fields)


def activation(args: dict[str, list[str]]) -> Any:
    """As ``core_transformer_config_from_args`` chooses it."""
    import torch.nn.functional as F  # noqa: N812
    from megatron.core.activations import quick_gelu, squared_relu

    if "--quick-geglu" in args:
        return quick_gelu
    return squared_relu if "--squared-relu" in args else F.silu if "--swiglu" in args else F.gelu


def jobs(count: int, seed: str, **kind: Any) -> list[Job]:
    rng = random.Random(seed)
    return [samples.random_job(rng, **kind) for _ in range(count)]


def exported(count: int, seed: str) -> list[Job]:
    found = []
    for job in jobs(count, seed):
        try:
            export(job, "megatron")
        except InputError:
            continue
        found.append(job)
    return found


def test_transformer_config_takes_what_we_write() -> None:
    taken = exported(400, "config")
    assert len(taken) > 60
    for job in taken:
        config = transformer_config(arguments(job))
        assert config.num_layers == len(job.model.layers)


def test_layouts_mean_the_same() -> None:
    """Megatron's own parser puts the layers where the plan has them."""
    from megatron.core.transformer.enums import LayerType
    from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout

    seen = 0
    for job in exported(600, "layouts"):
        launch = export_megatron(job)
        text = arguments(job).get("--pipeline-model-parallel-layout")
        if text is None:
            continue
        plan = launch.written
        parsed = PipelineParallelLayerLayout(text[0], plan.pp)
        parsed.validate_layer_layout(len(job.model.layers), len(job.model.mtp) or None)
        counts = tuple(
            parsed.layout[rank][turn].count(LayerType.decoder)
            for turn in range(plan.vp)
            for rank in range(plan.pp)
        )
        assert counts == stage_layers(plan, len(job.model.layers))
        seen += 1
    assert seen > 20


def test_validity_agrees_on_two_thousand_plans() -> None:
    """Where our rules and Megatron's configuration classes differ, a rule says where it is checked."""
    agreed = {True: 0, False: 0}
    for job in jobs(2000, "validity"):
        launch = export_megatron(job)
        plan = launch.written
        wrong = {rule.id for rule in broken(job.setting, plan, framework_rules("megatron"))}
        accepted, reason = accepts(job)
        ours = not (wrong - set(EXPLAINED))
        assert accepted == ours, (
            f"{plan}\nMegatron: {reason or 'accepts'}\nours: {sorted(wrong) or 'accepts'}"
        )
        agreed[accepted] += 1
    assert min(agreed.values()) > 100, f"the sample is one-sided: {agreed}"


def accepts(job: Job) -> tuple[bool, str]:
    """Whether megatron-core's configuration and parallel state take the plan; the reason if not."""
    args = arguments(job)
    try:
        transformer_config(args)
        check_groups(job)
    except (ValueError, AssertionError, RuntimeError) as error:
        return False, f"{type(error).__name__}: {error}"
    return True, ""


def check_groups(job: Job) -> None:
    """The conditions of ``parallel_state.initialize_model_parallel``, on its own ``RankGenerator``."""
    from megatron.core.parallel_state import RankGenerator

    plan, order = export_megatron(job).written, "-".join(export_megatron(job).order)
    world = job.setting.cluster.gpus
    if world % (plan.tp * plan.pp * plan.cp):
        raise RuntimeError("world size is not divisible by the model's")
    if world % (plan.etp * plan.ep * plan.pp):
        raise RuntimeError("world size is not divisible by the experts'")
    if job.setting.workload.seq % (2 * plan.cp) and plan.cp > 1:
        raise AssertionError("seq-length should be a multiple of 2 * context-parallel-size")
    experts = job.setting.model.layers[-1].mlp
    if plan.ep > 1 and getattr(experts, "experts", plan.ep) % plan.ep:
        raise ValueError("experts do not divide")
    edp = world // (plan.etp * plan.ep * plan.pp)
    dense = RankGenerator(tp=plan.tp, ep=1, dp=plan.dp, pp=plan.pp, cp=plan.cp, order=order)
    expert = RankGenerator(tp=plan.etp, ep=plan.ep, dp=edp, pp=plan.pp, cp=1, order=order)
    ends_in_pp = order.endswith("pp") or plan.pp == 1 or edp == plan.dp
    assert ends_in_pp, "data parallel sizes of attention and MoE must be the same"
    assert dense.get_ranks("pp") == expert.get_ranks("pp"), "pipeline groups must be the same"


@PARSER
def test_the_argument_parser_takes_what_we_write() -> None:
    """``parse_args`` and ``validate_args`` of the wheel, with the environment we write."""
    import sys

    import torch
    from megatron.training.arguments import parse_args, validate_args

    taken = exported(250, "parser")
    assert len(taken) > 40
    for job in taken:
        launch = export_megatron(job)
        words = [word for flag, values in arguments(job).items() for word in (flag, *values)]
        env = {"WORLD_SIZE": str(job.setting.cluster.gpus), "RANK": "0"}
        connections = [
            line for line in launch.files["run.sh"].splitlines() if "CUDA_DEVICE_MAX_CONNECTIONS=" in line
        ]
        if connections:
            env["CUDA_DEVICE_MAX_CONNECTIONS"] = connections[0].partition("=")[2]
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()):
            for name in ("CUDA_DEVICE_MAX_CONNECTIONS", "WORLD_SIZE", "RANK"):
                patch.delenv(name, raising=False)
            for name, value in env.items():
                patch.setenv(name, value)
            patch.setattr(sys, "argv", ["pretrain_gpt.py", *words])
            patch.setattr(torch.cuda, "get_device_capability", lambda *a: (9, 0))
            for module in ("megatron.training.arguments", "megatron.training.utils"):
                if hasattr(sys.modules.get(module), "get_device_arch_version"):
                    patch.setattr(f"{module}.get_device_arch_version", lambda: 9)
            args = validate_args(parse_args())
        plan = launch.written
        assert args.data_parallel_size == plan.dp
        assert args.tensor_model_parallel_size == plan.tp
        assert args.pipeline_model_parallel_size == plan.pp
        assert (args.virtual_pipeline_model_parallel_size or 1) == plan.vp
        assert args.context_parallel_size == plan.cp
        assert args.expert_model_parallel_size == plan.ep
        assert args.expert_tensor_parallel_size == plan.etp
        assert args.micro_batch_size == plan.mbs
        assert args.global_batch_size == job.setting.workload.gbs
        assert args.sequence_parallel == (plan.sp and plan.tp > 1)
        assert args.use_distributed_optimizer == (plan.sharding >= Sharding.ZERO1)
        assert (plan.schedule is Schedule.INTERLEAVED) == (plan.vp > 1)


@PARSER
def test_every_known_flag_is_one_of_the_parser() -> None:
    """The list of flags by which ``read`` tells known from unknown holds all that the parser has."""
    import argparse

    from megatron.training.arguments import add_megatron_arguments

    from meshplan.export.read_megatron import known_flags

    parser = add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
    flags = {flag for action in parser._actions for flag in action.option_strings if flag.startswith("--")}
    missing = flags - known_flags() - {"--help"}
    assert not missing, f"{len(missing)} flags are new: {sorted(missing)[:5]}"


def test_explained_rules_exist() -> None:
    known = {rule.id for rule in framework_rules("megatron")}
    assert set(EXPLAINED) <= known, set(EXPLAINED) - known


def test_the_environment_was_left_alone() -> None:
    assert os.environ.get("WORLD_SIZE") is None


ROTARY = (
    "llama-2-7b", "llama-3-8b", "llama-3.1-8b", "llama-3.2-1b", "qwen3-8b", "glm-4.5-air", "gpt-neox-20b",
    "phi-4", "mistral-small-24b", "deepseek-v3", "deepseek-v2-lite", "moonlight-16b-a3b",
)  # fmt: skip


def launch_arguments(name: str) -> dict[str, list[str]]:
    from meshplan.cluster.presets import cluster_of
    from meshplan.model.presets import preset
    from meshplan.plan.plans import Plan
    from meshplan.plan.rules import Setting
    from meshplan.plan.workload import Workload

    setting = Setting(preset(name), cluster_of("h100-sxm", 8), Workload(seq=2048, gbs=8))
    return arguments(Job(setting=setting, plan=Plan(dp=8), asked_model=name))


@pytest.mark.parametrize("name", ROTARY)
def test_megatrons_frequencies_are_the_published_models(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The angles that Megatron makes of our flags, against those of transformers for the same model."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers", reason="ORACLE NOT RUN: transformers is not installed")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    from meshplan.model.presets import preset

    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")
    rope, args = preset(name).rope, launch_arguments(name)
    assert rope is not None
    latent = "--multi-latent-attention" in args
    dim = int(args["--qk-pos-emb-head-dim" if latent else "--kv-channels"][0])
    parameters = {
        "rope_type": {"plain": "default"}.get(rope.kind, rope.kind), "rope_theta": rope.base,
        "factor": rope.factor, "original_max_position_embeddings": rope.original,
        "low_freq_factor": rope.low, "high_freq_factor": rope.high, "beta_fast": rope.beta_fast,
        "beta_slow": rope.beta_slow, "mscale": rope.mscale, "mscale_all_dim": rope.mscale_all_dim,
        "partial_rotary_factor": rope.fraction,
    }  # fmt: skip
    if rope.kind == "plain":
        width = int(dim * rope.fraction)
        theirs = 1.0 / rope.base ** (torch.arange(0, width, 2).float() / width)
    else:
        config = transformers.LlamaConfig(
            hidden_size=dim * 8, num_attention_heads=8, head_dim=dim, max_position_embeddings=131072,
            rope_parameters={k: v for k, v in parameters.items() if v is not None},
        )  # fmt: skip
        theirs, _ = ROPE_INIT_FUNCTIONS[rope.kind](config, torch.device("cpu"))
    assert torch.allclose(frequencies(args, dim), theirs.float(), rtol=1e-5)


def frequencies(args: dict[str, list[str]], dim: int) -> Any:
    """Megatron's own inverse frequencies, from the flags as its models and latent attention use them."""
    from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
    from megatron.core.models.common.embeddings.yarn_rotary_pos_embedding import YarnRotaryEmbedding

    def number(flag: str, usual: float) -> float:
        return float(args.get(flag, [str(usual)])[0])

    base, share = int(args["--rotary-base"][0]), number("--rotary-percent", 1)
    if args.get("--rope-type", ["rope"])[0] == "yarn":
        made = YarnRotaryEmbedding(
            dim, rotary_base=base, scaling_factor=number("--rotary-scaling-factor", 1),
            original_max_position_embeddings=4096, beta_fast=32, beta_slow=1,
            mscale=number("--mscale", 1), mscale_all_dim=number("--mscale-all-dim", 0),
            use_cpu_initialization=True,
        )  # fmt: skip
        import torch
        from megatron.core.models.common.embeddings import yarn_rotary_pos_embedding as yarn

        low, high = yarn._yarn_find_correction_range(32, 1, dim, base, 4096, True)
        mask = 1.0 - yarn._yarn_linear_ramp_mask(low, high, dim // 2, torch.device("cpu")).to(
            dtype=torch.float32
        )
        return made.inv_freq_inter * (1 - mask) + made.inv_freq_extra * mask
    return RotaryEmbedding(
        dim, rotary_percent=share, rotary_base=base, rope_scaling="--use-rope-scaling" in args,
        rope_scaling_factor=number("--rope-scaling-factor", 8), use_cpu_initialization=True,
    ).inv_freq  # fmt: skip


# From the published configurations: base, share, epsilon, function, gated; then YaRN of latent attention.
PARSED = {
    "llama-3.1-8b": (500_000, 1.0, 1e-5, "silu", True, None),
    "gpt-oss-20b": (150_000, 1.0, 1e-5, "quick_gelu", True, None),
    "glm-4.5": (1_000_000, 0.5, 1e-5, "silu", True, None),
    "nemotron-4-15b": (10_000, 0.5, 1e-5, "squared_relu", False, None),
    "gpt-2-xl": (10_000, 1.0, 1e-5, "gelu", False, None),
    "deepseek-v3": (10_000, 1.0, 1e-6, "silu", True, ("yarn", 40.0, 1.0)),
    "moonlight-16b-a3b": (50_000, 1.0, 1e-5, "silu", True, ("rope", 1.0, 0.0)),
}


@PARSER
def test_megatrons_own_configuration_has_the_models_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through ``parse_args``, ``validate_args`` and ``core_transformer_config_from_args``."""
    import sys

    import torch
    from megatron.training import arguments as theirs

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *a: (9, 0))
    if hasattr(theirs, "get_device_arch_version"):
        monkeypatch.setattr(theirs, "get_device_arch_version", lambda: 9)
    for name, value in (("WORLD_SIZE", "8"), ("RANK", "0"), ("CUDA_DEVICE_MAX_CONNECTIONS", "1")):
        monkeypatch.setenv(name, value)
    for name, (base, share, eps, function, gated, latent) in PARSED.items():
        words = [word for flag, values in launch_arguments(name).items() for word in (flag, *values)]
        monkeypatch.setattr(sys, "argv", ["pretrain_gpt.py", *words])
        with contextlib.redirect_stdout(io.StringIO()):
            args = theirs.validate_args(theirs.parse_args())
            args.apply_rope_fusion = False  # its kernel wants TransformerEngine
            config = theirs.core_transformer_config_from_args(args)
        assert (args.rotary_base, args.rotary_percent) == (base, share), name
        assert config.layernorm_epsilon == eps, name
        assert (config.activation_func.__name__, config.gated_linear_unit) == (function, gated), name
        if latent is not None:
            assert (config.rope_type, config.rotary_scaling_factor, config.mscale_all_dim) == latent, name
        assert args.use_rope_scaling == (name == "llama-3.1-8b"), name
