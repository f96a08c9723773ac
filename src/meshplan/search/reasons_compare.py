"""Two plans side by side: where time and memory differ, part by part, and what a plan waits for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from meshplan.cluster.cluster import Cluster
from meshplan.cost.costs import Costs
from meshplan.plan.plans import Plan
from meshplan.search.reasons import Case, asked_again

NUDGE = 0.01
"""Relative change for a sensitivity: small enough for a slope, large enough for the last digits."""
MORE_MEMORY = 0.1
"""Change of the memory, whose effect comes in steps of a layer recomputed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One part of two plans, seconds or bytes."""

    part: str
    a: float
    b: float

    @property
    def more(self) -> float:
        """What b has more."""
        return self.b - self.a


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Plans a and b (one row each); the differences of the parts sum to that of the whole."""

    a: Costs
    b: Costs
    time: tuple[Difference, ...]
    """Largest difference first."""
    memory: tuple[Difference, ...]
    hidden: tuple[Difference, ...]
    """Transfers that computing hides, which are no part of the step."""

    @property
    def slower(self) -> float:
        """By what share b takes longer than a."""
        return float(self.b.step_s[0] / self.a.step_s[0]) - 1


def compare(a: Costs, b: Costs) -> Comparison:
    """Both plans' parts, the first row of each."""

    def parts(name: str) -> tuple[Difference, ...]:
        left, right = getattr(a, name), getattr(b, name)
        found = [
            Difference(
                part=part,
                a=float(left[part][0]) if part in left else 0.0,
                b=float(right[part][0]) if part in right else 0.0,
            )
            for part in dict.fromkeys((*left, *right))
        ]
        return tuple(sorted(found, key=lambda d: -abs(d.more)))

    return Comparison(a=a, b=b, time=parts("time"), memory=parts("memory"), hidden=parts("hidden"))


# ── what a plan waits for ────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True, slots=True)
class Resource:
    """One hardware number: how much there is, and the cluster with ``factor`` times as much."""

    name: str
    title: str
    amount: Callable[[Cluster], float | None]
    scaled: Callable[[Cluster, float], Cluster]


def with_peak(cluster: Cluster, factor: float) -> Cluster:
    """Every precision's peak, times ``factor``."""
    peaks = {precision: value * factor for precision, value in cluster.gpu.peak_flops.items()}
    return replace(cluster, gpu=replace(cluster.gpu, peak_flops=peaks))


def with_hbm_bandwidth(cluster: Cluster, factor: float) -> Cluster:
    """The GPU's memory bandwidth, times ``factor``."""
    return replace(cluster, gpu=replace(cluster.gpu, hbm_bandwidth=cluster.gpu.hbm_bandwidth * factor))


def with_memory(cluster: Cluster, factor: float) -> Cluster:
    """The GPU's memory, times ``factor``."""
    gpu = cluster.gpu
    return replace(
        cluster,
        gpu=replace(gpu, hbm_bytes=gpu.hbm_bytes * factor, usable_hbm_bytes=gpu.usable_hbm_bytes * factor),
    )


def with_scaleup(cluster: Cluster, factor: float) -> Cluster:
    """The links inside the scale-up domain, times ``factor``."""
    first, *outer = cluster.tiers
    gpu = replace(cluster.gpu, scaleup_bandwidth=cluster.gpu.scaleup_bandwidth * factor)
    if gpu.scaleup_peer_bandwidth is not None:
        gpu = replace(gpu, scaleup_peer_bandwidth=gpu.scaleup_peer_bandwidth * factor)
    return replace(cluster, gpu=gpu, tiers=(replace(first, bandwidth=first.bandwidth * factor), *outer))


def with_network(cluster: Cluster, factor: float) -> Cluster:
    """Every network tier outside the scale-up domain, times ``factor``."""
    first, *outer = cluster.tiers
    return replace(cluster, tiers=(first, *(replace(t, bandwidth=t.bandwidth * factor) for t in outer)))


RESOURCES = (
    Resource(
        name="peak", title="peak FLOP/s", scaled=with_peak,
        amount=lambda c: c.gpu.peak_flops.get("bf16") or max(c.gpu.peak_flops.values()),
    ),
    Resource(
        name="hbm_bandwidth", title="memory bandwidth", scaled=with_hbm_bandwidth,
        amount=lambda c: c.gpu.hbm_bandwidth,
    ),
    Resource(
        name="scaleup", title="links inside a node", scaled=with_scaleup,
        amount=lambda c: c.tiers[0].bandwidth if c.gpus > 1 else None,
    ),
    Resource(
        name="network", title="network between nodes", scaled=with_network,
        amount=lambda c: c.tiers[1].bandwidth if len(c.tiers) > 1 else None,
    ),
)  # fmt: skip
"""What a step may wait for; ``amount`` is ``None`` where the cluster has none of it."""
MEMORY = Resource(
    name="memory", title="memory of a GPU", scaled=with_memory, amount=lambda c: c.gpu.hbm_bytes
)
"""All of the board's, as ``--what-if memory=`` takes it; what of it is usable grows with it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sensitivity:
    """Per cent of step time for a per cent of one hardware number, negative where more of it helps."""

    resource: Resource
    amount: float
    per_cent: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Sensitivities:
    """All hardware numbers, the one that matters most first.

    ``fixed``: per cent of the step that no hardware number moves: launches, latency, fixed times. With the
    others it sums to one where every time is a sum of amounts over rates.
    """

    rows: tuple[Sensitivity, ...]
    fixed: float
    memory: float
    """Step time with a tenth more memory over that without, less one: fewer layers need recomputing."""

    @property
    def binding(self) -> Sensitivity:
        """The one that matters most."""
        return self.rows[0]


def sensitivities(case: Case, plan: Plan) -> Sensitivities:
    """Of the step time of ``plan``, its layers recomputed as they are."""

    def step(resource: Resource, factor: float) -> float:
        return float(case.on(resource.scaled(case.cluster, factor)).price(plan).step_s[0])

    now = float(case.price(plan).step_s[0])
    rows = []
    for resource in RESOURCES:
        amount = resource.amount(case.cluster)
        if amount is not None:
            slope = (step(resource, 1 + NUDGE) - step(resource, 1 - NUDGE)) / (2 * NUDGE * now)
            rows.append(Sensitivity(resource=resource, amount=amount, per_cent=slope))
    roomy = case.on(with_memory(case.cluster, 1 + MORE_MEMORY)).price(asked_again(plan, case.space))
    return Sensitivities(
        rows=tuple(sorted(rows, key=lambda row: row.per_cent)),
        fixed=1 + sum(row.per_cent for row in rows),
        memory=float(roomy.step_s[0]) / now - 1,
    )
