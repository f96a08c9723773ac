"""What the reference engine cannot run, each with its reason; checked before anything is launched."""

from __future__ import annotations

from collections.abc import Iterator

from meshplan.errors import InputError
from meshplan.model.layers import Attention, LatentAttention, Layer, Mlp, Moe
from meshplan.model.model import Model
from meshplan.plan.kinds import CpKind, Recompute, Schedule, Sharding
from meshplan.plan.plans import ALL_LAYERS, Plan
from meshplan.plan.workload import Workload

SCHEDULES = {
    Schedule.GPIPE: "GPipe",
    Schedule.ONE_F_ONE_B: "1F1B",
    Schedule.INTERLEAVED: "Interleaved1F1B",
    Schedule.LOOPED_BFS: "LoopedBFS",
    Schedule.ZB_H1: "InterleavedZeroBubble",
    Schedule.ZB_V: "ZBVZeroBubble",
    Schedule.DUALPIPE_V: "DualPipeV",
}
"""Schedules of ``torch.distributed.pipelining``, by its class names without ``Schedule``."""
ZERO_BUBBLE = (Schedule.ZB_H1, Schedule.ZB_V, Schedule.DUALPIPE_V)
MODULES = Recompute.CORE_ATTN | Recompute.MLP_ACT | Recompute.MOE_ACT | Recompute.MLP | Recompute.MOE


def check_executable(model: Model, workload: Workload, plan: Plan, *, pipeline: bool = True) -> None:
    """Raise ``InputError`` with the first reason why the engine cannot run ``plan``; ``pipeline``: whether
    torch's pipeline schedules take part."""
    reason = next(reasons(model, workload, plan, pipeline=pipeline), None)
    if reason is not None:
        raise InputError(f"the reference engine cannot run this: {reason}")


def reasons(model: Model, workload: Workload, plan: Plan, *, pipeline: bool = True) -> Iterator[str]:
    """Why the engine cannot run ``plan``; none: it can."""
    yield from _of_model(model, plan, workload)
    yield from _of_degrees(model, workload, plan)
    if pipeline and plan.pp > 1:
        yield from _of_pipeline(model, workload, plan)


def _of_model(model: Model, plan: Plan, workload: Workload) -> Iterator[str]:
    for layer in model.kinds:
        yield from _of_layer(layer, plan, workload)
    if model.mtp:
        yield f"{model.name} has multi-token-prediction layers"
    if model.positions or model.embedding_norm or model.head_bias or model.final_norm_bias:
        yield f"{model.name} has learned positions, an embedding norm, or biases in norm or head"
    if not model.final_norm:
        yield f"{model.name} has no final norm"
    if model.tied_embeddings and plan.pp > 1:
        yield f"{model.name} ties its head to the embedding, which pp {plan.pp} puts on two ranks"
    if workload.precision not in ("bf16", "fp32"):
        yield f"precision {workload.precision}; it trains in bf16 or fp32"


def _of_layer(layer: Layer, plan: Plan, workload: Workload) -> Iterator[str]:
    att, mlp = layer.attention, layer.mlp
    if isinstance(att, LatentAttention):
        yield "latent attention (MLA)"
    if isinstance(att, Attention):
        if att.window is not None and att.window < workload.seq:
            yield f"a sliding window of {att.window} tokens below seq {workload.seq}"
        if att.gate or att.head_gate or att.sinks or att.shared_kv or att.out_bias or att.qk_norm_bias:
            yield "attention with gates, sinks, shared or biased projections"
        if att.v_dim != att.head_dim:
            yield "value heads of another width than query heads"
        if att.qk_norm == "full":
            yield "norms over all heads' queries and keys"
        if att.kv_heads % plan.tp:
            yield f"tp {plan.tp} does not divide the {att.kv_heads} KV heads"
        if att.qkv_bias and plan.tp > 1:
            yield "biases of q, k and v under tp"
    if layer.norm_bias or layer.norms != 2 or layer.parallel or layer.extra_norm:
        yield "layers with other norms than one before attention and one before the MLP"
    if att is None or mlp is None:
        yield "layers without attention or MLP"
    if isinstance(mlp, Mlp) and mlp.bias:
        yield "an MLP with biases"
    if isinstance(mlp, Moe) and (
        mlp.bias or mlp.router_bias or mlp.router_extra or mlp.shared_gate or not mlp.gated
    ):
        yield "experts with biases, plain activations, router extras or a gated shared expert"


def _of_degrees(model: Model, workload: Workload, plan: Plan) -> Iterator[str]:
    moe = [layer.mlp for layer in model.layers if isinstance(layer.mlp, Moe)]
    if plan.cp > 1 and plan.cp_kind not in (CpKind.RING, CpKind.ALL_GATHER):
        yield f"context parallelism by {plan.cp_kind.label}; it has ring and all-gather"
    if plan.cp > 1 and workload.seq % (2 * plan.cp * (plan.tp if plan.sp else 1)):
        yield f"seq {workload.seq} is not a multiple of 2 · cp {plan.cp} · tp"
    if plan.tp > 1 and plan.sp and workload.seq // plan.cp % plan.tp:
        yield f"sequence parallelism of {workload.seq // plan.cp} tokens over tp {plan.tp}"
    if moe and plan.tp > 1 and not plan.sp:
        yield "experts under tp without sequence parallelism"
    for m in moe:
        if m.experts % plan.ep or m.width % plan.etp:
            yield f"{m.experts} experts of width {m.width} over ep {plan.ep} and etp {plan.etp}"
    if workload.gbs % (plan.dp * plan.mbs):
        yield f"gbs {workload.gbs} is not a multiple of dp {plan.dp} × mbs {plan.mbs}"
    if model.vocab % plan.tp:
        yield f"a vocabulary of {model.vocab} over tp {plan.tp}"
    if plan.recompute_modules & ~MODULES & ~Recompute.OPERATORS:
        yield "recomputing of norms, MLA projections or shared experts alone"
    if not 0 <= plan.recompute_layers <= ALL_LAYERS:
        yield "a number of recomputed layers that is left open; give one"


def _of_pipeline(model: Model, workload: Workload, plan: Plan) -> Iterator[str]:
    micro = workload.gbs // (plan.dp * plan.mbs)
    stages = plan.pp * plan.vp
    if plan.schedule not in SCHEDULES:
        yield f"schedule {plan.schedule.label}; torch has {', '.join(s.label for s in SCHEDULES)}"
    if plan.sharding is Sharding.ZERO3 and plan.schedule in ZERO_BUBBLE:
        yield (
            "zero-bubble schedules with parameters resharded give wrong gradients in torch;"
            " use zero1 or zero2"
        )
    if plan.schedule in (Schedule.GPIPE, Schedule.ONE_F_ONE_B) and plan.vp > 1:
        yield f"schedule {plan.schedule.label} with vp {plan.vp}"
    if plan.schedule is Schedule.ONE_F_ONE_B and micro < plan.pp:
        yield f"1f1b with {micro} micro-batches, fewer than pp {plan.pp}"
    if plan.schedule in (Schedule.INTERLEAVED, Schedule.ZB_H1) and micro % max(1, micro // plan.pp):
        yield f"{micro} micro-batches that do not go round {plan.pp} ranks in equal groups"
    if plan.schedule is Schedule.DUALPIPE_V and micro < 2 * plan.pp:
        yield f"dualpipe-v with {micro} micro-batches, fewer than {2 * plan.pp}"
    if plan.schedule in (Schedule.ZB_V, Schedule.DUALPIPE_V) and plan.vp != 2:
        yield f"schedule {plan.schedule.label} with vp {plan.vp}, not 2"
    if len(model.layers) < stages:
        yield f"{len(model.layers)} layers over {stages} stages"
