"""Measured runs from a CSV file, and each turned into what the cost model takes."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from meshplan.errors import InputError, shown
from meshplan.files import read_text

TEXT = (
    "id",
    "source",
    "ref",
    "release",
    "tier",
    "model",
    "gpu",
    "sharding",
    "recompute",
    "precision",
    "notes",
)
REQUIRED_NUMBERS = (
    "layers",
    "hidden",
    "heads",
    "kv_heads",
    "head_dim",
    "ffn",
    "vocab",
    "seq",
    "gpus",
    "gpus_per_node",
    "gbs",
    "mbs",
    "tp",
    "cp",
    "pp",
    "dp",
    "step_s",
    "tokens_s_gpu",
    "peak_gib",
)
OPTIONAL_NUMBERS = (
    "params_b",
    "gated",
    "experts",
    "topk",
    "moe_ffn",
    "shared_ffn",
    "dense_layers",
    "mla",
    "sp",
    "vp",
    "ep",
    "etp",
    "tflops_per_gpu",
    "mfu",
)
LIMIT_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Row:
    """One measured run: ``text`` and ``number`` columns by name; an empty cell is ``""`` or ``None``."""

    line: int
    text: dict[str, str]
    number: dict[str, float | None]

    def __getitem__(self, column: str) -> float | None:
        return self.number.get(column)

    def whole(self, column: str, default: int | None = None) -> int | None:
        """A count, or ``default`` for an empty cell."""
        value = self.number.get(column)
        return default if value is None else round(value)


def read_rows(path: Path | str) -> list[Row]:
    """All rows of a file in the schema of measured runs.

    Raises ``InputError`` naming line and column for a missing column, text in a number, NaN, infinity
    or a negative number.
    """
    text = read_text(path, limit_bytes=LIMIT_BYTES, what="measurement file")
    return list(parse_rows(text, str(path)))


def parse_rows(text: str, where: str) -> Iterator[Row]:
    """The same from the text of a file called ``where``."""
    try:
        reader = csv.DictReader(StringIO(text), strict=True)
        header = reader.fieldnames or []
        missing = [c for c in ("id", "source", "model", "gpu", *REQUIRED_NUMBERS) if c not in header]
        if missing:
            raise InputError(
                f"{where}: column {missing[0]!r} is missing (and {len(missing) - 1} more)"
                if len(missing) > 1
                else f"{where}: column {missing[0]!r} is missing"
            )
        for record in reader:
            yield _row(record, reader.line_num, where)
    except csv.Error as error:
        raise InputError(f"{where}: not a CSV file ({error})") from None


def _row(record: dict[str, str | None], line: int, where: str) -> Row:
    if None in record or any(value is None for value in record.values()):
        raise InputError(f"{where}, line {line}: the row does not have as many cells as the header")
    number: dict[str, float | None] = {}
    for column in (*REQUIRED_NUMBERS, *OPTIONAL_NUMBERS):
        cell = (record.get(column) or "").strip()
        if not cell:
            number[column] = None
            continue
        try:
            value = float(cell)
        except ValueError:
            raise InputError(
                f"{where}, line {line}, column {column}: {shown(cell)} is not a number"
            ) from None
        if not math.isfinite(value) or value < 0:
            raise InputError(
                f"{where}, line {line}, column {column}: {shown(cell)} must be finite and at least 0"
            )
        number[column] = value
    return Row(line=line, text={c: (record.get(c) or "").strip() for c in TEXT}, number=number)


def noted(row: Row, pattern: str) -> re.Match[str] | None:
    """Where the notes of ``row`` say ``pattern``, whatever the case."""
    return re.search(pattern, row.text["notes"], flags=re.IGNORECASE)


def refers(row: Row, pattern: str) -> re.Match[str] | None:
    """Where the source of ``row``, or the repository or paper it refers to, is one of ``pattern``."""
    return re.search(pattern, f"{row.text['source']} {row.text['ref']}", flags=re.IGNORECASE)
