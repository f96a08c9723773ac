"""Flags of a whole training run, and of what else `meshplan plan` can say about its answer."""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any

from cyclopts import Group, Parameter

from meshplan.cli.options import option
from meshplan.cluster.gpu import Gpu
from meshplan.errors import InputError, shown
from meshplan.goodput.failures import Reliability
from meshplan.goodput.money import Power, Price, usual_power, usual_price
from meshplan.units import parse_power, parse_seconds

MOST_DOLLARS = 1_000_000
"""Beyond any price of a GPU hour: what is more is taken for a slip."""
_SCALES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}


def read_tokens(text: str, what: str) -> float:
    """A number of tokens: ``15e12``, ``15T``, ``252M``, ``800B``."""
    body = text.strip().replace("_", "").replace(",", "")
    scale = _SCALES.get(body[-1:].upper(), 0.0) if body[-1:].isalpha() else 1.0
    number = body[:-1] if body[-1:].isalpha() else body
    try:
        value = float(number) * scale
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 1):
        raise InputError(f"{what} must be a number of tokens like 15e12 or 15T, not {shown(text)}")
    return value


def _dollars(text: str, what: str) -> float:
    try:
        value = float(text.strip().removeprefix("$"))
    except ValueError:
        value = math.nan
    if not 0 <= value <= MOST_DOLLARS:  # NaN is not
        most = f"from 0 to {MOST_DOLLARS:,} like 2.50"
        raise InputError(f"{what} must be dollars an hour of one GPU, {most}, not {shown(text)}")
    return value


def _watts(text: str, what: str) -> float:
    plain = text.strip().replace(".", "", 1).isdecimal()
    if text.strip()[:1] == "-":
        raise InputError(f"{what} must be watts from 0, like 700, not {shown(text)}")
    return parse_power(f"{text} W" if plain else text, what=what)


def _time(*like: str) -> Callable[[str, str], float]:
    """A reader of times above zero; ``like``: what its messages suggest."""

    def read(text: str, what: str) -> float:
        number = text.strip().split(" ")[0]
        above = number.startswith("-") or number.replace(".", "", 1).strip("0") == ""
        value = 0.0 if number and above else parse_seconds(text, what=what, like=like)
        if value <= 0:
            usual = " or ".join(f"'{e}'" for e in like)
            raise InputError(f"{what} must be a time above zero like {usual}, not {shown(text)}")
        return value

    return read


_Tokens = Annotated[float | None, option(read_tokens)]


@Parameter(name="*", group=Group("Whole run", sort_key=4))
@dataclass(kw_only=True)
class RunFlags:
    """A run of many steps."""

    tokens: Annotated[_Tokens, Parameter(help="Train on so many tokens, 15e12 or 15T: days, money.")] = None
    price: Annotated[
        float | None, option(_dollars, metavar="USD"), Parameter(help="Dollars an hour of one GPU.")
    ] = None
    watts: Annotated[
        float | None, option(_watts, metavar="W"), Parameter(help="Power of one GPU (default: its board's).")
    ] = None
    failures: Annotated[
        bool, Parameter(negative="--no-failures", help="With failures; --no-failures as if nothing failed.")
    ] = True
    gpu_mttf: Annotated[
        float | None,
        option(_time("2100 d", "50000 h"), metavar="TIME"),
        Parameter(help="Mean time to failure of one GPU: '2100 d' (default: Llama 3's 5.8 years)."),
    ] = None
    restart: Annotated[
        float | None,
        option(_time("10 min", "90 s"), metavar="TIME"),
        Parameter(help="From a failure to loading: '10 min' (default)."),
    ] = None
    checkpoint: Annotated[
        float | None,
        option(_time("6.3 s", "2 min"), metavar="TIME"),
        Parameter(help="Training stands still for a checkpoint: '6.3 s' (default)."),
    ] = None


@Parameter(name="*", group=Group("Reasons", sort_key=5))
@dataclass(kw_only=True)
class StudyFlags:
    """What else to say about the ranking."""

    what_if: Annotated[
        str | None,
        Parameter(
            metavar="CHANGES",
            help="The best plan after changes: nic=2x,memory=141GB,gbs=2048,overlap_tp=off.",
        ),
    ] = None
    sensitivities: Annotated[
        bool, Parameter(negative=(), help="What one per cent more of each hardware number is worth.")
    ] = False
    explain_steps: Annotated[
        bool, Parameter(negative=(), help="How an expert would get there, and where the search differs.")
    ] = False


def need_tokens(flags: RunFlags) -> bool:
    """Whether no whole run is asked for; raises ``InputError`` where other flags describe one."""
    if flags.tokens is not None:
        return False
    usual = RunFlags()
    idle = [f.name for f in fields(RunFlags) if getattr(flags, f.name) != getattr(usual, f.name)]
    if idle:
        names = ["--no-failures" if name == "failures" else f"--{name.replace('_', '-')}" for name in idle]
        are = "is" if len(names) == 1 else "are"
        raise InputError(f"{', '.join(names)} {are} about a whole run; say how long with --tokens 15T")
    return True


def reliability_of(flags: RunFlags) -> Reliability | None:
    """What can fail; ``None`` with ``--no-failures``."""
    if not flags.failures:
        return None
    asked: dict[str, Any] = {
        "gpu_mttf_s": flags.gpu_mttf,
        "restart_s": flags.restart,
        "blocking_s": flags.checkpoint,
    }
    return Reliability(**{name: value for name, value in asked.items() if value is not None})


def price_of(flags: RunFlags, gpu: Gpu) -> Price | None:
    """The price asked for, or the one shipped for the GPU."""
    return usual_price(gpu) if flags.price is None else Price(usd_per_hour=flags.price, source="as asked")


def power_of(flags: RunFlags, gpu: Gpu) -> Power:
    """The power asked for, or that of the GPU's board."""
    return usual_power(gpu) if flags.watts is None else Power(watts=flags.watts, source="as asked")
