"""Rules of arithmetic: how GPUs, heads, widths, tokens and the batch divide. They hold everywhere."""

from __future__ import annotations

import numpy as np

from meshplan.plan.divisors import divisors, nearest_divisors
from meshplan.plan.kinds import CpKind, Sharding
from meshplan.plan.plans import Plan, Plans
from meshplan.plan.rules.facts import divide, heads, listed, mlp_widths, moes
from meshplan.plan.rules.rule import Bools, Rule, Setting, Source

_ARGUMENTS = "megatron/training/arguments.py, validate_args"
_CONFIG = "megatron/core/transformer/transformer_config.py, TransformerConfig.__post_init__"
_DIMS = "torchtitan/distributed/parallel_dims.py, ParallelDims._validate"
_DECODER = "torchtitan/models/common/decoder.py, Decoder.Config.update_from_config"
_ACCELERATE = "src/accelerate/parallelism_config.py, ParallelismConfig._validate_accelerator"
_DTENSOR = "torch/distributed/tensor, when the weights are sharded"
_ULYSSES = "deepspeed/runtime/sequence_parallel/ulysses_sp.py, UlyssesSPAttentionHF.__init__"


def _gpus_words(s: Setting, p: Plan) -> str:
    gpus, size = s.cluster.gpus, p.tp * p.cp * p.pp
    for name in ("tp", "cp", "pp"):
        own = int(getattr(p, name))
        if gpus % own:
            wrong = f"{name} {own:,} does not divide {gpus:,} GPUs"
            left, rest = divmod(gpus * own, size)  # what the others leave to it
            if rest or not left:
                return f"{wrong}; {_close(gpus, p)} would"
            return f"{wrong}; {name} {' or '.join(f'{d:,}' for d in nearest_divisors(left, own))} would"
    if p.dp < gpus and gpus % p.dp:
        offer = " or ".join(f"{d:,}" for d in nearest_divisors(gpus, p.dp))
        return f"dp {p.dp:,} does not divide {gpus:,} GPUs; dp {offer} would"
    product = f"tp {p.tp} × cp {p.cp} × dp {p.dp:,} × pp {p.pp} = {p.gpus:,}, not {gpus:,} GPUs"
    if gpus % size == 0:
        return f"{product}; dp {gpus // size:,} would"
    # another degree that makes up for all the others by itself, or else the degrees that come close
    alone = [
        f"{name} {gpus // others:,}"
        for name in ("pp", "tp", "cp")
        if gpus % (others := p.gpus // int(getattr(p, name))) == 0
    ]
    return f"{product}; {' or '.join(alone) or _close(gpus, p)} would"


def _close(gpus: int, p: Plan) -> str:
    """Degrees whose product is ``gpus``, each at most what was asked for, the rest of it dp."""
    left, found = gpus, {}
    for name in ("tp", "cp", "pp"):
        found[name] = max(d for d in divisors(left) if d <= getattr(p, name))
        left //= found[name]
    return f"tp {found['tp']} × cp {found['cp']} × dp {left:,} × pp {found['pp']}"


def _grouped_heads(s: Setting) -> list[int]:
    """KV heads where there are fewer than heads; others say nothing that heads do not."""
    attention = (layer.attention for layer in s.model.layers)
    return sorted({a.kv_heads for a in attention if a is not None and a.kv_heads != a.heads})


def _kv_pass(s: Setting, p: Plans) -> Bools:
    good = np.ones(len(p), dtype=np.bool_)
    for kv in _grouped_heads(s):
        good &= (kv % p.tp == 0) | (p.tp % kv == 0)
    return good


def _kv_words(s: Setting, p: Plan) -> str:
    return f"tp {p.tp} neither divides the {listed(_grouped_heads(s))} KV heads nor is a multiple of them"


def _gbs_words(s: Setting, p: Plan) -> str:
    size = p.dp * p.mbs
    below, above = s.workload.gbs // size * size, -(-s.workload.gbs // size) * size
    offer = " or ".join(f"{v:,}" for v in (below, above) if v)
    return (
        f"gbs {s.workload.gbs:,} does not divide over dp {p.dp:,} × mbs {p.mbs} = {size:,}; gbs {offer} would"
    )


def _ulysses(p: Plans) -> Bools:
    return np.asarray((p.cp_kind == CpKind.ULYSSES) & (p.cp > 1))


def _ulysses_words(s: Setting, p: Plan) -> str:
    size = p.tp * p.cp
    return f"Ulysses hands out heads: tp {p.tp} × cp {p.cp} = {size} does not divide {listed(heads(s))} heads"


def _shared(s: Setting) -> list[int]:
    return sorted({moe.shared_width for moe in moes(s) if moe.shared_width})


GPUS_PRODUCT = Rule(
    id="gpus-product",
    meaning=True,
    title="tp × cp × dp × pp is the number of GPUs",
    columns=("tp", "cp", "pp", "dp"),
    passes=lambda s, p: np.asarray(p.tp.astype(np.float64) * p.cp * p.pp * p.dp == s.cluster.gpus),
    words=_gpus_words,
    demand=lambda s, p: np.abs(p.gpus - s.cluster.gpus),
    sources=(
        Source("any", "every GPU is one rank of the mesh"),
        Source("megatron", f"{_ARGUMENTS}; megatron/core/parallel_state.py, initialize_model_parallel"),
        Source("torchtitan", _DIMS),
        Source("pytorch", "torch/distributed/device_mesh.py, init_device_mesh"),
        Source("deepspeed", "deepspeed/runtime/pipe/topology.py, PipelineParallelGrid"),
        Source("accelerate", _ACCELERATE),
        Source("mindspeed", "mindspeed/auto_settings/search_space.py, build_search_spaces"),
        Source("paddle", "python/paddle/distributed/auto_tuner/prune.py, prune_by_num_gpus"),
    ),
)
TP_DIVIDES_HEADS = Rule(
    id="tp-divides-heads",
    title="tp divides the attention heads",
    columns=("tp",),
    passes=lambda s, p: divide(heads(s), p.tp),
    words=lambda s, p: f"tp {p.tp} does not divide {listed(heads(s))} heads",
    fix="tp",
    sources=(
        Source("any", "attention is split by whole heads (arXiv 1909.08053, section 3)"),
        Source("megatron", _CONFIG),
        Source("torchtitan", _DECODER),
        Source("pytorch", _DTENSOR),
        Source("deepspeed", "deepspeed/module_inject/fusedqkv_utils.py, and layers.py for each weight"),
        Source("accelerate", _DTENSOR),
        Source("mindspeed", _CONFIG),
        Source(
            "paddle", "python/paddle/distributed/auto_tuner/prune.py, prune_by_mp (hidden size, whole heads)"
        ),
    ),
)
TP_KV_HEADS = Rule(
    id="tp-kv-heads",
    title="tp divides the KV heads or is a multiple of them",
    columns=("tp",),
    passes=_kv_pass,
    words=_kv_words,
    fix="tp",
    sources=(
        Source("any", "a KV head is on one rank whole, or on several as a copy"),
        Source("megatron", _CONFIG),
        Source("deepspeed", "deepspeed/module_inject/fusedqkv_utils.py and tp_shard.py"),
        Source("mindspeed", _CONFIG),
    ),
)
TP_DIVIDES_MLP = Rule(
    id="tp-divides-mlp",
    title="tp divides the width of every dense MLP",
    columns=("tp",),
    passes=lambda s, p: divide(mlp_widths(s), p.tp),
    words=lambda s, p: f"tp {p.tp} does not divide the MLP width {listed(mlp_widths(s))}",
    fix="tp",
    sources=(
        Source("any", "the columns of the MLP are split evenly (arXiv 1909.08053, section 3)"),
        Source("megatron", "megatron/core/tensor_parallel/layers.py, ColumnParallelLinear (divide)"),
        Source("torchtitan", _DTENSOR),
        Source("pytorch", _DTENSOR),
        Source("deepspeed", "deepspeed/module_inject/layers.py"),
        Source("accelerate", _DTENSOR),
        Source("mindspeed", "megatron/core/tensor_parallel/layers.py, ColumnParallelLinear (divide)"),
    ),
)
TP_DIVIDES_SHARED = Rule(
    id="tp-divides-shared-experts",
    title="tp divides the width of the shared experts",
    columns=("tp",),
    passes=lambda s, p: divide(_shared(s), p.tp),
    words=lambda s, p: f"tp {p.tp} does not divide the shared experts' width {listed(_shared(s))}",
    fix="tp",
    sources=(
        Source("any", "shared experts are split like a dense MLP"),
        Source("megatron", "megatron/core/transformer/moe/shared_experts.py (a ColumnParallelLinear)"),
        Source("torchtitan", _DTENSOR),
    ),
)
SEQ_DIVIDES_CP = Rule(
    id="seq-divides-cp",
    title="2 × cp divides the sequence, so that causal work can be balanced",
    columns=("cp",),
    passes=lambda s, p: np.asarray((p.cp == 1) | (s.workload.seq % (2 * p.cp) == 0)),
    words=lambda s, p: f"seq {s.workload.seq:,} does not divide into 2 × cp {p.cp} parts",
    fix="cp",
    sources=(
        Source("any", "rank r takes parts r and 2 · cp - 1 - r of the sequence, as much causal work on each"),
        Source("megatron", _ARGUMENTS),
        Source("torchtitan", "torchtitan/distributed/parallel_dims.py, seq_len_divisor"),
        Source("pytorch", "torch/distributed/tensor/experimental, context_parallel's load balancer"),
        Source("deepspeed", _ULYSSES),
        Source("accelerate", "torch/distributed/tensor/experimental, context_parallel's load balancer"),
        Source("mindspeed", _ARGUMENTS),
    ),
)
SP_DIVIDES_SEQ = Rule(
    id="sp-divides-seq",
    title="with sequence parallelism tp divides the tokens of a cp rank",
    columns=("tp", "cp", "sp"),
    passes=lambda s, p: np.asarray((p.sp == 0) | (p.tp == 1) | (s.workload.seq % (p.tp * p.cp) == 0)),
    words=lambda s, p: f"seq {s.workload.seq:,} / cp {p.cp} does not divide over tp {p.tp}",
    fix="tp",
    sources=(
        Source("any", "norms and residuals are split over the tp ranks by tokens (arXiv 2205.05198, 4.2)"),
        Source("megatron", "megatron/core/tensor_parallel/mappings.py, _reduce_scatter_along_first_dim"),
        Source("torchtitan", "torchtitan/trainer.py, seq_len_divisor"),
        Source("pytorch", _DTENSOR),
        Source("deepspeed", "no sequence parallelism there: passes"),
        Source("accelerate", "no sequence parallelism there: passes"),
        Source("mindspeed", "megatron/core/tensor_parallel/mappings.py, _reduce_scatter_along_first_dim"),
    ),
)
ULYSSES_HEADS = Rule(
    id="ulysses-heads",
    title="Ulysses: tp × cp divides the attention heads",
    columns=("tp", "cp", "cp_kind"),
    passes=lambda s, p: ~_ulysses(p) | divide(heads(s), p.tp * p.cp),
    words=_ulysses_words,
    fix="cp",
    sources=(
        Source("any", "an all-to-all gives each cp rank whole heads (arXiv 2309.14509)"),
        Source("deepspeed", _ULYSSES),
        Source("megatron", "transformer_engine, context_parallel.py, cp_comm_type a2a"),
    ),
)
HIERARCHICAL_CP = Rule(
    id="hierarchical-cp-sizes",
    title="hierarchical context parallelism: cp is a product of two sizes above 1",
    columns=("cp", "cp_kind"),
    passes=lambda s, p: np.asarray((p.cp_kind != CpKind.HIERARCHICAL) | (p.cp == 1) | _composite(p)),
    words=lambda s, p: f"cp {p.cp} is no product of an inner and an outer size above 1 each",
    fix="cp",
    sources=(
        Source("any", "all-to-all inside, ring between: two levels need two sizes"),
        Source("megatron", "megatron/training/arguments.py, hierarchical_context_parallel_sizes"),
    ),
)
GBS_DIVIDES = Rule(
    id="gbs-divides",
    meaning=True,
    title="dp × mbs divides the global batch",
    columns=("dp", "mbs"),
    passes=lambda s, p: np.asarray(s.workload.gbs % (p.dp * p.mbs) == 0),
    words=_gbs_words,
    demand=lambda s, p: p.dp * p.mbs,
    sources=(
        Source("any", "gbs = dp × mbs × micro-batches"),
        Source("megatron", "megatron/core/num_microbatches_calculator.py"),
        Source("torchtitan", "torchtitan/trainer.py, num_tokens_per_train_step"),
        Source("pytorch", "gbs = dp × mbs × micro-batches"),
        Source("deepspeed", "deepspeed/runtime/config.py, DeepSpeedConfig._batch_assertion"),
        Source("accelerate", "gbs = dp × mbs × gradient accumulation steps"),
        Source("mindspeed", "mindspeed/auto_settings/search_space.py, build_search_spaces"),
        Source("paddle", "python/paddle/distributed/auto_tuner/prune.py, prune_by_mbs"),
    ),
)
REPLICAS_DIVIDE = Rule(
    id="replicas-divide-dp",
    meaning=True,
    title="replicas divide dp, and something is sharded",
    columns=("dp", "sharding", "replicas"),
    passes=lambda s, p: np.asarray(
        (p.replicas == 1) | ((p.sharding != Sharding.DDP) & (p.dp % np.maximum(p.replicas, 1) == 0))
    ),
    words=lambda s, p: (
        f"replicas {p.replicas}: ddp shards nothing that could have copies"
        if p.sharding is Sharding.DDP
        else f"replicas {p.replicas} does not divide dp {p.dp}"
    ),
    fix="replicas",
    sources=(
        Source("any", "HSDP: dp / replicas ranks (with their cp) shard, the replicas are copies"),
        Source("torchtitan", _DIMS),
        Source("pytorch", "torch/distributed/fsdp, fully_shard on a two-dimensional mesh"),
        Source("accelerate", _ACCELERATE),
    ),
)


def _composite(p: Plans) -> Bools:
    sizes, index = np.unique(p.cp, return_inverse=True)
    found = [any(n % d == 0 for d in range(2, int(n**0.5) + 1)) for n in sizes.tolist()]
    return np.array(found, dtype=np.bool_)[index]
