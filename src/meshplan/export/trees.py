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
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, MemoryError, RecursionError):
        raise InputError(
            f"line {node.lineno}: {name} is {shown(ast.unparse(node))}, not a plain value;"
            " it is not evaluated"
        ) from None
