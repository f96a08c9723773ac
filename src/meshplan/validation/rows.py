"""Measured runs from a CSV file, and each turned into what the cost model takes."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from meshplan.cluster.cluster import MAX_GPUS
from meshplan.errors import InputError, shown
from meshplan.files import read_text
from meshplan.model.fields import MAX_EXPERTS, MAX_HEADS, MAX_HIDDEN, MAX_LAYERS, MAX_VOCAB, MAX_WIDTH
from meshplan.plan.workload import MOST

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
REQUIRED_TEXT = ("id", "source", "model", "gpu")
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
WHOLE = {
    "layers": (1, MAX_LAYERS),
    "hidden": (1, MAX_HIDDEN),
    "heads": (1, MAX_HEADS),
    "kv_heads": (0, MAX_HEADS),
    "head_dim": (0, MAX_HEADS),
    "ffn": (0, MAX_WIDTH),
    "vocab": (1, MAX_VOCAB),
    "seq": (1, MOST),
    "gpus": (1, MAX_GPUS),
    "gpus_per_node": (0, MAX_GPUS),
    "gbs": (1, MOST),
    "mbs": (1, MOST),
    "tp": (1, MAX_GPUS),
    "cp": (0, MAX_GPUS),
    "pp": (1, MAX_LAYERS),
    "dp": (0, MAX_GPUS),
    "gated": (0, 1),
    "experts": (0, MAX_EXPERTS),
    "topk": (0, MAX_EXPERTS),
    "moe_ffn": (0, MAX_WIDTH),
    "shared_ffn": (0, MAX_WIDTH),
    "dense_layers": (0, MAX_LAYERS),
    "mla": (0, 1),
    "sp": (0, 1),
    "vp": (0, MAX_LAYERS),
    "ep": (0, MAX_GPUS),
    "etp": (0, MAX_GPUS),
}
"""Counts, from and to what: the bounds that models, clusters and workloads have everywhere. Where 0 is let
through it stands for none, as an empty cell does."""
SEPARATORS = {";": "semicolons", "\t": "tabs"}
LIMIT_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Row:
    """One measured run: ``text`` and ``number`` columns by name; an empty cell is ``""`` or ``None``."""

    line: int
    text: dict[str, str]
    number: dict[str, float | None]
    fault: tuple[str, str] | None = None
    """The first column whose count cannot be, and why: such a row is not used."""

    def __getitem__(self, column: str) -> float | None:
        return self.number.get(column)

    def whole(self, column: str, default: int | None = None) -> int | None:
        """A count, or ``default`` for an empty cell."""
        value = self.number.get(column)
        return default if value is None else round(value)


def read_rows(path: Path | str) -> list[Row]:
    """All rows of a file in the schema of measured runs.

    Raises ``InputError`` naming all missing columns, or line and column of text in a number, NaN, infinity
    and a negative number. A count that is not whole or out of its bounds (``WHOLE``) is its row's ``fault``.
    """
    text = read_text(path, limit_bytes=LIMIT_BYTES, what="measurement file")
    return list(parse_rows(text, str(path)))


def parse_rows(text: str, where: str) -> Iterator[Row]:
    """The same from the text of a file called ``where``."""
    _check_header(text, where)
    try:
        reader = csv.DictReader(StringIO(text), strict=True)
        for record in reader:
            yield _row(record, reader.line_num, where)
    except csv.Error as error:
        raise InputError(f"{where}: not a CSV file ({error})") from None


def _check_header(text: str, where: str) -> None:
    """Raise ``InputError`` unless the first line of ``text`` names all columns, with commas between them."""
    first = next(StringIO(text), "")
    other = next((s for s in SEPARATORS if first.count(s) > first.count(",")), "")
    try:
        header = next(csv.reader([first], delimiter=other or ","), [])
    except csv.Error as error:
        raise InputError(f"{where}: not a CSV file ({error})") from None
    missing = [repr(c) for c in (*REQUIRED_TEXT, *REQUIRED_NUMBERS) if c not in header]
    lacking = ""
    if len(missing) == 1:
        lacking = f"column {missing[0]} is missing"
    elif missing:
        lacking = f"columns {', '.join(missing[:-1])} and {missing[-1]} are missing"
    if other:
        besides = f", and {lacking}" if lacking else ""
        raise InputError(f"{where}: columns are separated by {SEPARATORS[other]}, not by commas{besides}")
    if lacking:
        raise InputError(f"{where}: {lacking}; `meshplan validate --help` describes them")


def _row(record: dict[str, str | None], line: int, where: str) -> Row:
    if None in record or any(value is None for value in record.values()):
        raise InputError(f"{where}, line {line}: the row does not have as many cells as the header")
    number: dict[str, float | None] = {}
    fault: tuple[str, str] | None = None
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
        if column in WHOLE:
            low, high = WHOLE[column]
            if value != int(value) or not low <= value <= high:
                must = f"{column} must be a whole number from {low} to {high:,}, not {shown(cell)}"
                fault = fault or (column, must)
        number[column] = value
    text = {c: (record.get(c) or "").strip() for c in TEXT}
    return Row(line=line, text=text, number=number, fault=fault)


def noted(row: Row, pattern: str) -> re.Match[str] | None:
    """Where the notes of ``row`` say ``pattern``, whatever the case."""
    return re.search(pattern, row.text["notes"], flags=re.IGNORECASE)


def refers(row: Row, pattern: str) -> re.Match[str] | None:
    """Where the source of ``row``, or the repository or paper it refers to, is one of ``pattern``."""
    return re.search(pattern, f"{row.text['source']} {row.text['ref']}", flags=re.IGNORECASE)
