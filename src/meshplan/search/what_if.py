"""What if the network were twice as fast, the batch larger, the overlap off: the best plan then and now."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from meshplan.cluster.cluster import Cluster
from meshplan.cluster.presets import load_gpu
from meshplan.cost.costs import Costs
from meshplan.errors import InputError, nearest, shown
from meshplan.plan.plans import Plan
from meshplan.plan.rules import WORKLOAD_RULES, broken
from meshplan.search.objective import Objective
from meshplan.search.ranking import Ranking
from meshplan.search.reasons import Case, asked_again, errors_of, is_valid
from meshplan.search.reasons_compare import (
    with_hbm_bandwidth,
    with_memory,
    with_network,
    with_peak,
    with_scaleup,
)
from meshplan.search.what_if_software import Changed, factor_of, known_software, software, told_software
from meshplan.units import (
    format_bandwidth,
    format_bytes,
    format_flops,
    parse_bandwidth,
    parse_bytes,
    parse_flops,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class WhatIf:
    """The best plans before and after a change."""

    changes: tuple[Changed, ...]
    before: Ranking
    after: Ranking
    case: Case
    """The question after the change."""
    old_then: Costs | None
    """The best plan of before, priced after; ``None`` where there is none or it is not valid any more."""
    new_before: Costs | None
    """The best plan of after, priced before; likewise."""

    @property
    def objective(self) -> Objective:
        """What both rankings are by."""
        return self.before.objective


def what_if(case: Case, text: str) -> WhatIf:
    """Search again after the changes that ``text`` names: ``nic=2x,memory=141GB,gbs=2048,overlap_tp=off``.

    Raises ``InputError`` for a change that is not known, cannot be read or cannot be.
    """
    then = case
    changes: list[Changed] = []
    seen: dict[object, str] = {}
    for part in text.split(","):
        name, sign, value = (word.strip() for word in part.partition("="))
        if not sign or not name or not value:
            raise InputError(f"--what-if {shown(part)} is not a change; write it like nic=2x or gbs=2048")
        name = name.lower().replace("-", "_")
        first = seen.setdefault(HARDWARE.get(name, name), name)
        if len(seen) == len(changes):
            also = "" if first == name else f" (it is {first} too)"
            raise InputError(f"--what-if changes {name} twice{also}; give one value")
        then, changed = _changed(then, name, value)
        changes.append(changed)
    _check(then)
    before, after = case.ranked(), then.ranked()
    return WhatIf(
        changes=tuple(changes),
        before=before,
        after=after,
        case=then,
        old_then=_moved(before.best, case, then),
        new_before=_moved(after.best, then, case),
    )


def _check(case: Case) -> None:
    """Raises ``InputError`` where no plan can be trained so: the software has no such thing."""
    rules = [rule for rule in errors_of(case) if rule in WORKLOAD_RULES and not rule.columns]
    wrong = broken(case.setting, Plan(), rules)
    if wrong:
        raise InputError(f"--what-if: {wrong[0].words(case.setting, Plan())}")


def _moved(plan: Plan | None, own: Case, other: Case) -> Costs | None:
    """The price of the best plan of one question in the other, data parallelism taking more or fewer GPUs."""
    if plan is None:
        return None
    asked = asked_again(plan, own.space)
    ratio = other.cluster.gpus / own.cluster.gpus
    if asked.dp * ratio != int(asked.dp * ratio) or asked.dp * ratio < 1:
        return None
    asked = replace(asked, dp=int(asked.dp * ratio))
    try:
        return other.price(asked) if is_valid(other, asked) else None
    except InputError:
        return None


# ── one change ───────────────────────────────────────────────────────────────────────────────────


def _changed(case: Case, name: str, value: str) -> tuple[Case, Changed]:
    if name in HARDWARE:
        return _hardware(case, name, value)
    if name in WORKLOAD:
        return _workload(case, name, value)
    if name in ("gpus", "gpu", "gpus_per_node"):
        return _machines(case, name, value)
    model = software(case.cost_model, name, value)
    if model is not None:
        return replace(case, cost_model=model[0]), model[1]
    known = [*HARDWARE, *WORKLOAD, "gpus", "gpu", "gpus_per_node", *known_software(case.cost_model)]
    close = nearest(name, known, 2)
    named = [*HARDWARE, *WORKLOAD, "gpus", "gpu", "gpus_per_node", *told_software(case.cost_model)]
    more = "" if len(named) == len(known) else " and the numbers of a stack"
    ask = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(named)}{more}"
    own = case.cost_model.name
    raise InputError(f"--what-if: nothing called {shown(name)} to change in the {own} cost model; {ask}")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Number:
    amount: Callable[[Cluster], float | None]
    scaled: Callable[[Cluster, float], Cluster]
    parse: Callable[..., float]
    form: Callable[[float], str]


_PEAK = _Number(
    amount=lambda c: c.gpu.peak_flops.get("bf16") or max(c.gpu.peak_flops.values()), scaled=with_peak,
    parse=parse_flops, form=format_flops,
)  # fmt: skip
_MEMORY = _Number(amount=lambda c: c.gpu.hbm_bytes, scaled=with_memory, parse=parse_bytes, form=format_bytes)
_NETWORK = _Number(
    amount=lambda c: c.tiers[1].bandwidth if len(c.tiers) > 1 else None, scaled=with_network,
    parse=parse_bandwidth, form=format_bandwidth,
)  # fmt: skip
_SCALEUP = _Number(
    amount=lambda c: c.tiers[0].bandwidth, scaled=with_scaleup, parse=parse_bandwidth, form=format_bandwidth
)
HARDWARE: Mapping[str, _Number] = {
    "peak": _PEAK, "flops": _PEAK, "memory": _MEMORY, "hbm": _MEMORY, "network": _NETWORK, "nic": _NETWORK,
    "scaleup": _SCALEUP, "nvlink": _SCALEUP,
    "hbm_bandwidth": _Number(
        amount=lambda c: c.gpu.hbm_bandwidth, scaled=with_hbm_bandwidth, parse=parse_bandwidth,
        form=format_bandwidth,
    ),
}  # fmt: skip
WORKLOAD = ("gbs", "seq", "precision", "offload")


def _hardware(case: Case, name: str, value: str) -> tuple[Case, Changed]:
    number = HARDWARE[name]
    now = number.amount(case.cluster)
    if now is None:
        raise InputError(f"--what-if {name}: {case.cluster.gpus} GPUs here are one node, without a network")
    factor = factor_of(value)
    if factor is None:
        factor = number.parse(value, what=f"--what-if {name}") / now
    cluster = number.scaled(case.cluster, factor)
    then = number.amount(cluster) or now
    return case.on(cluster), Changed(name=name, old=number.form(now), new=number.form(then))


def _workload(case: Case, name: str, value: str) -> tuple[Case, Changed]:
    old = getattr(case.workload, name)
    if name == "precision":
        workload = replace(case.workload, precision=value.lower())
        case.cluster.gpu.peak(workload.precision)
    elif name == "offload":
        workload = replace(case.workload, offload=value.lower(), offload_fraction=1.0)
    else:
        counts: dict[str, Any] = {name: _count(name, old, value)}
        workload = replace(case.workload, **counts)
    return case.of(workload), Changed(name=name, old=f"{old}", new=f"{getattr(workload, name)}")


def _count(name: str, old: int, value: str) -> int:
    factor = factor_of(value)
    digits = value.replace("_", "")
    if factor is None and not (digits.isascii() and digits.isdecimal() and len(digits) < 16):
        raise InputError(f"--what-if {name}={shown(value).strip(chr(39))} is not a whole number or a factor")
    found = float(digits) if factor is None else old * factor
    if found != int(found) or found < 1:
        raise InputError(f"--what-if {name}={value} makes {found:g}, not a whole number of at least 1")
    return int(found)


def _machines(case: Case, name: str, value: str) -> tuple[Case, Changed]:
    cluster = case.cluster
    if name == "gpus":
        count = _count(name, cluster.gpus, value)
        changed = Changed(name=name, old=f"{cluster.gpus:,}", new=f"{count:,}")
        return case.on(cluster.with_gpus(count)), changed
    if name == "gpu":
        gpu = load_gpu(value)
        first, *outer = cluster.tiers
        same = first.bandwidth == cluster.gpu.scaleup_bandwidth
        first = replace(first, bandwidth=gpu.scaleup_bandwidth) if same else first
        then = replace(cluster, gpu=gpu, tiers=(first, *outer))
        return case.on(then), Changed(name=name, old=cluster.gpu.name, new=gpu.name)
    from meshplan.cluster.presets import cluster_of

    count = _count(name, cluster.gpus_per_node, value)
    nic = cluster.tiers[1].bandwidth if len(cluster.tiers) > 1 else None
    then = cluster_of(
        cluster.gpu.name, cluster.gpus, gpus_per_node=count, nic=nic, memory_fraction=cluster.memory_fraction
    )
    return case.on(then), Changed(name=name, old=str(cluster.gpus_per_node), new=str(count))
