"""Writes the JSON schema of every command's ``--json``: ``write_schemas.py [--check] [COMMAND ...]``.

Into ``src/meshplan/cli/schemas``, one file a command, from what the command lines of
``schema_samples.toml`` print: a key that is always there is required, ``null`` is allowed where it was
seen, objects with free keys are maps. Commands that need what is not installed keep their file.
``--check`` writes nothing and returns 1 if a file differs.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import shlex
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from meshplan.cli import main as meshplan

HERE = Path(__file__).parent
FOLDER = HERE.parent / "src" / "meshplan" / "cli" / "schemas"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
MAPS = frozenset({
    "active_parts", "additional", "by", "coordinates", "defaults", "environment", "fitted", "flop_per_token",
    "flop_per_token_with_mtp", "forward_flop_per_token", "grouped_by", "groups", "hidden", "inside_node",
    "memory", "neighbours", "packages", "parts", "peak_flops", "removed", "shares", "sizes", "skipped",
    "stacks", "step", "time", "versions", "wish", "work",
})  # fmt: skip
"""Objects under these keys have free keys: rules, parts, families."""
FREE = {"asked": "the question as a job file, which `meshplan plan` reads"}
"""Objects whose keys another file describes, with what they are."""
UNITS = {
    "_s": "seconds",
    "_bytes": "bytes",
    "_flops_per_s": "FLOP/s",
    "_bytes_per_s": "bytes/s",
    "_per_s_per_gpu": "a second and GPU",
    "_ms": "milliseconds",
}


def main() -> int:
    """Writes or checks the files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commands", nargs="*")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    samples = tomllib.loads((HERE / "schema_samples.toml").read_text(encoding="utf-8"))
    stale = []
    for name, entry in samples.items():
        if options.commands and name not in options.commands:
            continue
        schema = schema_of(name, entry)
        if schema is None:
            print(f"{name}: cannot be run here; its schema stays", file=sys.stderr)
            continue
        text = json.dumps(schema, indent=1) + "\n"
        path = FOLDER / f"{name}.json"
        if options.check and (not path.is_file() or path.read_text(encoding="utf-8") != text):
            stale.append(name)
        elif not options.check:
            path.write_text(text, encoding="utf-8")
    if stale:
        print(
            f"not what the commands print today: {', '.join(stale)}; run {Path(__file__).name}",
            file=sys.stderr,
        )
    return 1 if stale else 0


def schema_of(name: str, entry: Mapping[str, Any]) -> dict[str, Any] | None:
    """The schema of a command from its samples; ``None`` where none of them could be run."""
    found = [data for line in entry["lines"] if (data := printed(line)) is not None]
    found += [
        json.loads((HERE / "samples" / name).read_text(encoding="utf-8")) for name in entry.get("files", ())
    ]
    if not found:
        return None
    other = [data for line in entry.get("or", ()) if (data := printed(line)) is not None]
    shape = inferred(found, "")
    return {
        "$schema": DIALECT,
        "title": f"meshplan {name} --json",
        "description": entry["about"],
        **({"anyOf": [shape, inferred(other, "")]} if other else shape),
    }


def printed(line: str) -> Any:
    """What a command line prints as JSON; ``None`` where it cannot be run here."""
    text = ""
    with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
        for part in line.split(" => "):
            Path("answer.json").write_text(text, encoding="utf-8")
            filled = part.replace("{samples}", str(HERE / "samples")).replace("{scratch}", scratch)
            filled = filled.replace("{examples}", str(HERE.parent / "examples"))
            out = io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
                meshplan([*shlex.split(filled), "--json"])
            text = out.getvalue()
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return None


def inferred(values: list[Any], key: str) -> dict[str, Any]:
    """The schema that all ``values``, found under ``key``, agree with."""
    types = sorted({kind(value) for value in values})
    if types == ["null"]:
        return {}  # what it is when it is something was not seen
    if "number" in types and "integer" in types:
        types.remove("integer")
    schema: dict[str, Any] = {"type": types[0] if len(types) == 1 else types}
    unit = next(
        (u for suffix, u in sorted(UNITS.items(), key=lambda x: -len(x[0])) if key.endswith(suffix)), None
    )
    if unit is not None and not {"object", "array"} & set(types):
        schema["description"] = unit
    items = [item for value in values if isinstance(value, list) for item in value]
    if "array" in types:
        schema["items"] = inferred(items, key.removesuffix("s")) if items else {}
    if key in FREE and types == ["object"]:
        return {**schema, "description": FREE[key]}
    objects = [value for value in values if isinstance(value, dict)]
    if objects:
        schema |= mapped(objects) if key in MAPS or varied(objects) else keyed(objects)
    return schema


def varied(objects: list[dict[str, Any]]) -> bool:
    """Whether objects share no key, so that their keys are data."""
    return len(objects) > 1 and not set.intersection(*(set(value) for value in objects))


def mapped(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """An object with free keys."""
    inner = [value for value in objects for value in value.values()]
    return {"additionalProperties": inferred(inner, "") if inner else {}}


def keyed(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """An object with these keys and no other."""
    names = list(dict.fromkeys(name for value in objects for name in value))
    return {
        "properties": {n: inferred([value[n] for value in objects if n in value], n) for n in names},
        "required": [n for n in names if all(n in value for value in objects)],
        "additionalProperties": False,
    }


def kind(value: Any) -> str:
    """The name JSON schema has for the type of ``value``."""
    if value is None:
        return "null"
    for types, name in (
        (bool, "boolean"),
        (int, "integer"),
        (float, "number"),
        (str, "string"),
        (list, "array"),
    ):
        if isinstance(value, types):
            return name
    return "object"


def mismatches(value: Any, schema: Mapping[str, Any], where: str = "$") -> Iterable[str]:
    """Where ``value`` is not as ``schema`` says, for the schemas written here."""
    if "anyOf" in schema:  # of shapes that do not fit, the one that fits best says what is wrong
        yield from min((list(mismatches(value, shape, where)) for shape in schema["anyOf"]), key=len)
        return
    types = schema.get("type")
    allowed = [types] if isinstance(types, str) else (types or [])
    found = kind(value)
    if allowed and found not in allowed and not (found == "integer" and "number" in allowed):
        yield f"{where} is {found}, not {' or '.join(allowed)}"
        return
    if isinstance(value, list):
        for i, item in enumerate(value):
            yield from mismatches(item, schema.get("items", {}), f"{where}[{i}]")
    if isinstance(value, dict):
        known, others = schema.get("properties", {}), schema.get("additionalProperties", {})
        yield from (f"{where}.{name} is missing" for name in schema.get("required", ()) if name not in value)
        for name, inner in value.items():
            if name not in known and others is False:
                yield f"{where}.{name} is not in the schema"
            else:
                yield from mismatches(inner, known.get(name, others or {}), f"{where}.{name}")


if __name__ == "__main__":
    sys.exit(main())
