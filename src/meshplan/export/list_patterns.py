"""Megatron's lists of zeros and ones, one a layer: written as short expressions, read as text, never run."""

from __future__ import annotations

import re
from itertools import groupby

from meshplan.errors import InputError, shown

MOST_LAYERS = 10_000


def list_pattern(flags: list[int]) -> str:
    """A Python list expression as Megatron reads it: ``([0]*3+[1]*58)``."""
    runs = [(flag, len(list(same))) for flag, same in groupby(flags)]
    period = next(
        (n for n in range(1, len(flags)) if len(flags) % n == 0 and flags[:n] * (len(flags) // n) == flags),
        len(flags),
    )
    if len(runs) > 2 and period < len(flags):
        inner = "+".join(f"[{f}]*{len(list(s))}" for f, s in groupby(flags[:period]))
        return f"({inner})*{len(flags) // period}"
    return "(" + "+".join(f"[{flag}]*{times}" for flag, times in runs) + ")"


def listed(text: str, layers: int, flag: str) -> list[int]:
    """A list expression of zeros and ones: ``[1,1,0]*2``, ``([0]*3+[1]*58)``, read by hand."""
    tokens = re.findall(r"\[[01,\s]*\]|[()+*]|\d+", text)
    if "".join(tokens).replace(" ", "") != re.sub(r"\s", "", text):
        raise InputError(f"{flag} {shown(text)} is no list of zeros and ones")
    at = 0

    def total() -> list[int]:
        nonlocal at
        found = times()
        while at < len(tokens) and tokens[at] == "+":
            at += 1
            found = found + times()
        return found

    def times() -> list[int]:
        nonlocal at
        token = tokens[at]
        at += 1
        if token == "(":
            found = total()
            if tokens[at] != ")":
                raise IndexError
            at += 1
        elif token.startswith("["):
            found = [int(d) for d in re.findall(r"[01]", token)]
        else:
            raise IndexError
        while at + 1 < len(tokens) and tokens[at] == "*":
            count = int(tokens[at + 1])
            if count * len(found) > MOST_LAYERS:
                raise IndexError
            found = found * count
            at += 2
        return found

    try:
        found = total()
    except (IndexError, RecursionError, ValueError):
        raise InputError(f"{flag} {shown(text)} is no list of zeros and ones") from None
    if at != len(tokens) or len(found) != layers:
        raise InputError(f"{flag} {shown(text)} has {len(found)} entries for {layers} layers")
    return found
