"""A measured run as model, cluster, workload, plan and stack; or the reason why it cannot be one."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from meshplan.cluster.cluster import Cluster
from meshplan.cluster.presets import cluster_of, load_gpu
from meshplan.cost.full.stack import Stack, load_stack
from meshplan.errors import InputError, MeshplanError, shown
from meshplan.model.layers import Attention, LatentAttention, Layer, Mlp, Moe
from meshplan.model.load import load_model
from meshplan.model.model import Model
from meshplan.plan.kinds import CpKind, Recompute, Schedule, Sharding
from meshplan.plan.plans import ALL_LAYERS, AUTO_LAYERS, Plan
from meshplan.plan.workload import Workload
from meshplan.validation.layouts import nanotron_layout
from meshplan.validation.rows import Row, noted, refers
from meshplan.validation.sources import Source, source_of

SHARDINGS = {
    "none": Sharding.DDP,
    "ddp": Sharding.DDP,
    "": Sharding.DDP,
    "zero1": Sharding.ZERO1,
    "zero2": Sharding.ZERO2,
    "zero3": Sharding.ZERO3,
    "fsdp": Sharding.ZERO3,
    "fsdp(zero3)": Sharding.ZERO3,
    "hsdp": Sharding.ZERO3,
}
SCHEDULES = (
    (r"\bzb-?2p|zb-h2", Schedule.ZB_H2),
    (r"\bzb-?1p|zb-h1", Schedule.ZB_H1),
    (r"\bzbv\b|zb-v|v-zb", Schedule.ZB_V),
    (r"v-half", Schedule.V_HALF),
    (r"v-min", Schedule.V_MIN),
    (r"dualpipev", Schedule.DUALPIPE_V),
    (r"dualpipe", Schedule.DUALPIPE),
    (r"gpipe", Schedule.GPIPE),
)
MODULES = {
    "norm": Recompute.NORM,
    "layernorm": Recompute.NORM,
    "moe_act": Recompute.MOE_ACT,
    "act": Recompute.MOE_ACT,
    "mla_up_proj": Recompute.MLA_UP_PROJ,
    "up_proj": Recompute.MLA_UP_PROJ,
    "mlp": Recompute.MLP,
    "moe": Recompute.MOE,
    "shared_expert": Recompute.SHARED_EXPERTS,
    "shared_experts": Recompute.SHARED_EXPERTS,
    "core_attn": Recompute.CORE_ATTN,
}

WHOLE_PRECISIONS = ("bf16", "fp16", "fp32")
LOW_PRECISIONS = ("nvfp4", "mxfp8", "fp8")
"""Words a cell may go on from: ``fp8-tensorwise``, ``mxfp8 linears``."""

GPT_OSS = re.compile(r"gpt-?oss", re.IGNORECASE)

SQUAD_TOKENS = 256
"""Tokens of a document of SQuAD, about: a paragraph of some 120 words, a question and an answer. Packed,
documents do not see each other, and at such lengths attention is next to nothing of a step."""

EP_LEFT = 0.07 + 0.93 * 20 / 132
"""Share of the all-to-all's time that a step is longer where it runs under another micro-batch: 7 % is not
hidden (arXiv 2603.07685), and while the rest runs it holds 20 of an H100's 132 SMs (DeepEP)."""


class SkippedError(Exception):
    """A row that cannot be evaluated; the message is the reason rows are counted under, ``column`` the
    cell that stands in the way, where it is one."""

    def __init__(self, reason: str, column: str = "") -> None:
        self.column = column
        super().__init__(reason)


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One measured run, ready to be priced."""

    row: Row
    model: Model
    cluster: Cluster
    workload: Workload
    plan: Plan
    stack: Stack
    source: Source
    step_s: float | None
    peak_bytes: float | None
    memory_kind: str
    """``allocated`` (tensors), ``reserved`` (by PyTorch's allocator) or ``device`` (nvidia-smi)."""
    out_of_memory: bool
    assumed: tuple[str, ...]
    """What the row leaves open and was filled in."""


def case_of(row: Row, *, stack: str | None = None) -> Case:
    """``row`` as a case. Raises ``SkippedError`` with the reason."""
    if row.fault:
        raise SkippedError(row.fault[1], row.fault[0])
    source = source_of(row)
    if source.skip:
        raise SkippedError(source.skip)
    assumed: list[str] = []
    model = _model(row, source)
    chosen = load_stack(stack) if stack else switches(row, source)
    plan = _plan(row, model, source, chosen, assumed)
    cluster = _cluster(row, source, plan)
    precision = _precision(row.text["precision"])
    if precision == "bf16" and "bf16" not in cluster.gpu.peak_flops:
        precision = "fp16"  # all that V100 and T4 have
        assumed.append("precision")
    gbs = row.whole("gbs")
    if gbs is None:
        raise SkippedError("global batch missing", "gbs")
    try:
        offload = "optimizer" if noted(row, r"optimizer CPU offload 100\s?%") else "none"
        workload = Workload(seq=_needed(row, "seq"), gbs=gbs, precision=precision, offload=offload)
    except InputError as error:
        raise SkippedError(str(error)) from None
    step = row["step_s"]
    if step is None and row["tokens_s_gpu"]:
        step = workload.tokens / (row["tokens_s_gpu"] * cluster.gpus)
    peak = row["peak_gib"]
    oom = bool(noted(row, r"\bOOM\b")) and step is None
    if step is None and peak is None and not oom:
        raise SkippedError("no measured time or memory", "step_s")
    _check_shares(row, model, plan, gbs)
    return Case(
        row=row,
        model=model,
        cluster=cluster,
        workload=workload,
        plan=plan,
        stack=chosen,
        source=source,
        step_s=step,
        peak_bytes=None if peak is None or oom else peak * 2**30,
        memory_kind=_memory_kind(row, source),
        out_of_memory=oom,
        assumed=tuple(assumed),
    )


def _check_shares(row: Row, model: Model, plan: Plan, gbs: int) -> None:
    """Raise ``SkippedError`` unless every rank has sequences and every stage something to do."""
    mbs = row.whole("mbs")
    if gbs % (plan.dp * (mbs or 1)):
        what = "dp" if mbs is None else "dp · mbs"
        raise SkippedError(f"the global batch does not divide over {what}", "gbs")
    # Embedding and head may stand for a layer each: 126 layers on 16 · 8 stages (Llama 3).
    if plan.pp * plan.vp > len(model.layers) + len(model.mtp) + 2:
        raise SkippedError("pp · vp is more stages than there are layers", "pp")


def _memory_kind(row: Row, source: Source) -> str:
    """Which memory the row's peak is: the notes say it, or else the source's habit."""
    for pattern, kind in (
        (r"nvidia-smi", "device"),
        (r"max ALLOCATED|max_allocated|max-allocated|torch max", "allocated"),
        (r"max RESERVED|mem=max reserved|peak reserved|reserved", "reserved"),
    ):
        if noted(row, pattern):
            return kind
    return source.memory


def _needed(row: Row, column: str) -> int:
    value = row.whole(column)
    if not value:
        raise SkippedError(f"{column} missing", column)
    return value


def _precision(text: str) -> str:
    low = text.lower()
    for name in LOW_PRECISIONS:
        if low.startswith(name):
            return name
    return low if low in WHOLE_PRECISIONS else "bf16"


def _model(row: Row, source: Source) -> Model:
    """The model from the row's dimensions."""
    layers, hidden, heads = (_needed(row, c) for c in ("layers", "hidden", "heads"))
    vocab = source.vocab or row.whole("vocab")
    if not vocab:
        raise SkippedError("vocabulary missing", "vocab")
    if noted(
        row,
        r"dims not filled|hybrid (Mamba|Gated|linear)|linear-attention|sparse attention|LatentMoE|\bDSA\b"
        r"|layers counts sublayers",
    ):
        raise SkippedError("architecture not described by the row's dimensions")
    ffn, gated = row.whole("ffn"), bool(row.whole("gated", 1))
    experts = row.whole("experts", 0) or 0
    attention = _attention(row, hidden, heads)
    dense = Layer(attention=attention, mlp=Mlp(width=ffn, gated=gated), norm_bias=not gated) if ffn else None
    if not experts:
        if dense is None:
            raise SkippedError("ffn missing", "ffn")
        stack = (dense,) * layers
    else:
        moe = Moe(
            experts=experts,
            topk=_needed(row, "topk"),
            width=_needed(row, "moe_ffn"),
            gated=gated,
            shared_width=row.whole("shared_ffn", 0) or 0,
        )
        routed = Layer(attention=attention, mlp=moe)
        first = row.whole("dense_layers", 0) or 0
        if first and dense is None:
            raise SkippedError("ffn missing", "ffn")
        stack = (dense,) * min(first, layers) + (routed,) * (layers - first) if dense else (routed,) * layers
    if GPT_OSS.search(row.text["model"]):
        preset = load_model("gpt-oss-120b" if layers == 36 else "gpt-oss-20b")
        if (len(preset.layers), preset.hidden) == (layers, hidden):
            stack = preset.layers  # windows, sinks and biases, for which there are no columns
    stack = _seen(row, stack)
    if noted(row, "parallel transformer block"):
        stack = tuple(replace(layer, parallel=True) for layer in stack)
    tied = bool(source.tied or noted(row, r"tied emb")) and not noted(row, r"untied")
    mtp = (stack[-1],) if noted(row, r"\bMTP1?\b") and not noted(row, r"no MTP") else ()
    return Model(
        name=row.text["model"], hidden=hidden, vocab=vocab, layers=stack, tied_embeddings=tied, mtp=mtp
    )


def _seen(row: Row, stack: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """``stack`` where queries see fewer tokens than the sequence has, as far as the notes say it."""
    if noted(row, r"packed SQuAD"):
        return tuple(_within(layer, SQUAD_TOKENS, chunked=True) for layer in stack)
    sliding = noted(row, r"(\d+) of (\d+) layers sliding-window (\d+)")
    if not sliding:
        return stack
    some, of, window = (int(group) for group in sliding.groups())
    if of != 0 and some <= of:
        return tuple(_within(layer, window) if i % of < some else layer for i, layer in enumerate(stack))
    return stack


def _within(layer: Layer, window: int, *, chunked: bool = False) -> Layer:
    if not isinstance(layer.attention, Attention):
        return layer
    return replace(layer, attention=replace(layer.attention, window=window, chunked=chunked))


def _attention(row: Row, hidden: int, heads: int) -> Attention | LatentAttention:
    if row.whole("mla", 0):
        # DeepSeek's family: one latent geometry for all; the small models project q directly.
        return LatentAttention(
            heads=heads,
            q_rank=None if hidden <= 2048 else 1536,
            kv_rank=512,
            nope_dim=128,
            rope_dim=64,
            v_dim=128,
        )
    head_dim = row.whole("head_dim") or hidden // heads
    return Attention(heads=heads, kv_heads=row.whole("kv_heads") or heads, head_dim=head_dim)


def _reduces_once(stack: Stack) -> bool:
    """Whether the stack's ZeRO-2 is but a name in a pipeline: Megatron's distributed optimizer adds up whole
    gradients and scatters them once a step. Not so where a stack of its family is known to shard gradients
    (``Stack.sharding``)."""
    return stack.family == "megatron" and stack.usual_sharding < Sharding.ZERO2


def _plan(row: Row, model: Model, source: Source, stack: Stack, assumed: list[str]) -> Plan:
    gpus = _needed(row, "gpus")
    tp, cp, pp = (row.whole(c) for c in ("tp", "cp", "pp"))
    if tp is None or pp is None:
        raise SkippedError("parallel degrees missing", "tp" if tp is None else "pp")
    cp = cp or 1
    vp = row.whole("vp") or _usual_stages(row)
    dp = row.whole("dp") or max(gpus // (tp * cp * pp), 1)
    if tp * cp * pp * dp != gpus:
        raise SkippedError("degrees do not multiply to the GPU count", "gpus")
    gbs, mbs = row.whole("gbs"), row.whole("mbs")
    sharding = SHARDINGS.get(row.text["sharding"].lower())
    if noted(row, r"never reshard|no reshard"):
        sharding = Sharding.ZERO2
    if sharding is None:
        raise SkippedError(f"sharding {row.text['sharding']!r} not modelled", "sharding")
    if sharding == Sharding.ZERO2 and pp > 1 and _reduces_once(stack):
        sharding = Sharding.ZERO1
        assumed.append("sharding")
    if gbs is None:
        raise SkippedError("global batch missing", "gbs")
    if mbs is None:
        assumed.append("micro-batch")
        mbs = max(gbs // (dp * pp), 1) if sharding == Sharding.ZERO3 else 1
    ep = row.whole("ep", 1) or 1
    etp = row.whole("etp") or 1
    if tp * cp * dp % (ep * etp):
        raise SkippedError("ep · etp does not divide tp · cp · dp", "ep")
    layers, modules = _recompute(row, model, pp, source, assumed)
    if pp == 1:
        vp = 1
    schedule = Schedule.INTERLEAVED if vp > 1 else Schedule.ONE_F_ONE_B
    for pattern, code in SCHEDULES:
        if noted(row, pattern):
            schedule = code
            vp = 2 if code in (Schedule.ZB_V, Schedule.V_HALF, Schedule.V_MIN, Schedule.DUALPIPE_V) else vp
            break
    sp = row.whole("sp")
    layout = nanotron_layout(model, pp) if source.stack == "nanotron" and pp > 1 and vp == 1 else None
    return Plan(
        tp=tp,
        layout=layout,
        sp=bool(sp) if sp is not None else bool(tp > 1),
        cp=cp,
        cp_kind=_context_kind(row),
        pp=pp,
        vp=vp,
        schedule=schedule,
        dp=dp,
        sharding=sharding,
        ep=ep,
        etp=etp,
        mbs=mbs,
        recompute_layers=layers,
        recompute_modules=modules,
        replicas=_replicas(row, dp),
    )


def _context_kind(row: Row) -> CpKind:
    """How ranks of context parallelism share keys and values."""
    if noted(row, r"ulysses"):
        return CpKind.ULYSSES
    if noted(row, "FlexAttention") and refers(row, "torchtitan"):  # _context_parallel/_cp_custom_ops.py
        return CpKind.ALL_GATHER
    return CpKind.RING


def _usual_stages(row: Row) -> int:
    """Virtual stages a rank where the row does not tell: torchtitan's interleaved schedule has two unless
    told (pipeline_parallel.py)."""
    return 2 if refers(row, "torchtitan") and noted(row, "Interleaved ?1F1B") else 1


def _replicas(row: Row, dp: int) -> int:
    if row.text["sharding"].lower() != "hsdp":
        return 1
    per_node = row.whole("gpus_per_node", 8) or 8
    return max(dp // per_node, 1)


def _recompute(row: Row, model: Model, pp: int, source: Source, assumed: list[str]) -> tuple[int, Recompute]:
    how = row.text["recompute"].lower()
    if how == "full":
        some = noted(row, r"recompute_num_layers=(\d+)")
        return (int(some.group(1)) if some else ALL_LAYERS), Recompute.NONE
    named = re.search(r"recompute(?:=| ablation: )([a-z_+]+)", row.text["notes"])
    modules = Recompute.NONE
    if named:
        for word in named.group(1).split("+"):
            modules |= MODULES.get(word, Recompute.NONE)
        return 0, modules
    if how == "selective":
        if noted(row, r"every 2nd"):
            return -(-len(model.layers) // pp // 2), Recompute.NONE
        torch = row.text["sharding"].lower() in ("fsdp", "hsdp", "fsdp(zero3)")
        return 0, Recompute.OPERATORS if torch else Recompute.CORE_ATTN
    if how == "none":
        return 0, Recompute.NONE
    assumed.append("recompute")
    if noted(row, "likely full"):
        return ALL_LAYERS, Recompute.NONE
    if source.recompute == "operators":
        return AUTO_LAYERS, Recompute.OPERATORS
    return AUTO_LAYERS, Recompute.NONE


def _cluster(row: Row, source: Source, plan: Plan) -> Cluster:
    try:
        gpu = load_gpu(row.text["gpu"])
    except MeshplanError:
        raise SkippedError(f"unknown GPU {shown(row.text['gpu'])}", "gpu") from None
    gpus = _needed(row, "gpus")
    nic = source.nic_bytes or _noted_nic(row) or gpu.nic_bandwidth
    per_node = row.whole("gpus_per_node")
    domain = per_node if per_node and gpu.scaleup_domain == gpu.gpus_per_host else None
    if domain and gpus > domain and gpus % domain:
        domain = next(n for n in range(domain, 0, -1) if gpus % n == 0)
    return cluster_of(gpu.name, gpus, gpus_per_node=domain, nic=nic)


def _noted_nic(row: Row) -> float | None:
    """Network bytes/s per GPU and direction, where the notes tell it."""
    match = re.search(r"(?:(\d+)x)?(\d+)\s*Gb(?:ps|/s)?[^;]{0,20}?/(node|GPU)", row.text["notes"])
    if not match:
        return None
    total = int(match.group(1) or 1) * int(match.group(2)) * 1e9 / 8
    per = (row.whole("gpus_per_node") or 8) if match.group(3) == "node" else 1
    return total / per


def switches(row: Row, source: Source) -> Stack:
    """The source's stack with what the row's own notes switch on or off."""
    stack = _dispatch(load_stack(source.stack), row, source)
    if noted(row, r"cuda_graph=full|full CUDA graph|perf recipe"):
        stack = replace(stack, cuda_graph="full")
    elif noted(row, r"cuda_graph=|partial CUDA graph"):
        stack = replace(stack, cuda_graph="partial")
    elif source.cuda_graph:
        stack = replace(stack, cuda_graph=source.cuda_graph)
    if stack.name.startswith("megatron-bridge") and row.whole("experts", 0):
        stack = replace(stack, optimizer_bytes=8.0)  # the MoE recipes keep bf16 Adam moments
    if noted(row, r"async ?TP"):
        stack = replace(stack, tp_exposed=0.5 * stack.tp_exposed)
    if stack.family == "torch" and refers(row, "torchtitan"):
        stack = _torchtitan_of(stack, row)
    if noted(row, r"chunked cross-entropy"):
        # torchtitan's keeps bf16 logits and each chunk's fp32 log-probabilities until backward.
        stack = replace(stack, loss_bytes=6.0 if stack.family == "torch" else 2.0)
    if noted(row, r"bf16 Adam moments"):
        stack = replace(stack, optimizer_bytes=8.0)
    if noted(row, r"cross-entropy fusion"):
        stack = replace(stack, loss_traffic=18.0)  # Megatron's own fusion: fewer passes, the same fp32 copy
    if noted(row, r"CE fusion"):
        stack = replace(stack, loss_bytes=2.0, loss_traffic=10.0)
    if noted(row, r"no TP/PP comm overlap|no TP userbuffer"):
        stack = replace(stack, tp_exposed=1.0)
    return stack


def _torchtitan_of(stack: Stack, row: Row) -> Stack:
    """``stack`` as torchtitan was when the row was run (its history on GitHub)."""
    release, graph = row.text["release"], bool(noted(row, "graph_trainer|SimpleFSDP"))
    stack = replace(stack, traced=graph)
    commit = refers(row, "torchtitan-commit|torchtitan:commit")
    if stack.name == "torchtitan-2026" and commit and not noted(row, "compile"):
        # The loss runs eagerly, and so do the layers.
        stack = replace(stack, loss_bytes=12.0, fused=bool(noted(row, "graph_trainer")))
    if noted(row, "MinimalAsyncEP"):  # sends like DeepEP, and weighs what experts return on the way
        stack = replace(stack, dispatcher="dedup", experts_apart=False, keeps_exchanged=False)
    if noted(row, "FAKE comm"):
        stack = replace(stack, ep_exposed=0.0, fsdp_overlap=1.0)  # nothing is sent
    if graph and re.match("202[0-5]|2026-0[1-3]", release) and not noted(row, "bucketing"):
        # Operators one by one, each collective waited for where it starts: no passes over the graph yet.
        stack = replace(stack, fused=False, fsdp_overlap=0.0, dp_overlap=False)
    if re.match("202[0-5]|2026-01", release):
        stack = replace(stack, repeats_kv=True)  # pull request 2259
    if re.match("202[0-5]|2026-0[1-6]", release):
        stack = replace(stack, joined_products="none")  # pull request 3714
    scales = re.search("tensorwise|rowwise", row.text["precision"])
    if scales:
        stack = replace(stack, fp8_rows=scales[0] == "rowwise", fp8_gathers=scales[0] == "tensorwise")
    if re.match("202[0-4]|2025-0[1-8]", release) or noted(row, "not saving a2a"):
        stack = replace(stack, keeps_exchanged=False)  # pull request 1672
    if stack.name == "torchtitan" and re.match("2024-0[1-6]", release):
        stack = replace(stack, loss_bytes=16.0)  # the logits' fp32 copy stood until backward's end
    if stack.name == "torchtitan-compile" and re.match("2025-0[4-7]", release):
        stack = replace(stack, loss_bytes=6.0)  # the loss was compiled again: pull request 1033
    if re.match("2026-(0[5-9]|1)", release) and not graph:
        stack = replace(stack, loss_bytes=1.5)  # head and loss in eight chunks: pull request 2937
    return stack


def _dispatch(stack: Stack, row: Row, source: Source) -> Stack:
    """``stack`` with what the row's notes or the source's recipes say of experts."""
    if source.grouped:
        stack = replace(stack, grouped=source.grouped)
    if noted(row, r"hybridep|deepep"):
        stack = replace(stack, dispatcher="dedup")
    elif source.dispatcher and not noted(row, r"dispatcher="):
        stack = replace(stack, dispatcher=source.dispatcher)
    if source.overlaps_experts or noted(row, r"moe_a2a_overlap"):
        stack = replace(stack, ep_exposed=EP_LEFT, overlaps_experts=True)
    scope = re.search(r"(linears|grouped)$", row.text["precision"])
    if scope:
        stack = replace(stack, low_precision="linears" if scope.group(1) == "linears" else "experts")
    return stack
