"""What torchtitan, PyTorch's pipelining and accelerate refuse, and what they have no setting for."""

from __future__ import annotations

import numpy as np

from meshplan.plan.kinds import CpKind, Recompute, Schedule, Sharding
from meshplan.plan.plans import ALL_LAYERS, AUTO_LAYERS, Plan, Plans
from meshplan.plan.rules.facts import batches, divide, every, is_any, kv_heads, listed, micro_batches
from meshplan.plan.rules.rule import Bools, Rule, Setting, Source

_SCHEDULES = "torch/distributed/pipelining/schedules.py"
_FSDP = "torchtitan/distributed/fsdp.py"
SCHEDULES = (
    Schedule.ONE_F_ONE_B, Schedule.GPIPE, Schedule.INTERLEAVED, Schedule.LOOPED_BFS, Schedule.ZB_V,
    Schedule.DUALPIPE_V,
)  # fmt: skip
"""Those of ``torch.distributed.pipelining``, and zb-h1 with more than one stage a rank."""
ZERO_BUBBLE = (Schedule.ZB_H1, Schedule.ZB_V, Schedule.DUALPIPE_V)


def _both(where: str) -> tuple[Source, ...]:
    return Source("torchtitan", where), Source("pytorch", where)


def _kv_words(s: Setting, p: Plan) -> str:
    return f"tp {p.tp} does not divide {listed(kv_heads(s))} KV heads"


def _rounds(s: Setting, p: Plans) -> Bools:
    """PyTorch's interleaved schedules: micro-batches divide into rounds of about pp."""
    looped = is_any(p.schedule, (Schedule.INTERLEAVED, Schedule.ZB_H1)) & (p.pp > 1)
    m = micro_batches(s, p)
    return np.asarray(~looped | (m % np.maximum(m // np.maximum(p.pp, 1), 1) == 0))


def _enough(s: Setting, p: Plans) -> Bools:
    """PyTorch's 1F1B needs a micro-batch a stage, DualPipeV one for each of its two stages a rank."""
    m = micro_batches(s, p)
    one = (p.schedule == Schedule.ONE_F_ONE_B) & (m < p.pp)
    dual = (p.schedule == Schedule.DUALPIPE_V) & (m < 2 * p.pp)
    return np.asarray((p.pp == 1) | ~(one | dual))


def _enough_words(s: Setting, p: Plan) -> str:
    need = 2 * p.pp if p.schedule is Schedule.DUALPIPE_V else p.pp
    return f"{batches(s, p)} micro-batches are fewer than the {need} that {p.schedule.label} needs"


def _fsdp_words(s: Setting, p: Plan) -> str:
    if p.sharding is Sharding.DDP:
        return f"FSDP2 shards over cp ranks (cp {p.cp}), so ddp cannot be"
    return "FSDP2 shards gradients as well as optimizer states: zero2 or zero3, or ddp"


TITAN_KV = Rule(
    id="torchtitan-kv-heads",
    title="tp divides the KV heads",
    columns=("tp",),
    passes=lambda s, p: divide(kv_heads(s), p.tp),
    words=_kv_words,
    fix="tp",
    sources=(
        Source("torchtitan", "torchtitan/models/common/decoder.py, Decoder.Config.update_from_config"),
        Source("pytorch", "torch/distributed/tensor: heads are sharded whole, none is copied"),
        Source("accelerate", "torch/distributed/tensor: heads are sharded whole, none is copied"),
    ),
)
TITAN_TIED = Rule(
    id="torchtitan-tied-no-pp",
    title="tied embeddings cannot be pipelined",
    columns=("pp",),
    passes=lambda s, p: np.asarray((p.pp == 1) | (not s.model.tied_embeddings)),
    words=lambda s, p: f"{s.model.name} ties its embeddings, which torchtitan does not pipeline (pp {p.pp})",
    fix="pp",
    sources=(Source("torchtitan", "torchtitan/models/common/decoder.py, Decoder.Config.update_from_config"),),
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
    sources=(Source("torchtitan", "torchtitan/trainer.py, seq_len_divisor"),),
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
    sources=(Source("torchtitan", "torchtitan/distributed/parallel_dims.py, ParallelDims._validate"),),
)
TITAN_ETP = Rule(
    id="torchtitan-no-etp",
    title="experts are not split over tensor parallelism",
    columns=("etp",),
    passes=lambda s, p: np.asarray(p.etp == 1),
    words=lambda s, p: f"torchtitan has no tensor parallelism of experts (etp {p.etp})",
    fix="etp",
    written=True,
    sources=(Source("torchtitan", "torchtitan/config/configs.py, ParallelismConfig"),),
)
TITAN_CP_KIND = Rule(
    id="torchtitan-cp-all-gather",
    title="context parallelism gathers keys and values",
    columns=("cp", "cp_kind"),
    passes=lambda s, p: np.asarray((p.cp == 1) | (p.cp_kind == CpKind.ALL_GATHER)),
    words=lambda s, p: f"context parallelism is all-gather there (FlexAttention), not {p.cp_kind.label}",
    written=True,
    sources=(
        Source("torchtitan", "torchtitan/distributed/context_parallel.py"),
        Source("accelerate", "src/accelerate/accelerator.py, _prepare_cp (allgather by default)"),
    ),
)
TITAN_ORDER = Rule(
    id="torchtitan-order",
    title="the mesh is tp-cp-dp-pp from inside out",
    columns=(),
    passes=lambda s, p: every(p, tuple(d for d in p.order if d != "ep") == ("tp", "cp", "dp", "pp")),
    words=lambda s, p: "torchtitan's mesh is tp-cp-dp-pp from inside out",
    written=True,
    sources=(Source("torchtitan", "torchtitan/distributed/parallel_dims.py, ParallelDims.build_mesh"),),
)
FSDP_SHARDING = Rule(
    id="fsdp-sharding",
    title="FSDP2 shards gradients and parameters, or nothing is sharded (without cp)",
    columns=("cp", "dp", "sharding"),
    passes=lambda s, p: np.asarray(
        (p.dp * p.cp == 1) | (p.sharding >= Sharding.ZERO2) | ((p.sharding == Sharding.DDP) & (p.cp == 1))
    ),
    words=_fsdp_words,
    written=True,
    sources=(*_both(_FSDP), Source("accelerate", "torch/distributed/fsdp, fully_shard")),
)
FSDP_ZERO_BUBBLE = Rule(
    id="fsdp-zero-bubble",
    title="zero-bubble schedules do not reshard parameters",
    columns=("pp", "schedule", "sharding"),
    passes=lambda s, p: np.asarray(
        (p.pp == 1) | ~is_any(p.schedule, ZERO_BUBBLE) | (p.sharding < Sharding.ZERO3)
    ),
    words=lambda s, p: f"{p.schedule.label} with zero3 gives wrong gradients in PyTorch; zero2 does not",
    written=True,
    sources=_both(f"{_SCHEDULES}, backward in two parts under FSDP"),
)
TITAN_RECOMPUTE = Rule(
    id="torchtitan-recompute",
    title="every layer is recomputed, none, or by operator",
    columns=("recompute_layers", "recompute_modules"),
    passes=lambda s, p: np.asarray(
        ((p.recompute_layers == 0) | (p.recompute_layers == ALL_LAYERS))
        & ((p.recompute_modules == 0) | (p.recompute_modules == int(Recompute.OPERATORS)))
    ),
    words=lambda s, p: (
        "activation checkpointing is full, selective (by operator) or none there, not "
        + ("as few layers as fit" if p.recompute_layers == AUTO_LAYERS else "some layers or chosen modules")
    ),
    written=True,
    sources=_both("torchtitan/distributed/activation_checkpoint.py"),
)
TORCH_SCHEDULES = Rule(
    id="torch-schedules",
    title="schedules of torch.distributed.pipelining",
    columns=("pp", "vp", "schedule"),
    passes=lambda s, p: (
        (p.pp == 1) | is_any(p.schedule, SCHEDULES) | ((p.schedule == Schedule.ZB_H1) & (p.vp > 1))
    ),
    words=lambda s, p: (
        f"PyTorch's pipelining has no {p.schedule.label}; it has {', '.join(k.label for k in SCHEDULES)}"
    ),
    written=True,
    sources=_both(f"{_SCHEDULES}, get_schedule_class"),
)
TORCH_ROUNDS = Rule(
    id="torch-interleaved-rounds",
    title="micro-batches divide into rounds of pp",
    columns=("pp", "dp", "mbs", "schedule"),
    passes=_rounds,
    words=lambda s, p: (
        f"{batches(s, p)} micro-batches do not divide into rounds of pp {p.pp} ({p.schedule.label})"
    ),
    sources=_both(f"{_SCHEDULES}, ScheduleInterleaved1F1B and ScheduleInterleavedZeroBubble"),
)
TORCH_ENOUGH = Rule(
    id="torch-enough-micro-batches",
    title="1F1B needs a micro-batch for every stage, DualPipeV two",
    columns=("pp", "dp", "mbs", "schedule"),
    passes=_enough,
    words=_enough_words,
    sources=_both(f"{_SCHEDULES}, Schedule1F1B and ScheduleDualPipeV"),
)
ACCELERATE_NO_PP = Rule(
    id="accelerate-no-pp",
    title="there is no pipeline for training",
    columns=("pp",),
    passes=lambda s, p: np.asarray(p.pp == 1),
    words=lambda s, p: f"accelerate has no pipeline for training (pp {p.pp})",
    fix="pp",
    sources=(Source("accelerate", "src/accelerate/parallelism_config.py, ParallelismConfig"),),
)
ACCELERATE_NO_EP = Rule(
    id="accelerate-no-ep",
    title="there is no expert parallelism",
    columns=("ep", "etp"),
    passes=lambda s, p: np.asarray((p.ep == 1) & (p.etp == 1)),
    words=lambda s, p: f"accelerate's parallelism has no experts (ep {p.ep}, etp {p.etp})",
    fix="ep",
    written=True,
    sources=(Source("accelerate", "src/accelerate/parallelism_config.py, ParallelismConfig"),),
)
RULES = (
    TITAN_KV, TITAN_SEQ, TITAN_EP, TITAN_ETP, TITAN_TIED, TITAN_CP_KIND, TITAN_ORDER,
    FSDP_SHARDING, FSDP_ZERO_BUBBLE, TITAN_RECOMPUTE, TORCH_SCHEDULES, TORCH_ROUNDS, TORCH_ENOUGH,
    ACCELERATE_NO_PP, ACCELERATE_NO_EP,
)  # fmt: skip
