"""The plans a search looks at: for every dimension the values to try."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from meshplan.errors import InputError
from meshplan.model.layers import LatentAttention, Mlp, Moe
from meshplan.model.model import Model
from meshplan.plan.divisors import divisors
from meshplan.plan.frameworks import framework_values, usual_shardings
from meshplan.plan.kinds import CpKind, Recompute, Schedule, Sharding
from meshplan.plan.plans import AUTO_LAYERS, DEFAULT_ORDER
from meshplan.plan.rules.rule import Setting

DEGREES = ("tp", "cp", "pp", "dp", "ep", "etp", "vp", "mbs")
CHOICES = ("sp", "cp_kind", "schedule", "layout", "sharding", "replicas", "recompute")
Size = Literal["plain", "small", "full"]
SIZES: tuple[Size, ...] = ("plain", "small", "full")
Layout = Literal["even", "auto"]

MOST_TOKENS = 65536
"""Tokens in a micro-batch that the small and the full space try at most, unless few sequences have more."""
LEAST_TOKENS = 256
"""Tokens that a context-parallel rank keeps at least there."""
LEAST_BATCH = 8
"""Sequences in a micro-batch that the small and the full space try at least, however long they are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Space:
    """Values to try for each dimension, in the order to try them.

    Degrees and ``replicas`` may be ``None``: every sensible one. Sensible are all divisors, not powers of
    two only: of the GPUs (``tp``, ``cp``, ``pp``, ``etp``), of the experts (``ep``), of the global batch
    (``mbs``); as far as ``size`` goes. ``dp`` is what the others leave; values given for it keep only plans
    with one of them. Raises ``InputError`` for an empty list, a value below 1, an unknown size or an order
    that is not one of the dimensions.
    """

    tp: tuple[int, ...] | None = None
    sp: tuple[bool, ...] = (True,)
    """Sequence parallelism beside ``tp``."""
    cp: tuple[int, ...] | None = None
    cp_kind: tuple[CpKind, ...] = (CpKind.RING,)
    pp: tuple[int, ...] | None = None
    dp: tuple[int, ...] | None = None
    ep: tuple[int, ...] | None = None
    etp: tuple[int, ...] | None = None
    vp: tuple[int, ...] | None = (1,)
    mbs: tuple[int, ...] | None = None
    schedule: tuple[Schedule, ...] = (Schedule.ONE_F_ONE_B,)
    layout: tuple[Layout, ...] = ("auto",)
    """``even``: stages of as many layers, which must divide; ``auto``: cut so that the busiest rank has
    least to do, where the cost model can (else even)."""
    sharding: tuple[Sharding, ...] = (Sharding.ZERO1,)
    replicas: tuple[int, ...] | None = (1,)
    """Copies of the shards (HSDP)."""
    recompute: tuple[tuple[int, Recompute], ...] = ((AUTO_LAYERS, Recompute.NONE),)
    """Pairs of layers a stage recomputes whole (``AUTO_LAYERS``: as few as fit) and modules."""
    order: tuple[str, ...] = DEFAULT_ORDER
    """Dimensions from inside out."""
    size: Size = "plain"
    """How far the degrees go that are ``None``: see ``of``."""
    framework: str = "any"
    """Whose rules the plans must satisfy."""

    def __post_init__(self) -> None:
        for name in (*DEGREES, *CHOICES):
            values = getattr(self, name)
            if values is not None and not values:
                raise InputError(f"{name}: no values to try")
            if name in (*DEGREES, "replicas") and values is not None and min(values) < 1:
                raise InputError(f"{name} must be at least 1, not {min(values)}")
        if self.size not in SIZES:
            raise InputError(f"space must be one of {', '.join(SIZES)}, not '{self.size}'")
        if sorted(self.order) != sorted(DEFAULT_ORDER):
            raise InputError(
                f"order must name each of {', '.join(DEFAULT_ORDER)} once, not {'-'.join(self.order)}"
            )

    @classmethod
    def handbook(cls) -> Space:
        """The textbook's own small space: powers of two, one sequence a micro-batch."""
        return cls(
            tp=(1, 2, 4, 8),
            cp=(1, 2, 4, 8, 16, 32),
            pp=(1, 2, 4, 8, 16),
            ep=(1,),
            etp=(1,),
            mbs=(1,),
        )

    @classmethod
    def of(cls, size: Size, model: Model, framework: str = "any", **given: Any) -> Space:
        """A space of a size for a model, with some dimensions ``given``, within what a framework can express.

        ``plain``: every divisor as a degree, 1F1B, ZeRO-1, as few layers recomputed as fit. ``small``: what
        people run: tp inside a node, virtual stages, micro-batches of up to 65,536 tokens or eight
        sequences, 256 or more tokens on a context-parallel rank, FSDP beside ZeRO-1, or the shardings that
        a framework has instead. ``full``: every choice there is within these limits: all schedules, kinds
        of context parallelism, shardings with their replicas, etp, sets of modules to recompute.
        """
        found: dict[str, Any] = {}
        if size != "plain":
            found = {"vp": None, "etp": None if size == "full" else (1,)}
        if size == "small":
            found |= {
                "schedule": (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED),
                "sharding": usual_shardings(framework),
            }
        if size == "full":
            found |= {
                "sp": (True,),
                "cp_kind": tuple(CpKind),
                "schedule": (Schedule.ONE_F_ONE_B, *(s for s in Schedule if s is not Schedule.ONE_F_ONE_B)),
                "sharding": (Sharding.ZERO1, Sharding.ZERO3, Sharding.ZERO2, Sharding.DDP),
                "replicas": None,
                "recompute": tuple((AUTO_LAYERS, modules) for modules in module_sets(model)),
            }
        for name, limit in framework_values(framework).items():
            tried = found.get(name, getattr(cls(), name))
            if name == "recompute" and size == "full":
                kept = tuple(how for how in limit if set(how[1]) <= set(_modules(model)))
            else:
                kept = limit if tried is None else tuple(value for value in tried if value in limit)
            found[name] = kept or limit
        return cls(**{**found, **given}, size=size, framework=framework)

    @property
    def chosen(self) -> frozenset[str]:
        """Degrees whose values were given."""
        return frozenset(name for name in DEGREES if getattr(self, name) is not None)

    def values(self, setting: Setting) -> Mapping[str, tuple[Any, ...]]:
        """The values of every dimension for this setting; ``dp`` only where it was given."""
        found = {**_degrees(setting, self.size), **{name: getattr(self, name) for name in CHOICES}}
        given = {name: getattr(self, name) for name in (*DEGREES, "replicas")}
        found |= {name: values for name, values in given.items() if values is not None}
        if self.replicas is None:
            found["replicas"] = divisors(setting.cluster.gpus)
        return found


def _degrees(setting: Setting, size: Size) -> dict[str, tuple[Any, ...]]:
    """Values of the degrees that are left open, ``dp`` left out."""
    model, gpus, gbs = setting.model, setting.cluster.gpus, setting.workload.gbs
    seq, node = setting.workload.seq, setting.cluster.gpus_per_node
    all_degrees = divisors(gpus)
    experts = {layer.mlp.experts for layer in model.layers if isinstance(layer.mlp, Moe)}
    found: dict[str, tuple[Any, ...]] = {
        "tp": all_degrees,
        "cp": all_degrees,
        "pp": all_degrees,
        "ep": tuple(sorted({d for e in experts for d in divisors(e)})) or (1,),
        "etp": all_degrees if experts else (1,),
        "vp": divisors(len(model.layers)),
        "mbs": divisors(gbs),
    }
    if size == "plain":
        return found
    in_node = tuple(d for d in all_degrees if d <= node)
    found["tp"] = in_node if size == "small" else all_degrees
    found["cp"] = tuple(d for d in all_degrees if d == 1 or seq // d >= LEAST_TOKENS)
    found["etp"] = in_node if experts else (1,)
    found["vp"] = tuple(range(1, max(len(model.layers) // 2, 1) + 1))
    sequences = max(MOST_TOKENS // seq, LEAST_BATCH)
    found["mbs"] = tuple(b for b in found["mbs"] if b <= sequences)
    return found


def module_sets(model: Model) -> tuple[Recompute, ...]:
    """The sensible sets of modules to recompute: none; the cheap ones (norms, MLA's up-projections, the
    activation function) alone and together; the whole MLP or MoE block with the norms."""
    there = _modules(model)
    act = Recompute.MOE_ACT if Recompute.MOE_ACT in there else Recompute.MLP_ACT
    block = Recompute.MOE if Recompute.MOE in there else Recompute.MLP
    norm = Recompute.NORM | (there & Recompute.MLA_UP_PROJ)
    found = [Recompute.NONE, Recompute.NORM]
    found += [there & Recompute.MLA_UP_PROJ, norm] if norm is not Recompute.NORM else []
    found += [act, norm | act, norm | block] if block in there else []
    return tuple(found)


def _modules(model: Model) -> Recompute:
    """What the model has to recompute. The attention core is left out: FlashAttention keeps no scores."""
    found = Recompute.NORM | Recompute.OPERATORS
    for layer in model.kinds:
        if isinstance(layer.mlp, Mlp):
            found |= Recompute.MLP | Recompute.MLP_ACT
        if isinstance(layer.mlp, Moe):
            found |= Recompute.MOE | Recompute.MOE_ACT
        if isinstance(layer.attention, LatentAttention):
            found |= Recompute.MLA_UP_PROJ
    return found
