"""Tables of kernel and collective times (CSV, plain or gzipped) as people have them.

One row a measurement, told apart by its columns; a time column is ``seconds``, ``latency_s``, ``latency_ms``
or ``latency_us`` (also ``time_…``):

- products: ``m,n,k`` and perhaps ``dtype``;
- causal attention forward: ``batch,heads,seq,head_dim``;
- collectives: ``op,ranks,bytes`` (or ``num_gpus``, ``message_bytes``) and perhaps ``per_host``; bytes of the
  whole buffer, as nccl-tests counts them.

A column ``op`` of ``matmul`` or ``attention`` lets all kinds stand in one file, with cells left empty.
"""

from __future__ import annotations

import csv
import gzip
import math
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from meshplan.calibrate.samples import COLLECTIVES, Sample
from meshplan.errors import InputError, shown

LIMIT_ROWS = 2_000_000
_SECONDS = {"s": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6}
_DTYPES = {
    "bfloat16": "bf16", "float16": "bf16", "fp16": "bf16", "half": "bf16", "bf16": "bf16", "": "bf16",
    "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4", "float32": "fp32", "fp32": "fp32",
    "float": "fp32",
}  # fmt: skip
_NAMES = {"num_gpus": "ranks", "gpus": "ranks", "message_bytes": "bytes", "size_bytes": "bytes",
          "tokens": "seq", "width": "head_dim", "alltoall": "all_to_all", "sendrecv": "p2p"}  # fmt: skip


def read_kernels(path: Path) -> list[Sample]:
    """Samples of a table. Raises ``InputError`` naming the line for what is no time or no size."""
    where = f"table {shown(path, 200)}"
    found: list[Sample] = []
    try:
        with (
            gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8")
        ) as f:
            rows = csv.DictReader(f)
            names = {n: _NAMES.get(n.strip(), n.strip()) for n in rows.fieldnames or ()}
            clock = _clock(names.values(), where)
            for number, row in enumerate(rows, 2):
                if number > LIMIT_ROWS:
                    raise InputError(f"{where} has more than {LIMIT_ROWS:,} rows")
                cells = {names[k]: (v or "").strip() for k, v in row.items() if k in names}
                sample = _sample(cells, clock, f"{where} line {number}")
                if sample is not None:
                    found.append(sample)
    except (OSError, EOFError, UnicodeDecodeError, zlib.error, csv.Error) as error:
        raise InputError(f"{where} cannot be read: {error}") from None
    if not found:
        raise InputError(f"{where} holds no times of products, attention or collectives")
    return found


def _clock(names: Iterable[str], where: str) -> tuple[str, float]:
    for name in names:
        kind, _, unit = name.rpartition("_")
        if name == "seconds" or (kind in ("latency", "time") and unit in _SECONDS):
            return name, _SECONDS[unit or name]
    raise InputError(f"{where} has no column of times; call it seconds, latency_us or latency_ms")


def _sample(cells: Mapping[str, str], clock: tuple[str, float], where: str) -> Sample | None:
    name, scale = clock
    seconds = (_number(cells[name], name, where) * scale,)
    op = _NAMES.get(cells.get("op", ""), cells.get("op", ""))
    if op in COLLECTIVES:
        ranks = int(_number(cells.get("ranks", ""), "ranks", where))
        size = _number(cells.get("bytes", ""), "bytes", where)
        per_host = int(_number(cells["per_host"], "per_host", where)) if cells.get("per_host") else ranks
        if op == "p2p":
            seconds = (seconds[0] * 2,)  # samples of messages are there and back
        return Sample(op=op, size_bytes=size, seconds=seconds, ranks=ranks, per_host=per_host)
    dtype = _DTYPES.get(cells.get("dtype", ""), "")
    if op in ("", "matmul") and cells.get("m"):
        if not dtype:
            return None
        shape = tuple(int(_number(cells.get(c, ""), c, where)) for c in ("m", "n", "k"))
        return Sample(op="matmul", dtype=dtype, shape=shape, seconds=seconds)
    if op in ("", "attention") and cells.get("head_dim") and "experts" not in cells:
        shape = tuple(int(_number(cells.get(c, ""), c, where)) for c in ("batch", "heads", "seq", "head_dim"))
        kernel = cells.get("kernel_source") or cells.get("kernel") or ""
        return Sample(op="attention", dtype=kernel, shape=shape, seconds=seconds)
    return None


def _number(text: str, what: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{where}: {what} must be a number above 0, not {shown(text)}")
    return value
