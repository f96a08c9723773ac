"""Plans and questions read back from what ``--json`` printed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from meshplan.errors import InputError, shown
from meshplan.model.model import Model
from meshplan.plan.kinds import CpKind, Recompute, Schedule, Sharding
from meshplan.plan.plans import ALL_LAYERS, AUTO_LAYERS, DEFAULT_ORDER, Plan
from meshplan.plan.space import Space

_LAYERS = {"auto": AUTO_LAYERS, "full": ALL_LAYERS, "none": 0}
_COUNTS = ("tp", "cp", "pp", "dp", "ep", "etp", "vp", "mbs", "replicas")


def plan_of_data(row: Mapping[str, Any]) -> Plan:
    """The plan of a row of ``plans`` (the inverse of ``plan_rows.layout_data``).

    Raises ``InputError`` for a row that is none.
    """
    try:
        layout = row.get("layout")
        modules = Recompute.NONE
        for name in row["recompute_modules"]:
            modules |= Recompute[str(name).upper().replace("-", "_")]
        return Plan(
            **{name: _count(row, name) for name in _COUNTS},
            sp=bool(row["sp"]),
            cp_kind=_labelled(CpKind, row["cp_kind"]),
            schedule=_labelled(Schedule, row["schedule"]),
            sharding=_labelled(Sharding, row["sharding"]),
            layout=None if layout is None else tuple(int(n) for n in layout),
            recompute_layers=int(row["recomputed_layers"]),
            recompute_modules=modules,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"a plan in the saved answer cannot be read: {type(error).__name__} {error}"
        ) from None


def order_of_data(text: str) -> tuple[str, ...]:
    """The order of the dimensions as saved (``tp-cp-ep-dp-pp``). Raises ``InputError``."""
    order = tuple(str(text).split("-"))
    if sorted(order) != sorted(DEFAULT_ORDER):
        raise InputError(f"the order {shown(text)} in the saved answer does not name each dimension once")
    return order


def space_of_data(asked: Mapping[str, Any], model: Model) -> Space:
    """The space of a question that ``job_text.job_table`` wrote. Raises ``InputError``."""
    readers: dict[str, Callable[[Any], Any]] = {
        "cp_kind": lambda value: _labelled(CpKind, value),
        "schedule": lambda value: _labelled(Schedule, value),
        "sharding": lambda value: _labelled(Sharding, value),
        "layout": str,
        "sp": lambda value: value == "on",
        "recompute": _recompute,
    }
    given: dict[str, Any] = {}
    try:
        for name, values in asked["space"].items():
            read = readers.get(name, int)
            given[name] = order_of_data(values) if name == "order" else tuple(map(read, values))
        return Space.of(asked["size"], model, asked["framework"], **given)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"the question in the saved answer cannot be read: {type(error).__name__} {error}"
        ) from None


def _recompute(word: str) -> tuple[int, Recompute]:
    """What ``--recompute`` takes: ``auto``, ``full``, ``none``, layers, modules, joined by ``+``."""
    layers, modules = 0, Recompute.NONE
    for part in word.split("+"):
        if part in _LAYERS:
            layers = _LAYERS[part]
        elif part.isdecimal():
            layers = int(part)
        else:
            modules |= Recompute[part.upper().replace("-", "_")]
    return layers, modules


def is_ranking(data: Mapping[str, Any]) -> bool:
    """Whether this is what ``meshplan plan --json`` prints."""
    return isinstance(data.get("plans"), Sequence) and isinstance(data.get("counts"), Mapping)


def _count(row: Mapping[str, Any], name: str) -> int:
    value = row[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is {value!r}")
    return value


def _labelled(kind: Any, label: str) -> Any:
    return next(member for member in kind if member.label == label) if _known(kind, label) else _refuse(label)


def _known(kind: Any, label: str) -> bool:
    return any(member.label == label for member in kind)


def _refuse(label: str) -> Any:
    raise ValueError(f"{shown(label)} is not known")
