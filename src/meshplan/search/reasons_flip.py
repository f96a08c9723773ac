"""What would have to change for the order of two plans to turn round, found by trying."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from meshplan.cost.costs import Costs, Floats
from meshplan.errors import InputError
from meshplan.plan.plans import Plan
from meshplan.search.reasons import Case, is_valid
from meshplan.search.reasons_compare import MEMORY, RESOURCES, Resource

MOST_FACTOR = 64.0
"""How far the batch is changed at most."""
NUDGES = (1.0, 1.02, 1.05, 1.1)
"""How much further than the closed form says a simulation is asked."""
PROBES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 3.0, 4.5, 6.0)
"""Powers of two tried first, up and down; between two of them the turning point is narrowed down."""
PRECISION = 0.015
"""Relative width to which the turning point is narrowed down."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Flip:
    """One change after which plan b beats plan a; both were priced again with it.

    ``name``: a resource's, ``memory`` or ``gbs``; ``value`` beside ``now``: what the number would be.
    ``fits_a``, ``fits_b``: whether the plans fit then; ``a_step_s``, ``b_step_s``: their steps then.
    """

    name: str
    title: str
    now: float
    value: float
    a_step_s: float
    b_step_s: float
    fits_a: bool
    fits_b: bool

    @property
    def factor(self) -> float:
        """The number as a multiple of what it is now."""
        return self.value / self.now


def flips(case: Case, a: Plan, b: Plan) -> tuple[Flip, ...]:
    """For every number the nearest change after which b beats a, smallest change first.

    ``a`` should be the better plan now, both as they were asked for. Numbers for which no change up to 64
    times turns the order round are left out. Where times are simulated, the closed form finds the place,
    as far off as it is now, and a simulation confirms it.
    """
    pair = _Pair.of(case, a, b)
    found = []
    for resource in (*RESOURCES, MEMORY):
        amount = resource.amount(case.cluster)
        if amount is not None:
            flip = _nearest(pair, resource, amount)
            found += [] if flip is None else [flip]
    batch = _batch(pair)
    found += [] if batch is None else [batch]
    return tuple(sorted(found, key=lambda flip: abs(math.log(flip.factor))))


def wins(costs: Costs | None) -> bool:
    """Whether the second row beats the first: it fits, and the first does not or is slower."""
    if costs is None or not bool(costs.fits[1]):
        return False
    return not bool(costs.fits[0]) or float(costs.step_s[1]) < float(costs.step_s[0])


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pair:
    """The two plans under changed questions."""

    case: Case
    a: Plan
    b: Plan
    off: Floats
    """Of each plan, its time over that of the closed form, now."""

    @classmethod
    def of(cls, case: Case, a: Plan, b: Plan) -> _Pair:
        """Both plans priced once with and without simulation."""
        closed = replace(case, simulate=False).price(a, b).step_s
        off = case.price(a, b).step_s / closed if case.simulate else np.ones(2)
        return cls(case=case, a=a, b=b, off=off)

    def near(self, case: Case) -> Costs | None:
        """Both in closed form; ``None`` where the question makes no sense."""
        try:
            costs = replace(case, simulate=False).price(self.a, self.b)
        except InputError:
            return None
        return replace(costs, step_s=costs.step_s * self.off)

    def exact(self, case: Case) -> Costs | None:
        """Both as the question prices them."""
        try:
            return case.price(self.a, self.b)
        except InputError:
            return None


def _nearest(pair: _Pair, resource: Resource, now: float) -> Flip | None:
    """The turning point nearest to the present value, up or down."""

    def changed(factor: float) -> Case:
        return pair.case.on(resource.scaled(pair.case.cluster, factor))

    for turn, way in _turns(lambda factor: wins(pair.near(changed(factor)))):
        for factor in (_rounded(turn, way), *(turn * nudge**way for nudge in NUDGES)):
            costs = pair.exact(changed(factor))
            if costs is not None and wins(costs):
                return _flip(resource.name, resource.title, now, now * factor, costs)
    return None


def _turns(won: Callable[[float], bool]) -> Iterator[tuple[float, float]]:
    """The smallest factor up (1) and down (-1) with which b wins, to ``PRECISION``, the nearer one first. The
    further one is looked for only when it is asked for."""
    inside = {1.0: 1.0, -1.0: 1.0}
    for exponent in PROBES:
        found = []
        for way in tuple(inside):
            step = float(2.0 ** (way * exponent))
            if won(step):
                found.append((_narrowed(won, inside.pop(way), step), way))
            else:
                inside[way] = step
        yield from sorted(found, key=lambda turn: abs(math.log(turn[0])))


def _narrowed(won: Callable[[float], bool], inside: float, outside: float) -> float:
    """The factor between the two at which b begins to win."""
    while abs(math.log(outside / inside)) > PRECISION:
        middle = math.sqrt(inside * outside)
        inside, outside = (inside, middle) if won(middle) else (middle, outside)
    return outside


def _rounded(factor: float, direction: float) -> float:
    """``factor`` away from 1 with two digits, or as many as make the change no more than a tenth larger."""
    first = 1 - math.floor(math.log10(abs(factor)))
    for digits in range(first, first + 3):
        scale = 10.0**digits
        found = (math.ceil if direction > 0 else math.floor)(factor * scale) / scale
        if abs(math.log(found)) <= 1.1 * abs(math.log(factor)):
            break
    return found


def _batch(pair: _Pair) -> Flip | None:
    """The nearest global batch that both plans can run and with which b wins."""
    case, now = pair.case, pair.case.workload.gbs
    unit = math.lcm(pair.a.dp * pair.a.mbs, pair.b.dp * pair.b.mbs)
    counts = sorted(
        (*_down(now // unit), *_up(now // unit, unit, now)), key=lambda n: abs(math.log(n * unit / now))
    )
    for count in counts:
        other = case.of(replace(case.workload, gbs=count * unit))
        if not all(is_valid(other, plan) for plan in (pair.a, pair.b)) or not wins(pair.near(other)):
            continue
        costs = pair.exact(other)
        if costs is not None and wins(costs):
            return _flip("gbs", "global batch", float(now), float(count * unit), costs)
    return None


def _down(count: int) -> Iterator[int]:
    yield from range(count - 1, max(count - 9, 0), -1)
    step = (count - 9) // 2
    while step > 0:
        yield step
        step //= 2


def _up(count: int, unit: int, now: int) -> Iterator[int]:
    yield from range(count + 1, count + 9)
    step = max(2 * count, count + 9)
    while step * unit <= MOST_FACTOR * now:
        yield step
        step *= 2


def _flip(name: str, title: str, now: float, value: float, costs: Costs) -> Flip:
    return Flip(
        name=name, title=title, now=now, value=value, a_step_s=float(costs.step_s[0]),
        b_step_s=float(costs.step_s[1]), fits_a=bool(costs.fits[0]), fits_b=bool(costs.fits[1]),
    )  # fmt: skip
