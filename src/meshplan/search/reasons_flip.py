"""What would have to change for the order of two plans to turn round, found by trying."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from meshplan.cost.costs import Costs
from meshplan.errors import InputError
from meshplan.plan.plans import Plan
from meshplan.search.reasons import Case, is_valid
from meshplan.search.reasons_compare import MEMORY, RESOURCES, Resource

MOST_FACTOR = 64.0
"""How far a number is changed at most, either way."""
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


Priced = Callable[[float], Costs | None]
"""The prices of a and b (two rows) with a number times a factor; ``None`` where it cannot be asked."""


def flips(case: Case, a: Plan, b: Plan) -> tuple[Flip, ...]:
    """For every number the nearest change after which b beats a, smallest change first.

    ``a`` should be the better plan now, both as they were asked for. Numbers for which no change up to
    ``MOST_FACTOR`` times turns the order round are left out.
    """
    found = []
    for resource in (*RESOURCES, MEMORY):
        amount = resource.amount(case.cluster)
        if amount is not None:
            flip = _nearest(resource.name, resource.title, amount, _on(case, resource, a, b))
            found += [] if flip is None else [flip]
    batch = _batch(case, a, b)
    found += [] if batch is None else [batch]
    return tuple(sorted(found, key=lambda flip: abs(math.log(flip.factor))))


def wins(costs: Costs | None) -> bool:
    """Whether the second row beats the first: it fits, and the first does not or is slower."""
    if costs is None or not bool(costs.fits[1]):
        return False
    return not bool(costs.fits[0]) or float(costs.step_s[1]) < float(costs.step_s[0])


def _on(case: Case, resource: Resource, a: Plan, b: Plan) -> Priced:
    def price(factor: float) -> Costs | None:
        try:
            return case.on(resource.scaled(case.cluster, factor)).price(a, b)
        except InputError:  # such a GPU cannot be
            return None

    return price


def _nearest(name: str, title: str, now: float, priced: Priced) -> Flip | None:
    """The turning point nearest to the present value, up or down."""
    best: float | None = None
    for direction in (1.0, -1.0):
        found = _turn(priced, direction)
        if found is not None and (best is None or abs(math.log(found)) < abs(math.log(best))):
            best = found
    if best is None:
        return None
    costs = priced(best)
    if costs is None or not wins(costs):
        return None
    return _flip(name, title, now, now * best, costs)


def _turn(priced: Priced, direction: float) -> float | None:
    """The smallest factor in this direction with which b wins, rounded away from 1 and tried again."""
    inside = 1.0
    for step in (2.0 ** (direction * exponent) for exponent in PROBES):
        if wins(priced(step)):
            outside = step
            while abs(math.log(outside / inside)) > PRECISION:
                middle = math.sqrt(inside * outside)
                inside, outside = (inside, middle) if wins(priced(middle)) else (middle, outside)
            rounded = _rounded(outside, direction)
            return rounded if wins(priced(rounded)) else outside
        inside = step
    return None


def _rounded(factor: float, direction: float) -> float:
    """``factor`` with two digits, away from 1."""
    digits = 1 - math.floor(math.log10(abs(factor)))
    scale = 10.0**digits
    return (math.ceil if direction > 0 else math.floor)(factor * scale) / scale


def _batch(case: Case, a: Plan, b: Plan) -> Flip | None:
    """The nearest global batch that both plans can run and with which b wins."""
    now = case.workload.gbs
    unit = math.lcm(a.dp * a.mbs, b.dp * b.mbs)

    def priced(count: int) -> Costs | None:
        try:
            other = case.of(replace(case.workload, gbs=count * unit))
            if not all(is_valid(other, plan) for plan in (a, b)):
                return None
            return other.price(a, b)
        except InputError:
            return None

    best: tuple[float, int, Costs] | None = None
    for count in (*_down(now // unit), *_up(now // unit, unit, now)):
        costs = priced(count)
        if costs is not None and wins(costs):
            distance = abs(math.log(count * unit / now))
            if best is None or distance < best[0]:
                best = (distance, count, costs)
    if best is None:
        return None
    return _flip("gbs", "global batch", float(now), float(best[1] * unit), best[2])


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
