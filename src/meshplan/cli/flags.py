"""The flags of one planning question, shared by every command that asks one.

A command takes ``ClusterFlags``, ``WorkloadFlags`` and ``SpaceFlags`` as parameters; cyclopts shows their
fields as its own flags. A flag that was not given is ``None``, so that a job file can supply it.
"""

from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, get_args

from cyclopts import Group, Parameter

from meshplan.cli.options import (
    Framework,
    OptionalCount,
    option,
    read_degree,
    read_dims,
    read_factor,
    read_gpus,
    read_kind,
    read_recompute,
    read_switch,
    read_word,
)
from meshplan.errors import InputError
from meshplan.plan.kinds import CpKind, Recompute, Schedule, Sharding
from meshplan.plan.space import Layout
from meshplan.search.objective import Objective

Precision = Literal["bf16", "fp16", "fp8", "mxfp8", "nvfp4", "fp32"]
Factor = Annotated[float | None, option(read_factor)]
Degrees = Annotated[tuple[int, ...] | None, option(read_degree, many=True)]
Schedules = Annotated[tuple[Schedule, ...] | None, option(read_kind(Schedule), many=True, metavar="NAME")]
Shardings = Annotated[tuple[Sharding, ...] | None, option(read_kind(Sharding), many=True, metavar="NAME")]
Recomputes = Annotated[
    tuple[tuple[int, Recompute], ...] | None, option(read_recompute, many=True, metavar="HOW")
]
# of int, which bool is one of: a bool would be a flag without a value
Switches = Annotated[tuple[int, ...] | None, option(read_switch, many=True, metavar="on|off")]
CpKinds = Annotated[tuple[CpKind, ...] | None, option(read_kind(CpKind), many=True, metavar="NAME")]
Order = Annotated[tuple[str, ...] | None, option(read_dims, metavar="DIMS")]
Orders = Annotated[tuple[tuple[str, ...], ...] | None, option(read_dims, many=True, metavar="DIMS")]
Precisions = Annotated[
    tuple[str, ...] | None, option(read_word(get_args(Precision)), many=True, metavar="NAME")
]
Layouts = Annotated[
    tuple[Layout, ...] | None, option(read_word(get_args(Layout)), many=True, metavar="even|auto")
]
WORKLOAD = Group("Workload", sort_key=2)
SPACE = Group("Space (one value, or values to try: 2,4,8)", sort_key=3)


@Parameter(name="*", group=Group("Cluster", sort_key=1))
@dataclass(kw_only=True)
class ClusterFlags:
    """What the run is planned for."""

    gpu: Annotated[str | None, Parameter(metavar="NAME", help="GPU preset; see `meshplan gpus`.")] = None
    gpus: Annotated[int | None, option(read_gpus), Parameter(help="Number of GPUs.")] = None
    gpus_per_node: Annotated[OptionalCount, Parameter(help="GPUs in a node (default: the GPU's own).")] = None
    nic: Annotated[
        str | None, Parameter(metavar="RATE", help="Network of a GPU, one direction: '400 Gb/s', '50 GB/s'.")
    ] = None
    cluster: Annotated[
        str | None, Parameter(help="Cluster file (YAML or TOML) instead of the flags above.")
    ] = None


@dataclass(kw_only=True)
class _Tokens:
    seq: Annotated[OptionalCount, Parameter(help="Tokens in a sequence.")] = None
    gbs: Annotated[OptionalCount, Parameter(help="Sequences in the global batch.")] = None


@dataclass(kw_only=True)
class _Habits:
    offload: Annotated[
        Literal["none", "optimizer"] | None,
        Parameter(
            metavar="WHAT", help="optimizer: its states in host memory, stepped by the host (default: none)."
        ),
    ] = None
    offload_fraction: Annotated[
        Factor,
        Parameter(help="How much of the optimizer's states --offload optimizer takes (default: all, 1)."),
    ] = None
    moe_imbalance: Annotated[
        Factor,
        Parameter(
            help="Tokens of the fullest expert rank over the mean (default: 1, as published benchmarks"
            " force balance)."
        ),
    ] = None
    capacity_factor: Annotated[
        Factor,
        Parameter(
            help="Tokens an expert takes at most, over the mean: padded to it, unless --moe-imbalance is less"
            " (default: no limit)."
        ),
    ] = None


@Parameter(name="*", group=WORKLOAD)
@dataclass(kw_only=True)
class HabitFlags(_Habits):
    """What else a step does, where the command has its own numbers of tokens."""


@Parameter(name="*", group=WORKLOAD)
@dataclass(kw_only=True)
class WorkloadFlags(_Habits, _Tokens):
    """What one step trains on."""

    precision: Annotated[
        Precision | None, Parameter(metavar="NAME", help="Of the matrix multiplications (default: bf16).")
    ] = None


@Parameter(name="*", group=WORKLOAD)
@dataclass(kw_only=True)
class WorkloadsFlags(_Habits, _Tokens):
    """The same in several precisions."""

    precision: Annotated[
        Precisions, Parameter(help="Of the matrix multiplications (default: bf16); several are compared.")
    ] = None


@dataclass(kw_only=True)
class _Dimensions:
    tp: Annotated[Degrees, Parameter(help="Tensor parallel.")] = None
    sp: Annotated[Switches, Parameter(help="Sequence parallel beside tp: on, off, or both.")] = None
    cp: Annotated[Degrees, Parameter(help="Context parallel.")] = None
    cp_kind: Annotated[
        CpKinds, Parameter(help=f"Exchange of context parallel: {', '.join(k.label for k in CpKind)}.")
    ] = None
    pp: Annotated[Degrees, Parameter(help="Pipeline parallel.")] = None
    dp: Annotated[Degrees, Parameter(help="Data parallel.")] = None
    vp: Annotated[Degrees, Parameter(help="Virtual stages of a pipeline rank.")] = None
    ep: Annotated[Degrees, Parameter(help="Expert parallel.")] = None
    etp: Annotated[Degrees, Parameter(help="Tensor parallel of the experts.")] = None
    mbs: Annotated[Degrees, Parameter(help="Sequences in a micro-batch.")] = None
    schedule: Annotated[
        Schedules, Parameter(help=f"Pipeline schedule: {', '.join(s.label for s in Schedule)}.")
    ] = None
    sharding: Annotated[Shardings, Parameter(help="Of data parallel: ddp, zero1, zero2, zero3.")] = None
    replicas: Annotated[Degrees, Parameter(help="Copies of the shards over data parallel (HSDP).")] = None
    recompute: Annotated[
        Recomputes,
        Parameter(
            help="auto, none, all, a number of layers a stage, or modules joined by + (core-attn, norm, mlp,"
            " …; operators is torchtitan's selective)."
        ),
    ] = None


@Parameter(name="*", group=SPACE)
@dataclass(kw_only=True)
class SpaceFlags(_Dimensions):
    """The plans to look at; a dimension not given takes every sensible value."""

    order: Annotated[Order, Parameter(help="Dimensions from inside out, such as tp-cp-ep-dp-pp.")] = None


@Parameter(name="*", group=SPACE)
@dataclass(kw_only=True)
class SpacesFlags(_Dimensions):
    """The same in several orders."""

    order: Annotated[
        Orders, Parameter(help="Dimensions from inside out (default: tp-cp-ep-dp-pp); several are compared.")
    ] = None
    layout: Annotated[
        Layouts, Parameter(help="Layers of stages: even, or auto: as the busiest rank has least to do.")
    ] = None


@Parameter(name="*", group=SPACE)
@dataclass(kw_only=True)
class SizeFlags:
    """How many plans to look at, and for whom."""

    space: Annotated[
        Literal["plain", "small", "full"] | None,
        Parameter(
            metavar="SIZE",
            help="plain: degrees alone; small: also virtual stages and FSDP; full: every choice"
            " (default: small, for handbook plain).",
        ),
    ] = None
    framework: Annotated[
        Framework | None, Parameter(metavar="NAME", help="Only what this framework can run; any: no limit.")
    ] = None


FrameworkName = Annotated[
    Framework | None,
    Parameter(
        metavar="NAME",
        help="Whose software runs the plan, and does what is not said of it in its own way: any, megatron,"
        " torchtitan … (default: the job file's, or any).",
    ),
]
StackName = Annotated[
    str | None,
    Parameter(
        metavar="NAME",
        help="Software that the full cost model assumes: megatron-core-2025, torchtitan, deepspeed …"
        " (default: the job file's, or that of --framework).",
    ),
]
ObjectiveName = Annotated[
    Objective | None,
    Parameter(
        metavar="NAME",
        help="What ranks the plans: step, mfu or cost (on one cluster the same order), memory (the least on"
        " the fullest GPU), simplicity (the fewest things that must work) (default: step).",
    ),
]


HABITS = ("offload", "offload_fraction", "moe_imbalance", "capacity_factor")
"""Flags of a workload beside its size and precision."""


def habits(flags: Any) -> dict[str, Any]:
    """Those of ``HABITS`` that were given."""
    return {name: value for name, value in given(flags).items() if name in HABITS}


def no_habits(flags: Any, why: str) -> None:
    """Raises ``InputError`` where one of ``HABITS`` was given to a command that has no use for it."""
    for name in habits(flags):
        raise InputError(f"--{name.replace('_', '-')} has no meaning here: {why}")


def given(flags: Any) -> dict[str, Any]:
    """The fields of a group of flags that were given."""
    return {f.name: getattr(flags, f.name) for f in fields(flags) if getattr(flags, f.name) is not None}
