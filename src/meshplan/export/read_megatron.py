"""Megatron-LM arguments read back into model, workload and plan.

Defaults and meanings as in ``megatron/training/arguments.py`` at core_v0.16.1 and core_v0.19.0.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from meshplan.errors import InputError, shown
from meshplan.export.found import Found, Settings
from meshplan.export.megatron_plan import CP_KINDS, MODULES, PP_BEFORE_DP, STRATEGIES
from meshplan.export.read_megatron_model import model_of_arguments
from meshplan.plan.kinds import CpKind, Recompute, Schedule, Sharding
from meshplan.plan.plans import ALL_LAYERS, DEFAULT_ORDER
from meshplan.schedule.layout_string import read_layout, split_with_ends

_KINDS = {**{name: kind for kind, name in CP_KINDS.items()}, "allgather": CpKind.ALL_GATHER}
_SHARDINGS = {
    **{name: sharding for sharding, name in STRATEGIES.items()}, "optim": Sharding.ZERO1,
    "no_shard": Sharding.DDP,
}  # fmt: skip
_MODULES = {name: module for module, name in MODULES.items()}
OWN = (
    "--num-layers", "--hidden-size", "--tensor-model-parallel-size", "--pipeline-model-parallel-size",
    "--micro-batch-size", "--global-batch-size", "--num-attention-heads", "--use-distributed-optimizer",
)  # fmt: skip
"""Flags by which Megatron arguments are recognised."""


@cache
def known_flags() -> frozenset[str]:
    """Every flag of the two parsers."""
    text = (Path(__file__).parent / "data" / "megatron_flags.txt").read_text(encoding="utf-8")
    return frozenset(line for line in text.splitlines() if line.startswith("--"))


def read_megatron(args: Settings, what: str, environment: dict[str, str]) -> Found:
    """What these arguments say. Raises ``InputError`` for values that make no sense."""
    found = Found(kind="megatron", what=what)
    found.model = model_of_arguments(args, found)
    _precision(args, found)
    found.seq = args.count("--seq-length")
    found.gbs = args.count("--global-batch-size")
    if args.has("--rampup-batch-size"):
        found.notes.append("the batch grows at first (--rampup-batch-size); the full batch is priced")
    mbs = args.count("--micro-batch-size")
    if mbs is None:
        found.problems.append("--micro-batch-size is missing, which Megatron requires")
        mbs = found.default("micro batch", 1)
    tp = args.count("--tensor-model-parallel-size") or found.default("tp", 1)
    cp = args.count("--context-parallel-size") or found.default("cp", 1)
    pp = args.count("--pipeline-model-parallel-size") or found.default("pp", 1)
    found.columns |= {
        "tp": tp, "cp": cp, "pp": pp, "mbs": mbs, "sp": bool(args.truth("--sequence-parallel")) or tp == 1,
    }  # fmt: skip
    if tp > 1 and not found.columns["sp"]:
        found.default("sequence parallel", "off")
    if cp > 1:
        found.columns["cp_kind"] = _cp_kind(args, found)
    _experts(args, found, tp)
    _pipeline(args, found, pp)
    _sharding(args, found)
    _recompute(args, found)
    _offload(args, found)
    _capacity(args, found)
    found.order = PP_BEFORE_DP if args.truth("--use-tp-pp-dp-mapping") else DEFAULT_ORDER
    found.connections = environment.get("CUDA_DEVICE_MAX_CONNECTIONS", "")
    for flag in args.twice:
        found.notes.append(f"{flag} is given twice; it does not bear on the plan, and the last value counts")
    found.unknown = [flag for flag in args.values if flag not in known_flags()]
    return found


def _precision(args: Settings, found: Found) -> None:
    fp8, recipe = args.text("--fp8-format"), args.text("--fp8-recipe")
    if args.has("--fp4-format"):
        found.precision = "nvfp4"
    elif fp8 is not None:
        found.precision = "mxfp8" if recipe == "mxfp8" else "fp8"
    elif args.truth("--bf16"):
        found.precision = "bf16"
    elif args.truth("--fp16"):
        found.precision = "fp16"
    else:
        found.precision = found.default("precision", "fp32")
    if args.truth("--bf16") and args.truth("--fp16"):
        found.problems.append("--bf16 and --fp16 exclude each other")


def _cp_kind(args: Settings, found: Found) -> CpKind:
    value = args.raw("--cp-comm-type")
    if value is None:
        return found.default("context parallel", CpKind.RING)  # type: ignore[no-any-return]
    kinds = value if isinstance(value, list) else [value]
    for kind in kinds:
        if kind not in _KINDS:
            raise InputError(f"--cp-comm-type must be one of {', '.join(_KINDS)}, not {shown(kind)}")
    if len(set(kinds)) > 1:
        found.notes.append("--cp-comm-type differs from layer to layer; the first is priced")
    if kinds[0] == "a2a+p2p" and not args.has("--hierarchical-context-parallel-sizes"):
        found.problems.append("--cp-comm-type a2a+p2p needs --hierarchical-context-parallel-sizes")
    return _KINDS[kinds[0]]


def _experts(args: Settings, found: Found, tp: int) -> None:
    ep = args.count("--expert-model-parallel-size")
    etp = args.count("--expert-tensor-parallel-size")
    moe = args.has("--num-experts")
    if moe and ep is None:
        ep = found.default("ep", 1)
    if moe and etp is None:
        etp = found.default("etp", tp)  # Megatron's default is tp, a common surprise
    if not moe and ep not in (None, 1):
        found.problems.append(f"--expert-model-parallel-size {ep} needs --num-experts")
    found.columns |= {"ep": ep or 1, "etp": (etp or 1) if moe else 1}


def _offload(args: Settings, found: Found) -> None:
    if not args.truth("--optimizer-cpu-offload"):
        return
    if not args.truth("--use-precision-aware-optimizer"):
        found.problems.append("--optimizer-cpu-offload needs --use-precision-aware-optimizer")
    if not args.truth("--use-distributed-optimizer"):
        found.problems.append("--use-precision-aware-optimizer needs --use-distributed-optimizer")
    share = args.number("--optimizer-offload-fraction", 0.0, 1.0)
    share = float(found.default("offloaded share", 1.0)) if share is None else share
    if share > 0:
        found.offload, found.offload_fraction = "optimizer", share


def _capacity(args: Settings, found: Found) -> None:
    """Experts padded to their capacity compute that much; those that only drop what is above it compute what
    routing sends them, taken as balanced."""
    capacity = args.number("--moe-expert-capacity-factor", -1e9, 1e9)
    padded = bool(args.truth("--moe-pad-expert-input-to-capacity"))
    if capacity is None or capacity < 0:  # Megatron takes a negative one for none
        if padded:
            found.problems.append("--moe-pad-expert-input-to-capacity needs --moe-expert-capacity-factor")
        return
    found.capacity_factor = capacity
    if not padded:
        found.moe_imbalance = float(found.default("MoE imbalance", 1.0))


def _pipeline(args: Settings, found: Found, pp: int) -> None:
    layout, per_stage = (
        args.text("--pipeline-model-parallel-layout"),
        args.count("--num-layers-per-virtual-pipeline-stage"),
    )
    stages = args.count("--num-virtual-stages-per-pipeline-rank")
    first = args.count("--decoder-first-pipeline-num-layers")
    last = args.count("--decoder-last-pipeline-num-layers")
    ways = [layout is not None, per_stage is not None, stages is not None]
    if sum(ways) > 1:
        found.problems.append("only one of layout, layers per virtual stage and virtual stages may be given")
    layers = len(found.model.layers) if found.model else 0
    vp, counts = 1, None
    ends = int(bool(args.truth("--account-for-embedding-in-pipeline-split")))
    tail = int(bool(args.truth("--account-for-loss-in-pipeline-split")))
    if layout is not None:
        read = read_layout(layout)
        vp, counts = max(1, len(read.layers) // pp), read.layers
        if len(read.layers) % pp:
            found.problems.append(f"the layout has {len(read.layers)} stages, which pp {pp} does not divide")
            vp, counts = 1, None
        elif sum(read.layers) != layers:
            found.problems.append(f"the layout has {sum(read.layers)} layers, and the model {layers}")
            counts = None
    elif per_stage is not None and pp > 0:
        each, odd = divmod(layers + ends + tail, pp)
        if odd or each % per_stage:
            found.problems.append(
                f"{per_stage} layers a virtual stage do not divide"
                f" the {(layers + ends + tail) / pp:g} layers of a rank"
            )
        vp = max(1, each // per_stage)
    elif stages is not None:
        vp = stages
    if counts is None and (first or last or ends or tail) and pp > 1:
        counts = _ends(found, layers, pp, vp, first, last, ends, tail)
    elif counts is None and layers % pp:
        found.problems.append(
            f"{layers} layers do not divide over pp {pp} (give the counts of the ends, or a layout)"
        )
    elif counts is None and layers % (pp * vp):
        found.problems.append(f"{layers // pp} layers a rank do not divide over {vp} virtual stages")
    if vp > 1 and args.truth("--no-overlap-p2p-communication") and pp <= 2:
        found.problems.append("interleaved stages without overlapped point-to-point need pp above 2")
    if vp > 1 and pp == 1:
        found.problems.append("virtual stages need pp above 1")
        vp, counts = 1, None
    found.columns |= {
        "vp": vp, "layout": counts, "schedule": Schedule.INTERLEAVED if vp > 1 else Schedule.ONE_F_ONE_B,
    }  # fmt: skip


def _ends(
    found: Found, layers: int, pp: int, vp: int, first: int | None, last: int | None, ends: int, tail: int
) -> tuple[int, ...] | None:
    """Layers of each stage from the counts of the ends, or with embedding and loss counted as a layer."""
    try:
        if first or last:
            return split_with_ends(layers, ranks=pp, vp=vp, first=first, last=last)
        counts = list(split_with_ends(layers + ends + tail, ranks=pp, vp=vp))
    except InputError as error:
        found.problems.append(str(error))
        return None
    counts[0] -= ends
    counts[-1] -= tail
    return tuple(counts)


def _sharding(args: Settings, found: Found) -> None:
    replicas = args.count("--num-distributed-optimizer-instances") or 1
    sharding = Sharding.DDP
    if args.truth("--use-distributed-optimizer"):
        sharding = Sharding.ZERO1
    if args.truth("--use-megatron-fsdp") or args.truth("--use-custom-fsdp"):
        sharding = args.choice("--data-parallel-sharding-strategy", _SHARDINGS)
        sharding = found.default("sharding", Sharding.ZERO3) if sharding is None else sharding
        if args.text("--ckpt-format") != "fsdp_dtensor":
            found.problems.append("--use-megatron-fsdp needs --ckpt-format fsdp_dtensor")
    elif args.truth("--use-torch-fsdp2"):
        sharding = Sharding.ZERO2 if args.truth("--torch-fsdp2-no-reshard-after-forward") else Sharding.ZERO3
        for flag, why in (("pp", "pipeline"), ("ep", "expert")):
            if found.columns[flag] > 1:
                found.problems.append(f"--use-torch-fsdp2 does not work with {why} parallelism")
        if args.truth("--use-distributed-optimizer"):
            found.problems.append("--use-torch-fsdp2 does not work with --use-distributed-optimizer")
    if sharding is Sharding.DDP:
        found.default("sharding", sharding)
    if args.truth("--overlap-param-gather") and sharding is Sharding.DDP:
        found.problems.append("--overlap-param-gather needs --use-distributed-optimizer")
    if args.truth("--overlap-param-gather") and not args.truth("--overlap-grad-reduce"):
        found.problems.append("--overlap-param-gather needs --overlap-grad-reduce")
    found.columns |= {"sharding": sharding, "replicas": replicas}


def _recompute(args: Settings, found: Found) -> None:
    granularity = args.text("--recompute-granularity")
    if granularity is None and args.truth("--recompute-activations"):
        granularity = "selective"
    method, count = args.text("--recompute-method"), args.count("--recompute-num-layers")
    layers, modules = 0, Recompute.NONE
    if granularity == "full":
        if method is None:
            found.problems.append("--recompute-granularity full needs --recompute-method")
        if count is None:
            found.problems.append("--recompute-granularity full needs --recompute-num-layers")
        layers = ALL_LAYERS if method != "block" else (count or 0) * found.columns["vp"]
        if method == "uniform" and (count or 1) > 1:
            found.notes.append(f"layers are recomputed in groups of {count}; priced one by one")
    elif granularity == "selective":
        if method is not None or count is not None:
            found.problems.append("--recompute-granularity selective takes no method and no number of layers")
        names: Any = args.raw("--recompute-modules")
        names = (
            names if isinstance(names, list) else [names or found.default("recomputed module", "core_attn")]
        )
        for name in names:
            if name not in _MODULES:
                raise InputError(
                    f"--recompute-modules must be among {', '.join(_MODULES)}, not {shown(name)}"
                )
            modules |= _MODULES[name]
    elif granularity is not None:
        raise InputError(f"--recompute-granularity must be full or selective, not {shown(granularity)}")
    else:
        found.default("recompute", "none")
    found.columns |= {"recompute_layers": layers, "recompute_modules": modules}
