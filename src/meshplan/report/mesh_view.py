"""The mesh for people and for programs: drawn with node boundaries, and as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from meshplan.errors import InputError
from meshplan.plan.mesh import Ints, Mesh
from meshplan.report.table import folded

SCHEMA_VERSION = 1
MAX_JSON_RANKS = 1 << 20
_MAP_LINES = 4
"""Lines of nodes drawn before the middle is left out."""
_LEAST_ROOM = 20
"""Columns for ranks in a table, however narrow the terminal."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ink:
    """The characters of a drawing: box lines, or plain ASCII where the terminal has no others."""

    bar: str = "│"
    dash: str = "─"
    corner: str = "┌"
    tee: str = "┬"
    end: str = "┐"
    edge: str = "┃"
    dots: str = "…"
    times: str = "×"


ASCII = Ink(bar="|", dash="-", corner="+", tee="+", end="+", edge="|", dots="..", times="x")


def ink_for(encoding: str | None) -> Ink:
    """Box lines if ``encoding`` has them, else ASCII."""
    try:
        "│─┌┬┐┃…×".encode(encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return ASCII
    return Ink()


def combined_dims(mesh: Mesh) -> tuple[str, ...]:
    """The groups of several dimensions that training uses: gradient sums, and experts with their tensors."""
    found = []
    if mesh.sizes["cp"] > 1 and mesh.sizes["dp"] > 1:
        found.append("dp-cp")
    if mesh.experts is not None and mesh.sizes["etp"] > 1 and mesh.sizes["ep"] > 1:
        found.append("etp-ep")
    return tuple(found)


def mesh_dict(mesh: Mesh, gpus_per_node: int, *, rank: int | None = None) -> dict[str, Any]:
    """The whole mesh as plain data: every group of every dimension, and the details of ``rank``.

    Raises ``InputError`` above ``MAX_JSON_RANKS`` ranks, where the text would fill hundreds of megabytes.
    """
    if mesh.size > MAX_JSON_RANKS:
        raise InputError(
            f"{mesh.size:,} ranks are too many to list as JSON (at most {MAX_JSON_RANKS:,}); "
            f"use meshplan.plan.mesh.Mesh from Python"
        )
    dims = (*mesh.dims, *combined_dims(mesh))
    found: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "order": list(mesh.order),
        "sizes": {dim: mesh.sizes[dim] for dim in mesh.dims},
        "ranks": mesh.size,
        "gpus_per_node": gpus_per_node,
        "nodes": -(-mesh.size // gpus_per_node),
        "groups": {dim: mesh.groups(dim).tolist() for dim in dims},
        "inside_node": {dim: mesh.inside_node(dim, gpus_per_node).tolist() for dim in dims},
        "torch": list(mesh.torch_lines()),
    }
    if rank is not None:
        found["rank"] = {
            "rank": rank,
            "node": rank // gpus_per_node,
            "local_rank": rank % gpus_per_node,
            "coordinates": mesh.coordinates(rank),
            "groups": {dim: mesh.group_of(rank, dim).tolist() for dim in dims},
            "neighbours": {dim: list(mesh.neighbours(rank, dim)) for dim in mesh.dims},
        }
    return found


def draw_mesh(
    mesh: Mesh,
    gpus_per_node: int,
    *,
    width: int = 100,
    ink: Ink | None = None,
    rank: int | None = None,
) -> str:
    """The mesh as text of about ``width`` columns, folded where ranks are many; ``rank`` adds its details.

    Raises ``InputError`` for a rank that is not there.
    """
    columns = max(width, 40)
    ink = ink or Ink()
    parts = [_title(mesh, gpus_per_node, ink), _node_map(mesh, gpus_per_node, columns, ink)]
    parts.append(_group_table(mesh, gpus_per_node, columns, ink))
    if rank is not None:
        parts.append(_rank_table(mesh, gpus_per_node, rank, columns, ink))
    parts[0] = [line for text in parts[0] for line in folded(text, columns)]
    return "\n\n".join("\n".join(line.rstrip() for line in part) for part in parts)


def _title(mesh: Mesh, gpus_per_node: int, ink: Ink) -> list[str]:
    nodes = -(-mesh.size // gpus_per_node)
    where = f"on {nodes:,} nodes of {gpus_per_node}" if nodes > 1 else f"on one node of {gpus_per_node}"
    sep = f" {ink.times} "
    dense = sep.join(f"{dim} {mesh.sizes[dim]}" for dim in reversed(mesh.dense_dims))
    lines = [f"{mesh.size:,} {'rank' if mesh.size == 1 else 'ranks'} {where}, from inside out {dense}"]
    if mesh.experts is not None:
        experts = sep.join(f"{dim} {mesh.sizes[dim]}" for dim in reversed(mesh.expert_dims))
        lines.append(f"the same ranks in MoE layers: {experts}")
    return lines


def _node_map(mesh: Mesh, gpus_per_node: int, width: int, ink: Ink) -> list[str]:
    """Ranks in a row, boxed by node, and under each its place in every dimension."""
    dims = [dim for dim in mesh.dims if mesh.sizes[dim] > 1]
    cell = len(str(mesh.size - 1)) + 1
    margin = max(len(name) for name in ("rank", *dims)) + 2
    room = max((width - margin - 1) // cell, 1)
    lines = list(_lines_of_nodes(mesh.size, gpus_per_node, room, cell))
    shown, left = lines, 0
    if len(lines) > _MAP_LINES:
        shown = [*lines[: _MAP_LINES - 1], lines[-1]]
        left = len(lines) - _MAP_LINES
    found: list[str] = []
    for i, blocks in enumerate(shown):
        if left and i + 1 == len(shown):
            between = blocks[0][0] - shown[i - 1][-1][1]
            found.append(f"{'':{margin}}{ink.dots} {between:,} ranks more {ink.dots}")
        found += _map_rows(mesh, dims, blocks, gpus_per_node, cell, margin, ink)
    return found


def _lines_of_nodes(ranks: int, node: int, room: int, cell: int) -> Iterator[list[tuple[int, int]]]:
    """The blocks (first rank, one past the last) of each line: whole nodes, or pieces of a wide one."""
    pieces = -(-node // room)
    piece = -(-node // pieces)
    per_line = max((room * cell) // (piece * cell + 1), 1) if pieces == 1 else 1
    blocks = []
    for start in range(0, ranks, node):
        for at in range(start, min(start + node, ranks), piece):
            blocks.append((at, min(at + piece, start + node, ranks)))
            if len(blocks) == per_line:
                yield blocks
                blocks = []
    if blocks:
        yield blocks


def _map_rows(
    mesh: Mesh,
    dims: Sequence[str],
    blocks: Sequence[tuple[int, int]],
    node: int,
    cell: int,
    margin: int,
    ink: Ink,
) -> list[str]:
    head = "".join(_head(start, stop, node, cell, ink) for start, stop in blocks)
    rows = [f"{'':{margin}}{ink.corner}{head[1:]}{ink.end}"]
    ranks = [np.arange(start, stop) for start, stop in blocks]
    rows.append(_row("rank", ranks, cell, margin, ink))
    for dim in dims:
        rows.append(_row(dim, [_places(mesh, dim, some) for some in ranks], cell, margin, ink))
    return rows


def _head(start: int, stop: int, node: int, cell: int, ink: Ink) -> str:
    """The upper edge of a block with its node's number, as wide as the block."""
    space = cell * (stop - start) + 1
    number = str(start // node)
    names = (f" node {number} " if start % node == 0 else f" node {number} continued ", f" {number} ", "")
    return next(text for name in names if len(text := f"{ink.tee}{ink.dash}{name}") <= space).ljust(
        space, ink.dash
    )


def _row(name: str, blocks: Sequence[Ints], cell: int, margin: int, ink: Ink) -> str:
    return (
        f"{name:{margin}}"
        + "".join(ink.bar + "".join(f"{n:>{cell}}" for n in block) for block in blocks)
        + ink.bar
    )


def _places(mesh: Mesh, dim: str, ranks: Ints) -> Ints:
    array, dims = (
        (mesh.dense, mesh.dense_dims) if dim in mesh.dense_dims else (mesh.experts, mesh.expert_dims)
    )
    shape = () if array is None else array.shape  # never None: the mesh names only dimensions it has
    return np.unravel_index(ranks, shape)[dims.index(dim)]


def _group_table(mesh: Mesh, gpus_per_node: int, width: int, ink: Ink) -> list[str]:
    rows = [("group", "size", "groups", "where")]
    bodies: list[Ints | None] = [None]
    for dim in (*mesh.dims, *combined_dims(mesh)):
        groups = mesh.groups(dim)
        size = groups.shape[1]
        where = "one rank each" if size == 1 else _where(mesh.inside_node(dim, gpus_per_node).mean())
        rows.append((dim, str(size), f"{len(groups):,}", where))
        bodies.append(groups if size > 1 else None)
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    found = []
    for (name, *cells), body in zip(rows, bodies, strict=True):
        size, count, where = cells
        left = f"{name:<{widths[0]}}  {size:>{widths[1]}}  {count:>{widths[2]}}  {where:<{widths[3]}}  "
        if name == "group":
            found.append(left + f"ranks ({ink.edge} node boundary)")
        else:
            found.append(left + ("" if body is None else _some(body, gpus_per_node, width - len(left), ink)))
    return found


def _where(share: float) -> str:
    if share == 1:
        return "inside a node"
    return "across nodes" if share == 0 else "some across nodes"


def _some(groups: Ints, node: int, room: int, ink: Ink) -> str:
    """As many groups as fit ``room``, with the node boundaries between and inside them."""
    text = ""
    previous = 0
    room = max(room, _LEAST_ROOM)
    whole = bool(np.all(groups[:, 0] // node == groups[:, -1] // node))
    for i, group in enumerate(groups):
        gap = f" {ink.edge} " if whole and previous // node != group[0] // node else " "
        more = (gap if text else "") + _group(group[:room], node, ink)  # a rank takes a column or more
        last = i + 1 == len(groups)
        if len(text) + len(more) + (0 if last else 1 + len(ink.dots)) > room:
            return f"{text} {ink.dots}" if text else _short(group, node, room, ink)
        text += more
        previous = group[-1]
    return text


def _group(group: Ints, node: int, ink: Ink) -> str:
    text = str(group[0])
    for before, rank in pairwise(group.tolist()):
        text += (f" {ink.edge} " if before // node != rank // node else " ") + str(rank)
    return f"[{text}]"


def _short(group: Ints, node: int, room: int, ink: Ink) -> str:
    """One group too long for the line: its first ranks and its last."""
    end = f" {ink.dots} {group[-1]}]"
    texts = (_group(group[:count], node, ink)[:-1] + end for count in range(min(len(group), room), 1, -1))
    return next((text for text in texts if len(text) <= room), f"[{group[0]}{end}")


def _rank_table(mesh: Mesh, gpus_per_node: int, rank: int, width: int, ink: Ink) -> list[str]:
    places = ", ".join(f"{dim} {at}" for dim, at in mesh.coordinates(rank).items() if mesh.sizes[dim] > 1)
    where = f"node {rank // gpus_per_node}, GPU {rank % gpus_per_node} of it"
    found = [f"rank {rank}: {where}" + (f"; {places}" if places else "")]
    rows = [("group", "place", "before", "after")]
    dims = [dim for dim in mesh.dims if mesh.sizes[dim] > 1]
    for dim in dims:
        before, after = mesh.neighbours(rank, dim)
        rows.append((dim, str(mesh.coordinates(rank)[dim]), str(before), str(after)))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    for row in rows:
        left = f"{row[0]:<{widths[0]}}  " + "  ".join(f"{row[i]:>{widths[i]}}" for i in (1, 2, 3)) + "  "
        if row[0] == "group":
            found.append(left + "ranks")
        else:
            group = mesh.group_of(rank, row[0])
            found.append(left + _some(group.reshape(1, -1), gpus_per_node, width - len(left), ink))
    return found
