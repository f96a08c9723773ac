"""The two files of a calibration: a cluster file (YAML) and, beside it, its profile (TOML)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from meshplan.calibrate.profile import Calibration
from meshplan.cluster.cluster import Cluster
from meshplan.cluster.files import load_cluster
from meshplan.cluster.profile import load_profile
from meshplan.measure.failures import writing


def profile_path(cluster: Path) -> Path:
    """Where the profile of a cluster file stands: ``my-cluster.profile.toml`` for ``my-cluster.yaml``."""
    return cluster.with_suffix(".profile.toml")


def write(found: Calibration, path: Path) -> Cluster:
    """Write both and read them back; raises ``InputError`` when what was measured cannot be, in which case no
    file is left or replaced."""
    profile = profile_path(path)
    parts = (path.with_name(f".{path.name}.part.yaml"), profile.with_name(f".{profile.name}.part.toml"))
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        parts[1].write_text("# Made by meshplan calibrate; SI units.\n" + toml_text(found.profile))
        parts[0].write_text("# Made by meshplan calibrate.\n" + yaml_text(found.cluster))
    try:
        load_profile(str(parts[1]))
        load_cluster(parts[0])
        with writing(path):
            parts[1].replace(profile)
            parts[0].replace(path)
    finally:
        load_profile.cache_clear()
        for part in parts:
            part.unlink(missing_ok=True)
    return load_cluster(path)


def toml_text(table: Mapping[str, Any], prefix: str = "") -> str:
    """TOML of nested tables: plain values first, then each table under its full name."""
    lines = [f"{k} = {_value(v)}" for k, v in table.items() if not _is_section(k, v)]
    for k, v in table.items():
        if _is_section(k, v):
            inner = toml_text(v, f"{prefix}{k}.")
            has_own = any(not _is_section(a, b) for a, b in v.items())
            lines += ["", *([f"[{prefix}{k}]"] if has_own else []), inner.strip("\n")]
    return "\n".join(lines) + "\n"


def _is_section(key: str, value: object) -> bool:
    return isinstance(value, Mapping) and key != "fit_error"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(v) for v in value) + "]"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(str(k))} = {_value(v)}" for k, v in value.items()) + " }"
    return json.dumps(str(value), ensure_ascii=False)


def yaml_text(table: Mapping[str, Any]) -> str:
    """YAML of tables, lists of tables and plain values."""
    return "\n".join(_yaml(table, "")) + "\n"


def _yaml(table: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield f"{indent}{key}:"
            yield from _yaml(value, indent + "  ")
        elif isinstance(value, list):
            yield f"{indent}{key}:"
            for item in value:
                first, *rest = _yaml(item, "")
                yield f"{indent}  - {first}"
                yield from (f"{indent}    {line}" for line in rest)
        else:
            text = value if isinstance(value, int) else json.dumps(str(value), ensure_ascii=False)
            yield f"{indent}{key}: {text}"
