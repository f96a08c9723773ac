"""``results.jsonl``: one line for every run, whatever became of it; appended whole, read tolerantly."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from meshplan.errors import InputError, shown
from meshplan.measure.failures import writing

SCHEMA_VERSION = 1
OK = "ok"
_LIMIT_LINE = 1 << 24


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """One run. ``steps_s``: seconds of each timed step on its slowest rank."""

    key: str
    label: str
    round: int
    outcome: str
    reason: str = ""
    steps_s: tuple[float, ...] = ()
    agreement: str = ""
    memory: tuple[Mapping[str, int], ...] = ()
    """Peak bytes of each rank."""
    hosts: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)
    engine: str = "reference"
    started: str = ""
    """UTC, ISO 8601."""
    wall_s: float = 0.0
    folder: str = ""
    schema_version: int = SCHEMA_VERSION


def append(path: Path, result: Result) -> None:
    """Add a line, on disk before this returns; a torn last line of a killed run is closed first."""
    with writing(path):
        torn = path.exists() and path.stat().st_size > 0 and not _ends_whole(path)
        with path.open("a", encoding="utf-8") as out:
            out.write(("\n" if torn else "") + json.dumps(asdict(result)) + "\n")
            out.flush()
            os.fsync(out.fileno())


def _ends_whole(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def read(path: Path) -> list[Result]:
    """Every whole line; a torn one is left out. Raises ``InputError`` for lines of another schema."""
    if not path.exists():
        return []
    found = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if len(line) > _LIMIT_LINE:
                raise InputError(f"{shown(path, 200)} line {number} is longer than any result")
            try:
                data = json.loads(line)
            except json.JSONDecodeError:
                continue
            found.append(_result(data, path, number))
    return found


def _result(data: Any, path: Path, number: int) -> Result:
    where = f"{shown(path, 200)} line {number}"
    if not isinstance(data, dict) or "schema_version" not in data:
        raise InputError(f"{where} is not a result of meshplan measure")
    if data["schema_version"] != SCHEMA_VERSION:
        raise InputError(
            f"{where} has schema {shown(data['schema_version'])}; this meshplan reads {SCHEMA_VERSION}"
        )
    try:
        known: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
        return Result(**known)
    except TypeError:
        raise InputError(f"{where} is not a result of meshplan measure") from None
