"""The plans a search looks at: for every dimension the values to try."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshplan.errors import InputError
from meshplan.model.layers import Moe
from meshplan.plan.divisors import divisors
from meshplan.plan.kinds import Recompute, Schedule, Sharding
from meshplan.plan.plans import AUTO_LAYERS, DEFAULT_ORDER
from meshplan.plan.rules import Setting

DEGREES = ("tp", "cp", "pp", "dp", "ep", "etp", "vp", "mbs")


@dataclass(frozen=True, kw_only=True, slots=True)
class Space:
    """Values to try for each dimension, in the order to try them; ``None``: every sensible one.

    Sensible are all divisors, not powers of two only: of the GPUs (``tp``, ``cp``, ``pp``, ``etp``), of
    the experts (``ep``), of the layers (``vp``), of the global batch (``mbs``). ``dp`` is what the others
    leave; values given for it keep only plans with one of them. Raises ``InputError`` for an empty list,
    a value below 1 or an order that is not one of the dimensions.
    """

    tp: tuple[int, ...] | None = None
    cp: tuple[int, ...] | None = None
    pp: tuple[int, ...] | None = None
    dp: tuple[int, ...] | None = None
    ep: tuple[int, ...] | None = None
    etp: tuple[int, ...] | None = None
    vp: tuple[int, ...] | None = (1,)
    mbs: tuple[int, ...] | None = None
    schedule: tuple[Schedule, ...] = (Schedule.ONE_F_ONE_B,)
    sharding: tuple[Sharding, ...] = (Sharding.ZERO1,)
    recompute: tuple[tuple[int, Recompute], ...] = ((AUTO_LAYERS, Recompute.NONE),)
    """Pairs of layers a stage recomputes whole (``AUTO_LAYERS``: as few as fit) and modules."""
    order: tuple[str, ...] = DEFAULT_ORDER
    """Dimensions from inside out."""

    def __post_init__(self) -> None:
        for name in (*DEGREES, "schedule", "sharding", "recompute"):
            values = getattr(self, name)
            if values is not None and not values:
                raise InputError(f"{name}: no values to try")
            if name in DEGREES and values is not None and min(values) < 1:
                raise InputError(f"{name} must be at least 1, not {min(values)}")
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

    @property
    def chosen(self) -> frozenset[str]:
        """Dimensions whose values were given."""
        return frozenset(name for name in DEGREES if getattr(self, name) is not None)

    def values(self, setting: Setting) -> Mapping[str, tuple[int, ...]]:
        """The values of every dimension for this setting; ``dp`` only where it was given."""
        gpus = setting.cluster.gpus
        experts = {layer.mlp.experts for layer in setting.model.layers if isinstance(layer.mlp, Moe)}
        found = {
            "tp": self.tp or divisors(gpus),
            "cp": self.cp or divisors(gpus),
            "pp": self.pp or divisors(gpus),
            "ep": self.ep or tuple(sorted({d for e in experts for d in divisors(e)})) or (1,),
            "etp": self.etp or (divisors(gpus) if experts else (1,)),
            "vp": self.vp or divisors(len(setting.model.layers)),
            "mbs": self.mbs or divisors(setting.workload.gbs),
        }
        return found if self.dp is None else {**found, "dp": self.dp}
