"""Why not this plan: invalid, too large or slower, and the smallest change that was tried and works."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Literal

import numpy as np

from meshplan.cost.costs import Costs
from meshplan.errors import InputError
from meshplan.plan.kinds import Sharding
from meshplan.plan.plans import Plans
from meshplan.search.ranking import Ranking
from meshplan.search.reasons import DEGREES, KEEP, Answer, Case, Wish, answer, asked_again, with_wish
from meshplan.search.reasons_compare import Comparison, compare, with_memory
from meshplan.search.reasons_flip import Flip, flips

ALL = 100_000
MOST_DOUBLINGS = 8
GAIN = 1e-3
"""A change of a slower plan must make its step shorter by this share to be worth a line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One thing to do otherwise: a field of the plan, or ``gpus``, ``gbs``, ``seq`` or ``memory`` (bytes)."""

    name: str
    old: Any
    new: Any

    @property
    def distance(self) -> float:
        """How far the new value is from the old: doublings; 1 for a choice that is no number."""
        if isinstance(self.old, int | float) and isinstance(self.new, int | float) and self.name != "sp":
            low, high = sorted((max(float(self.old), 1e-9), max(float(self.new), 1e-9)))
            return math.log2(high / low) if self.name not in ("schedule", "sharding", "cp_kind") else 1.0
        return 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Fix:
    """Changes with which the plan works; ``costs`` is the plan that a search found then (one row)."""

    changes: tuple[Change, ...]
    costs: Costs

    @property
    def distance(self) -> tuple[int, float, float]:
        """Fewest changes first, then the smallest, then the fastest."""
        return len(self.changes), sum(c.distance for c in self.changes), float(self.costs.step_s[0])


Verdict = Literal["invalid", "memory", "slower", "best"]
"""``best``: no slower than the plan that ``meshplan plan`` puts first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WhyNot:
    """What is wrong with a wish, measured against the best plan of the whole question."""

    answer: Answer
    verdict: Verdict
    ranking: Ranking
    """Of the whole question."""
    rank: int | None
    """Place of the plan by step time among all that fit; ``None`` where it is behind all that were kept."""
    comparison: Comparison | None
    """The best plan (a) and this one (b), where both fit."""
    fixes: tuple[Fix, ...]
    """Smallest first; each was searched for again."""
    flips: tuple[Flip, ...]
    """What would make it the best; where it fits but is slower."""

    @property
    def slower(self) -> float | None:
        """By what share its step is longer than the best one's."""
        return None if self.comparison is None else self.comparison.slower


def why_not(case: Case, wish: Wish) -> WhyNot:
    """The verdict on ``wish``."""
    found = answer(case, wish)
    ranking = case.ranked()
    best = ranking.costs.take(slice(0, 1)) if len(ranking) else None
    if not found.fits:
        fixes = _repairs(case, found)
        return WhyNot(
            answer=found, verdict="invalid" if found.costs is None else "memory", ranking=ranking, rank=None,
            comparison=None, fixes=fixes, flips=(),
        )  # fmt: skip
    assert found.costs is not None
    if best is None or float(found.costs.step_s[0]) <= float(best.step_s[0]) * (1 + 1e-9):
        rank = _rank(ranking, float(found.costs.step_s[0]))
        return WhyNot(
            answer=found, verdict="best", ranking=ranking, rank=rank, comparison=None, fixes=(), flips=()
        )
    turning = flips(case, asked_again(best.plans[0], case.space), asked_again(found.plan, case.space))
    return WhyNot(
        answer=found, verdict="slower", ranking=ranking,
        rank=_rank(ranking, float(found.costs.step_s[0])),
        comparison=compare(best, found.costs), fixes=_gains(case, found), flips=turning,
    )  # fmt: skip


def _rank(ranking: Ranking, step_s: float) -> int | None:
    faster = int((ranking.costs.step_s < step_s * (1 - 1e-9)).sum())
    return None if faster == len(ranking) < ranking.counts.feasible else 1 + faster


# ── changes to the plan ──────────────────────────────────────────────────────────────────────────


def _repairs(case: Case, found: Answer) -> tuple[Fix, ...]:
    """One change to the plan, else two; and one to the question."""
    plan = [fix for names in combinations(found.wish, 1) for fix in _freed(case, found.wish, names)]
    plan += _settings(case, found.wish)
    if not plan:
        plan = [fix for names in combinations(found.wish, 2) for fix in _freed(case, found.wish, names)]
    asked = [fix for fix in _questions(case, found) if fix is not None]
    return (*sorted(plan, key=lambda fix: fix.distance), *sorted(asked, key=lambda fix: fix.distance))


def _gains(case: Case, found: Answer) -> tuple[Fix, ...]:
    """For each field of the wish, the value with the shortest step, where there is a shorter one."""
    assert found.costs is not None
    now = float(found.costs.step_s[0])
    gains = []
    for name in found.wish:
        rest = {k: v for k, v in found.wish.items() if k != name}
        ranking = _try(case, rest)
        if ranking is None or not len(ranking) or float(ranking.costs.step_s[0]) > now * (1 - GAIN):
            continue
        costs = ranking.costs.take(slice(0, 1))
        gains.append(Fix(changes=_changes(found.wish, (name,), costs), costs=costs))
    return tuple(sorted(gains, key=lambda fix: float(fix.costs.step_s[0])))


def _freed(case: Case, wish: Wish, names: tuple[str, ...]) -> Iterator[Fix]:
    """The nearest values of ``names`` with which the rest of the wish works."""
    ranking = _try(case, {k: v for k, v in wish.items() if k not in names}, keep=ALL)
    if ranking is None or not len(ranking):
        return
    costs = ranking.costs
    far = np.zeros(len(costs.plans))
    for name in names:
        column = getattr(costs.plans, name, None)
        if name in DEGREES and column is not None:
            far = far + np.abs(np.log2(column / float(wish[name])))
    nearest = int(np.lexsort((costs.step_s, np.round(far, 9)))[0])
    row = costs.take(np.array([nearest]))
    yield Fix(changes=_changes(wish, names, row), costs=row)


def _settings(case: Case, wish: Wish) -> Iterator[Fix]:
    """More sharding, where neither the wish nor the space has it."""
    for sharding in (Sharding.ZERO2, Sharding.ZERO3):
        if "sharding" in wish or sharding in case.space.sharding:
            continue
        ranking = _try(case, {**wish, "sharding": sharding})
        if ranking is not None and len(ranking):
            costs = ranking.costs.take(slice(0, 1))
            old = case.space.sharding[0]
            yield Fix(changes=(Change(name="sharding", old=old, new=sharding),), costs=costs)


def _changes(wish: Wish, names: tuple[str, ...], costs: Costs) -> tuple[Change, ...]:
    plan = costs.plans[0]
    return tuple(Change(name=name, old=wish[name], new=getattr(plan, name)) for name in names)


def _try(case: Case, wish: Wish, *, keep: int = KEEP) -> Ranking | None:
    try:
        return with_wish(case, wish, keep=keep)
    except InputError:  # the cost model cannot price such a plan
        return None


# ── changes to the question ──────────────────────────────────────────────────────────────────────


def _questions(case: Case, found: Answer) -> Iterator[Fix | None]:
    if found.costs is not None:
        yield _more_memory(case, found)
        yield _shorter(case, found)
    yield _other_batch(case, found)
    yield _other_gpus(case, found)


def _more_memory(case: Case, found: Answer) -> Fix | None:
    """The memory that the smallest plan with the wish needs, whole GiB."""
    assert found.costs is not None
    need, limit = float(found.costs.memory_bytes[0]), found.costs.memory_limit_bytes
    roomy = case.on(with_memory(case.cluster, need / limit * (1 + 1e-9)))
    ranking = _try(roomy, found.wish)
    if ranking is None or not len(ranking):
        return None
    change = Change(name="memory", old=limit, new=need)
    return Fix(changes=(change,), costs=ranking.costs.take(slice(0, 1)))


def _shorter(case: Case, found: Answer) -> Fix | None:
    """Half the sequence, and half again, with as many tokens a step."""
    seq, gbs = case.workload.seq, case.workload.gbs
    for doubling in range(1, MOST_DOUBLINGS):
        if seq % 2**doubling:
            return None
        other = replace(case.workload, seq=seq >> doubling, gbs=gbs << doubling)
        ranking = _try(case.of(other), found.wish)
        if ranking is not None and len(ranking):
            change = Change(name="seq", old=seq, new=seq >> doubling)
            return Fix(changes=(change,), costs=ranking.costs.take(slice(0, 1)))
    return None


def _other_batch(case: Case, found: Answer) -> Fix | None:
    """The nearest global batch that divides, where the present one does not."""
    size, gbs = found.plan.dp * found.plan.mbs, case.workload.gbs
    if gbs % size == 0:
        return None
    counts = sorted({max(gbs // size, 1), -(-gbs // size)}, key=lambda n: abs(n * size - gbs))
    for count in counts:
        ranking = _try(case.of(replace(case.workload, gbs=count * size)), found.wish)
        if ranking is not None and len(ranking):
            change = Change(name="gbs", old=gbs, new=count * size)
            return Fix(changes=(change,), costs=ranking.costs.take(slice(0, 1)))
    return None


def _other_gpus(case: Case, found: Answer) -> Fix | None:
    """The nearest number of GPUs: what the degrees multiply to, or doubled until it fits."""
    gpus, plan = case.cluster.gpus, found.plan
    unit = plan.tp * plan.cp * plan.pp
    counts = [plan.gpus, *(unit * 2**k for k in range(MOST_DOUBLINGS)), *(gpus * 2**k for k in range(1, 6))]
    for count in sorted(set(counts) - {gpus}, key=lambda n: abs(math.log(n / gpus))):
        try:
            cluster = case.cluster.with_gpus(count)
        except InputError:
            continue
        ranking = _try(case.on(cluster), found.wish)
        if ranking is not None and len(ranking):
            change = Change(name="gpus", old=gpus, new=count)
            return Fix(changes=(change,), costs=ranking.costs.take(slice(0, 1)))
    return None


def with_changes(case: Case, wish: Mapping[str, Any], fix: Fix) -> tuple[Case, dict[str, Any]]:
    """The question and the wish after a fix, to ask again."""
    wished = dict(wish)
    for change in fix.changes:
        match change.name:
            case "gpus":
                case = case.on(case.cluster.with_gpus(int(change.new)))
            case "gbs":
                case = case.of(replace(case.workload, gbs=int(change.new)))
            case "seq":
                seq = int(change.new)
                case = case.of(replace(case.workload, seq=seq, gbs=case.workload.tokens // seq))
            case "memory":
                case = case.on(with_memory(case.cluster, float(change.new) / float(change.old) * (1 + 1e-9)))
            case _:
                wished[change.name] = change.new
    return case, wished


def row_of(costs: Costs, plans: Plans) -> int | None:
    """The row of ``costs`` whose plan is the first of ``plans``, if it is there."""
    same = np.ones(len(costs.plans), dtype=np.bool_)
    for name in (*DEGREES, "schedule", "sharding"):
        same &= getattr(costs.plans, name) == getattr(plans, name)[0]
    rows = np.flatnonzero(same)
    return int(rows[0]) if rows.size else None
