"""Values of a profile's TOML, checked one by one; every message names the key."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import Field
from typing import Any

from meshplan.errors import InputError, nearest, shown


def table_of(value: Any, where: str) -> Mapping[str, Any]:
    """``value`` if it is a table."""
    if not isinstance(value, Mapping):
        raise InputError(f"{where} must be a table, not {shown(value)}")
    return value


def text_of(value: Any, where: str) -> str:
    """``value`` if it is text that is not empty."""
    if not isinstance(value, str) or not value:
        raise InputError(f"{where} must be text, not {shown(value)}")
    return value


def check_keys(table: Mapping[str, Any], known: set[str], needed: set[str], where: str) -> None:
    """Raise ``InputError`` for a key that is not known, or one that is needed and missing."""
    for key in table:
        if key not in known:
            close = nearest(str(key), sorted(known), 1)
            hint = f"did you mean '{close[0]}'?" if close else f"known keys are {', '.join(sorted(known))}"
            raise InputError(f"{where}: unknown key {shown(key)}; {hint}")
    for key in sorted(needed):
        if key not in table:
            raise InputError(f"{where}: {key} is missing")


def number_of(value: Any, where: str, bounds: Mapping[str, Any]) -> float:
    """``value`` if it is a finite number within ``bounds`` (``low``, ``high``; ``closed`` if low is in)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{where} must be a number, not {shown(value)}")
    low, high = bounds.get("low", -math.inf), bounds.get("high", math.inf)
    above = value >= low if bounds.get("closed") else value > low
    if not (math.isfinite(value) and above and value <= high):
        wanted = f"{'at least' if bounds.get('closed') else 'above'} {low:g}"
        if math.isfinite(high):
            wanted += f" and at most {high:g}"
        raise InputError(f"{where} must be {wanted}, not {shown(value)}")
    return float(value)


def number_list(value: Any, where: str, bounds: Mapping[str, Any]) -> tuple[Any, ...]:
    """A list of such numbers, or a list of lists of them."""
    if not isinstance(value, list) or not value:
        raise InputError(f"{where} must be a list of numbers, not {shown(value)}")
    return tuple(
        number_list(v, f"{where}[{i}]", bounds)
        if isinstance(v, list)
        else number_of(v, f"{where}[{i}]", bounds)
        for i, v in enumerate(value)
    )


def value_of(value: Any, spec: Field[Any], where: str) -> Any:
    """``value`` as the type that the dataclass field ``spec`` is annotated with."""
    kind = str(spec.type)
    if kind == "str":
        return value if value == "" else text_of(value, where)
    if kind == "bool":
        if not isinstance(value, bool):
            raise InputError(f"{where} must be true or false, not {shown(value)}")
        return value
    if kind.startswith("tuple"):
        numbers = number_list(value, where, spec.metadata)
        nested = [isinstance(n, tuple) for n in numbers]
        if any(nested) != kind.startswith("tuple[tuple") or len(set(nested)) > 1:
            raise InputError(
                f"{where} must be a list of {'lists of ' * kind.startswith('tuple[tuple')}numbers"
            )
        return tuple(int(n) for n in numbers) if kind == "tuple[int, ...]" else numbers
    number = number_of(value, where, spec.metadata)
    return int(number) if kind == "int" else number
