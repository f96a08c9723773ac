"""One plan in full: what each kind of rank holds, and how well every number behind it is known."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module

import numpy as np

from meshplan.cluster.cluster import Cluster
from meshplan.cluster.curves import attention_kernel, gemm_curve, unaligned
from meshplan.cluster.profile import Profile, profile_of
from meshplan.cluster.profile_data import Evidence
from meshplan.cost.costs import Costs
from meshplan.cost.full.context import Context
from meshplan.cost.full.layers import price_layers
from meshplan.cost.full.memory import Peak, gather_buffers, host_bytes, peak
from meshplan.cost.full.model import PEAK_OF, FullModel
from meshplan.cost.full.pipeline import pipelines
from meshplan.cost.full.readings import Readings, readings
from meshplan.cost.full.stack import FITTED, Stack
from meshplan.cost.full.stages import even_layout, held_by_ranks
from meshplan.model.flops import ForwardFlops, flop_per_token, layer_flops
from meshplan.model.layers import Layer, Moe
from meshplan.model.model import Model
from meshplan.plan.kinds import CpKind, Recompute, Schedule, Sharding
from meshplan.plan.plans import DEFAULT_ORDER, Plan, Plans
from meshplan.plan.workload import Workload

COUNTED = "counted"
"""Provenance of what needs no measurement: shapes, parameters, the order of the schedule."""

LEFT_OUT = (
    "data loading, checkpoints, evaluation and restarts",
    "uneven expert routing beyond the stack's imbalance factor",
    "packed documents: every sequence is one document of full length",
    "other jobs' traffic on the network, and slow or failing GPUs",
    "offloading of weights and activations to host memory",
    "memory before the first step: loading weights and setting up the optimizer can need more than training",
)
"""What no estimate of the full model contains."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """Pipeline ranks that hold the same; ``memory`` in bytes by part.

    ``held``: layers of each pipeline stage on such a rank, in the order of the model, those of multi-token
    prediction left out. Under DualPipe a rank holds two stages, of which each sees half of the micro-batches.
    """

    ranks: int
    first_rank: int
    held: tuple[int, ...]
    embedding: bool
    head: bool
    memory: Mapping[str, float]

    @property
    def layers(self) -> int:
        """Of all its stages."""
        return sum(self.held)

    @property
    def memory_bytes(self) -> float:
        """All parts."""
        return float(sum(self.memory.values()))


@dataclass(frozen=True, kw_only=True, slots=True)
class Term:
    """One number, or curve, that a part of the estimate rests on, and how well it is known.

    ``provenance``: measured, fitted, datasheet, assumed or counted. ``error``: median relative error of
    a curve against its measurements.
    """

    parts: tuple[str, ...]
    what: str
    provenance: str
    source: str
    date: str = ""
    error: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """The price of one plan (``costs`` has one row) with its stages and the evidence for it."""

    costs: Costs
    stack: Stack
    hfu: float
    """As MFU, with the FLOP that recomputing runs again."""
    peak_flops: float
    """What MFU and HFU are shares of."""
    readings: Readings
    """The peak as tools read it."""
    stages: tuple[Stage, ...]
    terms: tuple[Term, ...]
    assumptions: tuple[str, ...]
    left_out: tuple[str, ...] = LEFT_OUT

    def _repr_html_(self) -> str:
        """What a notebook shows; drawn by the report room, which this one does not know."""
        html: str = import_module("meshplan.report.notebook").explanation_html(self)
        return html


def explain(
    full: FullModel,
    model: Model,
    cluster: Cluster,
    workload: Workload,
    plan: Plan,
    *,
    order: tuple[str, ...] = DEFAULT_ORDER,
    costs: Costs | None = None,
    simulated: bool = False,
) -> Explanation:
    """The price of ``plan`` under ``full``, taken apart. Raises what pricing raises.

    ``costs``: its price, if that is known (one row); ``simulated``: with time and memory as simulated.
    """
    if costs is None:
        costs = full.price(model, cluster, workload, Plans.of(plan, order=order))
    plans = costs.plans
    profile, stack = full.profile or profile_of(cluster.gpu), full.stack.for_workload(workload)
    context = Context(
        model=model, cluster=cluster, workload=workload, plans=plans, stack=stack, profile=profile
    )
    memory = peak(context, price_layers(context))
    peaks = cluster.gpu.peak_flops
    best = peaks.get(PEAK_OF[workload.precision]) or peaks.get("bf16") or max(peaks.values())
    again = recomputed_flops(model, workload.seq, context, memory) / flop_per_token(
        model, workload.seq, mtp=bool(model.mtp)
    )
    return Explanation(
        costs=costs,
        stack=stack,
        hfu=float(costs.mfu[0]) * (1 + again),
        peak_flops=best,
        readings=readings(
            {part: float(value[0]) for part, value in costs.memory.items()},
            limit=costs.memory_limit_bytes,
            cached=stack.cached,
            buffers=float(gather_buffers(context)[0]),
        ),
        stages=tuple(_simulated_stages(context) if simulated else _stages(context, memory)),
        terms=tuple(_terms(context, costs, simulated=simulated)),
        assumptions=(*costs.assumptions, *_assumptions(context)),
    )


def _stages(c: Context, memory: Peak) -> Iterator[Stage]:
    held = _held(c)
    for i in np.argsort(c.earliest[0], kind="stable"):
        if c.ranks[0, i]:
            yield Stage(
                ranks=int(c.ranks[0, i]),
                first_rank=int(c.earliest[0, i]),
                held=held[int(c.earliest[0, i])],
                embedding=bool(c.first[0, i] > 0),
                head=bool(c.last[0, i] > 0),
                memory={name: float(value[0, i]) for name, value in memory.parts.items()},
            )


def _simulated_stages(c: Context) -> Iterator[Stage]:
    """As ``_stages``, with the activations every rank keeps alive in the simulation; of ranks that hold the
    same, the memory of the fullest."""
    pipes, held = pipelines(c), _held(c)
    alive, counts = pipes.alive(0), pipes.layers_of(0)
    home = pipes.home[0, : len(counts)]
    first, last = {int(home[0])}, {int(home[-1])}
    if _both_ways(c):
        first = last = first | last
    found: dict[tuple[tuple[int, ...], bool, bool], list[int]] = {}
    for rank, own in enumerate(held):
        key = tuple(sorted(own)) if _both_ways(c) else (sum(own),)
        found.setdefault((key, rank in first, rank in last), []).append(rank)
    for (_, embedding, head), alike in found.items():
        parts = [pipes.rank_parts(0, rank, float(alive[rank])) for rank in alike]
        yield Stage(
            ranks=len(alike),
            first_rank=alike[0],
            held=held[alike[0]],
            embedding=embedding,
            head=head,
            memory=max(parts, key=lambda memory: sum(memory.values())),
        )


def _both_ways(c: Context) -> bool:
    """Whether every rank holds a stage from either end."""
    return bool(c.plans.schedule[0] == Schedule.DUALPIPE and c.plans.pp[0] > 1)


def _held(c: Context) -> list[tuple[int, ...]]:
    """Layers of each stage that every pipeline rank holds; see ``Stage``."""
    p = c.plans
    ranks, stages = int(p.pp[0]), int(p.pp[0] * p.vp[0])
    counts = p.layouts[int(p.layout[0])] if p.layout[0] >= 0 else even_layout(len(c.model.layers), stages)
    return held_by_ranks(counts, ranks, Schedule(int(p.schedule[0])))


def recomputed_flops(model: Model, seq: int, c: Context, memory: Peak) -> float:
    """FLOP a token that the plan's recomputing runs again, all ranks together.

    Whole layers: their forward pass. Modules: their products (element-wise work is not counted). What
    flash attention recomputes inside its own backward is not counted, as usual (arXiv 2205.05198).
    """
    held = c.layers[0].sum(axis=1)
    layers = max(int(memory.recompute_layers[0]), 0)
    whole = np.minimum(layers / np.maximum(held, 1.0), 1.0)
    modules = Recompute(int(c.plans.recompute_modules[0]))
    total = 0.0
    for k, layer in enumerate(c.kinds):
        flops = layer_flops(layer, model.hidden, seq)
        per_rank = whole * flops.total + (1 - whole) * module_flops(layer, flops, modules)
        total += float((c.layers[0, :, k] * c.ranks[0] * per_rank).sum())
    return total


def module_flops(layer: Layer, flops: ForwardFlops, modules: Recompute) -> float:
    """Forward FLOP a token of the recomputed ``modules`` in ``layer``."""
    moe = isinstance(layer.mlp, Moe)
    total = flops.attention_core if Recompute.CORE_ATTN in modules else 0.0
    if Recompute.MLP in modules:
        total += flops.mlp
    if Recompute.MOE in modules and moe:
        total += flops.moe
    elif Recompute.SHARED_EXPERTS in modules and moe:
        total += flops.shared
    if Recompute.OPERATORS in modules:
        total += flops.linear / 2
    return total


# ── what is known how well ───────────────────────────────────────────────────────────────────────


def _terms(c: Context, costs: Costs, *, simulated: bool) -> Iterator[Term]:
    """The evidence behind every part of the time and memory that is not zero."""
    used = {name for parts in (costs.time, costs.hidden) for name, v in parts.items() if float(v[0]) > 0}
    for parts, what, evidence in _curves(c.profile, c):
        shown = tuple(part for part in parts if part in used)
        if shown:
            yield _term(shown, what, evidence)
    gpu = c.cluster.gpu
    yield Term(
        parts=("mfu",),
        what=f"peak FLOP/s of {gpu.title}",
        provenance="datasheet",
        source=_source(gpu.sources, "peak_flops"),
    )
    if len(c.cluster.tiers) > 1 and used & {"tp", "cp", "ep", "dp", "pp"}:
        links = tuple(p for p in ("tp", "cp", "ep", "dp", "pp") if p in used)
        yield Term(
            parts=links,
            what="bandwidth of links and network",
            provenance="datasheet",
            source=_source(gpu.sources, "nic_bandwidth"),
        )
    for name, value in c.stack.fitted.items():
        shown = tuple(part for part in FITTED[name] if part in used)
        if shown:
            yield Term(
                parts=shown,
                what=f"{name} = {value:g} of stack {c.stack.name}",
                provenance="fitted",
                source=c.stack.sources.get(name, "published runs of this stack"),
            )
    yield Term(
        parts=tuple(p for p in ("bubble", "imbalance") if p in used),
        what="order of the schedule",
        provenance=COUNTED,
        source="simulated action by action"
        if simulated
        else "closed form, bounded against an exact simulation in the tests",
    )
    yield Term(
        parts=("weights", "gradients", "optimizer", "activations"),
        what="parameters and saved tensors",
        provenance=COUNTED,
        source="shapes of the model, habits of the stack",
    )
    yield Term(
        parts=("fragmentation", "context and NCCL"),
        what="allocator, CUDA context, communicators",
        provenance="assumed",
        source="usual values; a measured run replaces them",
    )


def _curves(profile: Profile, c: Context) -> Iterator[tuple[tuple[str, ...], str, Evidence]]:
    """Parts of the time, what they rest on, and its evidence."""
    precision = c.workload.precision
    dtype = {"fp16": "bf16", "fp32": "tf32"}.get(precision, precision)
    products = ("matmul", "recompute")
    yield products, f"{precision} matrix multiplication", gemm_curve(profile, dtype)[0].evidence
    if dtype != "bf16":
        yield ("head and loss",), "bf16 matrix multiplication", profile.gemm["bf16"].evidence
    if any(isinstance(layer.mlp, Moe) for layer in c.kinds):
        grouped = profile.grouped.get(dtype) or profile.grouped["bf16"]
        yield products, "grouped matrix multiplication of experts", grouped.evidence
    if c.stack.attention == "unfused":
        yield ("attention",), "unfused attention", profile.unfused_attention.evidence
    else:
        kernel = attention_kernel(profile, c.stack.attention)
        yield ("attention",), f"attention kernel {kernel}", profile.attention[kernel].evidence
    yield ("elementwise", "optimizer"), "memory bandwidth in element-wise kernels", profile.memory.evidence
    for factor in ("sustained", "dgrad_factor", "wgrad_factor"):
        yield ("matmul",), f"{factor.replace('_', ' ')} of products", profile.factors[factor].evidence
    for op, parts in _collectives(c):
        yield parts, f"{op.replace('_', '-')} inside a node", profile.collectives[op].evidence
    if len(c.cluster.tiers) > 1:
        yield ("tp", "cp", "ep", "dp", "pp"), "collectives across nodes", profile.network.evidence


def _collectives(c: Context) -> Iterator[tuple[str, tuple[str, ...]]]:
    p = c.plans
    sp, ring = bool(p.sp[0]), CpKind(int(p.cp_kind[0])) is CpKind.RING
    zero1 = int(p.sharding[0]) >= Sharding.ZERO1
    scattered = (("tp",) if sp else ()) + (() if ring else ("cp",)) + (("dp",) if zero1 else ())
    reduced = ("tp",) + (() if zero1 else ("dp",))  # with SP the rows of the loss alone
    yield "all_gather", (*scattered, *(("cp",) if ring else ()))
    yield "reduce_scatter", scattered
    yield "all_reduce", reduced
    yield "all_to_all", ("ep", *(("cp",) if CpKind(int(p.cp_kind[0])) is CpKind.ULYSSES else ()))


def _term(parts: tuple[str, ...], what: str, evidence: Evidence) -> Term:
    error = None if evidence.fit_error is None else evidence.fit_error.median
    return Term(
        parts=parts,
        what=what,
        provenance=evidence.provenance,
        source=evidence.source,
        date=evidence.date,
        error=error,
    )


def _source(sources: Mapping[str, str], name: str) -> str:
    found = [text for key, text in sources.items() if key.startswith(name)]
    return found[0] if found else "the maker's datasheet"


def _assumptions(c: Context) -> Iterator[str]:
    gpu, profile, stack = c.cluster.gpu, c.profile, c.stack
    yield (
        "MFU counts the model's own FLOP, causal attention once, against the dense "
        f"{PEAK_OF[c.workload.precision]} peak"
    )
    if c.model.mtp:
        yield "MFU counts multi-token prediction, its layers and its head"
    columns = float(c.padded_vocab(c.plans.tp)[0] / c.plans.tp[0])
    slower = float(unaligned(columns))
    if slower > 1:
        yield (
            f"a head of {math.ceil(columns):,} columns a rank, no multiple of 8, takes {slower:g} times as"
            " long as an aligned one"
        )
    if profile.like:
        yield f"kernels and collectives of {profile.like} stand in for {gpu.name}, as shares of its peaks"
    if any(isinstance(layer.mlp, Moe) for layer in c.kinds):
        yield (
            "every expert gets as many tokens as any other"
            if stack.moe_imbalance == 1
            else f"the fullest expert rank gets {stack.moe_imbalance:g} times the mean of tokens"
        )
    if stack.offloaded:
        gpus = min(gpu.gpus_per_host, c.cluster.gpus)
        held = gpus * host_bytes(c)
        yield (
            f"host memory holds {stack.offloaded:.0%} of master weights and moments, {held / 1e9:,.0f} GB of"
            f" the {gpus} GPUs of a host, which steps them after the last backward:"
            f" {stack.host_memory / 1e9:,.0f} GB/s of memory for all,"
            f" {gpu.host_bandwidth / 1e9:,.0f} GB/s to each"
        )
    if bool((c.ranks > 1).any()) and c.plans.layout[0] < 0 and len(c.model.layers) % int(c.plans.pp[0]):
        yield "layers that do not divide over the stages leave the first and last stage one short"
    yield from c.model.notes
