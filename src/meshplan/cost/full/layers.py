"""Every layer kind of a model priced once for each distinct combination in a table of plans."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from meshplan.cluster.curves import gemm_seconds, membound_seconds, unaligned
from meshplan.cluster.profile import Profile
from meshplan.cost.costs import Floats
from meshplan.cost.full.activations import LayerActivations, layer_activations
from meshplan.cost.full.comm import (
    Among,
    LayerComm,
    Stream,
    context_parallel,
    expert_parallel,
    stream_seconds,
    tensor_parallel,
)
from meshplan.cost.full.context import Context
from meshplan.cost.full.distinct import distinct
from meshplan.cost.full.keys import LayerKeys
from meshplan.cost.full.layer_time import LayerTime, attention_core, layer_time
from meshplan.cost.full.topology import group, inner_alone, spans
from meshplan.cost.full.vocabulary import end_transfers
from meshplan.model.layers import Attention, LatentAttention
from meshplan.plan.plans import Ints


class Ends(NamedTuple):
    """Embedding on the first rank; final norm, head and loss on the last: seconds by key.

    Each with its transfers over tp, whose exposed seconds (both ways together) and hidden ones are told
    again. ``logits``: how many logits a rank computes for one micro-batch.
    """

    embedding_forward: Floats
    embedding_backward: Floats
    head_forward: Floats
    head_backward: Floats
    head_weight: Floats
    embedding_tp: Floats
    head_tp: Floats
    tp_hidden: Floats
    logits: Floats


@dataclass(frozen=True, kw_only=True, slots=True)
class Priced:
    """The layer kinds of a model, priced for every key; ``of_plan`` is each plan's key."""

    keys: LayerKeys
    of_plan: Ints
    times: tuple[LayerTime, ...]
    activations: tuple[LayerActivations, ...]
    ends: Ends

    def take(self, index: Ints | slice) -> Priced:
        """The same prices for the plans ``index`` selects."""
        return replace(self, of_plan=self.of_plan[index])


def price_layers(c: Context) -> Priced:
    """All layer kinds for every distinct key."""
    p = c.plans
    columns = [c.mesh, p.sp, p.cp_kind, p.mbs, p.recompute_modules]
    if not inner_alone(p.order):
        columns += [c.spans[name] for name in ("tp", "etp", "cp", "ep")]
    index, of_plan = distinct(columns)
    k = p.take(index)
    span = spans(k)
    keys = LayerKeys(
        tp=k.tp,
        sp=(k.sp > 0) & (k.tp > 1),
        cp=k.cp,
        cp_kind=k.cp_kind,
        ep=k.ep,
        etp=k.etp,
        mbs=k.mbs,
        modules=k.recompute_modules,
        seq=c.workload.seq,
        precision=c.workload.precision,
        rotary=not c.model.positions,
        clamped=c.model.activation == "swigluoai",
    )
    groups = {
        "tp": group(k.tp, span["tp"], c.domain),
        "cp": group(k.cp, span["cp"], c.domain),
        "ep": group(k.ep, span["ep"], c.domain),
        "etp": group(k.etp, span["etp"], c.domain),
    }
    times, activations = [], []
    tp = c.links.among(groups["tp"], span["tp"])
    stream = stream_seconds(c.model.hidden, keys, tp, c.stack)
    cores: dict[Attention | LatentAttention | None, tuple[tuple[Floats, ...], tuple[Floats, ...]]] = {}
    for layer in c.kinds:
        tp_f, tp_b, tp_h = tensor_parallel(layer, stream.block, keys, groups["tp"], c.stack)
        if layer.attention not in cores:  # kinds that differ in their MLP only share it
            core = attention_core(layer, keys, c.profile, c.stack)
            cores[layer.attention] = (
                core,
                context_parallel(layer, keys, c.links, groups["cp"], *core, c.stack),
            )
        (core_f, core_b), (cp_f, cp_b, cp_h) = cores[layer.attention]
        ep_f, ep_h = expert_parallel(
            layer, c.model.hidden, keys, c.links, groups["ep"], groups["etp"], c.stack
        )
        comm = LayerComm(
            forward={"tp": tp_f, "cp": cp_f, "ep": ep_f},
            backward={"tp": tp_b, "cp": cp_b, "ep": ep_f},
            hidden={"tp": tp_h, "cp": cp_h, "ep": ep_h},
        )
        times.append(layer_time(layer, c.model.hidden, keys, c.profile, c.stack, comm, (core_f, core_b)))
        activations.append(layer_activations(layer, c.model.hidden, c.stack, keys))
    ends = _ends(c, keys, stream, tp)
    return Priced(keys=keys, of_plan=of_plan, times=tuple(times), activations=tuple(activations), ends=ends)


def _ends(c: Context, keys: LayerKeys, stream: Stream, tp: Among) -> Ends:
    """Embedding, head and loss. The head's products run in bf16 whatever the layers' precision."""
    h, t, tokens = c.model.hidden, keys.tp, keys.tokens
    width = c.padded_vocab(keys.tp) / t
    rate, memory = c.stack.matmul / unaligned(width, h), c.stack.memory_rate
    forward, backward, weight = three_ways(c.profile, tokens, width, h) / rate
    loss = membound_seconds(c.profile, c.stack.loss_traffic * tokens * width, kernels=10) / memory
    copies = 1.0 + len(c.model.mtp)
    joined, joined_back, joined_weight = _joined(c, keys)
    embed = membound_seconds(c.profile, 2.0 * keys.element_bytes * h * tokens, kernels=3) / memory
    moved = end_transfers(c.model, keys, stream, tp, c.stack, weight)
    return Ends(
        embedding_forward=embed + moved.embedding_forward,
        embedding_backward=2 * embed + moved.embedding_backward,
        head_forward=copies * (forward + loss / 2) + joined + moved.head_forward,
        head_backward=copies * (backward + weight + loss / 2)
        + joined_back
        + joined_weight
        + moved.head_backward,
        head_weight=copies * weight + joined_weight,
        embedding_tp=moved.embedding_forward + moved.embedding_backward,
        head_tp=moved.head_forward + moved.head_backward,
        tp_hidden=moved.hidden,
        logits=tokens * width,
    )


def _joined(c: Context, keys: LayerKeys) -> tuple[Floats, Floats, Floats]:
    """Forward, input gradient and weight gradient of what joins a multi-token-prediction layer's two inputs
    (2h to h), all of them together; split as its parameters are (``Context.end_parameters``)."""
    zero = np.zeros(len(keys))
    if not c.model.mtp:
        return zero, zero, zero
    h, tokens, count = c.model.hidden, keys.tokens, len(c.model.mtp) / c.stack.matmul
    width = h / keys.tp if c.stack.family == "megatron" else zero + h
    forward, backward, weight = count * three_ways(c.profile, tokens, width, 2 * h)
    return forward, backward, weight


def three_ways(profile: Profile, rows: Floats, columns: Floats, depth: int) -> Floats:
    """(3, keys): seconds of a product, of the gradient of its input and of that of its weights."""
    m, n, k = rows, columns, np.full(len(rows), float(depth))
    out_bytes = np.array([2.0, 2.0, 8.0])[:, None]
    return gemm_seconds(
        profile, np.stack([m, m, n]), np.stack([n, k, k]), np.stack([k, n, m]), out_bytes=out_bytes
    )
