"""Peak memory of every rank type of a plan, by part; the fullest rank decides.

What stays all step long (states, buffers), what grows with the micro-batches in flight (activations),
and the largest thing that exists for a moment: the loss, the head's backward, or one layer's backward
with, where the layer is recomputed, everything it would otherwise have kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from meshplan.cluster.cluster import Cluster
from meshplan.cost.costs import Bools, Floats
from meshplan.cost.full.alike import Likeness, likeness
from meshplan.cost.full.context import Context
from meshplan.cost.full.gemms import Gemm, attention_gemms, mlp_gemms
from meshplan.cost.full.layers import Priced
from meshplan.cost.full.narrow import flat, most, rows, widest, zeros
from meshplan.cost.full.states import states
from meshplan.plan.kinds import Sharding
from meshplan.plan.plans import AUTO_LAYERS, Ints
from meshplan.schedule.closed_form import in_flight

PARTS = (
    "weights",
    "gradients",
    "optimizer",
    "activations",
    "loss and workspace",
    "gathered weights",
    "gradient buffers",
    "fragmentation",
    "context and NCCL",
)
"""Where memory goes, in the order it is shown."""
CONTEXT_BYTES = 0.7e9
"""CUDA context with cuBLAS and cuDNN handles: 0.5 to 1.2 GB in practice."""
COMMUNICATOR_BYTES = 0.35e9
"""One NCCL communicator's buffers (342 to 392 MB measured; aiconfigurator system files)."""
NOBODY = -1e30
"""Bytes that no rank holds: added where there is none, so that it never is the fullest."""


_Pick = Callable[[Floats], Floats]
"""What a table of distinct rows says of every plan."""


class Peak(NamedTuple):
    """Peak memory of every rank type of every plan: the rank type that is fullest, and the layers each
    rank recomputes. Parts are kept for distinct rows and worked out on demand."""

    fullest: Ints
    recompute_layers: Ints
    recomputed: Floats
    """Share of its layers that each rank type recomputes, (plans, types)."""
    held: _Held
    of_held: Ints
    states: dict[str, Floats]
    of_states: Ints
    fragmentation: float

    def of_fullest(self) -> dict[str, Floats]:
        """Bytes by part on the fullest rank of each plan."""
        held = self.fullest * len(self.held.kept) + self.of_held
        states = self.fullest * len(self.states["weights"]) + self.of_states
        return self._parts(
            lambda table: flat(table).take(held),
            lambda table: flat(table).take(states),
            self.recompute_layers,
        )

    @property
    def parts(self) -> dict[str, Floats]:
        """Bytes by part, (plans, types)."""
        return self._parts(
            lambda table: rows(table, self.of_held),
            lambda table: rows(table, self.of_states),
            self.recompute_layers[:, None],
        )

    def _parts(self, of_held: _Pick, of_states: _Pick, recompute_layers: Ints) -> dict[str, Floats]:
        held, parts = self.held, {name: of_states(value) for name, value in self.states.items()}
        share = recomputed_share(recompute_layers, of_held(held.layers))
        kept, inputs = of_held(held.kept), of_held(held.inputs)
        parts["activations"] = kept + (inputs - kept) * share + of_held(held.ends)
        again = np.ceil(share)  # 1 where any layer is recomputed
        moment = of_held(held.moment)
        parts["loss and workspace"] = moment + (of_held(held.moment_recomputed) - moment) * again
        parts["gradient buffers"] = parts["gradient buffers"] + of_held(held.dummies)
        loose = parts["activations"] + parts["loss and workspace"] + parts["gathered weights"]
        parts["fragmentation"] = self.fragmentation * loose
        return {name: np.asarray(parts[name]) for name in PARTS}


def recomputed_share(recompute_layers: Ints, layers: Floats) -> Floats:
    """Share of a rank's ``layers`` that are recomputed whole."""
    share = np.asarray(np.maximum(recompute_layers, 0) / np.maximum(layers, 1.0))
    return np.minimum(share, 1.0, out=share)


def weight_gradient_buffers(c: Context, priced: Priced) -> Floats:
    """(plans, types): bf16 buffers shaped like each distinct weight, that TransformerEngine hands to
    autograd when the real gradient was added to the fp32 main gradient inside the kernel."""
    total = zeros(*c.ranks.shape)
    if not c.stack.gradient_dummies:
        return total
    at, largest = priced.of_plan, np.zeros(len(priced.keys))
    for k, layer in enumerate(c.kinds):
        att = _weights(attention_gemms(layer, c.model.hidden, priced.keys, c.stack), largest)
        mlp = _weights(mlp_gemms(layer, c.model.hidden, priced.keys, c.stack), largest)
        largest = np.maximum(largest, att)
        total += np.where(c.layers[:, :, k] > 0, mlp[at][:, None], 0.0)
    return total + np.where(c.held_layers > 0, largest[at][:, None], 0.0)


def _weights(gemms: list[Gemm], like: Floats) -> Floats:
    """bf16 bytes of the weights of these products, for each key."""
    return np.asarray(sum((2.0 * g.n * g.k for g in gemms), np.zeros_like(like)))


def momentary(c: Context, priced: Priced, recomputed: Bools) -> Floats:
    """(plans, types): the largest thing that exists only for a moment."""
    at, keys = priced.of_plan, priced.keys
    logits = priced.ends.logits[at]
    whole_stream = (2.0 * c.model.hidden * keys.tokens)[at]
    gathered = np.where(c.plans.sp.astype(bool) & (c.plans.tp > 1), whole_stream, 0.0)
    copies = 1.0 + len(c.model.mtp)
    # torch's loss_parallel shifts and exponentiates in further fp32 copies: 16 bytes a logit, not 12.
    eager = c.stack.family == "torch" and c.stack.loss_bytes >= 12 and not c.stack.traced
    parallel = 4.0 * ((c.plans.tp > 1) & eager)
    loss = (c.stack.loss_bytes + parallel) * logits * copies
    head_gradient = 2.0 * c.vocabulary_parameters if c.stack.gradient_dummies else 0.0
    head = 2.0 * logits * copies + head_gradient + gathered + whole_stream
    layer = zeros(*recomputed.shape)
    for k, a in enumerate(priced.activations):
        again = (a.workspace + a.full)[at][:, None]
        work = np.where(recomputed, again, a.workspace[at][:, None])
        np.maximum(layer, work * np.ceil(np.minimum(c.layers[:, :, k], 1.0)), out=layer)
    last = np.where(c.last > 0, np.maximum(loss, head)[:, None], 0.0)
    largest = np.asarray(np.maximum(layer, last))
    if c.stack.family != "torch" or not c.gathers.any():
        return largest
    released = zeros(*recomputed.shape)
    for k, a in enumerate(priced.activations):
        np.maximum(released, a.kept[at][:, None], out=released, where=~recomputed & (c.layers[:, :, k] > 0))
    return np.where(c.gathers[:, None], _fsdp_moment(c, layer, last, released), largest)


def _fsdp_moment(c: Context, layer: Floats, last: Floats, released: Floats) -> Floats:
    """(plans, types): FSDP2's largest moment beyond the gathered head, as a real module shows it under fake
    tensors (``meshplan memory-check``).

    At the loss only the head is gathered. While a layer runs backward its own unit is; when it has, its
    bf16 gradient and the fp32 copy that is scattered stand beside the next unit, and the layer's
    activations are gone. The head's gradient is scattered likewise.
    """
    unit, head = _largest_unit(c)[:, None], c.vocabulary_parameters[:, None]
    other = 2.0 * (unit - head)
    scattered = 2.0 + c.stack.reduce_bytes
    after = np.maximum(scattered * unit + other - released, scattered * head + other)
    return np.asarray(np.maximum(np.maximum(last, layer + other), np.maximum(after, 0.0)))


def _largest_unit(c: Context) -> Floats:
    """Parameters of the largest layer of one rank of tp and ep, for each plan."""
    p = c.plans
    return np.asarray(np.maximum.reduce([q.dense / p.tp + q.experts / (p.ep * p.etp) for q in c.parameters]))


def micro_batches_alive(c: Context) -> Floats:
    """(plans, types): micro-batches whose activations the rank holds at its peak."""
    p = c.plans
    alive = in_flight(p.schedule[:, None], p.pp[:, None], p.vp[:, None], c.micro_batches[:, None], c.earliest)
    return np.where(p.pp[:, None] > 1, alive, 1.0)


def gathered_weights(c: Context) -> Floats:
    """FSDP, for each plan: bf16 weights of two gathered units and one unit's whole gradient, for torch the
    head's weights (the rest is in ``_fsdp_moment``); ``0`` where parameters are not gathered a unit at a
    time."""
    if c.stack.family == "torch":
        return np.where(c.gathers, 2.0 * c.vocabulary_parameters, 0.0)
    unit = _largest_unit(c)
    ends = np.maximum(unit, c.vocabulary_parameters)
    return np.where(c.gathers, 2.0 * unit + 2.0 * ends + c.stack.reduce_bytes * unit, 0.0)


def gather_buffers(c: Context) -> Floats:
    """Bytes, for each plan, that FSDP2 gathers weights into before it copies them to where they are used: of
    two units at once, in the memory of a stream of its own, which PyTorch's allocator lends to nothing else
    (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py). Reserved, beyond the peak of what is
    allocated."""
    if c.stack.family != "torch":
        return np.zeros(len(c.plans))
    unit = _largest_unit(c)
    return np.where(c.gathers, 2.0 * (unit + np.maximum(unit, c.vocabulary_parameters)), 0.0)


class _Held(NamedTuple):
    """(rows, types): what follows from layers, split, schedule and micro-batches. ``kept`` and
    ``inputs`` are of all micro-batches alive, with nothing or everything recomputed."""

    kept: Floats
    inputs: Floats
    ends: Floats
    moment: Floats
    moment_recomputed: Floats
    dummies: Floats
    layers: Floats
    ranks: Floats


def _held(c: Context, priced: Priced) -> _Held:
    at, alive = priced.of_plan, micro_batches_alive(c)
    stream = (2.0 * c.model.hidden * priced.keys.tokens * priced.keys.stream_share)[at][:, None]
    whole_stream = (2.0 * c.model.hidden * priced.keys.tokens)[at][:, None]
    gathers_input = (c.stack.family == "torch") & priced.keys.sp[at][:, None]
    none = zeros(*c.ranks.shape) > 0
    return _Held(
        kept=c.per_rank([a.kept[at] for a in priced.activations], keeping=True) * alive,
        inputs=c.per_rank([a.input[at] for a in priced.activations], keeping=True) * alive,
        ends=_ends(c, stream, np.where(gathers_input, whole_stream, stream), alive),
        moment=momentary(c, priced, none),
        moment_recomputed=momentary(c, priced, ~none),
        dummies=weight_gradient_buffers(c, priced),
        layers=c.held_layers,
        ranks=c.ranks,
    )


def _ends(c: Context, stream: Floats, head_input: Floats, alive: Floats) -> Floats:
    """(plans, types): bytes kept beside layers. The final norm's input and output, which torch's TP keeps
    gathered as the head reads it, once more for each multi-token-prediction layer with what its two norms
    and its projection read. torch's pipelines keep a stage's output until its backward."""
    mtp = len(c.model.mtp)
    head = (1 + mtp) * (stream + head_input) + 4 * mtp * stream
    if c.stack.family != "torch":
        return np.asarray(head * np.ceil(c.last))  # a DualPipe end has one of its two stages' in full
    sent = stream * alive * (c.plans.pp[:, None] > 1)
    return np.asarray(head * c.last + sent * (1 - c.last))


def _states(c: Context) -> dict[str, Floats]:
    """(rows, types): what follows from split and sharding."""
    p = c.plans
    sharded_over = (p.dp * p.cp // np.maximum(p.replicas, 1))[:, None]
    # DualPipe: two ranks hold each stage and its gradient; what is sharded is sharded over both.
    dense, experts = c.dense_parameters * c.copies[:, None], c.expert_parameters * c.copies[:, None]
    over = c.joined_copies[:, None]
    st = states(dense, experts, sharded_over * over, p.edp[:, None] * over, p.sharding[:, None], c.stack)
    # Whole gradients of every unit stand until the last micro-batch scatters them, one after the other.
    whole = (2.0 + c.stack.grad_bytes) * (dense + experts) - st.gradients - st.weights
    context = np.broadcast_to((CONTEXT_BYTES + COMMUNICATOR_BYTES * communicators(c))[:, None], dense.shape)
    return {
        "weights": st.weights,
        "gradients": st.gradients,
        "optimizer": st.optimizer,
        "gradient buffers": np.broadcast_to(_whole_bucket(c)[:, None], dense.shape),
        "gathered weights": np.where(c.keeps_gathered[:, None], whole, gathered_weights(c)[:, None]),
        "context and NCCL": context,
    }


def communicators(c: Context) -> Floats:
    """NCCL communicators that a rank of each plan opens: one for every dimension with more than one rank; in
    Megatron and DeepSpeed also the whole job's (barriers) and the model's (tp · pp: norm of the gradient),
    and with a tied embedding the pipeline ends' (Megatron-Core, parallel_state.py)."""
    p = c.plans
    groups = np.zeros(len(p))
    for size in (p.tp, p.cp, p.dp, p.pp, p.ep, p.edp):
        groups = groups + (size > 1)
    if c.stack.family != "torch":
        groups = groups + (p.gpus > 1) + (p.tp * p.pp > 1) + (p.pp > 1) * c.model.tied_embeddings
    return groups


def _whole_bucket(c: Context) -> Floats:
    """ZeRO-2, for each plan: the whole gradient of the largest unit before it is scattered (Megatron-FSDP's
    temporary main gradient). torch's is in ``_fsdp_moment``."""
    if c.stack.family != "megatron" or c.stack.zero2_whole_gradients:
        return np.zeros(len(c.plans))
    scatters = (c.plans.sharding == Sharding.ZERO2) & (c.plans.dp * c.plans.cp > 1)
    largest = np.maximum(_largest_unit(c), c.vocabulary_parameters)
    return np.where(scatters, c.stack.grad_bytes * largest, 0.0)


def host_bytes(c: Context) -> float:
    """Bytes of host memory that the first plan's fullest rank takes, where the stack offloads."""
    c = c.take(np.zeros(1, dtype=np.int64))
    kept = _states(c)
    whole = _states(replace(c, stack=replace(c.stack, offloaded=0.0)))
    away = sum(whole[name] - kept[name] for name in ("optimizer", "gradients"))
    return float(np.max(np.where(c.ranks > 0, away, 0.0)))


class Holdings(NamedTuple):
    """What the plans of a table hold, for each kind of plan (``alike.Likeness``), (kinds, types); and what
    follows from that with fragmentation."""

    held: _Held
    states: dict[str, Floats]
    fragmentation: float
    base: Floats
    """By ``held``: what stays with nothing recomputed; with ``NOBODY`` for a type that no rank is of."""
    more: Floats
    """By ``states``."""
    saved: Floats
    """By ``held``: what recomputing every layer saves."""
    saved_layer: Floats
    """What one layer of it saves, a byte at least."""
    moment: Floats
    """What is there for a moment with nothing recomputed."""
    again: Floats
    """What is there more for a moment where layers are recomputed."""


def holdings(c: Context, priced: Priced, kinds: Likeness) -> Holdings:
    """What every kind of plan holds."""
    loose = c.stack.fragmentation
    held = _held(kinds.held.question, priced.take(kinds.held.first))
    states = _states(kinds.sharded.question)
    nothing = np.where(held.ranks > 0, 0.0, NOBODY)
    saved = (1 + loose) * (held.kept - held.inputs)
    return Holdings(
        held=held,
        states=states,
        fragmentation=loose,
        base=held.dummies + (1 + loose) * (held.kept + held.ends) + nothing,
        more=np.asarray(sum(states.values()) + loose * states["gathered weights"]),
        saved=saved,
        saved_layer=np.maximum(saved / np.maximum(held.layers, 1), 1.0),
        moment=(1 + loose) * held.moment,
        again=(1 + loose) * (held.moment_recomputed - held.moment),
    )


def peak(c: Context, priced: Priced) -> Peak:
    """Memory of every rank type, with as many layers recomputed as were asked for or are needed."""
    kinds = likeness(c, priced)
    return peak_of(c, kinds, holdings(c, priced, kinds))


def peak_of(c: Context, kinds: Likeness, known: Holdings) -> Peak:
    """The same where what every kind of plan holds is known."""
    at, asked = kinds.held.of, c.plans.recompute_layers
    fixed = rows(known.base, at) + rows(known.more, kinds.sharded.of)
    moment, again, counts = (rows(value, at) for value in (known.moment, known.again, known.held.layers))
    layers = asked
    open_ = np.flatnonzero(asked == AUTO_LAYERS)
    if len(open_):
        room, low, high, held = fixed, moment, again, counts
        if len(open_) < len(asked):
            room, low, high, held = (rows(value, open_) for value in (fixed, moment, again, counts))
        layers = asked.copy()
        layers[open_] = _layers_to_recompute(
            memory_limit(c.cluster) - room, rows(known.saved_layer, at[open_]), low, high, held
        )
    share = recomputed_share(layers[:, None], counts)
    total = fixed + moment + again * np.ceil(share) - rows(known.saved, at) * share
    return Peak(
        fullest=widest(total),
        recompute_layers=layers,
        recomputed=share,
        held=known.held,
        of_held=at,
        states=known.states,
        of_states=kinds.sharded.of,
        fragmentation=known.fragmentation,
    )


def memory_limit(cluster: Cluster) -> float:
    """Bytes a plan may fill: all that a process can get, since context, NCCL and fragmentation are
    itemised; or the share the cluster's file or flags ask for."""
    return cluster.gpu.usable_hbm_bytes * (cluster.memory_fraction or 1.0)


def _layers_to_recompute(
    room: Floats, saved_layer: Floats, moment: Floats, again: Floats, counts: Floats
) -> Ints:
    """The fewest layers that fit on every rank of each plan.

    All (plans, types): ``room`` bytes left beside activations with nothing recomputed, ``saved_layer`` bytes
    that recomputing one layer saves, ``moment`` bytes needed for a moment without it and ``again`` more with
    it, ``counts`` layers held.
    """
    over = moment - room
    needed = np.ceil((over + again) / saved_layer)
    needed *= np.ceil(np.minimum(np.maximum(over, 0.0), 1.0))  # none where it fits as it is
    return most(np.minimum(np.maximum(needed, 0.0), counts)).astype(np.int64)
