"""The best plan as the GPUs grow: the same batch on more of them (strong), or more batch too (weak).

The best plan is the one that ``meshplan plan`` puts first: the simplest of those tied with the fastest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from meshplan.cost.costs import Costs
from meshplan.errors import InputError
from meshplan.search.ranking import Miss, Ranking
from meshplan.search.reasons import Case
from meshplan.units import format_bytes

GROUP_OF = {
    "compute": "kernels", "matmul": "kernels", "attention": "kernels", "elementwise": "kernels",
    "head and loss": "kernels", "host": "kernels", "recompute": "recompute", "tp": "tp", "cp": "cp",
    "ep": "ep", "dp": "dp", "optimizer": "dp", "pp": "pipeline", "bubble": "pipeline",
    "imbalance": "imbalance", "straggler": "straggler", "step overhead": "once a step",
}  # fmt: skip
"""Part of the step → what it is counted under here; a part that is not here keeps its name."""
USEFUL = "useful"


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """The best plan for one number of GPUs and one batch."""

    curve: str
    """``strong`` with its batch, or ``weak``."""
    gpus: int
    gbs: int
    costs: Costs | None
    """One row; ``None`` where no plan is possible, or the batch that the curve asks for is no whole number
    (``gbs`` is then rounded down)."""
    reason: str
    """Why there is none."""
    tokens_per_s: float | None
    efficiency: float | None
    """Tokens/s of a GPU over those at the curve's first point that has a plan."""
    shares: Mapping[str, float]
    """Where every second of every GPU goes; sums to one. ``useful`` is the model's own FLOP at the peak."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scaling:
    """All points, curve by curve, GPUs rising."""

    points: tuple[Point, ...]

    @property
    def curves(self) -> dict[str, list[Point]]:
        """The points of each curve."""
        found: dict[str, list[Point]] = {}
        for point in self.points:
            found.setdefault(point.curve, []).append(point)
        return found


Told = Callable[[str], None]
"""Is told what is being searched, for a progress line."""


def scaling(
    case: Case,
    gpus: Sequence[int],
    batches: Sequence[int],
    *,
    weak: bool = True,
    told: Told = lambda text: None,
    known: Ranking | None = None,
) -> Scaling:
    """The best plan on every number of ``gpus`` for each of ``batches``; ``weak``: also with the first batch
    growing with the GPUs. ``known``: the answer to ``case`` itself, which is then not searched for again.
    Raises ``InputError`` for a number of GPUs that cannot be."""
    points: list[Point] = []
    for curve, pairs in _curves(tuple(gpus), tuple(batches), weak):
        first: float | None = None
        for count, gbs in pairs:
            told(f"{curve}: {count:,} GPUs, gbs {gbs:,}")
            if curve.startswith("weak") and batches[0] * count % gpus[0]:
                points.append(_nothing(curve, count, gbs, _uneven(batches[0], gpus[0], count)))
                continue
            point = _point(case, curve, count, gbs, first, known)
            if first is None and point.tokens_per_s is not None:
                first = point.tokens_per_s / count
                point = replace(point, efficiency=1.0)
            points.append(point)
    return Scaling(points=tuple(points))


def _curves(
    gpus: tuple[int, ...], batches: tuple[int, ...], weak: bool
) -> Iterator[tuple[str, list[tuple[int, int]]]]:
    for gbs in batches:
        yield f"strong, gbs {gbs:,}", [(n, gbs) for n in gpus]
    if weak and len(gpus) > 1:
        yield f"weak, gbs {batches[0]:,} on {gpus[0]:,}", [(n, batches[0] * n // gpus[0]) for n in gpus]


def _point(case: Case, curve: str, gpus: int, gbs: int, first: float | None, known: Ranking | None) -> Point:
    here = case.on(case.cluster.with_gpus(gpus)).of(replace(case.workload, gbs=gbs))
    own = (gpus, gbs) == (case.cluster.gpus, case.workload.gbs)
    try:
        ranking = known if known is not None and own else here.ranked()
    except InputError as error:  # the cost model cannot price any plan there
        return _nothing(curve, gpus, gbs, str(error))
    if not len(ranking):
        miss = ranking.closest_miss
        against = f"no valid plan: {ranking.against}" if ranking.against else "no valid plan"
        return _nothing(curve, gpus, gbs, against if miss is None else _too_large(miss))
    costs = ranking.costs.take(slice(0, 1))
    tokens = here.workload.tokens / float(costs.step_s[0])
    return Point(
        curve=curve, gpus=gpus, gbs=gbs, costs=costs, reason="", tokens_per_s=tokens,
        efficiency=None if first is None else tokens / gpus / first, shares=shares(costs),
    )  # fmt: skip


def _uneven(batch: int, gpus: int, count: int) -> str:
    """Why a curve that keeps sequences per GPU has no point here."""
    return f"{batch:,} sequences on {gpus:,} GPUs would be {batch * count / gpus:,.4g} on {count:,}"


def _too_large(miss: Miss) -> str:
    need, limit = float(miss.costs.memory_bytes[0]), miss.costs.memory_limit_bytes
    return f"no plan fits the memory: the smallest needs {format_bytes(need)} of {format_bytes(limit)}"


def _nothing(curve: str, gpus: int, gbs: int, reason: str) -> Point:
    return Point(
        curve=curve, gpus=gpus, gbs=gbs, costs=None, reason=reason, tokens_per_s=None, efficiency=None,
        shares={},
    )  # fmt: skip


def shares(costs: Costs) -> dict[str, float]:
    """Where the GPUs' time goes in the first row: the model's own FLOP at the peak, what kernels need above
    that, and everything that is not computing. Sums to one."""
    step = float(costs.step_s[0])
    found: dict[str, float] = {USEFUL: float(costs.mfu[0])}
    for part, values in costs.time.items():
        group = GROUP_OF.get(part, part)
        found[group] = found.get(group, 0.0) + float(values[0]) / step
    found["kernels"] = found.get("kernels", 0.0) - found[USEFUL]
    return found
