"""Why not this plan: invalid, too large or slower, and the smallest change that was tried and works."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, Literal

import numpy as np

from meshplan.cost.costs import Costs
from meshplan.errors import InputError
from meshplan.plan.kinds import Sharding
from meshplan.plan.plans import Plan, Plans
from meshplan.search.objective import BY_TIME, TIE, values
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
    """One thing to do otherwise: a field of the plan, or ``gpus``, ``gbs``, ``seq``, ``offload`` or
    ``memory`` (bytes on the board, of which a part is usable)."""

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
    kept: Mapping[str, Any] = field(default_factory=dict)
    """What stays as it is in the plan in question besides the wish; empty where the search chose the rest."""
    kind: Literal["", "simplest", "fastest", "best"] = ""
    """``simplest``: no plan that works differs in fewer things from the one in question; ``fastest``: of the
    plans with as many fields of the wish changed; ``best``: by an objective that is not time."""

    @property
    def distance(self) -> tuple[int, float, float]:
        """Fewest changes first, then the smallest, then the fastest."""
        return len(self.changes), sum(c.distance for c in self.changes), float(self.costs.step_s[0])


Verdict = Literal["invalid", "memory", "slower", "behind", "best"]
"""``best``: as good as the plan that ``meshplan plan`` puts first, or better; ``behind``: worse by an
objective that is not time."""
QUESTION = ("offload", "memory", "seq", "gbs", "gpus")
"""What a change of the question, not of the plan, is of."""
KNOBS = (
    "tp", "cp", "pp", "ep", "etp", "vp", "schedule", "mbs", "sp", "cp_kind", "sharding", "replicas",
    "recompute_modules",
)  # fmt: skip
MOST_ASKED = 8
"""Plans that are asked for again until one works as priced in closed form."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WhyNot:
    """What is wrong with a wish, measured against the best plan of the whole question."""

    answer: Answer
    verdict: Verdict
    ranking: Ranking
    """Of the whole question."""
    rank: int | None
    """Place of the plan by the objective among all that fit; ``None`` where behind all that were kept."""
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
    rank = _rank(case, ranking, found.costs)
    if best is None or _value(case, found.costs) <= _value(case, best) * (1 + TIE):
        return WhyNot(
            answer=found, verdict="best", ranking=ranking, rank=rank, comparison=None, fixes=(), flips=()
        )
    if case.objective not in BY_TIME:
        return WhyNot(
            answer=found, verdict="behind", ranking=ranking, rank=rank, comparison=compare(best, found.costs),
            fixes=_gains(case, found), flips=(),
        )  # fmt: skip
    turning = flips(case, asked_again(best.plans[0], case.space), asked_again(found.plan, case.space))
    return WhyNot(
        answer=found, verdict="slower", ranking=ranking, rank=rank,
        comparison=compare(best, found.costs), fixes=_gains(case, found), flips=turning,
    )  # fmt: skip


def _value(case: Case, costs: Costs) -> float:
    """What the first row is ranked by."""
    return float(values(costs.take(slice(0, 1)), case.objective, case.cluster.gpus_per_node)[0])


def _rank(case: Case, ranking: Ranking, costs: Costs) -> int | None:
    all_values = values(ranking.costs, case.objective, case.cluster.gpus_per_node)
    better = int((all_values < _value(case, costs) * (1 - TIE)).sum())
    return None if better == len(ranking) < ranking.counts.feasible else 1 + better


# ── changes to the plan ──────────────────────────────────────────────────────────────────────────


def _repairs(case: Case, found: Answer) -> tuple[Fix, ...]:
    """Changes to the plan, the simplest first and then the fastest; and one change to the question."""
    one = [*_freed(found.wish, 1), *_more_sharding(case, found.wish)]
    plan = _fixes(case, found, one) or _fixes(case, found, _freed(found.wish, 2))
    asked = [fix for fix in _questions(case, found) if fix is not None]
    return (*plan, *sorted(asked, key=lambda fix: fix.distance))


def _gains(case: Case, found: Answer) -> tuple[Fix, ...]:
    """For each field of the wish, changes that make the plan better by the objective."""
    return tuple(_fixes(case, found, _freed(found.wish, 1), better=True))


def _fixes(
    case: Case, found: Answer, freed: Iterable[tuple[Wish, tuple[str, ...]]], *, better: bool = False
) -> list[Fix]:
    """For every wish that is left when some fields may change, and these fields: the plan that works and
    differs in fewest things from the one in question. The first of them is the simplest; after it comes the
    fastest of all, where that is another."""
    simple: list[Fix] = []
    fast: list[Fix] = []
    most = math.inf
    if better:
        assert found.costs is not None
        most = _value(case, found.costs) * (1 - GAIN)
    for rest, changed in freed:
        ranking = _try(case, rest, keep=ALL, ranked=better and case.objective not in BY_TIME)
        if ranking is None or not len(ranking) or _value(case, ranking.costs) > most:
            continue
        first = ranking.costs.take(slice(0, 1))
        fast.append(Fix(changes=_changes(found, rest, changed, first), costs=first))
        simple += _simplest(case, found, ranking.costs, changed, most)

    def simplicity(fix: Fix) -> tuple[int, int, tuple[int, float, float]]:
        """Fewest changes first, those of what was asked about before others."""
        return len(fix.changes), sum(c.name not in found.wish for c in fix.changes), fix.distance

    both = _once(sorted(simple or fast, key=simplicity))
    if not both:
        return []
    by_time = not better or case.objective in BY_TIME

    def value(fix: Fix) -> tuple[float, tuple[int, float, float]]:
        return float(fix.costs.step_s[0]) if by_time else _value(case, fix.costs), fix.distance

    best = min((*both, *fast), key=value)
    kind: Literal["fastest", "best"] = "fastest" if by_time else "best"
    others = [fix for fix in both[1:] if not _same_plan(fix.costs, best.costs)]
    simplest = replace(both[0], kind="simplest")
    if _same_plan(best.costs, simplest.costs):
        return [simplest, *others]
    return [simplest, replace(best, kind=kind), *others]


def _once(fixes: Iterable[Fix]) -> list[Fix]:
    """The fixes without those that lead to a plan of an earlier one."""
    found: list[Fix] = []
    for fix in fixes:
        if not any(_same_plan(fix.costs, other.costs) for other in found):
            found.append(fix)
    return found


def _simplest(case: Case, found: Answer, costs: Costs, names: tuple[str, ...], most: float) -> Iterator[Fix]:
    """Of plans that work the one with fewest things changed, then the nearest, then the fastest; asked for
    once more by itself, for the exact time."""
    own = _knobs(found.plan)
    different = np.zeros(len(costs.plans))
    for name, value in own.items():
        different += getattr(costs.plans, name) != value
    far = np.zeros(len(costs.plans))
    for name in names:
        if name in DEGREES:
            far = far + np.abs(np.log2(getattr(costs.plans, name) / float(found.wish[name])))
    good = values(costs, case.objective, case.cluster.gpus_per_node) <= most
    for row in np.lexsort((costs.step_s, np.round(far, 9), different, ~good))[:MOST_ASKED]:
        plan = costs.plans[int(row)]
        wish = {**found.wish, **_knobs(plan)}
        wish |= {name: getattr(plan, name) for name in names}
        again = answer(case, wish)
        if again.costs is None or not again.fits or _value(case, again.costs) > most:
            continue
        changes = _changes(found, wish, (*names, *own), again.costs)
        touched = {change.name for change in changes}
        yield Fix(
            changes=tuple(c for c in changes if c.name != "schedule" or "vp" not in touched),
            costs=again.costs,
            kept={name: value for name, value in own.items() if name not in touched and name != "schedule"},
        )
        return


def _freed(wish: Wish, count: int) -> Iterator[tuple[Wish, tuple[str, ...]]]:
    """The wish without ``count`` of its fields, and these."""
    for names in combinations(wish, count):
        yield {name: value for name, value in wish.items() if name not in names}, names


def _more_sharding(case: Case, wish: Wish) -> Iterator[tuple[Wish, tuple[str, ...]]]:
    """The wish with more sharding than it or the space has."""
    if "sharding" not in wish:
        more = (s for s in (Sharding.ZERO2, Sharding.ZERO3) if s not in case.space.sharding)
        yield from (({**wish, "sharding": sharding}, ()) for sharding in more)


def _knobs(plan: Plan) -> dict[str, Any]:
    """What people turn; ``dp`` follows from the rest, layers to recompute and layouts are found."""
    return {name: getattr(plan, name) for name in KNOBS}


def _same_plan(a: Costs, b: Costs) -> bool:
    return _knobs(a.plans[0]) == _knobs(b.plans[0])


def _changes(found: Answer, wish: Wish, names: tuple[str, ...], costs: Costs) -> tuple[Change, ...]:
    """Of the fields ``names`` those that are another now, and sharding that the wish has got."""
    plan, before = costs.plans[0], {**_knobs(found.plan), **found.wish}
    more = tuple(name for name in ("sharding",) if name in wish and name not in found.wish)
    changed = [name for name in dict.fromkeys((*names, *more)) if getattr(plan, name) != before[name]]
    return tuple(Change(name=name, old=before[name], new=getattr(plan, name)) for name in changed)


def _try(case: Case, wish: Wish, *, keep: int = KEEP, ranked: bool = False) -> Ranking | None:
    try:
        return with_wish(case, wish, keep=keep, ties=ranked)
    except InputError:  # the cost model cannot price such a plan
        return None


# ── changes to the question ──────────────────────────────────────────────────────────────────────


def _questions(case: Case, found: Answer) -> Iterator[Fix | None]:
    if found.costs is not None:
        yield _offloaded(case, found)
        yield _more_memory(case, found)
        yield _shorter(case, found)
    yield _other_batch(case, found)
    yield _other_gpus(case, found)


def _more_memory(case: Case, found: Answer) -> Fix | None:
    """The memory that the smallest plan with the wish needs."""
    assert found.costs is not None
    need, limit = float(found.costs.memory_bytes[0]), found.costs.memory_limit_bytes
    roomy = case.on(with_memory(case.cluster, need / limit * (1 + 1e-9)))
    ranking = _try(roomy, found.wish)
    if ranking is None or not len(ranking):
        return None
    board = case.cluster.gpu.hbm_bytes
    change = Change(name="memory", old=board, new=board * need / limit)
    return Fix(changes=(change,), costs=ranking.costs.take(slice(0, 1)))


def _offloaded(case: Case, found: Answer) -> Fix | None:
    """The optimizer's states in host memory."""
    if case.workload.offload != "none":
        return None
    ranking = _try(case.of(replace(case.workload, offload="optimizer")), found.wish)
    if ranking is None or not len(ranking):
        return None
    change = Change(name="offload", old="none", new="optimizer")
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
            case "offload":
                case = case.of(replace(case.workload, offload=str(change.new)))
            case "memory":
                case = case.on(with_memory(case.cluster, float(change.new) / float(change.old) * (1 + 1e-9)))
            case _:
                wished[change.name] = change.new
    return case, {**fix.kept, **wished}


def row_of(costs: Costs, plans: Plans) -> int | None:
    """The row of ``costs`` whose plan is the first of ``plans``, if it is there."""
    same = np.ones(len(costs.plans), dtype=np.bool_)
    for name in (*DEGREES, "schedule", "sharding"):
        same &= getattr(costs.plans, name) == getattr(plans, name)[0]
    rows = np.flatnonzero(same)
    return int(rows[0]) if rows.size else None
