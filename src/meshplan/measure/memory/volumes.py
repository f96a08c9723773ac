"""What one rank sends in a step, as the cost model counts it with the habits of torch. Free of torch.

Left out: single numbers and rows of the loss, norms' gradients under tp, counts of routed tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshplan.measure.reference.stages import V_SHAPED, stage_ranges, stage_sizes, stages_of_rank
from meshplan.model.counts import layer_parameters
from meshplan.model.layers import Attention, Layer, Mlp, Moe
from meshplan.model.model import Model
from meshplan.plan.kinds import CpKind, Recompute, Sharding
from meshplan.plan.plans import Plan
from meshplan.plan.workload import Workload

GRADIENT = 4.0
"""Bytes of a gradient element on its way: torch's FSDP2 reduces in fp32 here."""
RING_NOTE = (
    "priced as TransformerEngine's ring, whose gradients go cp - 1 hops in the model's precision; the"
    " module's go cp hops in fp32"
)
GATHER_NOTE = "priced in the model's precision; the module adds up gradients of keys and values in fp32"
ROUTER_NOTE = "gradients of routers, which the cost model does not time"


@dataclass(frozen=True, kw_only=True, slots=True)
class Volume:
    """Bytes of one rank's collectives of a kind over a dimension, all calls of a step together.

    ``priced_bytes``: what the cost model times instead, where the module does more by design; ``note`` says
    why.
    """

    dim: str
    kind: str
    size_bytes: float
    priced_bytes: float
    note: str = ""


class _Sums:
    """Bytes by dimension and kind."""

    def __init__(self) -> None:
        self.sent: dict[tuple[str, str], float] = {}
        self.priced: dict[tuple[str, str], float] = {}
        self.notes: dict[tuple[str, str], str] = {}

    def add(self, dim: str, kind: str, size: float, *, priced: float | None = None, note: str = "") -> None:
        at = dim, kind
        self.sent[at] = self.sent.get(at, 0.0) + size
        self.priced[at] = self.priced.get(at, 0.0) + (size if priced is None else priced)
        if note:
            self.notes[at] = note

    def volumes(self) -> list[Volume]:
        return [
            Volume(
                dim=at[0],
                kind=at[1],
                size_bytes=size,
                priced_bytes=self.priced[at],
                note=self.notes.get(at, ""),
            )
            for at, size in self.sent.items()
            if size
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Rank:
    """What a pipeline rank holds."""

    layers: tuple[tuple[Layer, bool], ...]
    """Each with whether it is computed again in backward."""
    first: bool
    last: bool
    borders: int
    """Places where its stages meet those of other ranks: before and after each stage."""


def _rank(model: Model, plan: Plan, pipeline_rank: int) -> _Rank:
    ranges = stage_ranges(len(model.layers), stage_sizes(model, plan))
    v_shaped, last = plan.schedule in V_SHAPED, plan.pp * plan.vp - 1
    mine = set(stages_of_rank(plan, pipeline_rank, v_shaped=v_shaped))
    # As in the engine, the first layers of each stage are the ones computed again.
    layers = [
        (model.layers[at], at - ranges[i][0] < plan.recompute_layers)
        for i in sorted(mine)
        for at in range(*ranges[i])
    ]
    neighbours = [n for i in mine for n in (i - 1, i + 1) if 0 <= n <= last and n not in mine]
    return _Rank(layers=tuple(layers), first=0 in mine, last=last in mine, borders=len(neighbours))


def volumes(
    model: Model, workload: Workload, plan: Plan, *, micro_batches: int, pipeline_rank: int = 0
) -> list[Volume]:
    """What the first rank of a pipeline stage sends in a step of ``micro_batches``.

    TP with SP: every block gathers its input and scatters its output, forward and backward (arXiv
    2205.05198, 4.2.2); embedding and head likewise. Without SP an all-reduce for each. CP: keys and values
    go round, or are gathered. FSDP: see ``_sharded``. EP: dispatch and combine, forward and backward. PP:
    activations of every micro-batch to the next stage, gradients back.
    """
    sums, rank = _Sums(), _rank(model, plan, pipeline_rank)
    m, tokens = micro_batches, workload.seq * plan.mbs / plan.cp
    element = 4.0 if workload.precision == "fp32" else 2.0
    stream = element * model.hidden * tokens
    chosen = Recompute.OPERATORS in plan.recompute_modules
    for layer, whole in rank.layers:
        again = chosen or whole
        if plan.tp > 1:
            _tensor(sums, layer, stream * m, sp=plan.sp, again=again, scattered_kept=chosen)
        if plan.cp > 1:
            _context(sums, layer, plan, tokens * m, element, again=again)
        if isinstance(layer.mlp, Moe):
            held = tokens / (plan.tp if plan.sp else 1)
            _experts(sums, plan, element * model.hidden * held * layer.mlp.topk * m, again=again)
            if plan.tp > 1:
                router = element * model.hidden * layer.mlp.experts * m
                sums.add("tp", "all_reduce", router, priced=0.0, note=ROUTER_NOTE)
    if plan.tp > 1:
        # The embedding scatters its sum, the head gathers its input; backward reversed.
        for _ in range(rank.first + rank.last):
            for kind in ("all_gather", "reduce_scatter") if plan.sp else ("all_reduce",):
                sums.add("tp", kind, stream * m)
    if plan.dp * plan.cp > 1:
        _sharded(sums, model, plan, rank, m, element)
    if plan.pp > 1:
        border = stream / (plan.tp if plan.sp else 1) * m * rank.borders
        sums.add("pp", "send", border)
        sums.add("pp", "recv", border)
    return sums.volumes()


def _tensor(
    sums: _Sums, layer: Layer, stream: float, *, sp: bool, again: bool, scattered_kept: bool
) -> None:  # fmt: skip
    """Attention is a block, and a dense MLP or shared experts are."""
    mlp = layer.mlp
    dense = isinstance(mlp, Mlp) or (isinstance(mlp, Moe) and mlp.shared_width > 0)
    blocks = int(isinstance(layer.attention, Attention)) + int(dense)
    if not sp:
        sums.add("tp", "all_reduce", (2 + again) * blocks * stream)
        return
    sums.add("tp", "all_gather", (2 + again) * blocks * stream)
    # What is recomputed stops at the last tensor that backward needs: the layer's output is not.
    scattered = 0 if scattered_kept else again * (blocks - int(isinstance(mlp, Mlp)))
    sums.add("tp", "reduce_scatter", (2 * blocks + scattered) * stream)


def _context(sums: _Sums, layer: Layer, plan: Plan, tokens: float, element: float, *, again: bool) -> None:
    att = layer.attention
    if not isinstance(att, Attention):
        return
    again = again or bool(plan.recompute_modules & Recompute.CORE_ATTN)
    elements = tokens * att.kv_heads / plan.tp * (att.head_dim + att.v_dim)
    if plan.cp_kind is CpKind.RING:
        hops, forward = plan.cp - 1, (1 + again) * (plan.cp - 1) * element
        sent = (forward + hops * element + plan.cp * GRADIENT) * elements
        priced = (forward + 2 * hops * element) * elements
        for kind in ("send", "recv"):
            sums.add("cp", kind, sent, priced=priced, note=RING_NOTE)
        return
    whole = plan.cp * elements
    sums.add("cp", "all_gather", (2 + again) * element * whole)
    note = GATHER_NOTE if element != GRADIENT else ""
    sums.add("cp", "reduce_scatter", GRADIENT * whole, priced=element * whole, note=note)


def _experts(sums: _Sums, plan: Plan, routed: float, *, again: bool) -> None:
    """Dispatch and combine, both ways; experts split over etp gather a group's rows and scatter sums."""
    again = again or bool(plan.recompute_modules & Recompute.MOE)
    if plan.ep > 1:
        sums.add("ep", "all_to_all", routed * (6 if again else 4))
    if plan.etp > 1:
        for kind in ("all_gather", "reduce_scatter"):
            sums.add("etp", kind, routed * plan.etp * (3 if again else 2))


def _sharded(sums: _Sums, model: Model, plan: Plan, rank: _Rank, m: int, element: float) -> None:
    """FSDP2's gathers in ``element`` bytes and reductions in fp32, unit by unit: layers, embedding, norm and
    head.

    ZeRO-3 without a pipeline gathers a unit before forward and before backward of each micro-batch (the
    head's, which is not resharded in between, once) and scatters its gradient after it. ZeRO-2 gathers once a
    step and scatters every micro-batch; ZeRO-1, and all of them under a pipeline, do both once. Replicas
    (HSDP; DDP has nothing else) add up the shards of gradients once a step. Routed experts are sharded over
    their own group whatever the plan says.
    """
    replicas = plan.dp * plan.cp if plan.sharding is Sharding.DDP else plan.replicas
    shards = plan.dp * plan.cp // replicas
    every = plan.sharding is Sharding.ZERO3 and plan.pp == 1
    gathers, scatters = (2 * m, m) if every else (1, m if plan.sharding is Sharding.ZERO2 else 1)
    scatters = 1 if plan.pp > 1 else scatters

    def unit(parameters: float, times: int) -> None:
        if shards > 1:
            sums.add("shard", "all_gather", element * parameters * times)
            sums.add("shard", "reduce_scatter", GRADIENT * parameters * scatters)
        if replicas > 1:
            sums.add("replica", "all_reduce", GRADIENT * parameters / shards)

    for layer, _ in rank.layers:
        q = layer_parameters(layer, model.hidden)
        whole = q.attention_replicated + q.router + q.norms
        unit((q.dense - whole) / plan.tp + whole, gathers)
        if q.experts and plan.edp > 1:
            held = q.experts / (plan.ep * plan.etp)
            sums.add("edp", "all_gather", gathers * element * held)
            sums.add("edp", "reduce_scatter", scatters * GRADIENT * held)
    vocab, once = float(model.vocab * model.hidden / plan.tp), m if every else 1
    if model.tied_embeddings and rank.first and rank.last:
        unit(vocab + model.hidden, gathers)  # one unit with the final norm, the root
        return
    if rank.first:
        unit(vocab, gathers)
    if rank.last:
        unit(vocab + model.hidden, once)
