"""The plan as Megatron-LM arguments, after what Megatron cannot do has been changed and said.

Rules and flag names as in ``megatron/training/arguments.py``, ``core/transformer/transformer_config.py`` and
``core/parallel_state.py`` at tags core_v0.16.1 and core_v0.19.0.
"""

from __future__ import annotations

from meshplan.export.launch import Fitting
from meshplan.export.quoting import Option
from meshplan.model.layers import LatentAttention, Moe
from meshplan.plan.kinds import CpKind, Recompute, Schedule, Sharding
from meshplan.plan.plans import ALL_LAYERS, Plan
from meshplan.schedule.layout_string import even_split, write_layout

PP_BEFORE_DP = ("tp", "cp", "ep", "pp", "dp")
"""The order of ``--use-tp-pp-dp-mapping``."""
MODULES = {
    Recompute.CORE_ATTN: "core_attn",
    Recompute.NORM: "layernorm",
    Recompute.MOE_ACT: "moe_act",
    Recompute.MLA_UP_PROJ: "mla_up_proj",
    Recompute.MLP: "mlp",
    Recompute.MOE: "moe",
    Recompute.SHARED_EXPERTS: "shared_experts",
}
CP_KINDS = {
    CpKind.RING: "p2p",
    CpKind.ALL_GATHER: "all_gather",
    CpKind.ULYSSES: "a2a",
    CpKind.HIERARCHICAL: "a2a+p2p",
}
STRATEGIES = {Sharding.ZERO2: "optim_grads", Sharding.ZERO3: "optim_grads_params"}


def fit_megatron(fitting: Fitting) -> None:
    """Change what Megatron cannot run, and say so."""
    _fit_schedule(fitting)
    _fit_sequence_parallel(fitting)
    _fit_context_parallel(fitting)
    _fit_sharding(fitting)
    _fit_recompute(fitting)
    if fitting.plan.sharding >= Sharding.ZERO2:
        fitting.default_order("Megatron-FSDP has one order: tp-cp-ep-dp-pp")
    elif _flat(fitting.order) != _flat(PP_BEFORE_DP):
        fitting.default_order("Megatron has two orders: tp-cp-ep-dp-pp and tp-cp-ep-pp-dp")
    elif fitting.plan.pp > 1 and fitting.plan.edp != fitting.plan.dp:
        fitting.default_order("with pp inside dp Megatron needs the same dp in attention and experts")
    else:
        fitting.order = PP_BEFORE_DP


def _fit_schedule(fitting: Fitting) -> None:
    plan = fitting.plan
    usual = Schedule.INTERLEAVED if plan.vp > 1 else Schedule.ONE_F_ONE_B
    if plan.pp > 1 and plan.schedule is not usual:
        fitting.change(
            "schedule", usual.label, "Megatron has 1F1B and its interleaved form only",
            asked=plan.schedule.label, schedule=usual,
        )  # fmt: skip


def _fit_sequence_parallel(fitting: Fitting) -> None:
    plan = fitting.plan
    if any(isinstance(layer.mlp, Moe) for layer in fitting.job.model.layers) and plan.tp > 1 and not plan.sp:
        fitting.change(
            "sequence parallel", "on", "Megatron's MoE layers need it with tensor parallelism",
            asked="off", sp=True,
        )  # fmt: skip


def _fit_context_parallel(fitting: Fitting) -> None:
    plan = fitting.plan
    if plan.cp == 1:
        return
    if plan.cp_kind is CpKind.HIERARCHICAL and hierarchy(fitting) is None:
        fitting.change(
            "cp_kind", "ring", "no two sizes inside and between nodes multiply to cp and divide the heads",
            asked="hierarchical", cp_kind=CpKind.RING,
        )  # fmt: skip
    latent = any(isinstance(layer.attention, LatentAttention) for layer in fitting.job.model.layers)
    if latent and fitting.plan.cp_kind is CpKind.ALL_GATHER:
        fitting.change(
            "cp_kind", "ring", "Megatron gathers no keys and values of latent attention",
            asked="all-gather", cp_kind=CpKind.RING,
        )  # fmt: skip


def hierarchy(fitting: Fitting) -> tuple[int, int] | None:
    """Sizes of the all-to-all groups inside a node and of the rings between them."""
    plan, job = fitting.plan, fitting.job
    heads = {
        count // plan.tp
        for layer in job.model.layers
        if layer.attention
        for count in (layer.attention.heads, layer.attention.kv_heads)
    }
    room = max(1, job.gpus_per_node // plan.tp)
    sizes = [
        n for n in range(2, plan.cp)
        if plan.cp % n == 0 and n <= room and all(h % n == 0 for h in heads)
    ]  # fmt: skip
    return (sizes[-1], plan.cp // sizes[-1]) if sizes else None


def _fit_sharding(fitting: Fitting) -> None:
    plan = fitting.plan
    if plan.replicas == 1:
        return
    if plan.dp % plan.replicas or plan.edp % plan.replicas:
        fitting.change(
            "replicas", "1", "Megatron's optimizer instances must divide dp and expert dp",
            asked=str(plan.replicas), replicas=1,
        )  # fmt: skip


def _fit_recompute(fitting: Fitting) -> None:
    plan = fitting.plan
    if plan.recompute_layers == ALL_LAYERS:
        return
    lost = plan.recompute_modules & ~_available(fitting)
    if lost:
        names = " and ".join(m.name.lower().replace("_", "-") for m in Recompute if m & lost and m.name)
        fitting.change(
            f"recompute {names}", "kept", "Megatron cannot recompute it by itself in this model",
            asked="recomputed", recompute_modules=plan.recompute_modules & ~lost,
        )  # fmt: skip
    if plan.recompute_layers and fitting.plan.recompute_modules:
        fitting.change(
            "recompute", f"{plan.recompute_layers} whole layers, no modules",
            "Megatron recomputes whole layers or modules, not both",
            asked="whole layers and modules", recompute_modules=Recompute.NONE,
        )  # fmt: skip
    chunk = -(-fitting.plan.recompute_layers // plan.vp) * plan.vp
    if chunk != fitting.plan.recompute_layers:
        fitting.change(
            "recompute", f"{chunk} layers a rank",
            f"Megatron counts them for each of the {plan.vp} virtual stages",
            asked=f"{plan.recompute_layers} layers a rank", recompute_layers=chunk,
        )  # fmt: skip


def _available(fitting: Fitting) -> Recompute:
    layers = fitting.job.model.layers
    moe = [layer.mlp for layer in layers if isinstance(layer.mlp, Moe)]
    found = Recompute.CORE_ATTN | Recompute.NORM
    if len(moe) < len(layers):
        found |= Recompute.MLP
    if moe:
        found |= Recompute.MOE | Recompute.MOE_ACT
        if any(mlp.shared_width for mlp in moe):
            found |= Recompute.SHARED_EXPERTS
    if any(isinstance(layer.attention, LatentAttention) for layer in layers):
        found |= Recompute.MLA_UP_PROJ
    return found


def plan_options(fitting: Fitting) -> list[Option]:
    """Every argument about how the run is laid out, of a plan that ``fit_megatron`` went over."""
    plan = fitting.plan
    options: list[Option] = [("--tensor-model-parallel-size", str(plan.tp))]
    if plan.tp > 1 and plan.sp:
        options.append(("--sequence-parallel",))
    options.append(("--context-parallel-size", str(plan.cp)))
    if plan.cp > 1:
        options.append(("--cp-comm-type", CP_KINDS[plan.cp_kind]))
        sizes = hierarchy(fitting) if plan.cp_kind is CpKind.HIERARCHICAL else None
        if sizes:
            options.append(("--hierarchical-context-parallel-sizes", *map(str, sizes)))
    options.append(("--pipeline-model-parallel-size", str(plan.pp)))
    options += pipeline_options(plan, len(fitting.job.model.layers), len(fitting.job.model.mtp))
    options += [
        ("--expert-model-parallel-size", str(plan.ep)),
        ("--expert-tensor-parallel-size", str(plan.etp)),
    ]
    if fitting.order == PP_BEFORE_DP:
        options.append(("--use-tp-pp-dp-mapping",))
    return options


def pipeline_options(plan: Plan, layers: int, mtp_layers: int) -> list[Option]:
    """How layers go on stages: evenly, by the counts of the ends, or by a layout string."""
    if plan.pp == 1:
        return []
    stages = plan.layout or even_split(layers, plan.pp * plan.vp)
    if len(set(stages)) == 1:
        return [("--num-virtual-stages-per-pipeline-rank", str(plan.vp))] if plan.vp > 1 else []
    if plan.vp == 1 and plan.pp > 2 and len(set(stages[1:-1])) == 1 and min(stages) > 0:
        return [
            ("--decoder-first-pipeline-num-layers", str(stages[0])),
            ("--decoder-last-pipeline-num-layers", str(stages[-1])),
        ]
    return [("--pipeline-model-parallel-layout", write_layout(stages, mtp_layers=mtp_layers))]


def data_parallel_options(plan: Plan) -> list[Option]:
    """Sharding over data-parallel ranks and the overlaps that go with it."""
    if plan.sharding is Sharding.DDP:
        return [("--overlap-grad-reduce",)]
    options: list[Option] = [("--use-distributed-optimizer",)]
    if plan.sharding >= Sharding.ZERO2:
        options += [
            ("--use-megatron-fsdp",),
            ("--data-parallel-sharding-strategy", STRATEGIES[plan.sharding]),
            ("--ckpt-format", "fsdp_dtensor"),
        ]
    if plan.replicas > 1:
        options.append(("--num-distributed-optimizer-instances", str(plan.replicas)))
    return [*options, ("--overlap-grad-reduce",), ("--overlap-param-gather",)]


def offload_options(fitting: Fitting) -> list[Option]:
    """The optimizer's states in host memory, as far as the workload asks for it: a form of the
    precision-aware optimizer, which is a form of the distributed one."""
    workload = fitting.job.setting.workload
    if workload.offload != "optimizer":
        return []
    return [
        ("--optimizer-cpu-offload",), ("--optimizer-offload-fraction", str(workload.offload_fraction)),
        ("--use-precision-aware-optimizer",),
    ]  # fmt: skip


def recompute_options(plan: Plan) -> list[Option]:
    """What is recomputed in the backward pass."""
    if plan.recompute_layers == ALL_LAYERS:
        return [
            ("--recompute-granularity", "full"), ("--recompute-method", "uniform"),
            ("--recompute-num-layers", "1"),
        ]  # fmt: skip
    if plan.recompute_layers:
        return [
            ("--recompute-granularity", "full"), ("--recompute-method", "block"),
            ("--recompute-num-layers", str(plan.recompute_layers // plan.vp)),
        ]  # fmt: skip
    if plan.recompute_modules:
        names = [name for module, name in MODULES.items() if module & plan.recompute_modules]
        return [("--recompute-granularity", "selective"), ("--recompute-modules", *names)]
    return []


def _flat(order: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dim for dim in order if dim != "ep")
