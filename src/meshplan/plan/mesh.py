"""The mesh: every rank of a run in one array; a group, a neighbour, a node boundary is a slice of it.

Attention and dense layers place the ranks as ``tp × cp × dp × pp``; MoE layers regroup the same ranks
as ``etp × ep × edp × pp``. Both are reshapes of one range of ranks. As in Megatron's ``RankGenerator``,
the experts' folding takes the same order, with ``etp`` in the place of ``tp`` and ``edp`` in that of
``dp``, and the pipeline groups of both must be the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from meshplan.cluster.cluster import MAX_GPUS, is_count
from meshplan.errors import InputError, shown
from meshplan.plan.plans import DEFAULT_ORDER

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

SIZES = ("tp", "cp", "dp", "pp", "ep", "etp")
"""What a mesh is made from; ``edp`` follows."""
DENSE_DIMS = ("tp", "cp", "dp", "pp")
_IN_EXPERTS = {"tp": "etp", "ep": "ep", "dp": "edp", "pp": "pp"}
_IN_DENSE = {"tp": "tp", "cp": "cp", "dp": "dp", "pp": "pp"}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Mesh:
    """All ranks of a run; make one with ``Mesh.of``.

    ``dense`` and ``experts`` hold every rank once, outermost dimension first, inner ranks adjacent;
    ``dense_dims`` and ``expert_dims`` name their axes. ``order`` goes from inside out. A dimension of
    groups is a name (``tp``, ``cp``, ``dp``, ``pp``; ``etp``, ``ep``, ``edp``) or several of one folding
    joined by ``-`` (``dp-cp``, ``etp-ep``); beside ``ep``, ``tp`` and ``dp`` mean ``etp`` and ``edp``, as
    in Megatron.
    """

    sizes: Mapping[str, int]
    order: tuple[str, ...]
    dense: Ints
    dense_dims: tuple[str, ...]
    experts: Ints | None
    expert_dims: tuple[str, ...]

    @classmethod
    def of(cls, sizes: Mapping[str, int], order: Iterable[str] | str = DEFAULT_ORDER) -> Mesh:
        """The mesh of these degrees (those left out are 1), nested as ``order`` says, from inside out.

        ``order`` may leave out dimensions of size 1. With ``ep`` or ``etp`` given there are experts.
        Raises ``InputError`` for sizes, an order or a folding that cannot be.
        """
        full = _checked(sizes)
        names = read_order(order, full)
        ranks = np.arange(math.prod(full[dim] for dim in DENSE_DIMS), dtype=np.int64)
        dense_dims = tuple(_IN_DENSE[dim] for dim in reversed(names) if dim in _IN_DENSE)
        dense = ranks.reshape([full[dim] for dim in dense_dims])
        if not {"ep", "etp"} & set(sizes):
            kept = {dim: full[dim] for dim in DENSE_DIMS}
            return cls(
                sizes=kept, order=names, dense=dense, dense_dims=dense_dims, experts=None, expert_dims=()
            )
        full["edp"] = _expert_data(full)
        expert_dims = tuple(_IN_EXPERTS[dim] for dim in reversed(names) if dim in _IN_EXPERTS)
        _check_pipelines(full, names, dense_dims, expert_dims)
        experts = ranks.reshape([full[dim] for dim in expert_dims])
        return cls(
            sizes=full,
            order=names,
            dense=dense,
            dense_dims=dense_dims,
            experts=experts,
            expert_dims=expert_dims,
        )

    @property
    def size(self) -> int:
        """Ranks in the mesh."""
        return self.dense.size

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the dimensions from inside out, of the dense folding and then of the experts'."""
        return tuple(dict.fromkeys(chain(reversed(self.dense_dims), reversed(self.expert_dims))))

    def groups(self, dim: str) -> Ints:
        """Every group of ``dim``, one a row: an array (groups, ranks of a group), ranks ascending.

        Raises ``InputError`` for a dimension that the mesh does not have.
        """
        array, axes = self._axes(dim)
        at_end = np.moveaxis(array, axes, range(array.ndim - len(axes), array.ndim))
        return at_end.reshape(-1, math.prod(array.shape[axis] for axis in axes))

    def coordinates(self, rank: int) -> dict[str, int]:
        """Where ``rank`` is in each dimension, both foldings, from inside out."""
        self._check_rank(rank)
        found = dict(zip(self.dense_dims, _unravel(rank, self.dense), strict=True))
        if self.experts is not None:
            found |= zip(self.expert_dims, _unravel(rank, self.experts), strict=True)
        return {dim: found[dim] for dim in self.dims}

    def group_of(self, rank: int, dim: str) -> Ints:
        """The ranks of the group of ``dim`` that ``rank`` is in, ascending."""
        self._check_rank(rank)
        array, axes = self._axes(dim)
        index: list[Any] = [int(i) for i in _unravel(rank, array)]
        for axis in axes:
            index[axis] = slice(None)
        group: Ints = array[tuple(index)].reshape(-1)
        return group

    def neighbours(self, rank: int, dim: str) -> tuple[int, int]:
        """The ranks before and after ``rank`` in its group of ``dim``, taken as a ring."""
        group = self.group_of(rank, dim)
        at = int(np.searchsorted(group, rank))
        return int(group[at - 1]), int(group[(at + 1) % group.size])

    def inside_node(self, dim: str, gpus_per_node: int) -> Bools:
        """For each group of ``dim``: whether one node holds all of it."""
        groups = self.groups(dim) // gpus_per_node
        inside: Bools = groups[:, 0] == groups[:, -1]
        return inside

    def ranks_per_node(self, dim: str, gpus_per_node: int) -> Ints:
        """For each group of ``dim``: ranks on the node that holds fewest of it.

        They are the network ports that the group has there, which bound its bandwidth.
        """
        groups = self.groups(dim)
        nodes = groups // gpus_per_node
        starts = np.ones(groups.shape, dtype=np.bool_)
        starts[:, 1:] = nodes[:, 1:] != nodes[:, :-1]
        at = np.flatnonzero(starts)
        runs = np.diff(np.append(at, groups.size))
        return np.minimum.reduceat(runs, np.flatnonzero(at % groups.shape[1] == 0))

    def torch_lines(self, device: str = "cuda") -> tuple[str, ...]:
        """Python lines that make the same groups with ``torch.distributed.device_mesh``.

        torch wants the outermost dimension first. The experts' folding is a second mesh over the same
        ranks. ``_flatten`` gives the group that sums gradients; torch has no public name for it.
        """
        lines = [
            "from torch.distributed.device_mesh import init_device_mesh",
            "",
            _torch_mesh("mesh", device, self.dense.shape, self.dense_dims),
        ]
        if self.sizes["cp"] > 1 and self.sizes["dp"] > 1:
            both = ", ".join(f'"{dim}"' for dim in self.dense_dims if dim in ("dp", "cp"))
            lines.append(f'dp_cp = mesh[{both}]._flatten("dp_cp")')
        if self.experts is not None:
            lines.append(_torch_mesh("expert_mesh", device, self.experts.shape, self.expert_dims))
        return tuple(lines)

    def _axes(self, dim: str) -> tuple[Ints, list[int]]:
        names = [name.strip() for name in dim.lower().split("-")]
        if "ep" in names:
            names = [_IN_EXPERTS.get(name, name) for name in names]
        array, dims = self.dense, self.dense_dims
        if not set(names) <= set(dims) and self.experts is not None:
            array, dims = self.experts, self.expert_dims
        if len(set(names)) < len(names) or not set(names) <= set(dims):
            known = ", ".join(self.dims)
            raise InputError(
                f"no groups {shown(dim)} in this mesh; its dimensions are {known}, or several of one folding "
                f"joined by '-'"
            )
        return array, sorted(dims.index(name) for name in names)

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self.size:
            raise InputError(
                f"rank {rank} is not in a mesh of {self.size}; ranks go from 0 to {self.size - 1}"
            )


def read_order(order: Iterable[str] | str, sizes: Mapping[str, int] | None = None) -> tuple[str, ...]:
    """An order (``tp-cp-ep-dp-pp``, or its names) with the dimensions it may leave out put at its end, ``ep``
    just inside ``dp``.

    Raises ``InputError`` for unknown or repeated names, and when one with a size above 1 is missing; without
    ``sizes``, when any but ``ep`` is.
    """
    names = [name.strip().lower() for name in (order.split("-") if isinstance(order, str) else order)]
    text = "-".join(names)
    for name in names:
        if name not in DEFAULT_ORDER:
            raise InputError(
                f"order {shown(text)}: unknown dimension {shown(name)}; known: {', '.join(DEFAULT_ORDER)}"
            )
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InputError(
            f"order {shown(text)} names {twice[0]} more than once; try '{'-'.join(dict.fromkeys(names))}'"
        )
    missing = [name for name in DEFAULT_ORDER if name not in names]
    needed = [name for name in missing if (name != "ep" if sizes is None else sizes.get(name, 1) > 1)]
    if needed:
        fixed = "-".join(_put_in(names, needed))
        left = ", ".join(needed) if sizes is None else f"{needed[0]}, which is {sizes[needed[0]]}"
        raise InputError(f"order {shown(text)} leaves out {left}; try '{fixed}'")
    whole = [*names, *(name for name in missing if name != "ep")]
    if "ep" in missing:
        whole.insert(whole.index("dp"), "ep")
    return tuple(whole)


def ranks_in_node(
    dims: Iterable[str], sizes: Mapping[str, Any], order: Iterable[str], gpus_per_node: int
) -> Any:
    """Ranks that one node holds of a group over ``dims``, for whole columns of plans at once.

    ``sizes`` gives a number or an array for each dimension of one folding, ``order`` their nesting from
    inside out. Of a dimension of ``size`` ranks that are ``inner`` apart a node holds
    ``min(size, node / inner)``, at least one. Exact where nodes and degrees divide each other
    (``Mesh.ranks_per_node`` always is).
    """
    wanted = set(dims)
    inner: Any = 1
    held: Any = 1
    for dim in order:
        if dim not in sizes:
            continue
        if dim in wanted:
            held = held * np.minimum(sizes[dim], np.maximum(1, gpus_per_node // inner))
        inner = inner * sizes[dim]
    return held


def _checked(sizes: Mapping[str, int]) -> dict[str, int]:
    for name, size in sizes.items():
        if name not in SIZES:
            raise InputError(f"unknown dimension {shown(name)}; known: {', '.join(SIZES)}")
        if not is_count(size):
            raise InputError(f"{name} must be a whole number of at least 1, not {shown(size)}")
    full = {name: int(sizes.get(name, 1)) for name in SIZES}
    ranks = math.prod(full[dim] for dim in DENSE_DIMS)
    if max(ranks, full["ep"] * full["etp"]) > MAX_GPUS:
        product = " × ".join(f"{dim} {full[dim]}" for dim in DENSE_DIMS if full[dim] > 1)
        raise InputError(f"{product} makes more than {MAX_GPUS:,} ranks")
    return full


def _expert_data(full: Mapping[str, int]) -> int:
    """``edp``; refuses an ``ep · etp`` that does not divide the ranks of a pipeline stage."""
    stage, ep, etp = full["tp"] * full["cp"] * full["dp"], full["ep"], full["etp"]
    if stage % (ep * etp) == 0:
        return stage // (ep * etp)
    name, of = ("etp", stage) if stage % etp else ("ep", stage // etp)
    near = _nearest_divisors(of, full[name])
    ranks = f"tp {full['tp']} × cp {full['cp']} × dp {full['dp']} = {stage}"
    raise InputError(f"ep {ep} × etp {etp} = {ep * etp} does not divide {ranks}; {name} could be {near}")


def _nearest_divisors(of: int, wanted: int) -> str:
    """The divisors of ``of`` just below and above ``wanted``, as words."""
    small = [n for n in range(1, math.isqrt(of) + 1) if of % n == 0]
    divisors = [*small, *(of // n for n in small)]
    near = {max(n for n in divisors if n <= wanted), min((n for n in divisors if n >= wanted), default=of)}
    return " or ".join(str(n) for n in sorted(near))


def _check_pipelines(
    full: Mapping[str, int], order: tuple[str, ...], dense_dims: tuple[str, ...], expert_dims: tuple[str, ...]
) -> None:
    """Ranks of one pipeline must be the same in both foldings: the same step from stage to stage."""
    if full["pp"] == 1:
        return
    dense, experts = (
        math.prod(full[d] for d in dims[dims.index("pp") + 1 :]) for dims in (dense_dims, expert_dims)
    )
    if dense != experts:
        last = "-".join([*(name for name in order if name != "pp"), "pp"])
        raise InputError(
            f"order '{'-'.join(order)}': pipeline stages are {dense} ranks apart in attention and "
            f"{experts} in the experts, but a pipeline must be the same ranks in both; try '{last}'"
        )


def _put_in(names: list[str], needed: list[str]) -> list[str]:
    """``names`` with the needed ones placed as the default order has them, relative to its neighbours."""
    found = list(names)
    for name in needed:
        before = set(DEFAULT_ORDER[: DEFAULT_ORDER.index(name)])
        at = max((i + 1 for i, n in enumerate(found) if n in before), default=0)
        if "pp" in found and name != "pp":
            at = min(at, found.index("pp"))
        found.insert(at, name)
    return found


def _unravel(rank: int, array: Ints) -> list[int]:
    return [int(i) for i in np.unravel_index(rank, array.shape)]


def _torch_mesh(name: str, device: str, shape: tuple[int, ...], dims: tuple[str, ...]) -> str:
    names = ", ".join(f'"{dim}"' for dim in dims)
    sizes = ", ".join(str(n) for n in shape)
    return f'{name} = init_device_mesh("{device}", ({sizes}), mesh_dim_names=({names}))'
