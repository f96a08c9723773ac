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

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from meshplan.cluster.cluster import Cluster
from meshplan.cost.costs import Costs, Floats
from meshplan.errors import InputError
from meshplan.model.counts import model_parameters
from meshplan.model.layers import Attention, LatentAttention, Moe
from meshplan.model.model import Model
from meshplan.plan.kinds import CpKind, Recompute, Schedule, Sharding
from meshplan.plan.plans import AUTO_LAYERS, Plans
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


class Dense(NamedTuple):
    """All that the equations know of a model."""

    parameters: float
    layers: int
    hidden: int
    kv_width: int
    vocab: int
    tied: bool


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
        _check(plans, dense)
        limit = cluster.memory_bytes
        peak = cluster.gpu.peak(workload.precision)
        tp, cp, pp, dp = (getattr(plans, c).astype(np.float64) for c in ("tp", "cp", "pp", "dp"))
        mbs = plans.mbs.astype(np.float64)
        micro_batches = workload.gbs / (dp * mbs)
        seq = workload.seq / cp
        stage_layers = dense.layers / pp

        memory, recomputed = _memory(dense, plans, stage_layers, micro_batches, seq, limit)
        bandwidth = _bandwidths(cluster, plans)
        flops_per_s = peak * self.matmul_efficiency
        flop_s = seq * mbs / tp / flops_per_s  # seconds for one FLOP a token on every token of a micro-batch

        layer = 6 * (dense.parameters - (1 if dense.tied else 2) * dense.vocab * dense.hidden) / dense.layers
        layer += 6 * workload.seq * dense.hidden
        head = 6 * dense.vocab * dense.hidden
        average = (dense.layers * layer + head) / pp * flop_s
        recompute = recomputed * layer / 3 * flop_s
        slowest = stage_layers * layer * flop_s + recompute + head * flop_s

        hidden_bytes = seq * mbs * dense.hidden * 2
        tp_s = stage_layers * 4 * 2 * (tp - 1) / tp * hidden_bytes / bandwidth["tp"]
        ring = stage_layers * 3 * (cp - 1) * (2 * seq * mbs * dense.kv_width * 2) / bandwidth["cp"]
        attention = stage_layers * 6 * workload.seq * dense.hidden * flop_s
        cp_s = np.maximum(ring - attention, 0.0)
        send = np.where(pp > 1, 2 * hidden_bytes / tp / bandwidth["pp"], 0.0)
        pp_s = send * (1 - self.pp_hidden)
        copies = dp * cp
        sync = 2 * (copies - 1) / copies * 2 * (dense.parameters / (tp * pp)) / bandwidth["dp"]
        dp_s = sync * (1 - self.dp_hidden)

        micro_batch = slowest + tp_s + cp_s + pp_s
        step = micro_batches * micro_batch + (pp - 1) * micro_batch + dp_s
        useful = (dense.layers * layer + head) * workload.gbs * workload.seq
        return Costs(
            plans=plans.replace(recompute_layers=recomputed.astype(np.int64)),
            step_s=step,
            memory_bytes=sum(memory.values(), np.zeros(len(plans))),
            memory_limit_bytes=limit,
            mfu=useful / (step * cluster.gpus * peak),
            time={
                "compute": micro_batches * average,
                "recompute": micro_batches * recompute,
                "imbalance": micro_batches * (slowest - recompute - average),
                "tp": micro_batches * tp_s,
                "cp": micro_batches * cp_s,
                "pp": micro_batches * pp_s,
                "bubble": (pp - 1) * micro_batch,
                "dp": dp_s,
            },
            memory=memory,
            hidden={
                "cp": micro_batches * (ring - cp_s),
                "pp": micro_batches * (send - pp_s),
                "dp": sync - dp_s,
            },
            assumptions=self._assumptions(),
        )

    def _dense(self, model: Model, workload: Workload) -> Dense:
        if workload.precision not in ("bf16", "fp16"):
            raise InputError(f"the handbook cost model knows bf16 and fp16 only, not {workload.precision}")
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


def _check(plans: Plans, dense: Dense) -> None:
    for column, (value, words) in ONLY.items():
        if len(plans) and bool(np.any(getattr(plans, column) != value)):
            raise InputError(f"the handbook cost model prices {words} only")
    uneven = plans.pp[dense.layers % plans.pp != 0]
    if uneven.size:
        raise InputError(
            f"the handbook cost model prices equal stages only: {dense.layers} layers, pp {uneven[0]}"
        )


def _memory(
    dense: Dense, plans: Plans, stage_layers: Floats, micro_batches: Floats, seq: Floats, limit: float
) -> tuple[Mapping[str, Floats], Floats]:
    """Bytes by part, and the layers of a stage that are recomputed."""
    own = dense.parameters / (plans.tp * plans.pp)
    optimizer = 12 * own / (plans.dp * plans.cp)
    states = 4 * own + optimizer
    unit = seq * plans.mbs * dense.hidden / plans.tp
    in_flight = np.minimum(plans.pp, micro_batches)

    def activations(recomputed: Floats) -> Floats:
        return (34 * (stage_layers - recomputed) + 2 * recomputed) * unit * in_flight

    fewest = np.ceil((states + activations(np.zeros_like(unit)) - limit) / (32 * unit * in_flight))
    fewest = np.clip(fewest, 0, stage_layers)
    # The division may land a rounding error beside a whole number: the comparison itself decides.
    one_less = np.maximum(fewest - 1, 0)
    fewest = np.where(states + activations(one_less) <= limit, one_less, fewest)
    one_more = np.minimum(fewest + 1, stage_layers)
    fewest = np.where(states + activations(fewest) <= limit, fewest, one_more)

    asked = np.minimum(plans.recompute_layers, stage_layers)
    recomputed = np.where(plans.recompute_layers == AUTO_LAYERS, fewest, asked)
    parts = {"weights_and_gradients": 4 * own, "optimizer": optimizer, "activations": activations(recomputed)}
    return parts, recomputed


def _bandwidths(cluster: Cluster, plans: Plans) -> dict[str, Floats]:
    """Bytes/s of each dimension's groups: of the innermost tier that spans inner size × size.

    ``dp`` is the group of gradient synchronisation, ``dp · cp``.
    """
    speeds = np.array([tier.bandwidth for tier in cluster.tiers])
    size = np.ones(len(plans), dtype=np.int64)
    found = {}
    for dim in plans.order:
        if dim != "ep":  # expert groups reuse the others' ranks
            size = size * getattr(plans, dim)
            found[dim] = speeds[cluster.tier_of(size)]
    found["dp"] = np.minimum(found["dp"], found["cp"])
    return found
