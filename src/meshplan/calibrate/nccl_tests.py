"""Logs of nccl-tests, as people have them: sizes and times of one collective.

The layout is that of ``src/common.cu``: a header that names the columns, then a row a size with size,
count, type, redop, root, and time (µs), algbw, busbw for out of place and in place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from meshplan.calibrate.samples import Sample
from meshplan.errors import InputError, shown
from meshplan.files import read_text

_ROW = re.compile(r"^\s*(\d+)\s+(\d+)\s+(\S+)\s+(\S+)\s+(-?\d+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s+")
_RANK = re.compile(r"^#\s+Rank\s+(\d+)\s+.*?\bon\s+(\S+)\s+device")
_OPS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "sendrecv": "p2p",
}


def read_log(path: Path, op: str = "") -> list[Sample]:
    """Samples of a log. The collective is taken from ``op``, the log's own command, or the file's name.

    Raises ``InputError`` for a file without rows, or one that does not say what it measured.
    """
    text = read_text(path, what="nccl-tests log", limit_bytes=1 << 24)
    where = f"nccl-tests log {shown(path, 200)}"
    hosts = [m.group(2) for line in text.splitlines() if (m := _RANK.match(line))]
    name = op or next((v for k, v in _OPS.items() if f"{k}_perf" in text or k in path.name.lower()), "")
    if not name:
        raise InputError(f"{where} does not say which collective it measured; put it in the file's name")
    if len(hosts) < 2:
        raise InputError(f"{where} lists {len(hosts)} ranks ('# Rank … on HOST device …'); two are the least")
    per = min(hosts.count(h) for h in set(hosts))
    found = list(_rows(text, name, len(hosts), per))
    if len(found) < 2:
        raise InputError(f"{where} has {len(found)} rows of sizes and times; two are the least")
    return found


def _rows(text: str, op: str, ranks: int, per_host: int) -> Iterator[Sample]:
    for line in text.splitlines():
        match = _ROW.match(line)
        if match and int(match.group(1)) > 0 and float(match.group(6)) > 0:
            size, seconds = float(match.group(1)), float(match.group(6)) * 1e-6
            if op == "p2p":
                seconds *= 2  # samples of messages are there and back
            yield Sample(op=op, size_bytes=size, seconds=(seconds,), ranks=ranks, per_host=per_host)
