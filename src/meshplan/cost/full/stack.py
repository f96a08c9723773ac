"""A software stack: what a framework of some year does, as switches and a handful of named scalars."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from meshplan.errors import InputError, UnknownNameError, shown
from meshplan.files import read_text
from meshplan.plan.kinds import Sharding
from meshplan.plan.workload import Workload

_DATA = Path(__file__).parent.parent / "data" / "stacks"

FITTED: Mapping[str, tuple[str, ...]] = {
    "matmul": ("matmul", "recompute", "head and loss"),
    "grouped_rate": ("matmul",),
    "attention_rate": ("attention",),
    "memory_rate": ("elementwise", "optimizer", "head and loss"),
    "permute_rate": ("elementwise",),
    "network_rate": ("tp", "cp", "ep", "dp", "pp"),
    "scaleup_rate": ("tp", "cp", "ep", "dp"),
    "tp_exposed": ("tp",),
    "tp_wait_s": ("tp",),
    "ep_exposed": ("ep",),
    "fsdp_overlap": ("dp",),
    "cast_share": ("elementwise",),
    "kernel_gap_s": ("elementwise",),
    "host_layer_s": ("host",),
    "host_moe_s": ("host",),
    "host_overlap": ("host",),
    "host_backward": ("host",),
    "host_tp_s": ("host",),
    "host_micro_s": ("host",),
    "partial_graph_host": ("host",),
    "split_backward": ("host",),
    "step_s": ("step overhead",),
    "straggler": ("straggler",),
}
"""Scalars that published runs may set, and the parts of a step that each moves."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stack:
    """How one framework runs a layer. Shares are between 0 and 1, times in seconds.

    Every scalar marked *fitted* is shared by all runs of the stack and was fitted on published runs
    (``meshplan validate`` prints how many there are and the error they leave); ``sources`` says where
    each other one comes from.
    """

    name: str
    title: str
    family: str = "megatron"
    """``megatron``, ``torch`` (FSDP2, DTensor) or ``deepspeed``: whose memory habits it has."""
    attention: str = "flash"
    """``flash`` (the GPU's best), ``torch`` (the best that PyTorch brings), ``fa2``, ``fa1`` or ``unfused``
    (scores kept in memory)."""
    fused: bool = True
    """Element-wise operators fused (bias, GeLU or SwiGLU, dropout, add, rotary, norms)."""
    fused_norms: bool = True
    """Norms are one kernel even where other operators are not fused (PyTorch's RMSNorm since 2.9)."""
    dropout: bool = False
    vocabulary: str = ""
    """How tp shards it: ``padded`` to a multiple of 128 · tp (the default of Megatron's family), ``uneven``
    (of others: the first ranks hold a column more) or ``cut`` (what does not divide is dropped)."""
    head_overlap: bool = True
    """Of Megatron's family: the gradient of the head's input is reduced beside the product of its weights'
    gradient (Megatron-LM since September 2021, commit 16c90445e7)."""
    loss_bytes: float = 6.0
    """Bytes alive for each logit at the loss: fp32 copy and gradient (6), bf16 in place (2), or the
    chain of separate fp32 operators (10 to 12)."""
    loss_traffic: float = 30.0
    """Bytes the loss moves for each logit, forward and backward."""
    keeps_gathered: bool = True
    """Of the torch family: under a pipeline FSDP gathers weights once a step and keeps them (torchtitan),
    instead of once a micro-batch."""
    keeps_exchanged: bool = True
    """Of the torch family: checkpointing by operator keeps what experts' all-to-alls bring (torchtitan does
    since September 2025)."""
    traced: bool = False
    """Of the torch family: forward, loss and backward are one graph, in which a tensor goes with its last
    reader; otherwise Python functions hold theirs until they return."""
    gradient_dummies: bool = True
    """Weight-shaped buffers handed to autograd, and the head's, as gradients are added in the kernel."""
    fragmentation: float = 0.04
    """Memory the allocator cannot use, as a share of activations and workspaces."""
    cached: float = 0.06
    """Further memory it holds free as long as there is room, likewise: part of what a run reports as
    reserved, not of what it needs. 0.1 together in 46 runs of Megatron-LM that print what was reserved
    (zero-bubble and vocabulary-parallel papers)."""
    tp_wait_s: float = 0.0
    """*Fitted*: seconds that ranks wait for the last one in every tensor-parallel transfer, whatever its
    size."""
    tp_exposed: float = 1.0
    """Share of tensor-parallel transfer that no computing hides."""
    ep_exposed: float = 1.0
    experts_apart: bool = True
    """Of the torch family, unfused: experts' outputs are weighed by operators of their own, which keep them
    in fp32 and rows gathered and padded (torchtitan); not so in meshplan's reference engine."""
    cp_overlap: bool = True
    """Transfers of context parallelism run beside attention. Not where torch.compile traces them: it waits
    for each right where it starts (``_functional_collectives.py``)."""
    ring: str = "hops"
    """How ring attention moves keys and values: in ``hops`` from rank to rank, or ``gathered`` at once, with
    fp32 gradients in hops back (torch/distributed/tensor/experimental/_attention.py: all-gather is the
    default rotation)."""
    repeats_kv: bool = False
    """Keys and values are copied for every query head before attention (torchtitan until January 2026)."""
    joined_products: str = "all"
    """Which projections of one input are one product: ``all`` (q, k and v; gate and up), ``qkv``, ``none``.
    """
    dp_overlap: bool = True
    """Gradient reduction and parameter gathering hidden under the first and last micro-batch."""
    fsdp_overlap: float = 0.9
    """Share of FSDP's transfer time that may hide under computing of the same layer."""
    p2p_overlap: bool = True
    """Point-to-point hidden when stages are interleaved."""
    p2p_blocking: bool = False
    """A rank sends, receives and computes one after the other, whatever the schedule."""
    searches_order: bool = False
    """ZB-H2's order is searched for measured durations, and no rank waits for others before its optimizer
    step (the zero-bubble fork's ZB-2p)."""
    dispatcher: str = "all-to-all"
    """``all-to-all``: one copy a token and expert; ``dedup``: one a token and node (DeepEP, HybridEP)."""
    weight_bytes: float = 2.0
    """Bytes of the copy of a parameter that computing reads (1 where fp8 weights are primary)."""
    grouped: str = "streams"
    """How a rank's experts are multiplied: ``streams``, a product each on a few streams
    (TransformerEngine's GroupedLinear), ``fused``, one kernel for all, or ``block``, one that has the
    activation and the casts between the two products inside (TransformerEngine's fused grouped MLP)."""
    fp8_dispatch: bool = False
    grad_bytes: float = 4.0
    """Bytes kept for the gradient of a parameter, where the compute precision is not fp16."""
    grad_bytes_fp16: float = 0.0
    """The same for fp16, whose gradients are accumulated in fp16; 0: no difference."""
    sharding: str = ""
    """What plans shard unless told: ``zero1``, ``zero2`` or ``zero3``; empty: as the framework does."""
    zero2_whole_gradients: bool = False
    """With ZeRO-2 the whole gradient is held besides its shard, until all of it is scattered."""
    reduce_bytes: float = 4.0
    """Bytes a gradient element has on the wire."""
    act_input_bytes: float = 2.0
    """Bytes kept for an element that SwiGLU or GeLU reads: 1 where it is stored in fp8 (arXiv 2412.19437,
    3.3.3; ``activation_func_fp8_input_store`` of Megatron-Core)."""
    core_bytes: float = 2.0
    """Bytes kept for an element of attention's output: 1.5 in DeepSeek's E5M6."""
    offloads: bool = True
    """It can hold the optimizer's states in host memory by themselves; FSDP2 moves the weights too."""
    offloaded: float = 0.0
    """Share of the optimizer's states that host memory holds and the host steps (``optimizer_cpu_offload`` of
    Megatron-Core, ZeRO-Offload)."""
    host_memory: float = 200e9
    """Bytes/s of host memory that Adam gets on a host: assumed, half of two sockets of eight DDR4-3200
    channels (410 GB/s)."""
    clips: bool = True
    """Gradients are clipped by their global norm, which reads them once more."""
    optimizer_bytes: float = 12.0
    """Master weight and two moments, for each parameter."""
    matmul: float = 1.0
    """*Fitted*: sustained matrix-multiply rate over the measured short-burst rate."""
    grouped_rate: float = 1.0
    """*Fitted*: rate of the experts' products over what their curve and ``matmul`` say."""
    low_precision: str = "all"
    """Which products run in a workload's fp8 or fp4: ``all``, the ``experts`` or the ``linears`` alone."""
    attention_rate: float = 1.0
    """*Fitted*: the same for attention kernels."""
    memory_rate: float = 1.0
    """*Fitted*: sustained share of HBM bandwidth in element-wise operators."""
    permute_rate: float = 0.5
    """*Fitted*: share of HBM bandwidth that gathering and scattering the rows of routed tokens reaches (0.5
    measured on B200, 0.19 on A100: SimuMax, configs/system, commit 4dcaae5)."""
    network_rate: float = 1.0
    """*Fitted*: sustained share of the expected rate of collectives that cross nodes."""
    all_to_all_rate: float = 0.0
    """``network_rate`` of all-to-alls, where it is another; 0: the same."""
    scaleup_rate: float = 1.0
    """*Fitted*: sustained share of the measured rate of collectives inside a scale-up domain."""
    cast_share: float = 1.0
    """*Fitted*: share of the casts to fp8 or fp4 that no other operator does on the way."""
    kernel_gap_s: float = 0.0
    """*Fitted*: seconds the GPU idles between two kernels of a layer, launched though they are in time."""
    fp8_gathers: bool = False
    """Tensor parallelism gathers inputs and gradients after their cast to fp8 (torchao's tensorwise recipe,
    float8_tensor_parallel.py): half the bytes, and each rank casts its share."""
    fp8_rows: bool = False
    """fp8 with a scale a row (torchao's rowwise recipe): forward and the weight gradient read an input along
    different rows, so that each is cast twice, and weights with every micro-batch."""
    fp8_blocks: bool = False
    """fp8 with a scale a block (DeepSeek) instead of one a tensor."""
    host_layer_s: float = 0.5e-3
    """*Fitted*: seconds the host needs to launch one layer's forward pass."""
    host_moe_s: float = 1e-3
    """*Fitted*: the same for a mixture-of-experts layer."""
    overlaps_experts: bool = False
    """The all-to-all of one micro-batch runs under the computing of another; ``ep_exposed`` is what is
    left. Pairs of DualPipe then run as one piece of work (arXiv 2412.19437, 3.2.1)."""
    host_overlap: float = 1.0
    """*Fitted*: what the host needs for a layer cut into the pieces that overlap takes, as a multiple."""
    host_backward: float = 1.0
    """*Fitted*: the same for backward, as a multiple of forward."""
    host_tp_s: float = 0.0
    """*Fitted*: seconds a tensor-parallel collective costs on the host."""
    host_micro_s: float = 0.0
    """*Fitted*: seconds a micro-batch costs outside the layers (embedding, loss, schedule)."""
    one_by_one: bool = False
    """Steps were put together from layers timed one at a time: the host launches no layer ahead of another,
    and kernels run at the clock of short bursts."""
    synchronous: bool = False
    """The host computes itself (a CPU): what it needs to launch work is added to it, not hidden beside it."""
    split_backward: float = 1.0
    """*Fitted*: backward in two halves (zero-bubble schedules) over backward in one."""
    step_s: float = 0.0
    """*Fitted*: fixed seconds a step (data, logging, optimizer's host time)."""
    moe_imbalance: float = 1.0
    """Tokens of the fullest expert rank over the mean; 1 where the benchmark forces balance."""
    cuda_graph: str = "none"
    """``none``; ``partial`` (attention and router captured, experts launched); ``full`` (the host idles)."""
    partial_graph_host: float = 0.35
    """*Fitted*: share of the host's time that a partial CUDA graph leaves."""
    straggler: float = 0.0
    """Spread of GPU speed; the slowest of n sets the pace: 1 + spread · sqrt(2 ln n)."""
    sources: dict[str, str] = field(default_factory=dict)

    @property
    def usual_sharding(self) -> Sharding:
        """What plans shard unless told: what the stack says, else FSDP for torch and ZeRO-1 for others."""
        if self.sharding:
            return Sharding[self.sharding.upper()]
        return Sharding.ZERO3 if self.family == "torch" else Sharding.ZERO1

    @property
    def key(self) -> tuple[object, ...]:
        """All that prices depend on, as something hashable."""
        return tuple(getattr(self, f.name) for f in fields(self) if f.name != "sources")

    def for_precision(self, precision: str) -> Stack:
        """The stack as it trains in ``precision``."""
        if precision == "fp16" and self.grad_bytes_fp16:
            return replace(self, grad_bytes=self.grad_bytes_fp16)
        if precision == "fp16" and self.family == "megatron":
            # Only bf16 turns fp32 gradients on by itself (megatron/training/arguments.py).
            return replace(
                self, grad_bytes=min(self.grad_bytes, 2.0), reduce_bytes=min(self.reduce_bytes, 2.0)
            )
        if precision == "fp32":
            return replace(self, weight_bytes=4.0)
        return self

    def for_workload(self, workload: Workload) -> Stack:
        """The stack as it trains in the workload's precision, with its offload and its load of experts."""
        stack = self.for_precision(workload.precision)
        if workload.offload == "optimizer":
            stack = replace(stack, offloaded=workload.offload_fraction)
        load = workload.expert_load
        return stack if load is None else replace(stack, moe_imbalance=load)

    def on_cpu(self) -> Stack:
        """The stack where the processor that launches work also does it: nothing runs beside it. FSDP2 calls
        collectives on a stream of their own, and a CPU has none, so that each call waits (torch 2.13,
        ``distributed/fsdp/_fully_shard/_fsdp_collectives.py``: ``async_op=False``)."""
        return replace(self, synchronous=True, dp_overlap=False, fsdp_overlap=0.0, cp_overlap=False)

    @property
    def fitted(self) -> dict[str, float]:
        """The scalars of ``FITTED`` that are not at their neutral value, with their values."""
        neutral = {f.name: f.default for f in fields(self)}
        values = {name: getattr(self, name) for name in FITTED if name in neutral}
        return {name: value for name, value in values.items() if value != neutral[name]}

    def __post_init__(self) -> None:
        if self.vocabulary not in ("", "padded", "uneven", "cut"):
            raise InputError(f"stack {self.name}: vocabulary must be padded, uneven or cut")
        if self.ring not in ("hops", "gathered"):
            raise InputError(f"stack {self.name}: ring must be hops or gathered")
        if self.joined_products not in ("all", "qkv", "none"):
            raise InputError(f"stack {self.name}: joined_products must be all, qkv or none")
        if self.sharding not in ("", *(s.label for s in Sharding)):
            known = ", ".join(s.label for s in Sharding)
            raise InputError(
                f"stack {self.name}: sharding must be one of {known}, not {shown(self.sharding)}"
            )
        for name in (
            "tp_exposed",
            "offloaded",
            "ep_exposed",
            "fsdp_overlap",
            "cast_share",
            "matmul",
            "grouped_rate",
            "attention_rate",
            "memory_rate",
            "permute_rate",
            "network_rate",
            "scaleup_rate",
        ):
            value = getattr(self, name)
            if not (math.isfinite(value) and 0 <= value <= 1):
                raise InputError(f"stack {self.name}: {name} must be between 0 and 1, not {value}")
        for name in (
            "kernel_gap_s",
            "host_layer_s",
            "host_moe_s",
            "host_overlap",
            "host_backward",
            "host_tp_s",
            "host_micro_s",
            "tp_wait_s",
            "step_s",
            "straggler",
        ):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise InputError(f"stack {self.name}: {name} must be a time of at least 0, not {value}")


def stack_names() -> tuple[str, ...]:
    """Names of the stacks that ship with meshplan."""
    return tuple(sorted(file.stem for file in _DATA.glob("*.toml")))


@lru_cache(maxsize=64)
def load_stack(name: str) -> Stack:
    """The stack called ``name``, or the file ``….toml``. Raises ``UnknownNameError``, or ``InputError`` for a
    bad file."""
    if name.endswith(".toml"):
        where = f"stack file {shown(name, 200)}"
        try:
            table = tomllib.loads(read_text(name, limit_bytes=1 << 20, what="stack file"))
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise InputError(f"{where} is not valid TOML: {error}") from None
        return stack_from(table, where=where)
    if name not in stack_names():
        raise UnknownNameError("stack", name, stack_names(), f"known: {', '.join(stack_names())}")
    text = (_DATA / f"{name}.toml").read_text(encoding="utf-8")
    return stack_from(tomllib.loads(text), where=f"stack file {name}.toml")


def stack_from(table: dict[str, Any], *, where: str) -> Stack:
    """A stack from a table with strict keys and types."""
    known = {f.name: f for f in fields(Stack)}
    for key, value in table.items():
        if key not in known:
            raise InputError(f"{where}: unknown key '{key}'; known keys are {', '.join(known)}")
        default = known[key].default
        if isinstance(default, bool) != isinstance(value, bool) and default is not MISSING:
            raise InputError(
                f"{where}: {key} must be {'true or false' if isinstance(default, bool) else 'a number'}"
            )
        if isinstance(default, str) and not isinstance(value, str):
            raise InputError(f"{where}: {key} must be text, not {value!r}")
        if isinstance(default, float) and not isinstance(value, int | float):
            raise InputError(f"{where}: {key} must be a number, not {value!r}")
    for key in ("name", "title"):
        if key not in table:
            raise InputError(f"{where}: {key} is missing")
    return Stack(**table)
