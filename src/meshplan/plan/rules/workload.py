"""What a framework can be asked to train: host memory for the optimizer, capacity of experts, precisions."""

from __future__ import annotations

import numpy as np

from meshplan.plan.kinds import Sharding
from meshplan.plan.plans import Plan, Plans
from meshplan.plan.rules.facts import every, moes
from meshplan.plan.rules.rule import Bools, Rule, Setting, Source


def _on_gpu(s: Setting) -> bool:
    return s.workload.offload == "none"


def _deepspeed(s: Setting, p: Plans) -> Bools:
    least = Sharding.ZERO1 if s.workload.offload_fraction == 1 else Sharding.ZERO3
    return np.asarray(_on_gpu(s) | (p.sharding >= least))


def _deepspeed_words(s: Setting, p: Plan) -> str:
    if p.sharding is Sharding.DDP:
        return "DeepSpeed keeps the optimizer's states of ZeRO in host memory, and ddp shards none"
    return f"DeepSpeed keeps a part of the optimizer in host memory with zero3 only, not {p.sharding.label}"


def _precision_rule(framework: str, title: str, known: tuple[str, ...], where: str) -> Rule:
    """``framework`` trains in the precisions ``known``, and in fp32; ``where`` its source says so."""
    listed = f"{', '.join(known[:-1])} and {known[-1]}"
    return Rule(
        id=f"{framework}-precision",
        title=title,
        columns=(),
        passes=lambda s, p: every(p, s.workload.precision in (*known, "fp32")),
        words=lambda s, p: f"{s.workload.precision} has no setting there; {listed} have",
        sources=(Source(framework, where),),
    )


MEGATRON_OFFLOAD = Rule(
    id="megatron-offload",
    title="an optimizer in host memory is the distributed one",
    columns=("sharding",),
    passes=lambda s, p: np.asarray(_on_gpu(s) | (p.sharding == Sharding.ZERO1)),
    words=lambda s, p: (
        "Megatron keeps the distributed optimizer's states in host memory, which is zero1 without FSDP, not"
        f" {p.sharding.label}"
    ),
    sources=(Source("megatron", "megatron/training/arguments.py, validate_args (optimizer_cpu_offload)"),),
)
DEEPSPEED_OFFLOAD = Rule(
    id="deepspeed-offload",
    title="an optimizer in host memory is ZeRO's; a part of it, of ZeRO-3",
    columns=("sharding",),
    passes=_deepspeed,
    words=_deepspeed_words,
    sources=(Source("deepspeed", "deepspeed/runtime/zero/offload_config.py"),),
)
FSDP_OFFLOAD = Rule(
    id="fsdp-offload",
    title="FSDP2 keeps no optimizer in host memory without the weights",
    columns=(),
    passes=lambda s, p: every(p, _on_gpu(s)),
    words=lambda s, p: (
        "FSDP2 keeps weights and gradients in host memory together with the optimizer's states, or nothing"
        " (--offload optimizer is for megatron and deepspeed)"
    ),
    sources=(
        Source("torchtitan", "torchtitan/config/configs.py, TrainingConfig.enable_cpu_offload"),
        Source("pytorch", "torch/distributed/fsdp/_fully_shard/_fsdp_api.py, CPUOffloadPolicy"),
        Source("accelerate", "torch/distributed/fsdp/_fully_shard/_fsdp_api.py, CPUOffloadPolicy"),
    ),
)
DROPLESS = Rule(
    id="dropless-experts",
    title="experts take every token",
    columns=(),
    passes=lambda s, p: every(p, s.workload.capacity_factor is None or not moes(s)),
    words=lambda s, p: "a capacity factor has no setting there; experts take every token",
    sources=(
        Source("torchtitan", "torchtitan/models/common/moe.py, TokenChoiceTopKRouter"),
        Source("accelerate", "transformers, mixture-of-experts blocks"),
    ),
)
PRECISIONS = (
    _precision_rule(
        "torchtitan", "training is in bf16, or converted to fp8, mxfp8 or nvfp4",
        ("bf16", "fp8", "mxfp8", "nvfp4"),
        "torchtitan/config/configs.py, TrainingConfig.mixed_precision_param",
    ),
    _precision_rule(
        "deepspeed", "training is in bf16 or fp16", ("bf16", "fp16"), "deepspeed/runtime/precision_config.py",
    ),
    _precision_rule(
        "accelerate", "training is in bf16, fp16 or fp8", ("bf16", "fp16", "fp8"),
        "src/accelerate/utils/dataclasses.py, PrecisionType",
    ),
)  # fmt: skip
WORKLOAD_RULES = (MEGATRON_OFFLOAD, DEEPSPEED_OFFLOAD, FSDP_OFFLOAD, DROPLESS, *PRECISIONS)
