"""DeepSpeed, and the two auto-tuners whose rules are public: MindSpeed's and Paddle's."""

from __future__ import annotations

import numpy as np

from meshplan.plan.kinds import CpKind, Schedule, Sharding
from meshplan.plan.plans import ALL_LAYERS, Plans
from meshplan.plan.rules.facts import batches, is_any, kv_heads, listed, micro_batches
from meshplan.plan.rules.rule import Bools, Rule, Setting, Source

_ULYSSES = "deepspeed/runtime/sequence_parallel/ulysses_sp.py, UlyssesSPAttentionHF.__init__"
_SETTINGS = "mindspeed/auto_settings/search_space.py, build_search_spaces"
_PRUNE = "python/paddle/distributed/auto_tuner/prune.py"
ASCEND_TOKENS = {"ascend-910b": 8192, "ascend-910c": 4096}
"""Tokens that a cp rank keeps at least, by GPU preset (MindSpeed's 910B and 910_93)."""


def _deepspeed(where: str) -> tuple[Source, ...]:
    return (Source("deepspeed", where),)


def _mindspeed(where: str) -> tuple[Source, ...]:
    return (Source("mindspeed", where),)


def _paddle(where: str) -> tuple[Source, ...]:
    return (Source("paddle", where),)


def _kv(s: Setting, p: Plans) -> Bools:
    good = np.ones(len(p), dtype=np.bool_)
    for kv in kv_heads(s):
        good &= (kv % p.cp == 0) | (p.cp % kv == 0)
    return good


def _tokens(s: Setting) -> int:
    return ASCEND_TOKENS.get(s.cluster.gpu.name, 0)


DEEPSPEED_PP_ZERO = Rule(
    id="deepspeed-pp-zero",
    title="the pipeline engine works with ZeRO 0 and 1",
    columns=("pp", "sharding"),
    passes=lambda s, p: np.asarray((p.pp == 1) | (p.sharding <= Sharding.ZERO1)),
    words=lambda s, p: f"{p.sharding.label} is incompatible with the pipeline engine (pp {p.pp})",
    fix="pp",
    sources=_deepspeed("deepspeed/runtime/pipe/engine.py, PipelineEngine.__init__"),
)
DEEPSPEED_SCHEDULE = Rule(
    id="deepspeed-schedule",
    title="1F1B, one stage a rank",
    columns=("pp", "vp", "schedule"),
    passes=lambda s, p: (p.pp == 1) | ((p.vp == 1) & is_any(p.schedule, (Schedule.ONE_F_ONE_B,))),
    words=lambda s, p: (
        f"DeepSpeed's pipeline engine runs 1f1b with one stage a rank, not {p.schedule.label} with vp {p.vp}"
    ),
    written=True,
    sources=_deepspeed("deepspeed/runtime/pipe/schedule.py, TrainSchedule"),
)
DEEPSPEED_LAYOUT = Rule(
    id="deepspeed-layout",
    title="stages are split evenly",
    columns=("pp", "layout"),
    passes=lambda s, p: np.asarray((p.layout < 0) | (p.pp == 1)),
    words=lambda s, p: "DeepSpeed splits layers evenly (or by parameters); it takes no layout",
    written=True,
    sources=_deepspeed("deepspeed/runtime/pipe/module.py, PipelineModule._partition_layers"),
)
DEEPSPEED_SP = Rule(
    id="deepspeed-no-sp",
    title="tensor parallelism has no sequence parallelism",
    columns=("tp", "sp"),
    passes=lambda s, p: np.asarray((p.tp == 1) | (p.sp == 0)),
    words=lambda s, p: f"tensor parallelism (tp {p.tp}) has no sequence parallelism there",
    written=True,
    sources=(
        Source("deepspeed", "deepspeed/module_inject/auto_tp.py"),
        Source("accelerate", "transformers' tensor parallel plans"),
    ),
)
DEEPSPEED_CP = Rule(
    id="deepspeed-ulysses",
    title="context parallelism is Ulysses",
    columns=("cp", "cp_kind"),
    passes=lambda s, p: np.asarray((p.cp == 1) | (p.cp_kind == CpKind.ULYSSES)),
    words=lambda s, p: f"DeepSpeed exchanges heads (ulysses), not {p.cp_kind.label}",
    written=True,
    sources=_deepspeed(_ULYSSES),
)
DEEPSPEED_KV = Rule(
    id="deepspeed-ulysses-kv-heads",
    title="cp divides the KV heads or is a multiple of them",
    columns=("cp", "cp_kind"),
    passes=lambda s, p: (p.cp == 1) | (p.cp_kind != CpKind.ULYSSES) | _kv(s, p),
    words=lambda s, p: (
        f"cp {p.cp} neither divides the {listed(kv_heads(s))} KV heads nor is a multiple of them"
    ),
    fix="cp",
    sources=_deepspeed(_ULYSSES),
)
DEEPSPEED_REPLICAS = Rule(
    id="deepspeed-no-replicas",
    title="shards have no replicas",
    columns=("replicas",),
    passes=lambda s, p: np.asarray(p.replicas == 1),
    words=lambda s, p: f"DeepSpeed keeps no replicas of shards (MiCS was removed), not {p.replicas}",
    fix="replicas",
    written=True,
    sources=_deepspeed("deepspeed/runtime/zero"),
)
DEEPSPEED_RECOMPUTE = Rule(
    id="deepspeed-recompute",
    title="every layer is recomputed or none",
    columns=("recompute_layers", "recompute_modules"),
    passes=lambda s, p: np.asarray(
        ((p.recompute_layers == 0) | (p.recompute_layers == ALL_LAYERS)) & (p.recompute_modules == 0)
    ),
    words=lambda s, p: "activation checkpointing is all layers or none there, not some layers or modules",
    written=True,
    sources=(
        Source("deepspeed", "deepspeed/runtime/activation_checkpointing/checkpointing.py; transformers"),
        Source("accelerate", "transformers, gradient_checkpointing"),
    ),
)
MINDSPEED_MBS = Rule(
    id="mindspeed-micro-batch",
    title="micro-batches have 1 or 2 sequences",
    columns=("mbs",),
    passes=lambda s, p: np.asarray(p.mbs <= 2),
    words=lambda s, p: f"MindSpeed's auto-tuner tries mbs 1 and 2, not {p.mbs}",
    fix="mbs",
    sources=_mindspeed(_SETTINGS),
)
MINDSPEED_CP_TOKENS = Rule(
    id="mindspeed-cp-tokens",
    title="a cp rank keeps 8,192 tokens (910B) or 4,096 (910C)",
    columns=("cp",),
    passes=lambda s, p: np.asarray((p.cp == 1) | (s.workload.seq // p.cp >= _tokens(s))),
    words=lambda s, p: (
        f"cp {p.cp} leaves {s.workload.seq // p.cp:,} tokens a rank, fewer than {_tokens(s):,}"
    ),
    fix="cp",
    sources=_mindspeed(_SETTINGS),
)
MINDSPEED_BATCHES = Rule(
    id="mindspeed-micro-batches",
    title="there are twice as many micro-batches as stages",
    columns=("pp", "dp", "mbs"),
    passes=lambda s, p: np.asarray(micro_batches(s, p) // np.maximum(p.pp, 1) > 1),
    words=lambda s, p: (
        f"MindSpeed's auto-tuner wants 2 × pp {p.pp} micro-batches or more, not {batches(s, p)}"
    ),
    sources=_mindspeed(_SETTINGS),
)
MINDSPEED_EP = Rule(
    id="mindspeed-ep-in-dp",
    title="ep divides cp × dp",
    columns=("cp", "dp", "ep"),
    passes=lambda s, p: np.asarray((p.cp * p.dp) % p.ep == 0),
    words=lambda s, p: f"ep {p.ep} does not divide cp {p.cp} × dp {p.dp} = {p.cp * p.dp}",
    fix="ep",
    sources=_mindspeed(_SETTINGS),
)
PADDLE_VP = Rule(
    id="paddle-vp",
    title="virtual stages need pp above 2",
    columns=("pp", "vp"),
    passes=lambda s, p: np.asarray((p.vp == 1) | (p.pp > 2)),
    words=lambda s, p: f"Paddle's auto-tuner has virtual stages from pp 3 on, not with pp {p.pp}",
    fix="vp",
    sources=_paddle(f"{_PRUNE}, prune_by_vpp"),
)
PADDLE_SHARDING = Rule(
    id="paddle-pp-sharding",
    title="with a pipeline sharding is stage 1",
    columns=("pp", "sharding"),
    passes=lambda s, p: np.asarray((p.pp == 1) | (p.sharding <= Sharding.ZERO1)),
    words=lambda s, p: (
        f"{p.sharding.label} with pp {p.pp}: Paddle shards optimizer states only beside a pipeline"
    ),
    fix="pp",
    sources=_paddle(f"{_PRUNE}, prune_by_sharding"),
)
PADDLE_TP = Rule(
    id="paddle-tp",
    title="tp divides hidden size and vocabulary, and is at most 8",
    columns=("tp",),
    passes=lambda s, p: np.asarray((s.model.hidden % p.tp == 0) & (s.model.vocab % p.tp == 0) & (p.tp <= 8)),
    words=lambda s, p: (
        f"Paddle's auto-tuner wants tp up to 8 that divides hidden {s.model.hidden:,} and vocabulary"
        f" {s.model.vocab:,}, not {p.tp}"
    ),
    fix="tp",
    sources=_paddle(f"{_PRUNE}, prune_by_mp"),
)
RULES = (
    DEEPSPEED_PP_ZERO, DEEPSPEED_SCHEDULE, DEEPSPEED_LAYOUT, DEEPSPEED_SP, DEEPSPEED_CP, DEEPSPEED_KV,
    DEEPSPEED_REPLICAS, DEEPSPEED_RECOMPUTE, MINDSPEED_MBS, MINDSPEED_CP_TOKENS, MINDSPEED_BATCHES,
    MINDSPEED_EP, PADDLE_VP, PADDLE_SHARDING, PADDLE_TP,
)  # fmt: skip
