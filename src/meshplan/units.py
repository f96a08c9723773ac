"""Quantities as people write them, to SI and back: bytes, bytes/s, seconds, FLOP/s, watts.

Reading tells bits from bytes (``Gb`` and ``GB``) and decimal from binary (``GB`` and ``GiB``); a bare
number is refused, because nobody can know which was meant. Every reader takes ``what``, the place
the text came from, for its message, and raises ``InputError``.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence

from meshplan.errors import InputError, shown

_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}

_BYTES = {f"{p}B": f for p, f in (_DECIMAL | _BINARY).items()}
_BITS = {f"{p}{b}": f / 8 for p, f in (_DECIMAL | _BINARY).items() for b in ("b", "bit")}
_BANDWIDTH = {f"{u}{per}": f for u, f in (_BYTES | _BITS).items() for per in ("/s", "ps")}
_SECONDS = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0,
    "min": 60.0, "h": 3600.0, "d": 86400.0,
}  # fmt: skip
_FLOPS = {
    f"{p}{u}": f
    for p, f in _DECIMAL.items()
    for u in ("FLOP/s", "FLOPS", "FLOPs", "FLOPs/s", "flop/s", "flops")
}  # fmt: skip
_WATTS = {"W": 1.0, "kW": 1e3, "MW": 1e6}

_MOST = (
    (_BYTES, 1e18, "1 EB"), (_BANDWIDTH, 1e18, "1 EB/s"), (_FLOPS, 1e21, "1000 EFLOP/s"),
    (_WATTS, 1e9, "1000 MW"),
)  # fmt: skip
"""Beyond any machine: what is larger is taken for a slip."""

_QUANTITY = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([a-zA-Zµμ].{0,20})?\s*", re.ASCII)


def parse_bytes(text: object, *, what: str = "") -> float:
    """Bytes from ``80 GiB`` (2^30 each) or ``80 GB`` (10^9 each).

    >>> parse_bytes("80 GiB"), parse_bytes("80GB")
    (85899345920.0, 80000000000.0)
    """
    return _parse(text, _BYTES, "a size", ("80 GiB", "80 GB"), what)


def parse_bandwidth(text: object, *, what: str = "") -> float:
    """Bytes per second from bits (``400 Gb/s``, ``400 Gbps``) or bytes (``50 GB/s``, ``450e9 B/s``).

    >>> parse_bandwidth("400 Gb/s"), parse_bandwidth("50 GB/s"), parse_bandwidth("450e9 B/s")
    (50000000000.0, 50000000000.0, 450000000000.0)
    """
    return _parse(text, _BANDWIDTH, "a bandwidth", ("50 GB/s", "400 Gb/s"), what)


def parse_seconds(text: object, *, what: str = "", like: Sequence[str] = ("5 us", "20 ms")) -> float:
    """Seconds from ``5 us``, ``5 µs``, ``20 ms``, ``2 h``; ``like``: what a message suggests.

    >>> parse_seconds("5 us") == parse_seconds("5 µs") == 5e-6
    True
    """
    return _parse(text, _SECONDS, "a time", like, what)


def parse_flops(text: object, *, what: str = "") -> float:
    """FLOP/s from ``989 TFLOP/s`` or ``2.5 PFLOPS``.

    >>> parse_flops("989 TFLOP/s")
    989000000000000.0
    """
    return _parse(text, _FLOPS, "a compute rate", ("989 TFLOP/s",), what)


def parse_power(text: object, *, what: str = "") -> float:
    """Watts from ``700 W`` or ``1.2 kW``.

    >>> parse_power("1.2 kW")
    1200.0
    """
    return _parse(text, _WATTS, "a power", ("700 W",), what)


def format_bytes(value: float) -> str:
    """Bytes in binary units, GiB for what fills a GPU.

    >>> format_bytes(80 * 2**30), format_bytes(25e6), format_bytes(512)
    ('80.0 GiB', '23.8 MiB', '512 B')
    """
    if abs(value) < 1023.5:
        return f"{value:.0f} B"
    return _scaled(value, (*_BINARY.items(),), ".1f", 1024) + "B"


def format_bytes_as_sold(value: float) -> str:
    """Bytes in decimal units, as a datasheet names a memory.

    >>> format_bytes_as_sold(80e9), format_bytes_as_sold(141e9)
    ('80 GB', '141 GB')
    """
    return _significant(value) + "B"


def format_bandwidth(value: float) -> str:
    """Bytes per second in decimal units.

    >>> format_bandwidth(450e9), format_bandwidth(3.35e12)
    ('450 GB/s', '3.35 TB/s')
    """
    return _significant(value) + "B/s"


def format_flops(value: float) -> str:
    """FLOP/s in decimal units.

    >>> format_flops(989e12), format_flops(2.25e15)
    ('989 TFLOP/s', '2.25 PFLOP/s')
    """
    return _significant(value) + "FLOP/s"


def format_seconds(value: float) -> str:
    """A time in the unit that suits it.

    >>> format_seconds(5e-6), format_seconds(0.0123), format_seconds(9.876), format_seconds(7200)
    ('5.00 µs', '12.3 ms', '9.88 s', '2.0 h')
    """
    if abs(value) >= 60:
        steps = (("min", 60.0), ("h", 3600.0), ("d", 86400.0))
        return _scaled(value, steps, ".1f", None)
    if value == 0 or not math.isfinite(value):
        return f"{value:.0f} s"
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(value) >= 0.9995 * factor:
            return f"{_three(value / factor)} {unit}"
    return f"{_three(value / 1e-9)} ns"


def format_count(value: float) -> str:
    """A count: whole below a million, then two digits after the point.

    >>> format_count(1284), format_count(70_553_706_496), format_count(1.02e12)
    ('1,284', '70.55 B', '1.02 T')
    """
    if abs(value) < 999_999.5:
        return f"{value:,.0f}"
    return _scaled(value, (("M", 1e6), ("B", 1e9), ("T", 1e12)), ".2f", 1000)


def format_percent(share: float, digits: int = 1) -> str:
    """A share of one as a percentage.

    >>> format_percent(0.5371), format_percent(0.5, 0)
    ('53.7%', '50%')
    """
    return f"{100 * share:.{digits}f}%"


_PLURALS = (
    "attempts|batches|bytes|candidates|cases|changes|characters|combinations|copies|cores|days|degrees|devices"
    "|digits|dimensions|entries|errors|events|experts|failures|files|flags|GPUs|groups|heads|hops|hosts|hours"
    "|iterations|kernels|kinds|layers|lines|measurements|micro-batches|minutes|models|nodes|numbers|others"
    "|parameters|parts|phases|pictures|plans|points|positions|problems|processes|racks|ranks|replicas|rows"
    "|rules|runs|samples|searches|seconds|sequences|settings|shapes|shards|sizes|sources|stages|steps|things"
    "|tiers|times|tokens|traces|transfers|types|values|warnings|ways"
)
_BEFORE = (
    "data-parallel|distinct|expert|feasible|key|measured|model|more|other|pipeline|published|query|stage|valid"
    "|virtual|whole"
)
_VERBS = {
    "are": "is", "do": "does", "differ": "differs", "fit": "fits", "have": "has", "hold": "holds",
    "leave": "leaves", "make": "makes", "move": "moves", "need": "needs", "reach": "reaches", "take": "takes",
    "were": "was",
}  # fmt: skip
_NAMES = "tp|cp|pp|dp|ep|etp|edp|vp|mbs|rank|stage|plan|phase|node|layer|step|tier"
"""Before a number: it is a name's, as in ``pp 1 stages``."""
_ENDS = {"ies": "y", "ches": "ch", "sses": "ss", "s": ""}
_ONE = re.compile(
    rf"(?<![\w.,/×·#-])(?P<name>(?:{_NAMES}) )?1 (?P<before>(?:(?:{_BEFORE}) )?)(?P<noun>{_PLURALS})\b"
    rf"(?: (?P<verb>{'|'.join(_VERBS)})\b)?"
)


def one_is_singular(text: str) -> str:
    """``text`` with ``1 ranks are`` as ``1 rank is``, for all the nouns that are counted here.

    >>> one_is_singular("1 plans fit 1 GPUs, 11 plans 2; pp 1 stages")
    '1 plan fits 1 GPU, 11 plans 2; pp 1 stages'
    """
    return _ONE.sub(_singular, text) if "1 " in text else text


def _singular(found: re.Match[str]) -> str:
    noun, verb = found["noun"], found["verb"]
    if found["name"]:
        return found[0]
    many, one = next((many, one) for many, one in _ENDS.items() if noun.endswith(many))
    noun = noun.removesuffix(many) + one
    return f"1 {found['before']}{noun}" + (f" {_VERBS[verb]}" if verb else "")


def _parse(text: object, units: Mapping[str, float], kind: str, examples: Sequence[str], what: str) -> float:
    place = f"{what}: " if what else ""
    usual = " or ".join(f"'{e}'" for e in examples)
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise InputError(f"{place}{shown(text)} is not {kind}; write it like {usual}")
    match = _QUANTITY.fullmatch(str(text)[:200])
    if match is None:
        raise InputError(f"{place}{shown(text)} is not {kind}; write it like {usual}")
    number, unit = match[1], (match[2] or "").strip()
    if not unit:
        if len(number) > 20:
            number = "1"
        own = " or ".join(f"'{number} {e.split()[1]}'" for e in examples)
        raise InputError(f"{place}{shown(text)} has no unit; write {own}")
    if unit not in units:
        raise InputError(
            f"{place}{shown(text)}: {shown(unit)} is not a unit of {kind}{_meant(number, unit, units, usual)}"
        )
    factor = units[unit]  # dividing by a whole inverse keeps '5 us' equal to 5e-6, to the bit
    value = float(number) * factor if factor >= 1 / 8 else float(number) / round(1 / factor)
    if value < 0:
        raise InputError(f"{place}{shown(text)} is negative")
    if not math.isfinite(value):
        raise InputError(f"{place}{shown(text)} is too large for {kind}")
    for kinds, most, told in _MOST:
        if kinds is units and value > most:
            raise InputError(f"{place}{shown(text)} is too large; {told} is the most")
    return value


def _meant(number: str, unit: str, units: Mapping[str, float], usual: str) -> str:
    """The end of the message: the same number in units that exist, else the usual form."""
    if unit in _BITS and units is _BYTES:
        return f" (b is bits, B is bytes); write it like {usual}"
    same = [u for u in units if u.lower() in (unit.lower(), f"{unit.lower()}/s")]
    if not same:
        return f"; write it like {usual}"
    return "; did you mean " + " or ".join(f"'{number} {u}'" for u in same[:2]) + "?"


def _scaled(value: float, steps: Sequence[tuple[str, float]], form: str, wrap: float | None) -> str:
    """``value`` in the largest step it reaches; a figure that rounds up to ``wrap`` takes the next step."""
    for (unit, factor), (_, larger) in itertools.pairwise(steps):
        text = format(value / factor, form)
        if abs(float(text)) < (larger / factor if wrap is None else wrap):
            return f"{text} {unit}"
    unit, factor = steps[-1]
    return f"{format(value / factor, form)} {unit}"


def _significant(value: float) -> str:
    """Three significant digits and a decimal prefix: ``989 T``, ``3.35 T``, ``0``."""
    if value == 0 or not math.isfinite(value):
        return f"{value:.0f} "
    for prefix, factor in (("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= 0.9995 * factor:
            return f"{_three(value / factor, trim=True)} {prefix}"
    return f"{_three(value, trim=True)} "


def _three(value: float, *, trim: bool = False) -> str:
    """Three significant digits; ``trim`` drops zeros after the point."""
    size = abs(value)
    text = f"{value:.{2 if size < 9.995 else 1 if size < 99.95 else 0}f}"
    return text.rstrip("0").rstrip(".") if trim and "." in text else text
