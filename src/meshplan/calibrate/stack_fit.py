"""The few scalars of a software stack, fitted on measured steps; every plan is also held back once.

Minimises a robust sum of squared log ratios of estimated and measured step time, inside physical bounds,
drawn a little to where it started so that few plans do not move what they say nothing of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from meshplan.cluster.cluster import Cluster
from meshplan.cost.full.model import FullModel
from meshplan.cost.full.stack import Stack
from meshplan.errors import InputError
from meshplan.model.model import Model
from meshplan.plan.plans import Plan, Plans
from meshplan.plan.workload import Workload

Floats = npt.NDArray[np.float64]
LEAST = 4
"""Plans without which nothing is fitted."""
RATES = (
    "matmul", "attention_rate", "memory_rate", "network_rate", "scaleup_rate", "fsdp_overlap", "tp_exposed",
)  # fmt: skip
TIMES = ("host_layer_s", "host_tp_s", "host_micro_s", "step_s", "split_backward")
LOWEST = 0.05
"""Of a rate: a twentieth of what was measured alone."""
SOFT = 0.05
"""Log ratio beyond which an error counts in proportion instead of squared."""
DRAWN = 0.02
"""Weight of staying where a scalar was, in log ratios for its whole range."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A plan and its measured step."""

    model: Model
    workload: Workload
    plan: Plan
    order: tuple[str, ...]
    label: str
    step_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """One plan: seconds measured, estimated before, by the fit on all plans, and by one on the others."""

    label: str
    measured_s: float
    before_s: float
    after_s: float
    held_back_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class StackFit:
    """The fitted stack and what it is worth."""

    stack: Stack
    values: dict[str, float]
    rows: tuple[Compared, ...]

    def error(self, which: str) -> float:
        """Median relative error of ``before_s``, ``after_s`` or ``held_back_s``."""
        return float(median(abs(getattr(r, which) / r.measured_s - 1) for r in self.rows))


def _with(stack: Stack, values: Mapping[str, float]) -> Stack:
    changed: dict[str, Any] = dict(values)
    return replace(stack, **changed)


def prices(cases: Sequence[Case], cluster: Cluster, stack: Stack) -> Floats:
    """Estimated seconds of every case, those of one model, workload and order in one table."""
    full, found = FullModel(stack=stack), np.zeros(len(cases))
    groups: dict[tuple[Model, Workload, tuple[str, ...]], list[int]] = {}
    for i, c in enumerate(cases):
        groups.setdefault((c.model, c.workload, c.order), []).append(i)
    for (model, workload, _), rows in groups.items():
        table = Plans.concatenate([Plans.of(cases[i].plan, order=cases[i].order) for i in rows])
        found[rows] = full.price(model, cluster, workload, table).step_s
    return found


def fit_stack(cases: Sequence[Case], cluster: Cluster, stack: Stack, *, name: str) -> StackFit:
    """Fit on all cases, and on all but each. Raises ``InputError`` for too few, and where the fit does not
    help plans that it has not seen."""
    if len(cases) < LEAST:
        raise InputError(f"{len(cases)} measured plans are too few to fit a stack on; {LEAST} are the least")
    before = prices(cases, cluster, stack)
    stack, values = scalars(cases, cluster, stack)
    fitted = _with(stack, values)
    after, held = prices(cases, cluster, fitted), np.zeros(len(cases))
    for i in range(len(cases)):
        others = [c for j, c in enumerate(cases) if j != i]
        again = _fit(others, cluster, fitted, tuple(values), rounds=4, home=stack)
        held[i] = prices([cases[i]], cluster, _with(stack, again))[0]
    rows = tuple(
        Compared(
            label=c.label, measured_s=c.step_s, before_s=float(b), after_s=float(a), held_back_s=float(h)
        )
        for c, b, a, h in zip(cases, before, after, held, strict=True)
    )
    source = f"fitted on {len(cases)} measured plans"
    made = replace(
        fitted,
        name=name,
        title=f"{stack.title}, as measured",
        sources={**stack.sources, **dict.fromkeys(values, source)},
    )
    found = StackFit(stack=made, values=values, rows=rows)
    if found.error("held_back_s") >= found.error("before_s"):
        raise InputError(
            f"the fit does not help: plans held back are {found.error('held_back_s'):.0%} off, and"
            f" {found.error('before_s'):.0%} without it"
        )
    return found


def scalars(cases: Sequence[Case], cluster: Cluster, stack: Stack) -> tuple[Stack, dict[str, float]]:
    """Where the fit starts on this cluster, and the scalars it finds on all cases."""
    if cluster.gpu.is_cpu:  # a GPU's host works beside it, and its times say nothing of a core's
        stack = replace(stack.on_cpu(), host_layer_s=0.0)
    return stack, _fit(cases, cluster, stack, _free(cases, cluster, stack), rounds=25)


def _free(cases: Sequence[Case], cluster: Cluster, stack: Stack) -> tuple[str, ...]:
    """The scalars that move a step of these plans by 1 % or more over a part of their range."""
    base, found = prices(cases, cluster, stack), []
    for name in (*RATES, *TIMES):
        low, high = _range(name, cases)
        for value in (low + 0.2 * (high - low), high):
            moved = prices(cases, cluster, _with(stack, {name: value}))
            if float(np.max(np.abs(moved / base - 1))) > 0.01:
                found.append(name)
                break
    return tuple(found)


def _range(name: str, cases: Sequence[Case]) -> tuple[float, float]:
    """Least and most: of a time, what fits into the fastest step as often as it occurs in it."""
    if name == "split_backward":
        return 1.0, 1.6
    if name in RATES:
        return (LOWEST if name != "fsdp_overlap" else 0.0), 1.0
    shortest = min(c.step_s for c in cases)
    layers = max(len(c.model.layers) for c in cases)
    most = max(c.workload.gbs for c in cases)
    often = {"step_s": 2.0, "host_micro_s": 2.0 * most}
    return 0.0, shortest / often.get(name, 2.0 * layers)


def _fit(
    cases: Sequence[Case],
    cluster: Cluster,
    start: Stack,
    names: tuple[str, ...],
    *,
    rounds: int,
    home: Stack | None = None,
) -> dict[str, float]:
    """Levenberg–Marquardt over shares of each scalar's range; rates in their logarithm."""
    measured = np.array([c.step_s for c in cases])
    ranges = [_range(n, cases) for n in names]
    logs = [n in RATES and low > 0 for n, (low, _) in zip(names, ranges, strict=True)]

    def share(stack: Stack) -> Floats:
        found = []
        for n, (low, high), log in zip(names, ranges, logs, strict=True):
            value = float(getattr(stack, n))
            found.append(
                np.log(max(value, low) / low) / np.log(high / low) if log else (value - low) / (high - low)
            )
        return np.asarray(np.clip(np.array(found), 0.0, 1.0))

    def values(unit: Floats) -> dict[str, float]:
        return {
            n: float(low * (high / low) ** u if log else low + u * (high - low))
            for n, u, (low, high), log in zip(names, unit, ranges, logs, strict=True)
        }

    goal = share(home or start)

    def residuals(unit: Floats) -> Floats:
        off = np.log(prices(cases, cluster, _with(start, values(unit))) / measured)
        soft = np.sign(off) * SOFT * np.sqrt(2 * (np.sqrt(1 + (off / SOFT) ** 2) - 1))
        return np.concatenate([soft, DRAWN * (unit - goal)])

    unit = share(start)
    now, damping = residuals(unit), 1e-2
    for _ in range(rounds):
        jacobian = _jacobian(residuals, unit, now)
        slope = jacobian.T @ now
        # A scalar at its bound that would go beyond stays there, and the others move without it.
        free = ~(((unit <= 0) & (slope > 0)) | ((unit >= 1) & (slope < 0)))
        some = jacobian[:, free]
        better = False
        for _ in range(6):
            step = np.zeros(len(unit))
            step[free] = np.linalg.solve(
                some.T @ some + damping * np.diag(np.maximum(np.sum(some**2, axis=0), 1e-6)), -slope[free]
            )
            tried = np.clip(unit + step, 0.0, 1.0)
            then = residuals(tried)
            if then @ then < now @ now:
                gain = float(now @ now - then @ then)
                unit, now, damping, better = tried, then, max(damping / 5, 1e-6), True
                break
            damping *= 5
        if not better or gain < 5e-4 * float(now @ now):
            break
    return values(unit)


def _jacobian(residuals: Any, unit: Floats, now: Floats) -> Floats:
    columns = []
    for i in range(len(unit)):
        h = 1e-3 if unit[i] < 0.5 else -1e-3
        moved = unit.copy()
        moved[i] += h
        columns.append((residuals(moved) - now) / h)
    return np.stack(columns, axis=1)
