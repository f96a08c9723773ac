"""Errors of a validation run: of step time and memory, of rankings in sweeps, of out-of-memory verdicts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from meshplan.validation.run import Outcome

MIN_SWEEP = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Errors:
    """Relative errors as fractions: ``signed_median`` keeps the sign, the others are absolute."""

    n: int
    signed_median: float | None = None
    median: float | None = None
    mean: float | None = None
    p90: float | None = None

    @classmethod
    def of(cls, errors: Iterable[float | None]) -> Errors:
        """Summary of the errors there are."""
        values = np.array([e for e in errors if e is not None], dtype=np.float64)
        if not len(values):
            return cls(n=0)
        absolute = np.abs(values)
        return cls(
            n=len(values),
            signed_median=float(np.median(values)),
            median=float(np.median(absolute)),
            mean=float(absolute.mean()),
            p90=float(np.percentile(absolute, 90)),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """Plans of one model measured on the same cluster and batch.

    ``tau``: Kendall's rank correlation (tau-b) of estimate and measurement; ``regret``: how much slower
    the plan that the estimate calls fastest was than the fastest, as a fraction.
    """

    key: tuple[str, ...]
    n: int
    tau: float
    regret: float


@dataclass(frozen=True, kw_only=True, slots=True)
class OomTable:
    """Out-of-memory verdicts against what happened: the first word is the estimate, the second the run."""

    oom_oom: int
    oom_ran: int
    ran_oom: int
    ran_ran: int


def kendall_tau(a: Sequence[float], b: Sequence[float]) -> float:
    """Kendall's tau-b of two equally long sequences (Kendall 1945); 0 where one of them is constant."""
    x, y = (np.asarray(v, dtype=np.float64) for v in (a, b))
    upper = np.triu_indices(len(x), 1)
    dx, dy = (np.sign(v[:, None] - v[None, :])[upper] for v in (x, y))
    scale = np.sqrt(np.count_nonzero(dx) * float(np.count_nonzero(dy)))
    return float((dx * dy).sum() / scale) if scale else 0.0


def sweeps(outcomes: Iterable[Outcome]) -> list[Sweep]:
    """Every group of at least five plans of one problem."""
    groups: dict[tuple[str, ...], list[Outcome]] = defaultdict(list)
    for o in outcomes:
        if o.case.step_s:
            row = o.case.row
            numbers = (str(row.whole(c)) for c in ("gpus", "gbs", "seq"))
            key = (row.text["source"], row.text["model"], row.text["gpu"], *numbers, row.text["precision"])
            groups[key].append(o)
    found = []
    for key, members in groups.items():
        if len({o.case.plan for o in members}) < MIN_SWEEP:
            continue
        measured = [o.case.step_s or 0.0 for o in members]
        estimated = [o.step_s for o in members]
        chosen = measured[int(np.argmin(estimated))]
        found.append(
            Sweep(
                key=key,
                n=len(members),
                tau=kendall_tau(estimated, measured),
                regret=chosen / min(measured) - 1,
            )
        )
    return found


def oom_table(outcomes: Iterable[Outcome]) -> OomTable:
    """Verdicts on rows whose outcome is known: those said to have run out, and those with a time."""
    counts = {(a, b): 0 for a in (True, False) for b in (True, False)}
    for o in outcomes:
        counts[o.device_bytes > o.limit_bytes, o.case.out_of_memory] += 1
    return OomTable(
        oom_oom=counts[True, True],
        oom_ran=counts[True, False],
        ran_oom=counts[False, True],
        ran_ran=counts[False, False],
    )


def grouped(outcomes: Iterable[Outcome], key: Callable[[Outcome], str]) -> dict[str, list[Outcome]]:
    """Outcomes by family, largest first."""
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for o in outcomes:
        groups[key(o)].append(o)
    return dict(sorted(groups.items(), key=lambda item: -len(item[1])))
