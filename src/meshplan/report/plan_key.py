"""A plan as one short word list, to type and to put into an address: ``tp4,cp2,dp4,pp2,mbs1,recompute=3``.

Degrees come first, then what is not usual: virtual stages, experts, schedule, sharding, replicas, kind of
context parallelism, layout, what is recomputed (``recompute=full``, ``recompute=3+mlp``). Equal plans have
equal keys. The words of tables (``re3``, ``mlp``) are read as well.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from meshplan.errors import InputError, nearest, shown
from meshplan.plan.kinds import CpKind, Recompute, Schedule, Sharding
from meshplan.plan.plans import ALL_LAYERS, Plan, Plans

MOST_CHARACTERS = 600
MOST_DEGREE = 10**7
MOST_STAGES = 4096
_DEGREES = ("tp", "cp", "dp", "pp", "mbs", "vp", "ep", "etp")
_ALWAYS = 5
"""So many of the degrees are in every key, the others only above 1."""
_DEGREE = re.compile(r"(tp|cp|dp|pp|mbs|vp|etp|ep|re|replicas)(\d{1,8})")
_RUN = r"\d{1,4}(?:[x×]\d{1,4})?"
_LAYOUT = re.compile(rf"layout=?({_RUN}(?:\.{_RUN}){{0,511}})")
_TABLE_LAYOUT = re.compile(rf"(?<![^\s,]){_RUN}(?:,{_RUN})*(?![^\s,])")
_TABLE_WORD = re.compile(r"(?<![^\s,])(?:re-all|uneven)(?![^\s,])")
_SCHEDULES = {s.label: s for s in Schedule}
_SHARDINGS = {s.label: s for s in Sharding}
_CP_KINDS = {k.label: k for k in CpKind}
_MODULES = {m.name.lower().replace("_", "-"): m for m in Recompute if m.name and m is not Recompute.NONE}


def plan_key(plan: Plan) -> str:
    """The key of a plan."""
    words = [f"{name}{getattr(plan, name)}" for name in _DEGREES[:_ALWAYS]]
    words += [f"{name}{getattr(plan, name)}" for name in _DEGREES[_ALWAYS:] if getattr(plan, name) > 1]
    words += [plan.schedule.label] if plan.schedule is not Schedule.ONE_F_ONE_B else []
    words += [plan.sharding.label] if plan.sharding is not Sharding.ZERO1 else []
    words += [f"replicas{plan.replicas}"] if plan.replicas > 1 else []
    words += [plan.cp_kind.label] if plan.cp_kind is not CpKind.RING else []
    words += [] if plan.sp else ["no-sp"]
    words += [] if plan.layout is None else ["layout" + ".".join(map(str, plan.layout))]
    again = [name for name, module in _MODULES.items() if module & plan.recompute_modules]
    if plan.recompute_layers:
        again.insert(0, "full" if plan.recompute_layers >= ALL_LAYERS else str(plan.recompute_layers))
    words += [f"recompute={'+'.join(again)}"] if again else []
    return ",".join(words)


def read_plan(text: str) -> dict[str, Any]:
    """The fields of ``Plan`` that a key, or a part of one, gives; words are separated by commas or spaces.

    A plan as tables show it is read too: the layers of its stages as ``2,3×24,2×3``; ``uneven`` leaves them
    open. Raises ``InputError`` for a word that is not known or given twice.
    """
    if len(text) > MOST_CHARACTERS:
        raise InputError(f"a plan is at most {MOST_CHARACTERS} characters, not {len(text):,}")
    found: dict[str, Any] = {}
    modules = Recompute.NONE
    for word in _printed(text.lower()).replace(",", " ").split():
        for part in word.removeprefix("recompute=").split("+") if word.startswith("recompute=") else [word]:
            if part in _MODULES:
                modules |= _MODULES[part]
                continue
            name, value = _layers(part) if part != word else _word(part)
            if name in found:
                raise InputError(f"plan {shown(text)} gives {name.replace('_', ' ')} more than once")
            found[name] = value
    return found | ({"recompute_modules": modules} if modules else {})


def _printed(text: str) -> str:
    """``text`` with the words of tables as those of a key."""
    text = _TABLE_LAYOUT.sub(lambda found: "layout" + found[0].replace(",", "."), text)
    words = {"re-all": "recompute=full", "uneven": ""}
    return _TABLE_WORD.sub(lambda found: words[found[0]], text)


def _layers(word: str) -> tuple[str, int]:
    if word in ("full", "all"):
        return "recompute_layers", ALL_LAYERS
    if word == "none":
        return "recompute_layers", 0
    if not (word.isascii() and word.isdecimal() and len(word) < 8):
        raise InputError(f"recompute={shown(word)} is not a number of layers, full or a module")
    return "recompute_layers", min(int(word), ALL_LAYERS)


def _stages(text: str) -> tuple[int, ...]:
    """``7.8x14.7``: the layers of every stage."""
    found: list[int] = []
    for run in text.split("."):
        layers, _, times = run.replace("×", "x").partition("x")
        found += [int(layers)] * int(times or 1)
        if len(found) > MOST_STAGES:
            raise InputError(f"a layout in a plan has at most {MOST_STAGES:,} stages")
    return tuple(found)


def _word(word: str) -> tuple[str, Any]:
    degree, layout = _DEGREE.fullmatch(word), _LAYOUT.fullmatch(word)
    if degree:
        name, number = degree[1], int(degree[2])
        if name != "re" and not 1 <= number <= MOST_DEGREE:
            raise InputError(f"{name} in a plan must be from 1 to {MOST_DEGREE:,}, not {number:,}")
        return ("recompute_layers", min(number, ALL_LAYERS)) if name == "re" else (name, number)
    if layout:
        return "layout", _stages(layout[1])
    for field, labels in (("schedule", _SCHEDULES), ("sharding", _SHARDINGS), ("cp_kind", _CP_KINDS)):
        if word in labels:
            return field, labels[word]
    if word == "no-sp":
        return "sp", False
    known = [*_DEGREES, "re", *_SCHEDULES, *_SHARDINGS, *_CP_KINDS, *_MODULES]
    close = nearest(word.rstrip("0123456789"), known, 2)
    ask = f"; did you mean {' or '.join(close)}?" if close else "; write it like tp4,cp2,pp2"
    raise InputError(f"{shown(word)} is no part of a plan{ask}")


def find_plan(plans: Plans, plan: Plan) -> int | None:
    """The row of ``plans`` that holds ``plan``; failing that, one that differs in what it recomputes only."""
    table = Plans.of(plan)
    same = np.ones(len(plans), dtype=np.bool_)
    for name in (
        "tp",
        "cp",
        "pp",
        "dp",
        "vp",
        "ep",
        "etp",
        "mbs",
        "schedule",
        "sharding",
        "replicas",
        "cp_kind",
    ):
        same &= getattr(plans, name) == getattr(table, name)[0]
    rows = np.flatnonzero(same)
    exact = [int(i) for i in rows if plan_key(plans[int(i)]) == plan_key(plan)]
    return next(iter(exact), int(rows[0]) if rows.size else None)
