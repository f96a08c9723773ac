"""Option types that commands share; each refuses in one sentence what it cannot take."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Annotated, Any, Literal, TypeVar

from cyclopts import Parameter, Token

from meshplan.cluster.cluster import MAX_GPUS
from meshplan.errors import InputError, nearest, shown
from meshplan.plan.kinds import Recompute
from meshplan.plan.mesh import read_order
from meshplan.plan.plans import ALL_LAYERS, AUTO_LAYERS
from meshplan.plan.workload import MOST

MOST_DEGREE = 10**7
MOST_VALUES = 100

T = TypeVar("T")
E = TypeVar("E", bound=IntEnum)


def read_count(text: str, what: str, *, most: int = MOST) -> int:
    """A whole number from 1 to ``most``; ``what`` names it in the message of the ``InputError``."""
    digits = text.strip()
    grouped = digits.replace("_", "").replace(",", "")
    if re.fullmatch(r"\d+(,\d+)+", digits) and not re.fullmatch(r"\d{1,3}(,\d{3})+", digits):
        raise InputError(f"{what} takes one number here, not {shown(text)}; `meshplan plan` compares several")
    if grouped != digits and grouped.isascii() and grouped.isdecimal():
        raise InputError(f"{what} takes digits alone: write {grouped[:20]}, not {shown(text)}")
    if not (digits.isascii() and digits.removeprefix("-").isdecimal()):
        raise InputError(f"{what} must be a whole number, not {shown(text)}")
    too_long = len(digits.lstrip("0")) > len(str(most))
    if digits.startswith("-") or not digits.strip("0") or too_long or int(digits) > most:
        raise InputError(f"{what} must be from 1 to {most:,}, not {shown(text)}")
    return int(digits)


def read_factor(text: str, what: str) -> float:
    """A positive number, such as 1.25."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not (math.isfinite(found) and found > 0):
        raise InputError(f"{what} must be a positive number like 1.25, not {shown(text)}")
    return found


def read_list(text: str, what: str, read: Callable[[str, str], T]) -> tuple[T, ...]:
    """The comma-separated values of ``text``, each read by ``read(part, what)``; repeats are dropped."""
    parts = text.split(",")
    if len(parts) > MOST_VALUES:
        raise InputError(f"{what} lists {len(parts)} values; {MOST_VALUES} is the most")
    return tuple(dict.fromkeys(read(part.strip(), what) for part in parts))


def read_gpus(text: str, what: str) -> int:
    """A number of GPUs."""
    return read_count(text, what, most=MAX_GPUS)


def read_degree(text: str, what: str) -> int:
    """A parallel degree or micro-batch size."""
    return read_count(text, what, most=MOST_DEGREE)


def option(
    read: Callable[[str, str], Any], *, many: bool = False, joined: bool = False, metavar: str = "N"
) -> Parameter:
    """A cyclopts parameter read by ``read(text, flag)``; ``many``: a comma-separated list, repeatable;
    ``joined``: repeatable too, where ``read`` makes the tuple itself."""

    def convert(_type: Any, tokens: Sequence[Token]) -> Any:
        if joined:
            values = [v for t in tokens for v in read(t.value, t.keyword or "the argument")]
            return tuple(dict.fromkeys(values))
        if not many:
            if len(tokens) > 1:
                raise InputError(f"{tokens[-1].keyword or 'the argument'} is given more than once")
            return read(tokens[-1].value, tokens[-1].keyword or "the argument")
        parts = [p for t in tokens for p in read_list(t.value, t.keyword or "the argument", read)]
        return tuple(dict.fromkeys(parts))

    return Parameter(
        converter=convert, n_tokens=1, accepts_keys=False, negative=(), show_choices=False, metavar=metavar
    )


Count = Annotated[int, option(read_count)]
"""A positive whole number."""
OptionalCount = Annotated[int | None, option(read_count)]
"""One that may be left out."""
Format = Literal["table", "json", "csv", "markdown"]
Framework = Literal[
    "any", "megatron", "megatron-bridge", "torchtitan", "pytorch", "deepspeed", "accelerate", "mindspeed",
    "paddle",
]  # fmt: skip
"""Whose rules plans are held to."""
Json = Annotated[bool, Parameter(name="--json", negative=(), help="Same as --format json.")]


def read_kind(kind: type[E]) -> Callable[[str, str], E]:
    """A reader of the labels of ``kind`` (``1f1b``, ``zero1`` …), and of other names it knows itself by."""
    labelled = _labelled({member.label: member for member in kind})  # type: ignore[attr-defined]
    named: Callable[[str], E | None] = getattr(kind, "named", lambda text: None)

    def read(text: str, what: str) -> E:
        found = named(text)
        return labelled(text, what) if found is None else found

    return read


def read_word(words: Iterable[str]) -> Callable[[str, str], str]:
    """A reader of one of these words."""
    return _labelled({word: word for word in words})


def _labelled(by_label: Mapping[str, T]) -> Callable[[str, str], T]:
    def read(text: str, what: str) -> T:
        found = by_label.get(text.lower())
        if found is None:
            close = nearest(text, by_label, 2)
            ask = f"; did you mean {' or '.join(close)}?" if close else ""
            raise InputError(f"{what} {shown(text)} is not one of {', '.join(by_label)}{ask}")
        return found

    return read


def read_recompute(text: str, what: str) -> tuple[int, Recompute]:
    """Layers a stage recomputes, modules, or both: ``auto``, ``none``, ``full``, ``8``, ``norm+mlp``."""
    layers, modules = 0, Recompute.NONE
    by_name = {m.name.lower().replace("_", "-"): m for m in Recompute if m.name}
    words = {"none": 0, "auto": AUTO_LAYERS, "all": ALL_LAYERS, "full": ALL_LAYERS}
    for part in text.lower().split("+"):
        if part in words:
            layers = words[part]
        elif part in by_name:
            modules |= by_name[part]
        elif part.isdecimal() and part.isascii():
            layers = min(read_count(part, what), ALL_LAYERS) if part.strip("0") else 0
        else:
            known = [*words, *by_name]
            close = nearest(part, known, 2)
            ask = f"; did you mean {' or '.join(close)}?" if close else ""
            if part == "selective":
                ask = "; Megatron's selective is core-attn, torchtitan's is operators"
            raise InputError(
                f"{what} {shown(part)} is not a number of layers or one of {', '.join(known)}{ask}"
            )
    return layers, modules


def read_switch(text: str, what: str) -> bool:
    """``on`` or ``off``."""
    words = {"on": True, "yes": True, "true": True, "off": False, "no": False, "false": False}
    found = words.get(text.lower())
    if found is None:
        raise InputError(f"{what} {shown(text)} is neither on nor off")
    return found


def read_dims(text: str, what: str) -> tuple[str, ...]:
    """Dimensions from inside out, joined by dashes; all but ``ep`` must be there."""
    try:
        return read_order(text)
    except InputError as error:
        raise InputError(f"{what}: {error}") from None
