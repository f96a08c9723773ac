"""When no plan is left: the shortest lists of changes to the question that leave one, each tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import combinations
from typing import Any

from meshplan.errors import InputError
from meshplan.plan.divisors import divisors
from meshplan.plan.frameworks import framework_values
from meshplan.plan.kinds import Sharding
from meshplan.plan.rules import Setting
from meshplan.plan.space import CHOICES, DEGREES, SIZES, Size, Space
from meshplan.search.ranking import Ranking, Way

MOST_WAYS = 3
MOST_TRIED = 60
MOST_CHANGES = 3
BATCHES = 6
"""Global batches nearest to the one asked for that are tried."""
LEAST_SEQ = 512

Ask = Callable[[Setting, Space], Ranking | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Change:
    """One thing to ask otherwise, as a flag to type; ``about`` is what it changes, once in a list."""

    flag: str
    about: str
    setting: Callable[[Setting], Setting] = lambda setting: setting
    space: Callable[[Space], Space] = lambda space: space


def ways_out(
    setting: Setting, space: Space, ask: Ask, possible: Callable[[Setting, Space], bool], *, memory: bool
) -> tuple[Way, ...]:
    """Up to ``MOST_WAYS`` lists of changes, as short as there must be. ``ask(setting, space)`` searches, and
    is ``None`` where nothing fits; ``possible`` says only whether something does. ``memory``: valid plans
    there are, but none fits."""
    widest = Space.of("full", setting.model)
    short = _with_seq(setting, min(LEAST_SEQ, setting.workload.seq))
    if memory and not possible(_offloaded(short), widest) and not possible(short, widest):
        return ()
    changes = list(_changes(setting, space, memory=memory))
    tried = 0
    for count in range(1, MOST_CHANGES + 1):
        found: list[Way] = []
        for some in combinations(changes, count):
            if len({change.about for change in some}) < count:
                continue
            tried += 1
            if tried > MOST_TRIED or len(found) == MOST_WAYS:
                break
            ranking = _asked(setting, space, some, ask)
            if ranking is not None and len(ranking):
                found.append(Way(flags=tuple(c.flag for c in some), costs=ranking.costs.take(slice(0, 1))))
        if found or tried > MOST_TRIED:
            return tuple(found)
    return ()


def _asked(setting: Setting, space: Space, changes: Sequence[_Change], ask: Ask) -> Ranking | None:
    try:
        for change in changes:
            setting, space = change.setting(setting), change.space(space)
        return ask(setting, space)
    except InputError:  # such a question cannot be asked
        return None


def _changes(setting: Setting, space: Space, *, memory: bool) -> Iterator[_Change]:
    """What could be asked otherwise, the smallest changes first."""
    usual = Space.of(space.size, setting.model, space.framework)
    for field in fields(Space):
        name = field.name
        if name in (*DEGREES, *CHOICES) and getattr(space, name) != getattr(usual, name):
            flag = f"no --{name.replace('_', '-')}"
            yield _Change(flag=flag, about=name, space=partial(_replaced, **{name: getattr(usual, name)}))
    limits = framework_values(space.framework).get("sharding", tuple(Sharding))
    if memory and max(space.sharding) < Sharding.ZERO3 and Sharding.ZERO3 in limits:
        sharded = partial(_replaced, sharding=(Sharding.ZERO3,))
        yield _Change(flag="--sharding zero3", about="sharding", space=sharded)
    for size in SIZES[SIZES.index(space.size) + 1 :]:
        yield _Change(
            flag=f"--space {size}", about="size", space=partial(_resized, setting=setting, size=size)
        )
    if space.framework != "any":
        yield _Change(flag="--framework any", about="framework", space=partial(_replaced, framework="any"))
    if memory and setting.workload.offload == "none":
        yield _Change(flag="--offload optimizer", about="offload", setting=_offloaded)
    if memory:
        for factor in (2, 4, 8, 16):
            seq = setting.workload.seq // factor
            if seq >= LEAST_SEQ:
                yield _Change(flag=f"--seq {seq}", about="seq", setting=partial(_with_seq, seq=seq))
    else:
        yield from _plainer(setting)
        for gbs in _batches(setting):
            yield _Change(flag=f"--gbs {gbs}", about="gbs", setting=partial(_with_gbs, gbs=gbs))


def _plainer(setting: Setting) -> Iterator[_Change]:
    """The workload without what not every framework can do."""
    usual: dict[str, Any] = {"offload": "none", "capacity_factor": None, "precision": "bf16"}
    for name, value in usual.items():
        if getattr(setting.workload, name) != value:
            flag = f"--{name.replace('_', '-')}"
            fields = {name: value} | ({"offload_fraction": 1.0} if name == "offload" else {})
            yield _Change(
                flag=f"{flag} bf16" if name == "precision" else f"no {flag}",
                about=name,
                setting=partial(_with_workload, **fields),
            )


def _with_workload(setting: Setting, **fields: Any) -> Setting:
    return setting._replace(workload=replace(setting.workload, **fields))


def _replaced(space: Space, **fields: Any) -> Space:
    return replace(space, **fields)


def _resized(space: Space, setting: Setting, size: Size) -> Space:
    """The space of another size, with what the user had chosen kept."""
    usual = Space.of(space.size, setting.model, space.framework)
    kept = {
        f.name: getattr(space, f.name)
        for f in fields(Space)
        if f.name not in ("size", "framework") and getattr(space, f.name) != getattr(usual, f.name)
    }
    return Space.of(size, setting.model, space.framework, **kept)


def _with_seq(setting: Setting, seq: int) -> Setting:
    return setting._replace(workload=replace(setting.workload, seq=seq))


def _offloaded(setting: Setting) -> Setting:
    return setting._replace(workload=replace(setting.workload, offload="optimizer"))


def _with_gbs(setting: Setting, gbs: int) -> Setting:
    return setting._replace(workload=replace(setting.workload, gbs=gbs))


def _batches(setting: Setting) -> list[int]:
    """Global batches near the one asked for that divide over some part of the GPUs."""
    gbs = setting.workload.gbs
    near = {k * d for d in divisors(setting.cluster.gpus) for k in (gbs // d, gbs // d + 1)}
    return sorted(near - {0, gbs}, key=lambda n: (abs(n - gbs), n))[:BATCHES]
