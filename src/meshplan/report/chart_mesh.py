"""The rank mesh as nested blocks: each dimension a row, each rank a column, node boundaries through all.

Of a large mesh the first, second and last block of a dimension are drawn and the others said, from the
outermost dimension inwards, until the columns fit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from meshplan.plan.mesh import Mesh
from meshplan.report.markup import Html
from meshplan.report.svg import WIDE, box, canvas, text, text_width
from meshplan.report.words import Words

Ints = npt.NDArray[np.int64]

MOST_COLUMNS = 64
_LEFT, _ROW, _TOP = 64.0, 22.0, 24.0
_GAP = 9.0
"""Between columns where ranks are left out."""


def mesh_chart(mesh: Mesh, gpus_per_node: int, words: Words) -> Html:
    """The mesh, the experts' folding of the same ranks below it where there is one."""
    sizes = list(mesh.dense.shape)
    shown = folded(sizes)
    ranks = np.ravel(mesh.dense[np.ix_(*shown)])
    edges = _columns(ranks)
    narrow = edges[0, 1] - edges[0, 0] < text_width(str(int(ranks[-1])), 11) + 2
    head = 8 + (text_width(str(int(ranks[-1])), 9) if narrow else 12)
    y = _TOP
    body: list[Html] = []
    for dims, array in ((mesh.dense_dims, mesh.dense), (mesh.expert_dims, mesh.experts)):
        if array is None:
            continue
        if array is mesh.experts:
            body.append(text(0, y + 16, words("mesh.experts"), "small soft"))
            y += _ROW
        rows = _rows(dims, array.shape, ranks, edges, y)
        body += rows
        y += _ROW * sum(1 for size in array.shape if size > 1)
    if mesh.size == 1:
        body.append(text(_LEFT, y + 16, words("mesh.one"), "soft"))
        y += _ROW
    body += _numbers(ranks, edges, y, head, narrow, words("mesh.rank"))
    body += _nodes(ranks, edges, gpus_per_node, y + head, words)
    y += head
    left = mesh.size - ranks.size
    if left:
        body.append(text(0, y + 18, words("mesh.folded", count=f"{left:,}"), "small soft"))
        y += 20
    for dim in (d for d in mesh.dims if mesh.sizes[d] > 1):
        body.append(text(0, y + 18, _where(mesh, dim, gpus_per_node, words), "small"))
        y += 18
    nodes = -(-mesh.size // gpus_per_node)
    return canvas(
        "mesh", body, width=WIDE, height=y + 10,
        title=words("mesh.title"),
        desc=words(
            "mesh.desc", ranks=f"{mesh.size:,}", nodes=f"{nodes:,}", size=gpus_per_node,
            order=" × ".join(f"{d} {mesh.sizes[d]}" for d in reversed(mesh.dense_dims)),
        ),
    )  # fmt: skip


def folded(sizes: Sequence[int], most: int = MOST_COLUMNS) -> list[Ints]:
    """For every axis, outermost first, the places to draw: all of them, or the first ones and the last.

    >>> [list(map(int, axis)) for axis in folded([2, 1000, 8])]
    [[0, 1], [0, 1, 999], [0, 1, 2, 3, 4, 5, 6, 7]]
    """
    keep = list(sizes)
    outer = range(len(keep) - 1)
    for few, axes in ((3, outer), (2, outer), (3, range(len(keep))), (2, range(len(keep))), (1, outer)):
        for axis in axes:
            if np.prod(keep, dtype=np.float64) > most:
                keep[axis] = min(keep[axis], few)
    found = []
    for size, count in zip(sizes, keep, strict=True):
        places = np.arange(count)
        if 1 < count < size:
            places[-1] = size - 1
        found.append(places)
    return found


def _columns(ranks: Ints) -> npt.NDArray[np.float64]:
    """(ranks, 2): left and right edge of every column, with a gap wherever ranks are left out."""
    gaps = np.concatenate([[0], np.cumsum(np.diff(ranks) > 1)]) * _GAP
    width = min((WIDE - _LEFT - 2 - float(gaps[-1])) / len(ranks), 40.0)
    left = _LEFT + np.arange(len(ranks)) * width + gaps
    return np.stack([left, left + width], axis=1)


def _rows(
    dims: Sequence[str], shape: Sequence[int], ranks: Ints, edges: npt.NDArray[np.float64], y: float
) -> list[Html]:
    """One row of blocks for every dimension above 1, outermost on top; a block is a run of ranks that
    share their place in this dimension and all outside it."""
    places = np.stack(np.unravel_index(ranks, tuple(shape)))
    body: list[Html] = []
    for axis, (dim, size) in enumerate(zip(dims, shape, strict=True)):
        if size == 1:
            continue
        body.append(text(0, y + 15, f"{dim} {size}", "small strong"))
        new = (np.diff(places[: axis + 1], axis=1) != 0).any(axis=0) | (np.diff(ranks) > 1)
        starts = np.flatnonzero(np.append(True, new))
        ends = np.append(starts[1:], len(ranks)) - 1
        for first, last in zip(starts.tolist(), ends.tolist(), strict=True):
            left, right = float(edges[first, 0]), float(edges[last, 1])
            at = int(places[axis, first])
            body.append(box(left + 0.5, y + 1, right - left - 1, _ROW - 3, f"c{1 + at % 9}"))
            # In a wide block the middle may lie on a node's boundary, so its number stands at the left.
            middle = left + 12 if right - left > 48 else (left + right) / 2
            if right - left > text_width(str(at), 11) + 1:
                body.append(text(middle, y + 15, str(at), "on mid"))
        y += _ROW
    return body


def _numbers(
    ranks: Ints, edges: npt.NDArray[np.float64], y: float, head: float, narrow: bool, rank_word: str
) -> list[Html]:
    body = [text(0, y + 12, rank_word, "small strong")]
    for rank, (left, right) in zip(ranks.tolist(), edges.tolist(), strict=True):
        middle = (left + right) / 2
        if narrow:
            body.append(
                text(
                    middle + 3,
                    y + head - 4,
                    str(rank),
                    "tiny",
                    transform=f"rotate(-90 {middle + 3:.1f} {y + head - 4:.1f})",
                )
            )
        else:
            body.append(text(middle, y + 12, str(rank), "small mid"))
    return body


def _nodes(ranks: Ints, edges: npt.NDArray[np.float64], node: int, bottom: float, words: Words) -> list[Html]:
    """A line around every node, its number above; where a node is cut short its line is too."""
    numbers = ranks // node
    starts = np.flatnonzero(np.append(True, np.diff(numbers) != 0))
    ends = np.append(starts[1:], len(ranks)) - 1
    body = []
    for first, last in zip(starts.tolist(), ends.tolist(), strict=True):
        left, right = float(edges[first, 0]), float(edges[last, 1])
        body.append(box(left, _TOP - 1, right - left, bottom - _TOP + 1, "node"))
        name = words("mesh.node", number=numbers[first])
        name = name if text_width(name, 11) < right - left else str(numbers[first])
        if text_width(name, 11) < right - left + _GAP:
            body.append(text((left + right) / 2, _TOP - 7, name, "small mid"))
    return body


def _where(mesh: Mesh, dim: str, node: int, words: Words) -> str:
    share = float(mesh.inside_node(dim, node).mean())
    key = "inside" if share == 1 else "across" if share == 0 else "some"
    groups = mesh.size // mesh.sizes[dim]
    return words(f"mesh.{key}", dim=dim, size=mesh.sizes[dim], groups=f"{groups:,}")
