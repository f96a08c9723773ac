"""Pieces of Python syntax trees: dotted names and plain values, never evaluated."""

from __future__ import annotations

import ast
from typing import Any

from meshplan.errors import InputError, shown


def path_of(node: ast.expr) -> list[str]:
    """The parts of a dotted name: ``cfg.model.x``; empty for anything else."""
    if isinstance(node, ast.Attribute):
        return [*path_of(node.value), node.attr]
    return [node.id] if isinstance(node, ast.Name) else []


def literal_of(node: ast.expr, name: str) -> Any:
    """The value of a literal; raises ``InputError`` for anything that would have to be run."""
    product = _product(node)
    if product is not None:
        return product
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, MemoryError, RecursionError):
        raise InputError(
            f"line {node.lineno}: {name} is {shown(ast.unparse(node))}, not a plain value;"
            " it is not evaluated"
        ) from None


def _product(node: ast.expr) -> int | None:
    """The value of ``8 * 2048``: whole numbers multiplied or added, as people write sizes."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult | ast.Add):
        return None
    sides = []
    for side in (node.left, node.right):
        whole = isinstance(side, ast.Constant) and type(side.value) is int and abs(side.value) < 10**12
        value = side.value if whole and isinstance(side, ast.Constant) else _product(side)
        if not isinstance(value, int):
            return None
        sides.append(value)
    return sides[0] * sides[1] if isinstance(node.op, ast.Mult) else sides[0] + sides[1]
