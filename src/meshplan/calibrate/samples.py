"""What calibration measures: one operation of one size, many times."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from meshplan.errors import InputError, shown
from meshplan.files import MIB, read_text

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p")
SHAPES = {"matmul": 3, "attention": 4, "attention_backward": 4}
"""Operation → how many sizes it has."""
OPS = (*SHAPES, "copy", "launch", *COLLECTIVES)
ABOUT = ("hosts", "date", "device", "memory_bytes")
"""What is said of the machine."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """Seconds of one operation. ``shape``: (m, n, k) of a product, (batch, heads, tokens, width) of
    attention; ``size_bytes``: of a collective, as nccl-tests counts it, or moved by a copy. A collective
    runs among ``ranks`` with ``per_host`` of them on each host. Raises ``InputError`` for what no clock or
    machine can have said."""

    op: str
    seconds: tuple[float, ...]
    dtype: str = ""
    shape: tuple[int, ...] = ()
    size_bytes: float = 0.0
    ranks: int = 1
    per_host: int = 1

    def __post_init__(self) -> None:
        if self.op not in OPS:
            raise InputError(f"unknown operation {shown(self.op)}; known: {', '.join(OPS)}")
        if not isinstance(self.dtype, str):
            raise InputError(f"dtype of {self.op} must be a name, not {shown(self.dtype)}")
        if not self.seconds or not all(_is_number(s) and s > 0 for s in self.seconds):
            raise InputError(f"seconds of {self.op} must be numbers above 0, not {shown(list(self.seconds))}")
        sizes = SHAPES.get(self.op, 0)
        if sizes and not (len(self.shape) == sizes and all(_is_count(n) for n in self.shape)):
            told = f"{sizes} whole numbers from 1"
            raise InputError(f"the shape of {self.op} must be {told}, not {shown(list(self.shape))}")
        if not (_is_number(self.size_bytes) and self.size_bytes >= 0):
            raise InputError(f"size_bytes of {self.op} must be a number from 0, not {shown(self.size_bytes)}")
        if not (_is_count(self.ranks) and _is_count(self.per_host) and self.per_host <= self.ranks):
            raise InputError(
                f"{self.op} must run among 1 rank or more, and as many or fewer a host, not"
                f" {shown(self.ranks)} and {shown(self.per_host)}"
            )

    @property
    def median_s(self) -> float:
        """Robust against a scheduler's rare spikes."""
        return median(self.seconds)

    @property
    def noise(self) -> float:
        """Scaled median deviation over the median."""
        middle = self.median_s
        return 1.4826 * median(abs(s - middle) for s in self.seconds) / middle


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def write_samples(path: Path, samples: Sequence[Sample], about: Mapping[str, object]) -> None:
    """Samples with ``about`` (hosts, versions, date)."""
    data = {"schema_version": 1, "about": dict(about), "samples": [asdict(s) for s in samples]}
    path.write_text(json.dumps(data))


def read_samples(path: Path) -> tuple[list[Sample], dict[str, object]]:
    """What ``write_samples`` wrote. Raises ``InputError``."""
    text = read_text(path, limit_bytes=64 * MIB, what="samples file")
    where = f"samples file {shown(path, 200)}"
    try:
        data = json.loads(text)
        samples = [
            Sample(**{**s, "seconds": tuple(s["seconds"]), "shape": tuple(s["shape"])})
            for s in data["samples"]
        ]
        about = {name: data["about"][name] for name in ABOUT} | dict(data["about"])
        hosts = about["hosts"]
        named = isinstance(hosts, list) and hosts and all(isinstance(host, str) for host in hosts)
        if not (named and _is_count(about["memory_bytes"])):
            raise TypeError
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise InputError(
            f"{where} does not hold the samples of a calibration; give the"
            " .samples.json that calibrate wrote beside its cluster file"
        ) from None
    return samples, about
