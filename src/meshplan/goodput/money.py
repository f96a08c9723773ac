"""Money and energy: what an hour of a GPU costs and draws, with sources."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from meshplan.cluster.gpu import Gpu
from meshplan.errors import InputError


@dataclass(frozen=True, kw_only=True, slots=True)
class Price:
    """US dollars an hour of one GPU, and where the number comes from."""

    usd_per_hour: float
    source: str
    date: str = ""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.usd_per_hour) and self.usd_per_hour >= 0):
            raise InputError(f"a price must be dollars an hour from 0, not {self.usd_per_hour:g}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Power:
    """Watts of one GPU, and where the number comes from."""

    watts: float
    source: str

    def __post_init__(self) -> None:
        if not (math.isfinite(self.watts) and self.watts >= 0):
            raise InputError(f"a power must be watts from 0, not {self.watts:g}")


def usual_price(gpu: Gpu) -> Price | None:
    """The price shipped for this GPU; ``None`` where no public one is known."""
    row = _prices().get(gpu.name)
    return None if row is None else Price(**row)


def usual_power(gpu: Gpu) -> Power:
    """The board's power limit: without host, network and cooling, which a whole machine room adds."""
    found = [text for key, text in gpu.sources.items() if key in ("watts", "power")]
    return Power(watts=gpu.watts, source=found[0] if found else "the maker's datasheet")


@cache
def _prices() -> dict[str, dict[str, Any]]:
    text = (Path(__file__).parent / "data" / "prices.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
