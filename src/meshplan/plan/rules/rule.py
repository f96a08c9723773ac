"""What makes a plan valid: each rule a name, a vectorised predicate and a sentence with nearest values.

A rule that fails a plan can say which values would pass; it finds them by asking its own predicate,
so that a sentence never offers what the rule would refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from meshplan.cluster.cluster import Cluster
from meshplan.model.layers import Mlp, Moe
from meshplan.model.model import Model
from meshplan.plan.divisors import nearest_divisors
from meshplan.plan.kinds import Schedule
from meshplan.plan.plans import Plan, Plans
from meshplan.plan.workload import Workload

Bools = npt.NDArray[np.bool_]


class Setting(NamedTuple):
    """What plans are judged against."""

    model: Model
    cluster: Cluster
    workload: Workload


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One condition of validity.

    ``passes(setting, plans)`` answers for every plan; it may read only ``columns`` of the table, so
    that a search can apply it as soon as those are known. ``words(setting, plan)`` says why ``plan``
    fails. ``fix`` is the column whose nearest passing values the sentence offers.
    """

    id: str
    title: str
    columns: tuple[str, ...]
    passes: Callable[[Setting, Plans], Bools]
    words: Callable[[Setting, Plan], str]
    fix: str = ""
    demand: Callable[[Setting, Plans], npt.NDArray[np.int64]] | None = None
    """How much each failing plan asks for; the one that asks least makes the best example."""
    practice: bool = False
    """Good practice, not necessity: left out for dimensions whose values the user chose."""

    def explain(self, setting: Setting, plan: Plan) -> str:
        """Why ``plan`` fails, and the nearest values of ``fix`` that pass this rule."""
        values = self.nearest(setting, plan)
        offer = f"; {self.fix} {' or '.join(map(str, values))} would" if values else ""
        return self.words(setting, plan) + offer

    def nearest(self, setting: Setting, plan: Plan) -> list[int]:
        """The closest value of ``fix`` below and above the plan's own that pass; at most one each."""
        if not self.fix:
            return []
        own = int(getattr(plan, self.fix))
        values = np.arange(1, min(max(2 * own, 64), 1 << 16) + 1)
        table = Plans.of(plan).take(np.zeros(len(values), dtype=np.int64)).replace(**{self.fix: values})
        good = values[self.passes(setting, table)]
        return [int(v) for v in (*good[good < own][-1:], *good[good > own][:1])]


def broken(setting: Setting, plan: Plan, rules: Iterable[Rule]) -> list[Rule]:
    """The rules that ``plan`` breaks, in order."""
    table = Plans.of(plan)
    return [rule for rule in rules if not rule.passes(setting, table)[0]]


def _heads(s: Setting) -> list[int]:
    return sorted({layer.attention.heads for layer in s.model.layers if layer.attention is not None})


def _kv_heads(s: Setting) -> list[int]:
    return sorted({layer.attention.kv_heads for layer in s.model.layers if layer.attention is not None})


def _mlp_widths(s: Setting) -> list[int]:
    return sorted({layer.mlp.width for layer in s.model.layers if isinstance(layer.mlp, Mlp)})


def _experts(s: Setting) -> list[Moe]:
    return list(dict.fromkeys(layer.mlp for layer in s.model.layers if isinstance(layer.mlp, Moe)))


def _divide(values: Iterable[int], by: npt.NDArray[np.int64]) -> Bools:
    """Whether ``by`` divides every one of ``values``."""
    good = np.ones(by.shape, dtype=np.bool_)
    for value in values:
        good &= value % by == 0
    return good


def _listed(values: Iterable[int]) -> str:
    return " and ".join(f"{v:,}" for v in values)


def _kv_pass(s: Setting, p: Plans) -> Bools:
    good = np.ones(len(p), dtype=np.bool_)
    for kv in _kv_heads(s):
        good &= (kv % p.tp == 0) | (p.tp % kv == 0)
    return good


def _kv_words(s: Setting, p: Plan) -> str:
    return f"tp {p.tp} neither divides the {_listed(_kv_heads(s))} KV heads nor is a multiple of them"


def _gpus_words(s: Setting, p: Plan) -> str:
    gpus = s.cluster.gpus
    for name in ("tp", "cp", "dp", "pp"):
        own = int(getattr(p, name))
        if gpus % own:
            offer = " or ".join(f"{d:,}" for d in nearest_divisors(gpus, own))
            return f"{name} {own:,} does not divide {gpus:,} GPUs; {name} {offer} would"
    return f"tp {p.tp} × cp {p.cp} × dp {p.dp} × pp {p.pp} = {p.gpus:,}, not {gpus:,} GPUs"


def _gbs_words(s: Setting, p: Plan) -> str:
    size = p.dp * p.mbs
    below, above = s.workload.gbs // size * size, -(-s.workload.gbs // size) * size
    offer = " or ".join(f"{v:,}" for v in (below, above) if v)
    return (
        f"gbs {s.workload.gbs:,} does not divide over dp {p.dp:,} × mbs {p.mbs} = {size:,}; gbs {offer} would"
    )


def _expert_pass(s: Setting, p: Plans) -> Bools:
    experts = _experts(s)
    return _divide((moe.experts for moe in experts), p.ep) if experts else np.asarray(p.ep == 1)


def _expert_words(s: Setting, p: Plan) -> str:
    experts = _experts(s)
    if not experts:
        return f"ep {p.ep} needs experts, and {s.model.name} has none"
    return f"ep {p.ep} does not divide {_listed(sorted({m.experts for m in experts}))} experts"


def _etp_pass(s: Setting, p: Plans) -> Bools:
    experts = _experts(s)
    return _divide((moe.width for moe in experts), p.etp) if experts else np.asarray(p.etp == 1)


def _etp_words(s: Setting, p: Plan) -> str:
    experts = _experts(s)
    if not experts:
        return f"etp {p.etp} needs experts, and {s.model.name} has none"
    return f"etp {p.etp} does not divide the expert width {_listed(sorted({m.width for m in experts}))}"


def _interleaved(p: Plans) -> Bools:
    return np.asarray((p.schedule == Schedule.INTERLEAVED) | (p.schedule == Schedule.LOOPED_BFS))


def _two_chunks(p: Plans) -> Bools:
    kinds = (Schedule.ZB_V, Schedule.V_HALF, Schedule.V_MIN, Schedule.DUALPIPE, Schedule.DUALPIPE_V)
    return np.isin(p.schedule, [int(k) for k in kinds])


def _schedule_pass(s: Setting, p: Plans) -> Bools:
    two = _two_chunks(p)
    # DualPipe keeps two copies of a stage rather than two stages of a rank: its vp stays 1.
    two_vp = np.where(p.schedule == Schedule.DUALPIPE, p.vp == 1, p.vp == 2)
    return np.where(two, two_vp & (p.pp > 1), np.where(_interleaved(p), (p.vp > 1) & (p.pp > 1), p.vp == 1))


def _schedule_words(s: Setting, p: Plan) -> str:
    table, name = Plans.of(p), p.schedule.label
    two, interleaved = bool(_two_chunks(table)[0]), bool(_interleaved(table)[0])
    if not two and not interleaved:
        return f"vp {p.vp} needs an interleaved schedule, not {name}"
    if p.pp == 1:
        return f"the {name} schedule needs pp above 1"
    if two:
        return f"the {name} schedule takes vp {1 if p.schedule is Schedule.DUALPIPE else 2}, not {p.vp}"
    return f"the {name} schedule needs vp above 1"


GPUS_PRODUCT = Rule(
    id="gpus-product",
    title="tp × cp × dp × pp is the number of GPUs",
    columns=("tp", "cp", "pp", "dp"),
    passes=lambda s, p: np.asarray(p.tp.astype(np.float64) * p.cp * p.pp * p.dp == s.cluster.gpus),
    words=_gpus_words,
    demand=lambda s, p: np.abs(p.gpus - s.cluster.gpus),
)
TP_DIVIDES_HEADS = Rule(
    id="tp-divides-heads",
    title="tp divides the attention heads",
    columns=("tp",),
    passes=lambda s, p: _divide(_heads(s), p.tp),
    words=lambda s, p: f"tp {p.tp} does not divide {_listed(_heads(s))} heads",
    fix="tp",
)
TP_KV_HEADS = Rule(
    id="tp-kv-heads",
    title="tp divides the KV heads or is a multiple of them",
    columns=("tp",),
    passes=_kv_pass,
    words=_kv_words,
    fix="tp",
)
TP_DIVIDES_MLP = Rule(
    id="tp-divides-mlp",
    title="tp divides the width of every dense MLP",
    columns=("tp",),
    passes=lambda s, p: _divide(_mlp_widths(s), p.tp),
    words=lambda s, p: f"tp {p.tp} does not divide the MLP width {_listed(_mlp_widths(s))}",
    fix="tp",
)
TP_IN_NODE = Rule(
    id="tp-in-node",
    title="tp stays inside a node",
    columns=("tp",),
    passes=lambda s, p: np.asarray(p.tp <= s.cluster.gpus_per_node),
    words=lambda s, p: f"tp {p.tp} crosses nodes of {s.cluster.gpus_per_node} GPUs",
    fix="tp",
    practice=True,
)
SEQ_DIVIDES_CP = Rule(
    id="seq-divides-cp",
    title="2 × cp divides the sequence, so that causal work can be balanced",
    columns=("cp",),
    passes=lambda s, p: np.asarray((p.cp == 1) | (s.workload.seq % (2 * p.cp) == 0)),
    words=lambda s, p: f"seq {s.workload.seq:,} does not divide into 2 × cp {p.cp} parts",
    fix="cp",
)
CP_MIN_TOKENS = Rule(
    id="cp-min-tokens",
    title="every cp rank keeps 4,096 tokens or more",
    columns=("cp",),
    passes=lambda s, p: np.asarray((p.cp == 1) | (s.workload.seq >= 4096 * p.cp)),
    words=lambda s, p: f"cp {p.cp} leaves {s.workload.seq / p.cp:,.0f} tokens a rank, fewer than 4,096",
    fix="cp",
    practice=True,
)
SP_DIVIDES_SEQ = Rule(
    id="sp-divides-seq",
    title="with sequence parallelism tp divides the tokens of a cp rank",
    columns=("tp", "cp", "sp"),
    passes=lambda s, p: np.asarray((p.sp == 0) | (p.tp == 1) | (s.workload.seq % (p.tp * p.cp) == 0)),
    words=lambda s, p: f"seq {s.workload.seq:,} / cp {p.cp} does not divide over tp {p.tp}",
    fix="tp",
)
LAYERS_DIVIDE_PP = Rule(
    id="layers-divide-pp",
    title="pp divides the layers, where no layout is given",
    columns=("pp", "layout"),
    passes=lambda s, p: (p.layout >= 0) | (len(s.model.layers) % p.pp == 0),
    words=lambda s, p: f"{len(s.model.layers)} layers do not divide over pp {p.pp}",
    fix="pp",
)
LAYERS_DIVIDE_VP = Rule(
    id="layers-divide-vp",
    title="pp × vp divides the layers, where no layout is given",
    columns=("pp", "vp", "layout"),
    passes=lambda s, p: (p.layout >= 0) | (len(s.model.layers) % (p.pp * p.vp) == 0),
    words=lambda s, p: f"{len(s.model.layers)} layers do not divide over pp {p.pp} × vp {p.vp}",
    fix="vp",
)
VP_FITS_SCHEDULE = Rule(
    id="vp-fits-schedule",
    title="interleaved schedules have vp above 1, V schedules 2, the others 1",
    columns=("pp", "vp", "schedule"),
    passes=_schedule_pass,
    words=_schedule_words,
    fix="vp",
)
GBS_DIVIDES = Rule(
    id="gbs-divides",
    title="dp × mbs divides the global batch",
    columns=("dp", "mbs"),
    passes=lambda s, p: np.asarray(s.workload.gbs % (p.dp * p.mbs) == 0),
    words=_gbs_words,
    demand=lambda s, p: p.dp * p.mbs,
)
EP_DIVIDES_EXPERTS = Rule(
    id="ep-divides-experts",
    title="ep divides the experts",
    columns=("ep",),
    passes=_expert_pass,
    words=_expert_words,
    fix="ep",
)
ETP_DIVIDES_EXPERT = Rule(
    id="etp-divides-expert",
    title="etp divides the width of an expert",
    columns=("etp",),
    passes=_etp_pass,
    words=_etp_words,
    fix="etp",
)
EXPERT_FOLDING = Rule(
    id="expert-folding",
    title="etp × ep divides tp × cp × dp",
    columns=("tp", "cp", "dp", "ep", "etp"),
    passes=lambda s, p: np.asarray((p.tp * p.cp * p.dp) % (p.ep * p.etp) == 0),
    words=lambda s, p: (
        f"etp {p.etp} × ep {p.ep} = {p.etp * p.ep} does not divide tp {p.tp} × cp {p.cp} × dp {p.dp}"
        f" = {p.tp * p.cp * p.dp}"
    ),
    fix="ep",
)

RULES = (
    GPUS_PRODUCT, TP_DIVIDES_HEADS, TP_KV_HEADS, TP_DIVIDES_MLP, SEQ_DIVIDES_CP, SP_DIVIDES_SEQ,
    LAYERS_DIVIDE_PP, EP_DIVIDES_EXPERTS, ETP_DIVIDES_EXPERT, EXPERT_FOLDING, VP_FITS_SCHEDULE,
    LAYERS_DIVIDE_VP, GBS_DIVIDES,
)  # fmt: skip
"""What every plan of a real run must satisfy, in the order in which a search counts them."""

HANDBOOK_RULES = (TP_IN_NODE, GPUS_PRODUCT, LAYERS_DIVIDE_PP, CP_MIN_TOKENS, GBS_DIVIDES)
"""The textbook's own."""
