"""Divisors: what degrees are made of."""

from __future__ import annotations

from math import isqrt


def divisors(number: int) -> tuple[int, ...]:
    """All divisors of ``number``, ascending.

    >>> divisors(12)
    (1, 2, 3, 4, 6, 12)
    """
    small = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))


def nearest_divisors(number: int, wanted: int) -> tuple[int, ...]:
    """The largest divisor of ``number`` below ``wanted`` and the smallest above it, where there are any.

    >>> nearest_divisors(64, 3), nearest_divisors(64, 100)
    ((2, 4), (64,))
    """
    found = divisors(number)
    return (*[d for d in found if d < wanted][-1:], *[d for d in found if d > wanted][:1])
