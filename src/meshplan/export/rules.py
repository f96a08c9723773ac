"""What each target's own code refuses: rules on top of ``plan.rules.RULES``.

Read in the code of Megatron-Core 0.16.1 and 0.19.2, torchtitan 0.3.0, DeepSpeed 0.19.8 and
accelerate 1.15.0, and held against it by tests.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from meshplan.model.layers import Moe
from meshplan.plan.kinds import Schedule, Sharding
from meshplan.plan.plans import Plan, Plans
from meshplan.plan.rules import (
    EP_DIVIDES_EXPERTS,
    ETP_DIVIDES_EXPERT,
    EXPERT_FOLDING,
    GBS_DIVIDES,
    GPUS_PRODUCT,
    LAYERS_DIVIDE_PP,
    LAYERS_DIVIDE_VP,
    SEQ_DIVIDES_CP,
    SP_DIVIDES_SEQ,
    TP_DIVIDES_HEADS,
    TP_DIVIDES_MLP,
    TP_KV_HEADS,
    VP_FITS_SCHEDULE,
    Bools,
    Rule,
    Setting,
)


def _moe(s: Setting) -> bool:
    return any(isinstance(layer.mlp, Moe) for layer in s.model.layers)


def _moe_bias(s: Setting) -> bool:
    """Whether Megatron's linear layers get biases, those of experts included."""
    return any(
        isinstance(layer.mlp, Moe)
        and layer.attention is not None
        and layer.attention.qkv_bias
        and layer.attention.out_bias
        for layer in s.model.layers
    )


def _kv(s: Setting) -> list[int]:
    return sorted({layer.attention.kv_heads for layer in s.model.layers if layer.attention is not None})


def _micro_batches(s: Setting, p: Plans) -> npt.NDArray[np.int64]:
    return np.asarray(s.workload.gbs // np.maximum(p.dp * p.mbs, 1), dtype=np.int64)


def _strict_kv(s: Setting, p: Plans) -> Bools:
    good = np.ones(len(p), dtype=np.bool_)
    for kv in _kv(s):
        good &= kv % p.tp == 0
    return good


def _interleaved_batches(s: Setting, p: Plans) -> Bools:
    return np.asarray((p.vp == 1) | (p.pp == 1) | (_micro_batches(s, p) % p.pp == 0))


def _interleaved_words(s: Setting, p: Plan) -> str:
    m = s.workload.gbs // (p.dp * p.mbs)
    return f"interleaved stages need micro-batches in multiples of pp {p.pp}, and there are {m}"


def _rounds(s: Setting, p: Plans) -> Bools:
    """PyTorch's interleaved schedules: micro-batches divide into rounds of about pp."""
    looped = np.isin(p.schedule, [int(Schedule.INTERLEAVED), int(Schedule.ZB_H1)]) & (p.pp > 1)
    m = _micro_batches(s, p)
    return np.asarray(~looped | (m % np.maximum(m // np.maximum(p.pp, 1), 1) == 0))


def _enough(s: Setting, p: Plans) -> Bools:
    """PyTorch's 1F1B needs a micro-batch a stage, DualPipeV one for each of its two stages a rank."""
    m = _micro_batches(s, p)
    one = (p.schedule == Schedule.ONE_F_ONE_B) & (m < p.pp)
    dual = (p.schedule == Schedule.DUALPIPE_V) & (m < 2 * p.pp)
    return np.asarray((p.pp == 1) | ~(one | dual))


def _enough_words(s: Setting, p: Plan) -> str:
    need = 2 * p.pp if p.schedule is Schedule.DUALPIPE_V else p.pp
    return f"{s.workload.gbs // (p.dp * p.mbs)} micro-batches are fewer than the {need} that {p.schedule.label} needs"


STAGES_HAVE_LAYERS = Rule(
    id="stages-have-layers",
    title="there are no more stages than layers",
    columns=("pp", "vp", "layout"),
    passes=lambda s, p: np.asarray((p.layout >= 0) | (p.pp * p.vp <= len(s.model.layers))),
    words=lambda s, p: f"pp {p.pp} × vp {p.vp} = {p.pp * p.vp} stages for {len(s.model.layers)} layers",
    fix="vp",
)
MEGATRON_MOE_SP = Rule(
    id="megatron-moe-needs-sp",
    title="MoE layers with tensor parallelism need sequence parallelism",
    columns=("tp", "sp"),
    passes=lambda s, p: np.asarray((p.tp == 1) | (p.sp == 1) | (not _moe(s))),
    words=lambda s, p: f"MoE layers with tp {p.tp} need sequence parallelism",
)
MEGATRON_MOE_BIAS = Rule(
    id="megatron-moe-bias-no-etp",
    title="experts with biases are not split over tensor parallelism",
    columns=("etp",),
    passes=lambda s, p: np.asarray((p.etp == 1) | (not _moe_bias(s))),
    words=lambda s, p: (
        f"the experts of {s.model.name} have biases, which Megatron does not split (etp {p.etp})"
    ),
    fix="etp",
)
MEGATRON_INTERLEAVED = Rule(
    id="megatron-interleaved-batches",
    title="interleaved stages take micro-batches in multiples of pp",
    columns=("pp", "vp", "dp", "mbs"),
    passes=_interleaved_batches,
    words=_interleaved_words,
    fix="vp",
)
TITAN_KV = Rule(
    id="torchtitan-kv-heads",
    title="tp divides the KV heads",
    columns=("tp",),
    passes=_strict_kv,
    words=lambda s, p: f"tp {p.tp} does not divide {' and '.join(map(str, _kv(s)))} KV heads",
    fix="tp",
)
TITAN_TIED = Rule(
    id="torchtitan-tied-no-pp",
    title="tied embeddings cannot be pipelined",
    columns=("pp",),
    passes=lambda s, p: np.asarray((p.pp == 1) | (not s.model.tied_embeddings)),
    words=lambda s, p: f"{s.model.name} ties its embeddings, which torchtitan does not pipeline (pp {p.pp})",
    fix="pp",
)
TITAN_SEQ = Rule(
    id="torchtitan-seq",
    title="tp × 2 · cp divides the sequence",
    columns=("tp", "cp", "sp"),
    passes=lambda s, p: np.asarray(
        s.workload.seq % (np.where(p.sp == 1, p.tp, 1) * np.where(p.cp > 1, 2 * p.cp, 1)) == 0
    ),
    words=lambda s, p: f"seq {s.workload.seq:,} does not divide over tp {p.tp} × 2 · cp {p.cp}",
    fix="tp",
)
TITAN_EP = Rule(
    id="torchtitan-ep-in-shards",
    title="ep divides the ranks that shard, dp / replicas × cp × tp",
    columns=("tp", "cp", "dp", "ep", "sharding", "replicas"),
    passes=lambda s, p: np.asarray(
        (np.where(p.sharding == Sharding.DDP, 1, p.dp // np.maximum(p.replicas, 1)) * p.cp * p.tp) % p.ep == 0
    ),
    words=lambda s, p: (
        f"ep {p.ep} does not divide the ranks that shard: dp {p.dp} / {p.replicas} × cp {p.cp} × tp {p.tp}"
    ),
    fix="ep",
)
TORCH_ROUNDS = Rule(
    id="torch-interleaved-rounds",
    title="micro-batches divide into rounds of pp",
    columns=("pp", "dp", "mbs", "schedule"),
    passes=_rounds,
    words=lambda s, p: (
        f"{s.workload.gbs // (p.dp * p.mbs)} micro-batches do not divide into rounds of pp {p.pp} ({p.schedule.label})"
    ),
)
TORCH_ENOUGH = Rule(
    id="torch-enough-micro-batches",
    title="1F1B needs a micro-batch for every stage, DualPipeV two",
    columns=("pp", "dp", "mbs", "schedule"),
    passes=_enough,
    words=_enough_words,
)
DEEPSPEED_PP_ZERO = Rule(
    id="deepspeed-pp-zero",
    title="the pipeline engine works with ZeRO 0 and 1",
    columns=("pp", "sharding"),
    passes=lambda s, p: np.asarray((p.pp == 1) | (p.sharding <= Sharding.ZERO1)),
    words=lambda s, p: f"{p.sharding.label} is incompatible with the pipeline engine (pp {p.pp})",
)
ACCELERATE_NO_PP = Rule(
    id="accelerate-no-pp",
    title="there is no pipeline for training",
    columns=("pp",),
    passes=lambda s, p: np.asarray(p.pp == 1),
    words=lambda s, p: f"accelerate has no pipeline for training (pp {p.pp})",
    fix="pp",
)

_SHARED = (GPUS_PRODUCT, TP_DIVIDES_HEADS, TP_DIVIDES_MLP, SEQ_DIVIDES_CP, SP_DIVIDES_SEQ, GBS_DIVIDES)
_EXPERTS = (EP_DIVIDES_EXPERTS, ETP_DIVIDES_EXPERT, EXPERT_FOLDING)
MEGATRON_RULES = (
    *_SHARED, TP_KV_HEADS, *_EXPERTS, STAGES_HAVE_LAYERS, VP_FITS_SCHEDULE, MEGATRON_MOE_SP, MEGATRON_MOE_BIAS, MEGATRON_INTERLEAVED,
)  # fmt: skip
TORCHTITAN_RULES = (
    *_SHARED, TITAN_KV, TITAN_SEQ, *_EXPERTS, TITAN_EP, TITAN_TIED, STAGES_HAVE_LAYERS, TORCH_ROUNDS, TORCH_ENOUGH,
)  # fmt: skip
PYTORCH_RULES = (*_SHARED, TITAN_KV, *_EXPERTS, STAGES_HAVE_LAYERS, TORCH_ROUNDS, TORCH_ENOUGH)
DEEPSPEED_RULES = (*_SHARED, TP_KV_HEADS, *_EXPERTS, LAYERS_DIVIDE_PP, LAYERS_DIVIDE_VP, DEEPSPEED_PP_ZERO)
ACCELERATE_RULES = (*_SHARED, TITAN_KV, ACCELERATE_NO_PP)

_BY_NAME: Mapping[str, tuple[Rule, ...]] = {
    "megatron": MEGATRON_RULES,
    "megatron-bridge": MEGATRON_RULES,
    "torchtitan": TORCHTITAN_RULES,
    "pytorch": PYTORCH_RULES,
    "deepspeed": DEEPSPEED_RULES,
    "accelerate": ACCELERATE_RULES,
}


def framework_rules(name: str) -> tuple[Rule, ...]:
    """The rules of a target, all that a plan must satisfy to start there; none for a name without rules."""
    return _BY_NAME.get(name, ())
