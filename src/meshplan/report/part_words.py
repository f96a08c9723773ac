"""What each part of a step and of the memory is, in a line, and which numbers of a plan make it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite

from meshplan.model.counts import layer_parameters, model_parameters
from meshplan.plan.kinds import Recompute, Schedule, Sharding
from meshplan.plan.plans import ALL_LAYERS, Plan
from meshplan.plan.rules import Setting
from meshplan.schedule.closed_form import in_flight
from meshplan.search.reasons import V_SHAPED
from meshplan.units import format_bytes, format_count

MEANING: Mapping[str, str] = {
    "compute": "the model's own arithmetic",
    "matmul": "matrix multiplications",
    "attention": "attention kernels",
    "elementwise": "norms, activations, additions: as fast as memory is read",
    "head and loss": "LM head and cross-entropy, on the last stage",
    "recompute": "forward passes run again, for activations that were not kept",
    "tp": "each layer's activations gathered and scattered inside the tp group",
    "cp": "keys and values passed round the cp group, beyond what attention hides",
    "ep": "tokens sent to their experts and back (all-to-all)",
    "pp": "activations sent from stage to stage",
    "dp": "gradients reduced and weights gathered, beyond what computing hides",
    "bubble": "stages that wait while the pipeline fills and drains",
    "imbalance": "stages that wait for the slowest one",
    "host": "GPUs that wait for the host to launch kernels",
    "straggler": "all GPUs wait for the slowest of them",
    "optimizer": "the optimizer's update",
    "step overhead": "once a step: data, logging",
}
"""Part of the step → what it is."""
MEMORY_MEANING: Mapping[str, str] = {
    "weights": "parameters that computing reads",
    "gradients": "a gradient for each of them",
    "weights_and_gradients": "parameters and a gradient for each of them",
    "optimizer": "master weights and Adam's two moments, sharded over dp · cp",
    "activations": "what the forward pass keeps for the backward pass",
    "loss and workspace": "what exists for a moment: logits, one layer's backward pass",
    "gathered weights": "layers gathered from their shards",
    "gradient buffers": "buffers for weight gradients",
    "fragmentation": "what the allocator holds without use",
    "context and NCCL": "CUDA and communication buffers",
}
"""Part of the memory → what it is."""


_Reason = Callable[[Plan, Setting], str]


def reason(part: str, plan: Plan, setting: Setting) -> str:
    """The numbers of ``plan`` that decide how large ``part`` of the step is; ``""`` where there are none."""
    return _TIME.get(part, _nothing)(plan, setting)


def memory_reason(part: str, plan: Plan, setting: Setting) -> str:
    """The same for a part of the memory."""
    return _MEMORY.get(part, _nothing)(plan, setting)


def _nothing(plan: Plan, setting: Setting) -> str:
    return ""


def micro_batches(plan: Plan, setting: Setting) -> int:
    """Micro-batches a pipeline runs each step."""
    return max(setting.workload.gbs // (plan.dp * plan.mbs), 1)


def _ways(count: int) -> str:
    return "way" if count == 1 else "ways"


def _tokens(plan: Plan, setting: Setting) -> float:
    return setting.workload.seq / plan.cp * plan.mbs


def _tp(plan: Plan, setting: Setting) -> str:
    if plan.tp == 1:
        return "tp 1: nothing to exchange"
    size = format_bytes(2 * _tokens(plan, setting) * setting.model.hidden)
    return f"tp {plan.tp}: {size} a block, {plan.tp - 1}/{plan.tp} of it over links"


def _cp(plan: Plan, setting: Setting) -> str:
    if plan.cp == 1:
        return "cp 1: nothing to exchange"
    return (
        f"cp {plan.cp}, {plan.cp_kind.label}: {plan.cp - 1} hops, {_tokens(plan, setting):,.0f} tokens each"
    )


def _ep(plan: Plan, setting: Setting) -> str:
    node = setting.cluster.gpus_per_node
    if plan.ep == 1:
        return "ep 1: every rank has all experts"
    where = "inside a node" if plan.ep * plan.etp <= node else f"over {plan.ep * plan.etp / node:g} nodes"
    return f"ep {plan.ep}: all-to-all {where}"


def _bubble(plan: Plan, setting: Setting) -> str:
    if plan.pp == 1:
        return "pp 1: no pipeline"
    m = micro_batches(plan, setting)
    if plan.schedule in (Schedule.ONE_F_ONE_B, Schedule.GPIPE):
        return f"(pp − 1) / micro-batches = {plan.pp - 1}/{m} = {(plan.pp - 1) / m:.1%}"
    if plan.schedule in (Schedule.INTERLEAVED, Schedule.LOOPED_BFS):
        share = (plan.pp - 1) / (plan.vp * m)
        return f"(pp − 1) / (vp · micro-batches) = {plan.pp - 1}/{plan.vp * m} = {share:.1%}"
    return f"{plan.schedule.label} over {plan.pp} stages, {m} micro-batches"


def _pp(plan: Plan, setting: Setting) -> str:
    if plan.pp == 1:
        return "pp 1: no pipeline"
    size = format_bytes(2 * _tokens(plan, setting) * setting.model.hidden / plan.tp)
    rounds = f" × vp {plan.vp}" if plan.vp > 1 else ""
    return f"{size} to the next stage, {micro_batches(plan, setting)} micro-batches{rounds} both ways"


def _imbalance(plan: Plan, setting: Setting) -> str:
    if plan.pp == 1:
        return "pp 1: one stage"
    return f"pp {plan.pp}: {_held(plan, setting)} layers {_place(plan)}, and the last one has the LM head"


def _place(plan: Plan) -> str:
    """Where layers are counted: a rank with virtual stages has several stages."""
    return "a rank" if plan.vp > 1 else "a stage"


def _held(plan: Plan, setting: Setting) -> str:
    """Layers that the pipeline's ranks hold: ``4``, or ``3 to 5``."""
    layers = len(setting.model.layers)
    if plan.layout is None:
        low, high = layers // plan.pp, -(-layers // plan.pp)
    else:  # stages are dealt to the ranks round after round, or back and forth
        stages = [plan.layout[i : i + plan.pp] for i in range(0, len(plan.layout), plan.pp)]
        back = plan.schedule in V_SHAPED
        turns = [s[::-1] if back and i % 2 else s for i, s in enumerate(stages)]
        held = [sum(rank) for rank in zip(*turns, strict=True)]
        low, high = min(held), max(held)
    return f"{low}" if low == high else f"{low} to {high}"


def _experts(setting: Setting) -> float:
    """Parameters of all routed experts."""
    model = setting.model
    return float(sum(layer_parameters(layer, model.hidden).experts for layer in model.layers))


def _dp(plan: Plan, setting: Setting) -> str:
    ranks, experts = plan.dp * plan.cp, _experts(setting)
    dense = (model_parameters(setting.model).total - experts) / (plan.tp * plan.pp)
    if ranks == 1:
        return "dp · cp = 1: nothing to reduce"
    text = f"{ranks} ranks (dp · cp), {format_count(dense)} parameters each"
    if experts:
        held = format_count(experts / (plan.ep * plan.etp * plan.pp))
        text += f", and {held} of experts over {plan.edp} ranks"
    if plan.sharding >= Sharding.ZERO2:
        what = "gathered" if plan.sharding is Sharding.ZERO3 else "reduced"
        text += f", {what} for every micro-batch ({plan.sharding.label})"
    return text + (f", {plan.replicas} replicas" if plan.replicas > 1 else "")


def _recompute(plan: Plan, setting: Setting) -> str:
    if plan.recompute_layers >= ALL_LAYERS:
        return "every layer"
    stage = _held(plan, setting)
    layers = f"{plan.recompute_layers} of {stage} layers {_place(plan)}"
    words = layers if plan.recompute_layers else ""
    names = [m.name.lower().replace("_", "-") for m in Recompute if m & plan.recompute_modules and m.name]
    return " + ".join([*([words] if words else []), *names]) or "nothing is recomputed"


def _matmul(plan: Plan, setting: Setting) -> str:
    text = f"{_tokens(plan, setting):,.0f} tokens at a time, weights cut {plan.tp} {_ways(plan.tp)}"
    if _experts(setting):
        text += f", experts spread over {plan.ep} rank{'s' if plan.ep > 1 else ''}"
    return text


def _attention(plan: Plan, setting: Setting) -> str:
    cut = f"heads cut {plan.tp} {_ways(plan.tp)}"
    if plan.cp == 1:
        return f"whole sequences, {cut}"
    return f"sequences cut {plan.cp} ways ({plan.cp_kind.label}), {cut}"


def _elementwise(plan: Plan, setting: Setting) -> str:
    text = f"{_tokens(plan, setting):,.0f} tokens at a time"
    if plan.tp == 1:
        return text
    return f"{text}, cut {plan.tp} ways" if plan.sp else f"{text}, norms whole on every tp rank (no sp)"


def _states(sharded_from: Sharding) -> _Reason:
    """What is said of weights or gradients, which are sharded from ``sharded_from`` on."""

    def said(plan: Plan, setting: Setting) -> str:
        total = model_parameters(setting.model).total
        cut = plan.tp * plan.pp
        more = f", experts also {plan.ep} ways" if plan.ep > 1 else ""
        sharded = f" and sharded ({plan.sharding.label})" if plan.sharding >= sharded_from else ""
        return f"{format_count(total)} parameters cut tp · pp = {cut} {_ways(cut)}{more}{sharded}"

    return said


def _optimizer(plan: Plan, setting: Setting) -> str:
    host = ""
    if setting.workload.offload == "optimizer":
        host = f", {setting.workload.offload_fraction:.0%} of it in host memory"
    if plan.sharding is Sharding.DDP:
        return f"not sharded{host}"
    copies = f" / {plan.replicas} replicas" if plan.replicas > 1 else ""
    return f"tp · pp = {plan.tp * plan.pp}, then over dp · cp = {plan.dp * plan.cp}{copies}{host}"


def _alive(plan: Plan, setting: Setting) -> float:
    """Micro-batches whose activations the fullest rank keeps at once; with virtual stages as if each were of
    all its stages (``schedule.closed_form.in_flight``)."""
    if plan.pp == 1:
        return 1.0
    m = micro_batches(plan, setting)
    alive = [float(in_flight(plan.schedule, plan.pp, plan.vp, m, rank)) for rank in range(plan.pp)]
    known = [count for count in alive if isfinite(count)]
    return max(known, default=float(min(plan.pp, m)))


def _activations(plan: Plan, setting: Setting) -> str:
    alive = _alive(plan, setting)
    kept = f", {_recompute(plan, setting)} recomputed" if plan.recompute_layers else ""
    rounds = f" (vp {plan.vp})" if plan.vp > 1 and plan.pp > 1 else ""
    batches = f"{alive:.3g} micro-batch{'es' if alive > 1 else ''}"
    return (
        f"{_held(plan, setting)} layers × {batches} in flight{rounds},"
        f" {_tokens(plan, setting):,.0f} tokens cut {plan.tp} {_ways(plan.tp)}{kept}"
    )


_TIME: Mapping[str, _Reason] = {
    "tp": _tp, "cp": _cp, "ep": _ep, "pp": _pp, "dp": _dp, "bubble": _bubble, "imbalance": _imbalance,
    "recompute": _recompute, "matmul": _matmul, "attention": _attention, "elementwise": _elementwise,
    "optimizer": _optimizer,
}  # fmt: skip
_MEMORY: Mapping[str, _Reason] = {
    "weights": _states(Sharding.ZERO3), "gradients": _states(Sharding.ZERO2),
    "weights_and_gradients": _states(Sharding.ZERO3), "optimizer": _optimizer,
    "activations": _activations,
}  # fmt: skip
