"""Choices that change nothing: a search of a larger space leaves all but one of such plans out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from meshplan.model.layers import Moe
from meshplan.plan.kinds import CpKind, Schedule, Sharding
from meshplan.plan.plans import Plan, Plans
from meshplan.plan.rules import Bools, Rule, Setting, Source
from meshplan.plan.rules.facts import INTERLEAVED, TWO_STAGES

ID = "no-effect"
TITLE = "choices that have no effect are made once"


def no_effect_rules(values: Mapping[str, tuple[Any, ...]], *, open_vp: bool) -> tuple[Rule, ...]:
    """Rules that keep the first of several plans which are the same plan.

    ``values``: of every dimension of the space; ``open_vp``: the user left the virtual stages open, so
    that of those with stages of as many layers the fewest will do.
    """
    kind, sp, sharding = values["cp_kind"][0], values["sp"][0], values["sharding"][0]
    usual = next((s for s in values["schedule"] if _alone(s)), values["schedule"][0])

    def rule(columns: tuple[str, ...], passes: Any, words: Any) -> Rule:
        return Rule(
            id=ID, title=TITLE, columns=columns, passes=passes, words=words, severity="warning",
            sources=(Source("any", "the same plan"),),
        )  # fmt: skip

    rules = [
        rule(
            ("cp", "cp_kind"),
            lambda s, p: np.asarray((p.cp > 1) | (p.cp_kind == int(kind))),
            lambda s, p: f"cp 1 exchanges nothing, by {CpKind(p.cp_kind).label} or otherwise",
        ),
        rule(
            ("pp", "schedule"),
            lambda s, p: np.asarray((p.pp > 1) | (p.schedule == int(usual))),
            lambda s, p: f"pp 1 has no schedule, {p.schedule.label} or other",
        ),
        rule(
            ("tp", "sp"),
            lambda s, p: np.asarray((p.tp > 1) | (p.sp == int(sp))),
            lambda s, p: "tp 1 has no sequence parallelism",
        ),
        rule(
            ("tp", "cp", "dp", "ep", "etp", "sharding", "replicas"),
            lambda s, p: np.asarray(_shards(s, p) | ((p.sharding == int(sharding)) & (p.replicas == 1))),
            lambda s, p: f"one rank shards nothing, as {p.sharding.label} or otherwise",
        ),
        rule(
            ("cp", "dp", "sharding", "replicas"),
            lambda s, p: np.asarray((p.replicas == 1) | (p.dp * p.cp > p.replicas)),
            lambda s, p: f"replicas {p.replicas} leave one rank to shard over: that is {Sharding.DDP.label}",
        ),
    ]
    if open_vp:
        rules.append(rule(("pp", "vp"), _fewer_layers, _wasted_words))
    return tuple(rules)


def _shards(s: Setting, p: Plans) -> Bools:
    """Whether there are two ranks with the same weights: of all, or of experts."""
    sparse = any(isinstance(layer.mlp, Moe) for layer in s.model.kinds)
    return np.asarray((p.dp * p.cp > 1) | (sparse & (p.edp > 1)))


def _alone(schedule: Schedule) -> bool:
    """Whether a schedule takes one stage and one rank."""
    return schedule not in (*INTERLEAVED, *TWO_STAGES, Schedule.DUALPIPE)


def _fewer_layers(s: Setting, p: Plans) -> Bools:
    """Whether the fullest stage has fewer layers than with one virtual stage less (two are for the V)."""
    layers = len(s.model.layers)
    most, before = -(-layers // (p.pp * p.vp)), -(-layers // (p.pp * np.maximum(p.vp - 1, 1)))
    return np.asarray((p.vp <= 2) | (most < before))


def _wasted_words(s: Setting, p: Plan) -> str:
    most = -(-len(s.model.layers) // (p.pp * p.vp))
    return f"vp {p.vp} leaves stages of up to {most} layers, as vp {p.vp - 1} does"
