"""Target ``torchtitan`` 0.3: a Python configuration module, and the same as flags on a stock configuration.

Version 0.3 reads no TOML; ``--module`` names a Python module and ``--config`` a function in it
(``torchtitan/config/manager.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshplan.errors import InputError
from meshplan.export.environment import environment
from meshplan.export.header import header
from meshplan.export.launch import Fitting, Job, Launch
from meshplan.export.quoting import Option, option_lines, python_text
from meshplan.export.torchrun import run_script
from meshplan.export.torchtitan_models import FLAVORS, Flavor
from meshplan.export.torchtitan_plan import fit_torchtitan, parallelism_fields, policy, training_fields
from meshplan.model.layers import Attention, Mlp
from meshplan.model.model import Model

VERSION = "torchtitan 0.3.0"
MODULE = "meshplan_titan"
FUNCTION = "train"
_POLICIES = {"full": "FullAC.Config()", "selective": "SelectiveAC.Config()", "none": "None"}
_SCALINGS = {"plain": "none", "llama3": "llama", "yarn": "yarn"}
"""Kind of rotary scaling → its name in ``RoPE.Config``."""
_CONVERTERS = {
    "fp8": "Float8LinearConverter",
    "mxfp8": "MXFP8LinearConverter",
    "nvfp4": "NVFP4LinearConverter",
}


def export_torchtitan(job: Job) -> Launch:
    """``run.sh``, ``meshplan_titan.py``, and ``torchtitan.flags`` where torchtitan has a stock configuration.

    Raises ``InputError`` for a model that torchtitan does not have and that is no plain Llama.
    """
    flavor = FLAVORS.get(job.model.name)
    if flavor is None:
        check_llama(job.model)
    fitting = Fitting(job)
    fit_torchtitan(fitting)
    precision = job.setting.workload.precision
    if precision in _CONVERTERS and flavor is None:
        fitting.say("precision", precision, "bf16", "torchtitan converts only its own models")
    _fit_numerics(fitting, flavor)
    if job.model.mtp:
        fitting.say(
            "multi-token prediction", str(len(job.model.mtp)), "none", "left out of this configuration"
        )
    workload = job.setting.workload
    parallelism = parallelism_fields(fitting.plan, len(job.model.layers))
    training = training_fields(fitting.plan, job.micro_batches, workload.seq, workload.gbs, precision)
    title = f"{VERSION} configuration"
    files = {
        "run.sh": run_script(
            job,
            title,
            env=environment(job),
            before=['export PYTHONPATH="$HERE${PYTHONPATH:+:$PYTHONPATH}"'],
            program=f'-m torchtitan.train --module {MODULE} --config {FUNCTION} "$@"',
        ),
        f"{MODULE}.py": _module(job, fitting, flavor, parallelism, training),
    }
    if flavor is not None and flavor.config and precision not in _CONVERTERS:
        files["torchtitan.flags"] = header(job, f"Flags of {title}, without {MODULE}.py") + "".join(
            f"{line}\n" for line in option_lines(flags(flavor, parallelism, training, policy(fitting.plan)))
        )
    return Launch(
        target="torchtitan",
        version=VERSION,
        files=files,
        main="run.sh",
        written=fitting.plan,
        order=fitting.order,
        notes=tuple(fitting.notes),
    )


def flags(
    flavor: Flavor, parallelism: Mapping[str, Any], training: Mapping[str, Any], policy_name: str
) -> list[Option]:
    """The same settings on the command line of a stock configuration."""
    options: list[Option] = [("--module", flavor.module), ("--config", flavor.config)]
    for section, fields in (("training", training), ("parallelism", parallelism)):
        options += [_flag(f"{section}.{name}", value) for name, value in fields.items()]
    return [*options, (f"activation-checkpoint:{policy_name}",)]


def _flag(name: str, value: Any) -> Option:
    if isinstance(value, bool):
        section, _, field = name.rpartition(".")
        return (f"--{name}",) if value else (f"--{section}.no-{field}",)
    if isinstance(value, list):
        return (f"--{name}", *(",".join(part) for part in value))
    return (f"--{name}", str(value))


def _module(
    job: Job,
    fitting: Fitting,
    flavor: Flavor | None,
    parallelism: Mapping[str, Any],
    training: Mapping[str, Any],
) -> str:
    precision = job.setting.workload.precision
    converter = _CONVERTERS.get(precision) if flavor else None
    chosen = policy(fitting.plan)
    assets = "./assets/hf/" + (flavor.assets if flavor else job.model.name)
    lines = [
        header(job, f"{VERSION} configuration; start it with run.sh").rstrip("\n"),
        "from torchtitan.components.checkpoint import CheckpointManager",
        "from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss",
        "from torchtitan.components.metrics import MetricsProcessor",
        "from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw",
    ]
    if converter:
        lines.append(f"from torchtitan.components.quantization import {converter}")
    lines.append("from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig")
    if chosen != "none":
        name = _POLICIES[chosen].partition(".")[0]
        lines.append(f"from torchtitan.distributed.activation_checkpoint import {name}")
    lines += [
        "from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader",
        "from torchtitan.models.common.config_utils import decoder_vocab_size",
        "from torchtitan.trainer import Trainer",
        "",
        *(_flavor_model(flavor, fitting, converter) if flavor else _llama_model(job)),
        "",
        "",
        f"def {FUNCTION}() -> Trainer.Config:",
        '    """The whole run; data, tokenizer and learning rate are yours to change."""',
        "    spec = model_spec()",
        "    return Trainer.Config(",
        "        model_spec=spec,",
        f"        hf_assets_path={python_text(assets)},",
        "        loss=ChunkedLossWrapper.Config(",
        "            loss_fn=CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(spec)),",
        "        ),",
        *_call("training", "TrainingConfig", {**training, "steps": 1000}),
        *_call("parallelism", "ParallelismConfig", parallelism),
        f"        activation_checkpoint={_POLICIES[chosen]},",
        f"        compile=CompileConfig(enable={converter is not None}, components=['model']),",
        "        optimizer=default_adamw(lr=3e-4),",
        "        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=100),",
        "        dataloader=HuggingFaceTextDataLoader.Config(dataset='c4'),",
        "        metrics=MetricsProcessor.Config(log_freq=1),",
        "        checkpoint=CheckpointManager.Config(interval=500),",
        "    )",
    ]
    return "\n".join(lines) + "\n"


def _call(name: str, kind: str, fields: Mapping[str, Any]) -> list[str]:
    lines = [f"        {name}={kind}("]
    for field, value in fields.items():
        if isinstance(value, list):
            lines += [
                f"            {field}=[",
                *(f"                {part!r}," for part in value),
                "            ],",
            ]
        else:
            lines.append(f"            {field}={python_text(value)},")
    return [*lines, "        ),"]


def _fit_numerics(fitting: Fitting, flavor: Flavor | None) -> None:
    """Say what of positions and norms torchtitan's models have otherwise."""
    model = fitting.job.model
    rope = model.rope
    if rope is not None and rope.kind not in _SCALINGS:
        fitting.say(
            "rotary scaling", f"{rope.kind}, factor {rope.factor:g}", "none", "torchtitan has llama and yarn"
        )
    if flavor is None:
        return
    if model.norm_eps is not None and model.norm_eps != flavor.eps:
        fitting.say(
            "norms' epsilon", f"{model.norm_eps:g}", f"{flavor.eps:g}", "it is fixed in torchtitan's model"
        )
    if flavor.module == "llama3" and flavor.config and rope is not None and rope.kind == "plain":
        fitting.say(
            "rotary scaling of torchtitan.flags", "none", "llama, factor 8",
            f"its stock configuration has it; {MODULE}.py has none",
        )  # fmt: skip


def rope_fields(model: Model) -> dict[str, Any]:
    """The rotary embedding as fields of ``RoPE.Config``; empty where the model has none."""
    rope = model.rope
    if rope is None:
        return {}
    found: dict[str, Any] = {"theta": rope.base, "scaling": _SCALINGS.get(rope.kind, "none")}
    if rope.kind == "llama3":
        found |= {
            "scaling_factor": rope.factor, "low_freq_factor": rope.low, "high_freq_factor": rope.high,
            "original_max_position_embeddings": rope.original or 8192,
        }  # fmt: skip
    elif rope.kind == "yarn":
        found |= {
            "rope_factor": rope.factor, "beta_fast": rope.beta_fast, "beta_slow": rope.beta_slow,
            "original_seq_len": rope.original or 4096, "truncate": rope.truncate,
        }  # fmt: skip
    return found


def _flavor_model(flavor: Flavor, fitting: Fitting, converter: str | None) -> list[str]:
    arguments = [python_text(flavor.name)]
    if flavor.module == "gpt_oss" and fitting.plan.cp > 1:
        arguments.append("attn_backend='flex'")
    if converter:
        skip = "filter_fqns=['lm_head'], " if converter.startswith("Float8") else ""
        skip = "fqns=['layers'], " if converter.startswith("NVFP4") else skip
        arguments.append(f"converters=[{converter}.Config({skip}model_compile_enabled=True)]")
    return [
        f"from torchtitan.models.{flavor.module} import model_registry",
        "",
        "",
        "def model_spec():",
        f"    spec = model_registry({', '.join(arguments)})",
        *_set_rope(fitting.job.model),
        "    return spec",
    ]


def _set_rope(model: Model) -> list[str]:
    fields = rope_fields(model)
    if not fields:
        return []
    return [
        "    for block in spec.model.layers:",
        "        rope = block.attention.rope",
        *(f"        rope.{name} = {python_text(value)}" for name, value in fields.items()),
    ]


def check_llama(model: Model) -> None:
    """Raise ``InputError`` unless the model is a plain Llama: one kind of layer, gated MLP, no biases."""
    layer = model.layers[0]
    attention, mlp = layer.attention, layer.mlp
    plain = (
        len(set(model.layers)) == 1
        and isinstance(attention, Attention)
        and isinstance(mlp, Mlp)
        and mlp.gated
        and not (mlp.bias or attention.qkv_bias or attention.out_bias or layer.norm_bias or layer.parallel)
        and attention.window is None
        and attention.qk_norm == "none"
        and layer.norms == 2
        and model.activation in ("", "silu")
        and (model.rope is None or (model.rope.fraction == 1 and not model.rope.skips))
        and not (model.positions or attention.sinks or attention.gate or model.mtp)
    )
    if not plain:
        known = ", ".join(sorted(FLAVORS))
        raise InputError(
            f"torchtitan 0.3.0 has no model like {model.name}; it has {known} and plain Llamas of any size"
        )


def _llama_model(job: Job) -> list[str]:
    model = job.model
    attention, mlp = model.layers[0].attention, model.layers[0].mlp
    assert isinstance(attention, Attention)
    assert isinstance(mlp, Mlp)
    sizes = {
        "LAYERS": len(model.layers),
        "DIM": model.hidden,
        "HEADS": attention.heads,
        "KV_HEADS": attention.kv_heads,
        "HEAD_DIM": attention.head_dim,
        "FFN": mlp.width,
        "VOCAB": model.vocab,
        "TIED": model.tied_embeddings,
        "MAX_SEQ": max(model.max_seq or 0, job.setting.workload.seq),
        "ROPE": rope_fields(model) or {"theta": 10000.0},
        "EPS": model.norm_eps or 1e-5,
    }
    return [
        *_LLAMA_IMPORTS,
        "",
        *(f"{name} = {value!r}" for name, value in sizes.items()),
        *_LLAMA_BODY,
    ]


_LLAMA_IMPORTS = """\
from functools import partial

import torch.nn as nn
from torchtitan.distributed.pipeline_parallel import pipeline_llm
from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm
from torchtitan.models.common.config_utils import get_attention_config, make_ffn_config, make_gqa_config
from torchtitan.models.llama3 import parallelize_llama
from torchtitan.models.llama3.model import Llama3Model, Llama3TransformerBlock
from torchtitan.models.llama3.state_dict_adapter import Llama3StateDictAdapter
from torchtitan.protocols.model_spec import ModelSpec""".splitlines()

_LLAMA_BODY = """

def weight(std):
    return {"weight": partial(nn.init.trunc_normal_, std=std), "bias": nn.init.zeros_}


def norm():
    return RMSNorm.Config(normalized_shape=DIM, eps=EPS, param_init={"weight": nn.init.ones_})


def block(rope):
    return Llama3TransformerBlock.Config(
        attention_norm=norm(),
        ffn_norm=norm(),
        attention=make_gqa_config(
            dim=DIM, n_heads=HEADS, n_kv_heads=KV_HEADS, head_dim=HEAD_DIM,
            wqkv_param_init=weight(0.02), wo_param_init=weight(0.02 / (2 * LAYERS) ** 0.5),
            inner_attention=get_attention_config("flex"), rope=rope, fuse_qkv=True,
        ),
        feed_forward=make_ffn_config(
            dim=DIM, hidden_dim=FFN, w1_param_init=weight(0.02),
            w2w3_param_init=weight(0.02 / (2 * LAYERS) ** 0.5),
        ),
    )


def model_spec():
    rope = ComplexRoPE.Config(dim=HEAD_DIM, max_seq_len=MAX_SEQ, **ROPE)
    model = Llama3Model.Config(
        dim=DIM,
        vocab_size=VOCAB,
        enable_weight_tying=TIED,
        tok_embeddings=Embedding.Config(
            num_embeddings=VOCAB, embedding_dim=DIM, param_init={"weight": partial(nn.init.normal_, std=0.02)}
        ),
        norm=norm(),
        lm_head=Linear.Config(in_features=DIM, out_features=VOCAB, param_init=weight(DIM**-0.5)),
        layers=[block(rope) for _ in range(LAYERS)],
    )
    return ModelSpec(
        name="llama3",
        flavor="meshplan",
        model=model,
        parallelize_fn=parallelize_llama,
        pipelining_fn=pipeline_llm,
        post_optimizer_build_fn=None,
        state_dict_adapter=Llama3StateDictAdapter,
    )""".splitlines()
