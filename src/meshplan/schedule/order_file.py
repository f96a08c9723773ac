"""Orders as files people write: JSON, one list of actions a rank.

    {"name": "mine", "micro_batches": 2,
     "ranks": [["0F0", "0F1", "0B0", "0B1"], ["1F0", "1B0", "1F1", "1B1"]]}

An action is stage, kind and micro-batch, as PyTorch prints it: ``1F0``. Kinds: F forward, B full
backward, I input gradient, W weight gradient. ``"0F3+1B0"`` is a forward and a backward that overlap.
``stages`` may be given; it is the highest stage plus one otherwise. Every stage must run every
micro-batch forward once, and backward once (B, or I and later W), all on one rank.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from meshplan.errors import InputError, shown
from meshplan.schedule.order import LETTERS, Order, Program, assemble

_KEYS = {"schema_version", "name", "stages", "micro_batches", "ranks"}
_ACTION = re.compile(r"(\d{1,6})([A-Za-z])(\d{1,7})", re.ASCII)
_MOST = 5_000_000


def read_order_file(path: str | Path) -> Order:
    """The order in a file; raises InputError with the file and the place of the first mistake."""
    path = Path(path)
    try:
        if path.stat().st_size > 256 * 2**20:
            raise InputError(f"{path}: more than 256 MiB, too large for an order")
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not UTF-8 text"
        raise InputError(f"cannot read order file {shown(path)}: {reason}") from None
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{path}, line {error.lineno}, column {error.colno}: not JSON ({error.msg})"
        ) from None
    except RecursionError:
        raise InputError(f"{path}: nested too deeply") from None
    return parse_order(found, where=str(path), name=path.name)


def parse_order(found: Any, *, where: str = "order", name: str = "own") -> Order:
    """The order in decoded JSON. Its form is checked here, its sense by ``graph.check``."""
    if not isinstance(found, dict):
        raise InputError(f'{where}: an order is an object with "micro_batches" and "ranks"')
    unknown = sorted(set(found) - _KEYS)
    if unknown:
        raise InputError(f"{where}: unknown key {shown(unknown[0])}; known are {', '.join(sorted(_KEYS))}")
    if found.get("schema_version", 1) != 1:
        raise InputError(f"{where}: schema_version {shown(found['schema_version'])} is not 1")
    title: Any = found.get("name", name)
    if not isinstance(title, str) or not title.isprintable() or not 0 < len(title) <= 80:
        raise InputError(f"{where}: name must be 1 to 80 printable characters, not {shown(title)}")
    rows: Any = found.get("ranks")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, list) for row in rows):
        raise InputError(f'{where}: "ranks" must be a list with one list of actions a rank')
    if not all(rows):
        raise InputError(f"{where}: rank {next(r for r, row in enumerate(rows) if not row)} has no actions")
    if sum(map(len, rows)) > _MOST:
        raise InputError(f"{where}: more than {_MOST:,} actions")
    programs = [_program(row, f"{where}, rank {rank}") for rank, row in enumerate(rows)]
    highest_stage = max(int(p.stage.max()) for p in programs)
    highest_batch = max(int(p.micro_batch.max()) for p in programs)
    stages = _whole(found.get("stages", highest_stage + 1), "stages", where)
    batches = _whole(found.get("micro_batches", highest_batch + 1), "micro_batches", where)
    order = assemble(title, stages=stages, micro_batches=batches, programs=programs)
    _refuse_sparse(order, where)
    return order


def _whole(value: Any, what: str, where: str) -> int:
    if type(value) is not int or not 1 <= value <= _MOST:
        raise InputError(f"{where}: {what} must be a whole number from 1 to {_MOST:,}, not {shown(value)}")
    return value


def _refuse_sparse(order: Order, where: str) -> None:
    """With fewer actions than cells some forward is missing: named before tables are made for all cells."""
    if order.stages * order.micro_batches <= len(order):
        return
    there = {
        (int(s), int(b)) for k, s, b in zip(order.kind, order.stage, order.micro_batch, strict=True) if k == 0
    }
    cells = ((s, b) for s in range(order.stages) for b in range(order.micro_batches))
    stage, batch = next(cell for cell in cells if cell not in there)
    raise InputError(f"{where} misses F of stage {stage}, micro-batch {batch}")


def _program(row: list[Any], where: str) -> Program:
    rows: list[tuple[int, int, int, bool]] = []
    for place, item in enumerate(row):
        if not isinstance(item, str):
            raise InputError(f"{where}, action {place}: an action is text such as '0F0', not {shown(item)}")
        parts = item.split("+")
        actions = [_action(part.strip(), f"{where}, action {place}") for part in parts]
        if len(parts) > 2 or (len(parts) == 2 and [a[0] for a in actions] != [0, 1]):
            raise InputError(f"{where}, action {place}: {shown(item)}: only F and B overlap, as in '0F3+1B0'")
        rows += [(*action, len(parts) == 2 and i == 0) for i, action in enumerate(actions)]
    table = np.array(rows, dtype=np.int64)
    return Program(table[:, 0], table[:, 1], table[:, 2], table[:, 3].astype(bool))


def _action(text: str, where: str) -> tuple[int, int, int]:
    match = _ACTION.fullmatch(text)
    if match is None:
        raise InputError(
            f"{where}: {shown(text)} is not an action; write stage, kind and micro-batch, "
            "the numbers whole, such as '0F0'"
        )
    stage, letter, batch = match.groups()
    if letter not in LETTERS:
        raise InputError(f"{where}: {shown(text)} has kind {letter!r}; kinds are F, B, I and W")
    return LETTERS.index(letter), int(stage), int(batch)


def order_dict(order: Order) -> dict[str, Any]:
    """An order as ``parse_order`` reads it."""
    ranks = []
    for rank in range(order.ranks):
        row: list[str] = []
        for i in range(int(order.first[rank]), int(order.first[rank + 1])):
            text = str(order.action(i))
            if i > order.first[rank] and order.paired[i - 1]:
                row[-1] += "+" + text
            else:
                row.append(text)
        ranks.append(row)
    return {
        "schema_version": 1,
        "name": order.name,
        "stages": order.stages,
        "micro_batches": order.micro_batches,
        "ranks": ranks,
    }
