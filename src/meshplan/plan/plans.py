"""The table of plans: one array a column, one entry a plan; one plan is a table of length one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from meshplan.plan.kinds import CpKind, Recompute, Schedule, Sharding

Ints = npt.NDArray[np.int64]

AUTO_LAYERS = -1
"""In ``recompute_layers``: the cost model recomputes as few layers as fit the memory."""
ALL_LAYERS = 1 << 20
"""In ``recompute_layers``: every layer of the stage."""
AUTO_LAYOUT = -2
"""In ``layout``: the cost model cuts the layers so that the busiest rank has least to do."""
DEFAULT_ORDER = ("tp", "cp", "ep", "dp", "pp")


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """One way to lay a run out; degrees are counts of ranks.

    Attention ranks are ``tp · cp · dp · pp``; MoE layers regroup the same ranks as
    ``etp · ep · edp · pp``. ``dp`` counts every data-parallel rank; ``replicas`` > 1 makes it
    hybrid: sharded over ``dp / replicas`` ranks, replicated over ``replicas`` (HSDP).
    """

    tp: int = 1
    sp: bool = True
    cp: int = 1
    cp_kind: CpKind = CpKind.RING
    pp: int = 1
    vp: int = 1
    schedule: Schedule = Schedule.ONE_F_ONE_B
    layout: tuple[int, ...] | None = None
    """Layers in each of the ``pp · vp`` stages, in model order; ``None``: as even as the ends allow."""
    dp: int = 1
    sharding: Sharding = Sharding.ZERO1
    replicas: int = 1
    ep: int = 1
    etp: int = 1
    mbs: int = 1
    recompute_layers: int = 0
    """Layers a stage recomputes whole; ``AUTO_LAYERS``, ``ALL_LAYERS`` or a count."""
    recompute_modules: Recompute = Recompute.NONE

    @property
    def gpus(self) -> int:
        """Ranks the plan uses."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def edp(self) -> int:
        """Ranks that hold copies of the same expert."""
        return self.tp * self.cp * self.dp // (self.ep * self.etp)


_INT_COLUMNS = (
    "tp", "sp", "cp", "cp_kind", "pp", "vp", "schedule", "dp", "sharding", "replicas", "ep", "etp", "mbs",
    "recompute_layers", "recompute_modules",
)  # fmt: skip


def is_constant(column: npt.NDArray[Any]) -> bool:
    """Whether a column is one entry that stands for all rows (as ``np.broadcast_to`` makes it)."""
    return column.strides == (0,)


def chooser(index: Any) -> Callable[[npt.NDArray[Any]], Any]:
    """What takes the entries that integers, a mask or a slice select out of column after column: integers by
    ``take``, which is the faster, and masks counted out once. A constant column stays one."""
    if isinstance(index, np.ndarray) and index.dtype == np.bool_:
        index = np.flatnonzero(index)
    if not isinstance(index, np.ndarray) or index.dtype != np.int64 or index.ndim != 1:
        return itemgetter(index)
    count = len(index)

    def pick(column: npt.NDArray[Any]) -> Any:
        if not is_constant(column) or not len(column):
            return column.take(index)
        return column[:count] if count <= len(column) else np.broadcast_to(column[:1], (count,))

    return pick


def end_to_end(columns: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """The entries of all columns (at least one), one column after the other; constant where all are, with the
    same entry."""
    first, *others = columns
    if not others:
        return first
    if all(is_constant(c) and len(c) and c[0] == first[0] for c in columns):
        return np.broadcast_to(first[:1], (sum(map(len, columns)),))
    return np.concatenate(columns)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plans:
    """A struct of equally long int64 arrays, one entry a plan.

    Choice columns hold the codes of ``plan.kinds``. ``layout`` indexes ``layouts``; -1 means as even
    as the ends allow, ``AUTO_LAYOUT`` that the cost model chooses. ``order`` (inner to outer) is shared
    by all plans of a table.
    """

    tp: Ints
    sp: Ints
    cp: Ints
    cp_kind: Ints
    pp: Ints
    vp: Ints
    schedule: Ints
    dp: Ints
    sharding: Ints
    replicas: Ints
    ep: Ints
    etp: Ints
    mbs: Ints
    recompute_layers: Ints
    recompute_modules: Ints
    layout: Ints
    layouts: tuple[tuple[int, ...], ...] = ()
    order: tuple[str, ...] = DEFAULT_ORDER

    def __len__(self) -> int:
        return len(self.tp)

    @property
    def edp(self) -> Ints:
        """Ranks that hold copies of the same expert, for each plan."""
        return self.tp * self.cp * self.dp // (self.ep * self.etp)

    @property
    def gpus(self) -> Ints:
        """Ranks each plan uses."""
        return self.tp * self.cp * self.dp * self.pp

    @classmethod
    def of(cls, *plans: Plan, order: tuple[str, ...] = DEFAULT_ORDER) -> Plans:
        """The table of these plans."""
        columns = {c: np.array([int(getattr(p, c)) for p in plans], dtype=np.int64) for c in _INT_COLUMNS}
        layouts = tuple(dict.fromkeys(p.layout for p in plans if p.layout is not None))
        index = {layout: i for i, layout in enumerate(layouts)}
        layout = np.array([-1 if p.layout is None else index[p.layout] for p in plans], dtype=np.int64)
        return cls(**columns, layout=layout, layouts=layouts, order=order)

    @classmethod
    def from_columns(cls, columns: Mapping[str, Any], *, order: tuple[str, ...] = DEFAULT_ORDER) -> Plans:
        """A table from some columns; the others take ``Plan``'s defaults. Scalars are broadcast."""
        defaults = Plan()
        given = {
            c: np.asarray(columns.get(c, int(getattr(defaults, c))), dtype=np.int64) for c in _INT_COLUMNS
        }
        unknown = set(columns) - set(_INT_COLUMNS)
        if unknown:
            raise TypeError(f"no such column: {', '.join(sorted(unknown))}")
        shape = np.broadcast_shapes(*(a.shape for a in given.values())) or (1,)
        full = {c: np.ascontiguousarray(np.broadcast_to(a, shape)) for c, a in given.items()}
        return cls(**full, layout=np.full(shape, -1, dtype=np.int64), layouts=(), order=order)

    @classmethod
    def concatenate(cls, tables: Sequence[Plans]) -> Plans:
        """The rows of all tables (at least one, all of the same order), one table after the other."""
        layouts = tuple(dict.fromkeys(layout for table in tables for layout in table.layouts))
        index = {layout: i for i, layout in enumerate(layouts)}
        columns = {c: end_to_end([getattr(table, c) for table in tables]) for c in _INT_COLUMNS}
        # Read from the end, -1 and AUTO_LAYOUT stand for themselves.
        moved = []
        for t in tables:
            codes = np.array([*(index[own] for own in t.layouts), AUTO_LAYOUT, -1], dtype=np.int64)
            one = is_constant(t.layout) and len(t.layout)
            here = codes[t.layout[:1] if one else t.layout]
            moved.append(np.broadcast_to(here, t.layout.shape) if one else here)
        return cls(**columns, layout=end_to_end(moved), layouts=layouts, order=tables[0].order)

    def take(self, index: Any) -> Plans:
        """The rows ``index`` selects (integers, a mask or a slice), in that order."""
        pick = chooser(index)
        picked = {name: pick(getattr(self, name)) for name in (*_INT_COLUMNS, "layout")}
        return Plans(**picked, layouts=self.layouts, order=self.order)

    def replace(self, **columns: Ints) -> Plans:
        """The same table with some columns replaced."""
        old = {f.name: getattr(self, f.name) for f in fields(self)}
        return Plans(**{**old, **columns})

    def __getitem__(self, i: int) -> Plan:
        layout = int(self.layout[i])
        return Plan(
            tp=int(self.tp[i]), sp=bool(self.sp[i]), cp=int(self.cp[i]), cp_kind=CpKind(int(self.cp_kind[i])),
            pp=int(self.pp[i]), vp=int(self.vp[i]), schedule=Schedule(int(self.schedule[i])),
            layout=None if layout < 0 else self.layouts[layout], dp=int(self.dp[i]),
            sharding=Sharding(int(self.sharding[i])), replicas=int(self.replicas[i]), ep=int(self.ep[i]),
            etp=int(self.etp[i]), mbs=int(self.mbs[i]), recompute_layers=int(self.recompute_layers[i]),
            recompute_modules=Recompute(int(self.recompute_modules[i])),
        )  # fmt: skip

    def __iter__(self) -> Iterator[Plan]:
        return (self[i] for i in range(len(self)))
