"""Option types that commands share; each refuses in one sentence what it cannot take."""

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, TypeVar

from cyclopts import Parameter, Token

from meshplan.errors import InputError, shown

MOST = 10**12
"""Beyond any sequence, batch or cluster."""
MOST_DEGREE = 10**7
MOST_VALUES = 100

T = TypeVar("T")


def read_count(text: str, what: str, *, most: int = MOST) -> int:
    """A whole number from 1 to ``most``; ``what`` names it in the message of the ``InputError``."""
    digits = text.strip().replace("_", "")
    if not (digits.isascii() and digits.removeprefix("-").isdecimal()):
        raise InputError(f"{what} must be a whole number, not {shown(text)}")
    if digits.startswith("-") or not digits.strip("0"):
        raise InputError(f"{what} must be at least 1, not {shown(text)}")
    if len(digits.lstrip("0")) > len(str(most)) or int(digits) > most:
        raise InputError(f"{what} must be at most {most:,}, not {shown(text)}")
    return int(digits)


def read_list(text: str, what: str, read: Callable[[str, str], T]) -> tuple[T, ...]:
    """The comma-separated values of ``text``, each read by ``read(part, what)``; repeats are dropped."""
    parts = text.split(",")
    if len(parts) > MOST_VALUES:
        raise InputError(f"{what} lists {len(parts)} values; {MOST_VALUES} is the most")
    return tuple(dict.fromkeys(read(part.strip(), what) for part in parts))


def read_degree(text: str, what: str) -> int:
    """A parallel degree or micro-batch size."""
    return read_count(text, what, most=MOST_DEGREE)


def read_fraction(text: str, what: str) -> float:
    """A number above 0 and at most 1."""
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"{what} must be a number above 0 and at most 1, not {shown(text)}") from None
    if not (math.isfinite(value) and 0 < value <= 1):
        raise InputError(f"{what} must be above 0 and at most 1, not {shown(text)}")
    return value


def option(read: Callable[[str, str], Any], *, many: bool = False) -> Parameter:
    """A cyclopts parameter read by ``read(text, flag)``; ``many``: a comma-separated list, repeatable."""

    def convert(_type: Any, tokens: Sequence[Token]) -> Any:
        if not many:
            return read(tokens[-1].value, tokens[-1].keyword or "the argument")
        parts = [p for t in tokens for p in read_list(t.value, t.keyword or "the argument", read)]
        return tuple(dict.fromkeys(parts))

    return Parameter(converter=convert, n_tokens=1, accepts_keys=False, negative=())


Count = Annotated[int, option(read_count)]
"""A positive whole number."""
Degrees = Annotated[tuple[int, ...] | None, option(read_degree, many=True)]
"""One value or a comma-separated list of values for a dimension of the plan."""
Format = Literal["table", "json", "csv", "markdown"]
Json = Annotated[bool, Parameter(name="--json", negative=(), help="Same as --format json.")]
