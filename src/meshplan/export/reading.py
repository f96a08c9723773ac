"""From what a launch file says to model, cluster, workload and plan, every default filled in and marked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meshplan.cluster.cluster import Cluster
from meshplan.cluster.presets import cluster_of, load_gpu
from meshplan.errors import InputError
from meshplan.export.environment import BLACKWELL
from meshplan.export.found import Found
from meshplan.export.launch import plain
from meshplan.export.read_megatron_numerics import as_said, differing
from meshplan.model.load import load_model
from meshplan.model.model import Model
from meshplan.model.presets import preset, preset_names
from meshplan.plan.kinds import Sharding
from meshplan.plan.plans import DEFAULT_ORDER, Plan
from meshplan.plan.rules import FSDP_OFFLOAD, Rule, Setting, broken, framework_rules
from meshplan.plan.workload import Workload

GPU = "h100-sxm"
"""What is assumed where nothing names a GPU."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """What the user says besides the file; it wins over the file."""

    model: str | None = None
    cluster: Cluster | None = None
    gpu: str | None = None
    gpus: int | None = None
    gpus_per_node: int | None = None
    nic: str | None = None
    seq: int | None = None
    gbs: int | None = None
    precision: str | None = None
    offload: str | None = None
    offload_fraction: float | None = None
    moe_imbalance: float | None = None
    capacity_factor: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """A launch file understood: the question it asks and the plan it gives, and what is wrong with it."""

    kind: str
    what: str
    setting: Setting
    plan: Plan
    order: tuple[str, ...]
    defaults: dict[str, str]
    """What the file left open → the value taken."""
    unknown: tuple[str, ...]
    problems: tuple[str, ...]
    """Why it would not start, a sentence each."""
    notes: tuple[str, ...]
    stack: str | None = None
    """Software that meshplan was asked for when it wrote the file."""


def rules_of_file(kind: str) -> tuple[Rule, ...]:
    """What a plan must satisfy to start from a file of this framework: FSDP's own offload, which takes the
    weights too, is read as that of the optimizer."""
    return tuple(rule for rule in framework_rules(kind) if rule is not FSDP_OFFLOAD)


def resolve(found: Found, given: Given) -> Reading:
    """Fill in what is open. Raises ``InputError`` where the model cannot be known, or numbers are absurd."""
    model = _model(found, given)
    columns = dict(found.columns)
    ranks = columns["tp"] * columns["cp"] * columns["pp"]
    gpus = _gpus(found, given, ranks, columns)
    cluster = _cluster(found, given, gpus)
    dp, left = divmod(cluster.gpus, ranks)
    problems = list(found.problems)
    if left or dp == 0:
        problems.append(
            f"tp {columns['tp']} × cp {columns['cp']} × pp {columns['pp']} = {ranks:,}"
            f" does not divide {cluster.gpus:,} GPUs"
        )
    said = columns.get("dp")
    if said is not None and said != dp and not left and dp:
        problems.append(f"its batch sizes imply dp {said:,}, and {cluster.gpus:,} GPUs leave dp {dp:,}")
    columns["dp"] = max(1, dp)
    workload = _workload(found, given, columns)
    known = {name: value for name, value in columns.items() if value is not None}
    plan = Plan(**known)
    if plan.layout is not None and len(plan.layout) != plan.pp * plan.vp:
        plan = Plan(**{**known, "layout": None})
    setting = Setting(model, cluster, workload)
    if sum(plan.layout or (len(model.layers),)) != len(model.layers):
        problems.append(
            f"the stages hold {sum(plan.layout or ())} layers, and the model has {len(model.layers)}"
        )
        plan = Plan(**{**known, "layout": None})
    pp_inside = found.order is not None and found.order[-1] != "pp"
    if found.kind.startswith("megatron") and pp_inside and plan.pp > 1 and plan.edp != plan.dp:
        problems.append(
            "with pp inside dp Megatron needs the same dp in attention and experts,"
            f" not {plan.dp} and {plan.edp}"
        )
    _check_connections(found, plan, cluster, problems)
    problems += _broken(found.kind, setting, plan, problems)
    return Reading(
        kind=found.kind,
        what=found.what,
        setting=setting,
        plan=plain(plan, model),
        order=found.order or DEFAULT_ORDER,
        defaults=dict(found.defaults),
        unknown=tuple(found.unknown),
        problems=tuple(dict.fromkeys(problems)),
        notes=tuple(found.notes),
        stack=found.stack,
    )


def _check_connections(found: Found, plan: Plan, cluster: Cluster, problems: list[str]) -> None:
    """Megatron's own checks of ``CUDA_DEVICE_MAX_CONNECTIONS``; see ``environment``."""
    said = found.connections
    if said is None:
        return
    if plan.sharding >= Sharding.ZERO2:
        if said == "1":
            problems.append("FSDP refuses CUDA_DEVICE_MAX_CONNECTIONS=1")
        return
    if cluster.gpu.name in BLACKWELL or said == "1" or (plan.tp == 1 and plan.cp == 1):
        return
    if said:
        need = "tensor and context parallelism need 1 before Blackwell"
        problems.append(f"CUDA_DEVICE_MAX_CONNECTIONS is {said}; {need}")
    else:
        found.notes.append("CUDA_DEVICE_MAX_CONNECTIONS=1 is not in this file; GPUs before Blackwell need it")


def _model(found: Found, given: Given) -> Model:
    if given.model is not None:
        return load_model(given.model)
    if found.model is not None:
        return found.model if found.model.name != "model" else named(found)
    if found.model_name is not None:
        try:
            return load_model(found.model_name)
        except InputError:
            raise InputError(
                f"it trains {found.model_name!r}, which is not a known model; say which with --model"
            ) from None
    raise InputError("it does not say which model it trains; say which with --model")


def named(found: Found) -> Model:
    """The model under the name of the preset that has the same layers, if there is one.

    The name that meshplan wrote into the file is believed where the sizes agree; a vocabulary that the
    file leaves open is not compared.
    """
    from dataclasses import replace

    model = found.model
    assert model is not None
    open_vocab = "vocab" in found.defaults
    if found.model_name is not None:
        try:
            known = load_model(found.model_name)
        except InputError:
            known = None
        if known is not None and (len(known.layers), known.hidden) == (len(model.layers), model.hidden):
            return _with_notes(found, known)
    alike = [m for m in map(preset, preset_names()) if _same(model, m, open_vocab=open_vocab)]
    if open_vocab and len({m.vocab for m in alike}) > 1:
        names = ", ".join(m.name for m in alike)
        found.notes.append(
            f"the sizes are those of {names}, which differ in their vocabulary; --model says which"
        )
        alike = []
    if alike:
        if open_vocab:
            found.defaults["vocab"] = str(alike[0].vocab)
            found.notes = [note for note in found.notes if not note.startswith("the vocabulary")]
        return _with_notes(found, min(alike, key=lambda m: len(differing(model, m))))
    return replace(model, name=f"{len(model.layers)} layers of width {model.hidden}")


def _with_notes(found: Found, known: Model) -> Model:
    """The known model with what the file says of positions and norms, and a note where that is another."""
    assert found.model is not None
    clauses = differing(found.model, known)
    if clauses:
        found.notes.append(f"not as {known.name} was published: {'; '.join(clauses)}")
    return as_said(found.model, known)


def _same(a: Model, b: Model, *, open_vocab: bool) -> bool:
    """Whether two models have the same sizes, norms and positions aside."""
    return (
        a.hidden == b.hidden
        and len(a.layers) == len(b.layers)
        and (open_vocab or abs(a.vocab - b.vocab) <= 1)
        and a.tied_embeddings == b.tied_embeddings
        and all(
            _alike(x.attention, y.attention) and _alike(x.mlp, y.mlp)
            for x, y in zip(a.layers, b.layers, strict=True)
        )
    )


_COMPARED = (
    "heads", "kv_heads", "head_dim", "kv_rank", "q_rank", "width", "experts", "topk", "gated", "shared_width",
    "qkv_bias", "out_bias", "bias", "window",
)  # fmt: skip


def _alike(a: Any, b: Any) -> bool:
    return type(a) is type(b) and all(getattr(a, key, None) == getattr(b, key, None) for key in _COMPARED)


def _gpus(found: Found, given: Given, ranks: int, columns: dict[str, Any]) -> int:
    if given.cluster is not None:
        return given.cluster.gpus
    known = given.gpus or found.gpus
    if known is not None:
        return known
    if columns.get("dp"):
        return ranks * int(columns["dp"])
    experts = columns["pp"] * columns.get("ep", 1) * columns.get("etp", 1)
    guess = max(ranks, experts)
    node = given.gpus_per_node or found.gpus_per_node or load_gpu(given.gpu or found.gpu or GPU).gpus_per_host
    while guess % node or guess % ranks:
        guess += ranks
        if guess > 10**7:
            break
    return int(found.default("gpus", guess))


def _cluster(found: Found, given: Given, gpus: int) -> Cluster:
    if given.cluster is not None:
        return given.cluster
    gpu = given.gpu or found.gpu or found.default("gpu", GPU)
    per_node = given.gpus_per_node or found.gpus_per_node
    if per_node is not None and (gpus % per_node or per_node > gpus):
        per_node = None
    if per_node is None and gpus > 1:
        host = load_gpu(gpu).gpus_per_host
        if gpus > host and gpus % host:
            per_node = next(n for n in range(host, 0, -1) if gpus % n == 0)
    try:
        return cluster_of(gpu, gpus, gpus_per_node=per_node, nic=given.nic or found.nic)
    except InputError as error:
        raise InputError(f"its cluster: {error}") from None


def _workload(found: Found, given: Given, columns: dict[str, Any]) -> Workload:
    seq = given.seq or found.seq or found.default("seq", 4096)
    gbs = given.gbs or found.gbs
    if gbs is None:
        steps = found.accumulation or found.default("gradient accumulation", 1)
        gbs = found.default("gbs", columns["mbs"] * columns["dp"] * int(steps))
    offload = given.offload or found.offload or "none"
    return Workload(
        seq=int(seq),
        gbs=int(gbs),
        precision=given.precision or found.precision or "bf16",
        offload=offload,
        offload_fraction=given.offload_fraction
        or (found.offload_fraction if offload != "none" else None)
        or 1,
        moe_imbalance=given.moe_imbalance or found.moe_imbalance,
        capacity_factor=given.capacity_factor or found.capacity_factor,
    )


def _broken(kind: str, setting: Setting, plan: Plan, already: list[str]) -> list[str]:
    """Sentences of the framework's rules that the plan breaks, where no sentence says it yet."""
    wrong = broken(setting, plan, rules_of_file(kind))
    skip = {"gpus-product"} if any("GPUs" in text for text in already) else set()
    skip |= {"vp-fits-schedule"} if any("virtual" in text for text in already) else set()
    return [rule.explain(setting, plan) for rule in wrong if rule.id not in skip]
