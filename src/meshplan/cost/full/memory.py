"""Peak memory of every rank type of a plan, by part; the fullest rank decides.

What stays all step long (states, buffers), what grows with the micro-batches in flight (activations),
and the largest thing that exists for a moment: the loss, the head's backward, or one layer's backward
with, where the layer is recomputed, everything it would otherwise have kept.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from meshplan.cluster.cluster import Cluster
from meshplan.cost.costs import Bools, Floats
from meshplan.cost.full.context import Context
from meshplan.cost.full.distinct import distinct
from meshplan.cost.full.gemms import attention_gemms, mlp_gemms
from meshplan.cost.full.layers import Priced
from meshplan.cost.full.narrow import most
from meshplan.cost.full.states import states
from meshplan.plan.kinds import Schedule
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Peak:
    """Peak memory of every rank type of every plan: the rank type that is fullest, and the layers each
    rank recomputes. Parts are kept for distinct rows and worked out on demand."""

    fullest: Ints
    recompute_layers: Ints
    held: _Held
    of_held: Ints
    states: dict[str, Floats]
    of_states: Ints
    fragmentation: float

    def of_fullest(self) -> dict[str, Floats]:
        """Bytes by part on the fullest rank of each plan."""
        return self._parts(
            (self.of_held, self.fullest), (self.of_states, self.fullest), self.recompute_layers
        )

    @property
    def parts(self) -> dict[str, Floats]:
        """Bytes by part, (plans, types)."""
        return self._parts(self.of_held, self.of_states, self.recompute_layers[:, None])

    def _parts(self, held_at: Any, states_at: Any, recompute_layers: Ints) -> dict[str, Floats]:
        held, parts = self.held, {name: value[states_at] for name, value in self.states.items()}
        share = recomputed_share(recompute_layers, held.layers[held_at])
        kept, inputs = held.kept[held_at], held.inputs[held_at]
        parts["activations"] = kept + (inputs - kept) * share + held.ends[held_at]
        parts["loss and workspace"] = np.where(
            share > 0, held.moment_recomputed[held_at], held.moment[held_at]
        )
        parts["gradient buffers"] = held.dummies[held_at]
        loose = parts["activations"] + parts["loss and workspace"] + parts["gathered weights"]
        parts["fragmentation"] = self.fragmentation * loose
        return {name: np.asarray(parts[name]) for name in PARTS}


def recomputed_share(recompute_layers: Ints, layers: Floats) -> Floats:
    """Share of a rank's ``layers`` that are recomputed whole."""
    return np.asarray(np.minimum(np.maximum(recompute_layers, 0) / np.maximum(layers, 1), 1.0))


def weight_gradient_buffers(c: Context, priced: Priced) -> Floats:
    """(plans, types): bf16 buffers shaped like each distinct weight, that TransformerEngine hands to
    autograd when the real gradient was added to the fp32 main gradient inside the kernel."""
    n = len(c.plans)
    total = np.zeros(c.ranks.shape)
    if not c.stack.gradient_dummies:
        return total
    widest = np.zeros(n)
    for k, layer in enumerate(c.kinds):
        att = sum(
            (_weights(g.n, g.k, priced) for g in attention_gemms(layer, c.model.hidden, priced.keys)),
            np.zeros(n),
        )
        mlp = sum(
            (_weights(g.n, g.k, priced) for g in mlp_gemms(layer, c.model.hidden, priced.keys, c.stack)),
            np.zeros(n),
        )
        widest = np.maximum(widest, att)
        total += np.where(c.layers[:, :, k] > 0, mlp[:, None], 0.0)
    return total + np.where(c.held_layers > 0, widest[:, None], 0.0)


def _weights(n: object, k: object, priced: Priced) -> Floats:
    size = 2.0 * np.asarray(n, dtype=np.float64) * np.asarray(k, dtype=np.float64)
    return np.asarray(np.broadcast_to(size, (len(priced.keys),))[priced.of_plan])


def momentary(c: Context, priced: Priced, recomputed: Bools) -> Floats:
    """(plans, types): the largest thing that exists only for a moment."""
    at, keys = priced.of_plan, priced.keys
    logits = priced.ends.logits[at]
    whole_stream = (2.0 * c.model.hidden * keys.tokens)[at]
    gathered = np.where(c.plans.sp.astype(bool) & (c.plans.tp > 1), whole_stream, 0.0)
    copies = 1.0 + len(c.model.mtp)
    # torch's loss_parallel shifts and exponentiates in further fp32 copies: 16 bytes a logit, not 12.
    parallel = 4.0 * ((c.plans.tp > 1) & (c.stack.family == "torch") & (c.stack.loss_bytes >= 12))
    loss = (c.stack.loss_bytes + parallel) * logits * copies
    head_gradient = 2.0 * c.vocabulary_parameters if c.stack.gradient_dummies else 0.0
    head = 2.0 * logits * copies + head_gradient + gathered + whole_stream
    layer = np.zeros(recomputed.shape)
    for k, a in enumerate(priced.activations):
        again = (a.workspace + a.full)[at][:, None]
        work = np.where(recomputed, again, a.workspace[at][:, None])
        np.maximum(layer, work, out=layer, where=c.layers[:, :, k] > 0)
    last = np.where(c.last > 0, np.maximum(loss, head)[:, None], 0.0)
    largest = np.asarray(np.maximum(layer, last))
    if c.stack.family != "torch" or not c.gathers.any():
        return largest
    released = np.zeros(recomputed.shape)
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


@dataclass(frozen=True, kw_only=True, slots=True)
class _Held:
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
    none = np.zeros(c.ranks.shape, dtype=bool)
    return _Held(
        kept=c.per_rank([a.kept[at] for a in priced.activations]) * alive,
        inputs=c.per_rank([a.input[at] for a in priced.activations]) * alive,
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
        return np.asarray(head * c.last)
    sent = stream * alive * (c.plans.pp[:, None] > 1)
    return np.asarray(head * c.last + sent * (1 - c.last))


def _states(c: Context) -> dict[str, Floats]:
    """(rows, types): what follows from split and sharding."""
    p = c.plans
    sharded_over = (p.dp * p.cp // np.maximum(p.replicas, 1))[:, None]
    copies = np.where(p.schedule == Schedule.DUALPIPE, 2.0, 1.0)[:, None]
    dense, experts = c.dense_parameters * copies, c.expert_parameters * copies
    st = states(dense, experts, sharded_over, p.edp[:, None], p.sharding[:, None], c.stack)
    # Whole gradients of every unit stand until the last micro-batch scatters them, one after the other.
    whole = (2.0 + c.stack.grad_bytes) * (dense + experts) - st.gradients
    groups = np.zeros(len(p))
    for size in (p.tp, p.cp, p.dp, p.pp, p.ep, p.edp):
        groups = groups + (size > 1)
    context = np.broadcast_to((CONTEXT_BYTES + COMMUNICATOR_BYTES * groups)[:, None], dense.shape)
    return {
        "weights": st.weights,
        "gradients": st.gradients,
        "optimizer": st.optimizer,
        "gathered weights": np.where(c.keeps_gathered[:, None], whole, gathered_weights(c)[:, None]),
        "context and NCCL": context,
    }


def host_bytes(c: Context) -> float:
    """Bytes of host memory that the first plan's fullest rank takes, where the stack offloads."""
    c = c.take(np.zeros(1, dtype=np.int64))
    kept = _states(c)
    whole = _states(replace(c, stack=replace(c.stack, offloaded=0.0)))
    away = sum(whole[name] - kept[name] for name in ("optimizer", "gradients"))
    return float(np.max(np.where(c.ranks > 0, away, 0.0)))


def peak(c: Context, priced: Priced) -> Peak:
    """Memory of every rank type, with as many layers recomputed as were asked for or are needed."""
    p, split = c.plans, c.splits.of_plan
    # Of what is held for a moment only torch's depends on how weights are gathered (``momentary``).
    gathers = c.gathers.astype(np.int64) if c.stack.family == "torch" else np.zeros_like(p.dp)
    first, of_held = distinct((priced.of_plan, split, p.schedule, p.dp, c.sequences, gathers))
    held = _held(c.take(first), priced.take(first))
    first, of_states = distinct((split, p.tp, p.cp, p.dp, p.ep, p.etp, p.sharding, p.replicas, p.schedule))
    parts = _states(c.take(first))
    loose = c.stack.fragmentation
    fixed = np.asarray(sum(parts.values()) + loose * parts["gathered weights"]).take(of_states, axis=0)
    fixed += (held.dummies + (1 + loose) * held.ends).take(of_held, axis=0)
    kept, inputs, moment, again = (
        ((1 + loose) * value).take(of_held, axis=0)
        for value in (held.kept, held.inputs, held.moment, held.moment_recomputed)
    )
    counts = np.where(held.ranks > 0, held.layers, -1.0).take(of_held, axis=0)
    room = memory_limit(c.cluster) - fixed
    layers = _layers_to_recompute(p.recompute_layers, room, kept, inputs, moment, again, counts)
    share = recomputed_share(layers[:, None], counts)
    total = fixed + kept + (inputs - kept) * share + np.where(share > 0, again, moment)
    fullest = np.argmax(np.where(counts >= 0, total, -1.0), axis=1)
    return Peak(
        fullest=fullest,
        recompute_layers=layers,
        held=held,
        of_held=of_held,
        states=parts,
        of_states=of_states,
        fragmentation=loose,
    )


def memory_limit(cluster: Cluster) -> float:
    """Bytes a plan may fill: all that a process can get, since context, NCCL and fragmentation are
    itemised; or the share the cluster's file or flags ask for."""
    return cluster.gpu.usable_hbm_bytes * (cluster.memory_fraction or 1.0)


def _layers_to_recompute(
    asked: Ints, room: Floats, kept: Floats, inputs: Floats, moment: Floats, again: Floats, counts: Floats
) -> Ints:
    """The count each plan asks for; where it leaves that open, the fewest that fit on every rank.

    All (plans, types): ``room`` bytes left for activations (``kept``, or ``inputs`` where recomputed)
    and moments; ``counts`` layers held, -1 for no rank.
    """
    rows = np.flatnonzero(asked == AUTO_LAYERS)
    if not len(rows):
        return asked
    if len(rows) < len(asked):
        room, kept, inputs, moment, again, counts = (
            v.take(rows, axis=0) for v in (room, kept, inputs, moment, again, counts)
        )
    saved = np.maximum((kept - inputs) / np.maximum(counts, 1), 1.0)
    needed = np.where(kept + moment <= room, 0.0, np.ceil((kept + again - room) / saved))
    needed = most(np.clip(needed, 0.0, np.maximum(counts, 0.0)))
    decided = asked.copy()
    decided[rows] = needed.astype(np.int64)
    return decided
