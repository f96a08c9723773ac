"""The textbook cost model, kept exact and short: the baseline that the full model must beat.

It prices dense models under TP (with sequence parallelism), ring CP, ZeRO-1 DP and 1F1B PP with equal
stages. Equations as in textbook chapters on combining parallelisms: activations ``34·s·b·h/t`` bytes a
layer without attention scores (Korthikanti et al., arXiv 2205.05198), mixed-precision Adam with
2 + 2 bytes of weight and gradient and 12 of sharded optimizer state a parameter (Rajbhandari et al.,
arXiv 1910.02054), rings of ``2(n-1)/n`` for collectives.

Left out: matmul efficiency by shape, TP overlap, causal masking, logits and loss, buffers, fragmentation,
optimizer step, kernel launches, latency, stragglers. Together they are worth tens of per cent; that is
what the full model is for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from meshplan.cluster.cluster import Cluster
from meshplan.cost.costs import Costs, Floats
from meshplan.errors import InputError
from meshplan.model.counts import model_parameters
from meshplan.model.layers import Attention, LatentAttention, Moe
from meshplan.model.model import Model
from meshplan.plan.kinds import CpKind, Recompute, Schedule, Sharding
from meshplan.plan.plans import AUTO_LAYERS, Ints, Plans, is_constant
from meshplan.plan.rules import CP_MIN_TOKENS, TP_IN_NODE, Rule
from meshplan.plan.workload import Workload

ONLY = {
    "cp_kind": (CpKind.RING, "ring attention"),
    "vp": (1, "vp 1"),
    "schedule": (Schedule.ONE_F_ONE_B, "the 1f1b schedule"),
    "sharding": (Sharding.ZERO1, "zero1 sharding"),
    "replicas": (1, "dp without replicas"),
    "ep": (1, "ep 1"),
    "etp": (1, "etp 1"),
    "recompute_modules": (Recompute.NONE, "recomputation of whole layers"),
    "layout": (-1, "equal stages"),
}
"""The only value of each column that the equations know."""


NEARLY = 1e-6
"""How near to a whole number of layers a division is not trusted."""


class Dense(NamedTuple):
    """All that the equations know of a model."""

    parameters: float
    layers: int
    hidden: int
    kv_width: int
    vocab: int
    tied: bool

    @property
    def head_flop(self) -> float:
        """Of the LM head for a token, forward and backward: 6VH."""
        return 6.0 * self.vocab * self.hidden

    def layer_flop(self, seq: int) -> float:
        """Of a layer for a token, forward and backward: 6 a weight, and 6·seq·H for attention."""
        tables = (1 if self.tied else 2) * self.vocab * self.hidden
        return 6 * (self.parameters - tables) / self.layers + self.attention_flop(seq)

    def attention_flop(self, seq: int) -> float:
        """Of the scores and their product with V: 6·seq·H."""
        return 6.0 * seq * self.hidden


@dataclass(frozen=True, kw_only=True, slots=True)
class Handbook:
    """The textbook model; its constants are fields."""

    parameters: float | None = None
    """Parameter count to use instead of the model's own, for figures published with a rounded one."""
    matmul_efficiency: float = 0.6
    """Share of the dense peak that every matrix multiplication reaches."""
    pp_hidden: float = 0.5
    """Share of the point-to-point time that computing hides."""
    dp_hidden: float = 0.8
    """Share of the gradient synchronisation that the backward pass hides."""

    @property
    def name(self) -> str:
        """The name people type."""
        return "handbook"

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Limits of the equations: outside them constant efficiency and the ring's overlap do not hold."""
        return (TP_IN_NODE, CP_MIN_TOKENS)

    def price(self, model: Model, cluster: Cluster, workload: Workload, plans: Plans) -> Costs:
        """The price of every plan; layers are recomputed as few as fit where ``AUTO_LAYERS`` asks.

        Raises ``InputError`` for a model, precision or plan outside the equations.
        """
        dense = self._dense(model, workload)
        _check(plans)
        limit, peak = cluster.memory_bytes, cluster.gpu.peak(workload.precision)
        tp, cp, pp, dp, mbs = (getattr(plans, c).astype(np.float64) for c in ("tp", "cp", "pp", "dp", "mbs"))
        stage_layers = _stage_layers(dense.layers, pp)
        # A division takes several times a multiplication: each of these is divided by once. What is the same
        # for all micro-batches, or all layers, is worked out once too.
        per_tp, per_pp, per_copy = 1 / tp, 1 / pp, 1 / (dp * cp)
        own = dense.parameters * per_tp * per_pp
        per_micro_batch = dp * mbs * (1 / workload.gbs)
        # Tokens that a rank sees in a step. Times below are of a whole step, all micro-batches together.
        tokens = workload.tokens * per_copy
        tokens_tp = tokens * per_tp

        weights = 4 * own
        optimizer = weights * per_copy * 3
        # Micro-batches alive, pp of them or all there are, as a share of all.
        unit = tokens_tp * np.minimum(pp * per_micro_batch, 1.0) * dense.hidden
        states, whole, saved = weights + optimizer, 34 * stage_layers * unit, 32 * unit
        recomputed = _recomputed(plans.recompute_layers, stage_layers, states + whole - limit, saved)
        activations = whole - recomputed * saved

        layer, head = dense.layer_flop(workload.seq), dense.head_flop
        flop_s = tokens_tp / (peak * self.matmul_efficiency)  # seconds for one FLOP on every token
        compute = flop_s * per_pp * (dense.layers * layer + head)
        stage_s = stage_layers * flop_s
        slowest = stage_s * layer + flop_s * head
        recompute = recomputed * flop_s * (layer / 3)

        byte_s = _seconds_a_byte(cluster, plans.order, {"tp": tp, "cp": cp, "dp": dp, "pp": pp})
        layer_tokens = stage_layers * tokens
        # Four all-reduces a layer, each 2(n-1)/n of two bytes a feature.
        tp_s = layer_tokens * (1 - per_tp) * (4 * 2 * 2 * dense.hidden * byte_s["tp"])
        # K and V once round the ring forward and twice backward, two bytes a feature.
        ring = layer_tokens * (cp - 1) * (3 * 2 * 2 * dense.kv_width * byte_s["cp"])
        cp_s = np.maximum(ring - stage_s * dense.attention_flop(workload.seq), 0.0)
        # One tensor forward, one back.
        send = np.minimum(pp - 1, 1.0) * tokens_tp * (2 * 2 * dense.hidden * byte_s["pp"])
        pp_s = send * (1 - self.pp_hidden)
        # Gradients scattered, weights gathered: 2(n-1)/n of two bytes a parameter.
        sync = (1 - per_copy) * weights * byte_s["dp"]
        dp_s = sync * (1 - self.dp_hidden)

        busy = slowest + recompute + tp_s + cp_s + pp_s
        bubble = (pp - 1) * per_micro_batch * busy
        step = busy + bubble + dp_s
        useful = (dense.layers * layer + head) * workload.tokens
        return Costs(
            plans=plans.replace(recompute_layers=recomputed.astype(np.int64)),
            step_s=step,
            memory_bytes=states + activations,
            memory_limit_bytes=limit,
            mfu=useful / (cluster.gpus * peak) / step,
            time={
                "compute": compute,
                "recompute": recompute,
                "imbalance": slowest - compute,
                "tp": tp_s,
                "cp": cp_s,
                "pp": pp_s,
                "bubble": bubble,
                "dp": dp_s,
            },
            memory={"weights_and_gradients": weights, "optimizer": optimizer, "activations": activations},
            hidden={"cp": ring - cp_s, "pp": send - pp_s, "dp": sync - dp_s},
            assumptions=self._assumptions(),
        )

    def _dense(self, model: Model, workload: Workload) -> Dense:
        if workload.precision not in ("bf16", "fp16"):
            raise InputError(f"the handbook cost model knows bf16 and fp16 only, not {workload.precision}")
        if workload.offload != "none" or workload.expert_load is not None:
            raise InputError(
                "the handbook cost model knows neither offload nor loads of experts; the full one does"
            )
        if any(isinstance(layer.mlp, Moe) for layer in model.layers):
            raise InputError(f"the handbook cost model prices dense models only; {model.name} has experts")
        attentions = (layer.attention for layer in model.layers)
        first = next((a for a in attentions if isinstance(a, Attention | LatentAttention)), None)
        return Dense(
            parameters=self.parameters or model_parameters(model).total,
            layers=len(model.layers),
            hidden=model.hidden,
            kv_width=0 if first is None else first.k_width,
            vocab=model.vocab,
            tied=model.tied_embeddings,
        )

    def _assumptions(self) -> tuple[str, ...]:
        return (
            f"every matrix multiplication at {self.matmul_efficiency:.0%} of the dense peak",
            "attention as if every token saw every other",
            "tensor parallel communication not overlapped",
            f"{self.pp_hidden:.0%} of pipeline transfers and {self.dp_hidden:.0%} of gradient sync hidden",
            "logits, buffers, fragmentation and the optimizer step left out",
        )


def _check(plans: Plans) -> None:
    for column, (value, words) in ONLY.items():
        values = getattr(plans, column)
        if ((values[:1] if is_constant(values) else values) != value).any():
            raise InputError(f"the handbook cost model prices {words} only")


def _stage_layers(layers: int, pp: Floats) -> Floats:
    found = layers / pp
    uneven = found != np.floor(found)
    if uneven.any():
        first = int(pp[int(np.argmax(uneven))])
        raise InputError(f"the handbook cost model prices equal stages only: {layers} layers, pp {first}")
    return found


def _recomputed(asked: Ints, stage_layers: Floats, over: Floats, saved: Floats) -> Floats:
    """Layers of a stage that are recomputed: what was asked, or the fewest that fit, at most all. ``over``:
    bytes beyond the memory with none recomputed; ``saved``: bytes that each recomputed layer saves."""
    needed = over / saved
    fewest = np.ceil(needed)
    # Beside a whole number a rounding error decides the division; there the comparison itself is asked.
    short = fewest - needed
    if short.min() < NEARLY or short.max() > 1 - NEARLY:
        close = np.flatnonzero(np.abs(needed - np.rint(needed)) < NEARLY)
        over, saved, layers = over[close], saved[close], np.rint(needed[close])
        layers -= over - (layers - 1) * saved <= 0
        layers += over - layers * saved > 0
        fewest[close] = layers
    fewest = np.minimum(np.maximum(fewest, 0.0), stage_layers)
    if asked.max() == AUTO_LAYERS:  # of all, as nothing is less
        return fewest
    return np.where(asked == AUTO_LAYERS, fewest, np.minimum(asked, stage_layers))


def _seconds_a_byte(
    cluster: Cluster, order: Sequence[str], sizes: Mapping[str, Floats]
) -> dict[str, Floats | float]:
    """For each dimension's groups, of the innermost tier that spans inner size × size; one number where all
    plans have the same.

    ``dp`` is the group of gradient synchronisation, ``dp · cp``; expert groups reuse these ranks.
    """
    dims = [dim for dim in order if dim in sizes]
    found: dict[str, Floats | float] = {}
    span: Floats | float = 1.0
    for dim in dims:
        span = span * sizes[dim]
        least, most = span.min(), span.max()
        seconds: Floats | float = 1 / cluster.tiers[-1].bandwidth
        for inner, outer in pairwise(cluster.tiers):
            faster = 1 / inner.bandwidth - 1 / outer.bandwidth
            if most <= inner.span:
                seconds = seconds + faster
            elif least <= inner.span:
                # 1 inside, 0 outside: spans are whole, and choosing by a mask takes several times as long
                inside = np.minimum(np.maximum(inner.span + 1 - span, 0.0), 1.0)
                seconds = seconds + inside * faster
        found[dim] = seconds
    found["dp"] = found[max("dp", "cp", key=dims.index)]
    return found
