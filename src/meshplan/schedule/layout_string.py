"""Layouts as people write them: even, by the counts of the ends, as Megatron's layout string.

The string has a letter for each thing on a stage, in model order: ``E`` embedding, ``t`` transformer
layer, ``m`` MTP layer, ``L`` loss (with the head); ``|`` ends a stage. ``x*3`` repeats a letter,
``(tt|)*3`` a group; commas are for the eye. ``Et*2|(t*2|)*34,t*3|(t*2|)*3,tL`` has 40 stages and 80 layers.
Stages may be empty. (Megatron-LM, ``--pipeline-model-parallel-layout``.)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import groupby

from meshplan.errors import InputError, shown

_LONGEST = 100_000
"""Letters a layout may have once its repetitions are written out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """What each stage holds, in model order; and the stages with the embedding and the loss."""

    layers: tuple[int, ...]
    mtp: tuple[int, ...]
    embedding_stage: int
    loss_stage: int

    @property
    def stages(self) -> int:
        """How many stages there are."""
        return len(self.layers)


def read_layout(text: str, *, layers: int | None = None, ranks: int | None = None) -> Layout:
    """The layout a Megatron string describes.

    Checked: embedding first and once, loss last and once, MTP layers after all others and on one stage,
    ``layers`` in all and stages that divide over ``ranks`` if given. Raises InputError with the place.
    """
    letters = _written_out(text)
    stages = letters.split("|")
    for what, letter in (("embedding", "E"), ("loss", "L")):
        if letters.count(letter) != 1:
            raise InputError(
                f"layout {shown(text)} has {letters.count(letter)} {letter} ({what}); it needs 1"
            )
    plain = letters.replace("|", "")
    if not re.fullmatch("Et*m*L", plain):
        raise InputError(f"layout {shown(text)} is out of order: E first, then t, then m, L last")
    mtp = tuple(stage.count("m") for stage in stages)
    if sum(n > 0 for n in mtp) > 1:
        raise InputError(f"layout {shown(text)} spreads its MTP layers over stages; they must be on one")
    counts = tuple(stage.count("t") for stage in stages)
    if layers is not None and sum(counts) != layers:
        raise InputError(f"layout {shown(text)} has {sum(counts)} layers, the model {layers}")
    if ranks is not None and len(stages) % ranks:
        raise InputError(f"layout {shown(text)} has {len(stages)} stages, which {ranks} ranks do not divide")
    first, last = (next(i for i, stage in enumerate(stages) if letter in stage) for letter in "EL")
    return Layout(layers=counts, mtp=mtp, embedding_stage=first, loss_stage=last)


def write_layout(counts: tuple[int, ...], *, mtp_layers: int = 0, mtp_stage: int | None = None) -> str:
    """The Megatron string of these layers a stage; MTP layers on the last stage unless said otherwise."""
    last = len(counts) - 1
    at = last if mtp_stage is None else mtp_stage
    stages = [
        ("E" if s == 0 else "")
        + _times("t", n)
        + (_times("m", mtp_layers) if s == at else "")
        + ("L" if s == last else "")
        for s, n in enumerate(counts)
    ]
    pieces: list[str] = []
    for stage, same in groupby(stages[:-1]):
        times = len(list(same))
        pieces += [stage + "|"] if times == 1 else [f"({stage}|)*{times},"]
    return "".join(pieces) + stages[-1]


def _times(letter: str, count: int) -> str:
    return "" if count == 0 else letter if count == 1 else f"{letter}*{count}"


def _written_out(text: str) -> str:
    """The letters and bars of a layout string, repetitions written out."""
    tokens = [(m.start(), m.group()) for m in re.finditer(r"\*\s*\d+|\S", text) if m.group() != ","]
    stack: list[list[str]] = [[]]
    for place, token in tokens:
        if token == "(":
            stack.append([])
        elif token == ")":
            if len(stack) == 1:
                raise InputError(f"layout {shown(text)}, character {place + 1}: ')' without '('")
            group = "".join(stack.pop())
            stack[-1].append(group)
        elif token[0] == "*":
            if len(token) == 1 or not stack[-1]:
                raise InputError(
                    f"layout {shown(text)}, character {place + 1}: "
                    "'*' needs something before and a number after"
                )
            times = int(token[1:][:9])
            if times * len(stack[-1][-1]) > _LONGEST:
                raise InputError(f"layout {shown(text)}, character {place + 1}: more than {_LONGEST} letters")
            stack[-1][-1] *= times
        elif token in ("E", "t", "m", "L", "|"):
            stack[-1].append(token)
        else:
            raise InputError(
                f"layout {shown(text)}, character {place + 1}: {token!r} is none of E, t, m, L, |, "
                "parentheses, * and a number"
            )
    if len(stack) > 1:
        raise InputError(f"layout {shown(text)}: '(' without ')'")
    letters = "".join(stack[0])
    if len(letters) > _LONGEST:
        raise InputError(f"layout {shown(text)} has more than {_LONGEST} letters")
    return letters


def even_split(layers: int, stages: int) -> tuple[int, ...]:
    """Layers on each stage, as even as possible; the ends, with embedding and head, lack one first."""
    if stages < 1 or layers < 0:
        raise InputError(f"cannot split {layers} layers over {stages} stages")
    base, more = divmod(layers, stages)
    inside_first = sorted(range(stages), key=lambda s: (s in (0, stages - 1), s == stages - 1, s))
    fuller = set(inside_first[:more])
    return tuple(base + (s in fuller) for s in range(stages))


def split_with_ends(
    layers: int, *, ranks: int, vp: int = 1, first: int | None = None, last: int | None = None
) -> tuple[int, ...]:
    """Layers on each stage as Megatron splits them: counts for the first and last rank, the middle even.

    Without ``first`` and ``last`` the layers must divide evenly. Raises InputError with the nearest
    split that works.
    """
    ends = [n for n in (first, last) if n is not None]
    middle_ranks, middle = ranks - len(ends), layers - sum(ends)
    per_rank = [0] * ranks
    fits = (
        middle_ranks > 0 and middle > 0 and middle % middle_ranks == 0 and all(0 < n < layers for n in ends)
    )
    if not ends:
        fits = ranks >= 1 and layers > 0 and layers % ranks == 0
    if middle_ranks == 0:
        fits = middle == 0
    if fits:
        per_rank = [middle // middle_ranks if middle_ranks else 0] * ranks
        per_rank[0] = first if first is not None else per_rank[0]
        per_rank[-1] = last if last is not None else per_rank[-1]
    if not fits:
        given = "" if not ends else f" with {_ends_text(first, last)}"
        raise InputError(
            f"{layers} layers do not divide over {ranks} ranks{given}: {_ends_hint(layers, ranks, vp)}"
        )
    odd = [n for n in per_rank if n % vp]
    if odd:
        works = [v for v in range(1, max(per_rank) + 1) if not any(n % v for n in per_rank)]
        raise InputError(
            f"{odd[0]} layers a rank do not divide over {vp} stages a rank: "
            f"use {' or '.join(map(str, works))}"
        )
    return tuple(n // vp for _ in range(vp) for n in per_rank)


def _ends_text(first: int | None, last: int | None) -> str:
    parts = [f"first {first}" if first is not None else "", f"last {last}" if last is not None else ""]
    return " and ".join(p for p in parts if p)


def _ends_hint(layers: int, ranks: int, vp: int) -> str:
    """The nearest ways that work: fewer ranks, or counts for both ends."""
    ways = [f"{r} ranks" for r in range(ranks - 1, 1, -1) if layers % (r * vp) == 0][:1]
    if ranks > 2:
        around = layers / ranks
        options = [
            (max(abs(end - around), abs(middle - around)), end, middle)
            for middle in range(vp, layers // (ranks - 2) + 1, vp)
            if (end := (layers - middle * (ranks - 2)) // 2) > 0
            and 2 * end + middle * (ranks - 2) == layers
            and end % vp == 0
        ]
        ways += [
            f"first {end}, last {end} and {middle} on each rank between"
            for _, end, middle in sorted(options)[:2]
        ]
    even = even_split(layers, ranks)
    ways.append("a layout such as " + short_layout(even, between=", ", times=" × "))
    return "use " + " or ".join(ways)


def short_layout(counts: tuple[int, ...], *, between: str = ",", times: str = "×") -> str:
    """Counts as people write them, alike neighbours together: ``7,8×14,7``."""
    return between.join(
        str(n) if (k := len(list(same))) == 1 else f"{n}{times}{k}" for n, same in groupby(counts)
    )
