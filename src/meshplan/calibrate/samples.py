"""What calibration measures: one operation of one size, many times."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from meshplan.errors import InputError, shown
from meshplan.files import MIB, read_text

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p")


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """Seconds of one operation. ``shape``: (m, n, k) of a product, (batch, heads, tokens, width) of
    attention; ``size_bytes``: of a collective, as nccl-tests counts it, or moved by a copy. A collective
    runs among ``ranks`` with ``per_host`` of them on each host."""

    op: str
    seconds: tuple[float, ...]
    dtype: str = ""
    shape: tuple[int, ...] = ()
    size_bytes: float = 0.0
    ranks: int = 1
    per_host: int = 1

    @property
    def median_s(self) -> float:
        """Robust against a scheduler's rare spikes."""
        return median(self.seconds)

    @property
    def noise(self) -> float:
        """Scaled median deviation over the median."""
        middle = self.median_s
        return 1.4826 * median(abs(s - middle) for s in self.seconds) / middle


def write_samples(path: Path, samples: Sequence[Sample], about: Mapping[str, object]) -> None:
    """Samples with ``about`` (hosts, versions, date)."""
    data = {"schema_version": 1, "about": dict(about), "samples": [asdict(s) for s in samples]}
    path.write_text(json.dumps(data))


def read_samples(path: Path) -> tuple[list[Sample], dict[str, object]]:
    """What ``write_samples`` wrote. Raises ``InputError``."""
    text = read_text(path, limit_bytes=64 * MIB, what="samples file")
    try:
        data = json.loads(text)
        samples = [
            Sample(**{**s, "seconds": tuple(s["seconds"]), "shape": tuple(s["shape"])})
            for s in data["samples"]
        ]
        about = data["about"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise InputError(
            f"samples file {shown(path, 200)} does not hold the samples of a calibration; give the"
            " .samples.json that calibrate wrote beside its cluster file"
        ) from None
    return samples, about
