"""The full cost model: layers are priced once a distinct combination, stages and steps composed of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from meshplan.cluster.cluster import Cluster
from meshplan.cluster.profile import Profile, profile_of
from meshplan.cost.costs import Costs, Floats
from meshplan.cost.full.alike import likeness
from meshplan.cost.full.context import Context
from meshplan.cost.full.cut import choose_layouts
from meshplan.cost.full.floor import floors, pipeline_floors
from meshplan.cost.full.layers import Priced, price_layers
from meshplan.cost.full.memory import gather_buffers, holdings, memory_limit, peak_of
from meshplan.cost.full.narrow import added
from meshplan.cost.full.stack import Stack, load_stack
from meshplan.cost.full.step import once, step_parts
from meshplan.cost.full.work import paces
from meshplan.errors import InputError
from meshplan.model.flops import flop_per_token
from meshplan.model.model import Model
from meshplan.plan.plans import AUTO_LAYOUT, Ints, Plans
from meshplan.plan.rules import FSDP_OFFLOAD, Rule
from meshplan.plan.workload import Workload

if TYPE_CHECKING:
    from meshplan.cost.full.pipeline import Pipelines

PEAK_OF = {"bf16": "bf16", "fp16": "bf16", "fp8": "fp8", "mxfp8": "fp8", "nvfp4": "fp4", "fp32": "fp32"}
"""The peak that MFU of a precision is measured against."""
BLOCK = 1 << 14
"""Most plans put together at once: their columns stay in a core's cache."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FullModel:
    """The default cost model: physics on the cluster's curves, with the habits of a software stack."""

    stack: Stack
    profile: Profile | None = None
    """Curves to use instead of the ones shipped for the cluster's GPU."""
    name: str = "full"
    chooses_layouts: bool = True
    """Plans whose layout is ``AUTO_LAYOUT`` get the cut of layers with the least busy busiest rank."""

    @classmethod
    def of(cls, stack: str = "megatron-core-2025") -> FullModel:
        """The full model with a stack that ships with meshplan."""
        return cls(stack=load_stack(stack))

    @property
    def rules(self) -> tuple[Rule, ...]:
        """What its software cannot do, whatever the framework that is asked for."""
        return () if self.stack.offloads else (FSDP_OFFLOAD,)

    def pipelines(self, model: Model, cluster: Cluster, workload: Workload, plans: Plans) -> Pipelines:
        """The pipelines of plans as priced, for the simulation: layouts and recomputed layers decided."""
        from meshplan.cost.full.pipeline import pipelines

        return pipelines(self._context(model, cluster, workload, plans, None))

    def floors(
        self, model: Model, cluster: Cluster, workload: Workload, plans: Plans
    ) -> tuple[Floats, Floats]:
        """Lower bounds of step time and memory for all plans on the same mesh; see ``floor.floors``."""
        return floors(self._context(model, cluster, workload, plans, None))

    def pipeline_floors(
        self, model: Model, cluster: Cluster, workload: Workload, plans: Plans, bar: float
    ) -> tuple[Floats, Plans]:
        """Lower bounds of step time for all plans with the same pipelines, and the plans with their layouts
        chosen; see ``floor.pipeline_floors``."""
        return pipeline_floors(self._context(model, cluster, workload, plans, None), bar)

    def floor(self, costs: Costs) -> Floats:
        """Seconds below which no simulation of these prices can be."""
        from meshplan.cost.full.pipeline import floor_seconds

        return floor_seconds(costs)

    def memory_limit(self, cluster: Cluster) -> float:
        """Bytes a plan may fill."""
        return memory_limit(cluster)

    def price(self, model: Model, cluster: Cluster, workload: Workload, plans: Plans) -> Costs:
        """Step time and peak memory of every plan."""
        return self.price_batches(model, cluster, workload, plans, None)

    def price_batches(
        self, model: Model, cluster: Cluster, workload: Workload, plans: Plans, gbs: Ints | None
    ) -> Costs:
        """The same where each plan has its own global batch, ``gbs`` sequences."""
        c = self._context(model, cluster, workload, plans, gbs)
        priced = price_layers(c)
        if (plans.layout == AUTO_LAYOUT).any():
            plans = choose_layouts(c, priced)
            c = replace(c, plans=plans)
        return _composed(c, priced)

    def gather_buffers(self, model: Model, cluster: Cluster, workload: Workload, plans: Plans) -> Floats:
        """Bytes that FSDP2's gathers reserve for each plan; see ``memory.gather_buffers``."""
        return gather_buffers(self._context(model, cluster, workload, plans, None))

    def _context(
        self, model: Model, cluster: Cluster, workload: Workload, plans: Plans, gbs: Ints | None
    ) -> Context:
        peaks = cluster.gpu.peak_flops
        # On a calibrated CPU every precision runs at the same rate.
        if workload.precision == "fp32" and peaks.get("bf16", 0.0) > peaks.get("fp32", 0.0):
            raise InputError("the full cost model does not price fp32 training; it does bf16, fp16 and fp8")
        only_fp16 = "fp16" in peaks and "bf16" not in peaks  # Volta and Turing
        lacks = only_fp16 and workload.precision == "bf16"
        if lacks or PEAK_OF[workload.precision] not in ("bf16", "fp32"):
            cluster.gpu.peak(workload.precision)
        stack = self.stack.for_workload(workload)
        return Context(
            model=model,
            cluster=cluster,
            workload=workload,
            plans=plans,
            stack=stack.on_cpu() if cluster.gpu.is_cpu else stack,
            profile=self.profile or profile_of(cluster.gpu),
            gbs=gbs,
        )


def _blocks(plans: int) -> list[slice]:
    """Rows of a table in equal blocks of at most ``BLOCK``."""
    count = max(-(-plans // BLOCK), 1)
    return [slice(i * plans // count, (i + 1) * plans // count) for i in range(count)]


def _composed(c: Context, priced: Priced) -> Costs:
    """Steps and ranks' memory put together from layers, block by block of plans."""
    plans, workload, peaks = c.plans, c.workload, c.cluster.gpu.peak_flops
    kinds = likeness(c, priced)
    held, pace, paid = holdings(c, priced, kinds), paces(c, priced, kinds), once(kinds)
    layers = np.empty(len(plans), dtype=np.int64)
    found: dict[str, dict[str, Floats]] = {}
    for rows in _blocks(len(plans)):
        some, prices, alike = c.take(rows), priced.take(rows), kinds.take(rows)
        memory = peak_of(some, alike, held)
        layers[rows] = memory.recompute_layers
        step = step_parts(some, prices, alike, pace.take(rows), paid, memory.recomputed)
        parts = memory.of_fullest()
        whole = {"step": step.whole, "memory": added(parts.values())}
        here = {"time": step.time, "hidden": step.hidden, "memory": parts, "whole": whole}
        if len(step.whole) == len(plans):  # one block is the table
            found = here
            continue
        for name, columns in here.items():
            into = found.setdefault(name, {})
            for part, column in columns.items():
                into.setdefault(part, np.empty(len(plans)))[rows] = column
    step_s = found["whole"]["step"]
    flops = (
        flop_per_token(c.model, workload.seq, "causal", mtp=bool(c.model.mtp)) * workload.seq * c.sequences
    )
    best = peaks.get(PEAK_OF[workload.precision]) or peaks.get("bf16") or max(peaks.values())
    return Costs(
        plans=plans.replace(recompute_layers=layers),
        step_s=step_s,
        memory_bytes=found["whole"]["memory"],
        memory_limit_bytes=memory_limit(c.cluster),
        mfu=flops / (step_s * plans.gpus * best),
        time=found["time"],
        memory=found["memory"],
        hidden=found["hidden"],
    )
