"""The published JSON schemas say what every command prints today."""

from __future__ import annotations

import importlib.util
import json
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from meshplan.cli import main
from meshplan.cli.app import COMMANDS, build
from meshplan.cli.schema import schema_names

TOOLS = Path(__file__).parents[2] / "tools"
SAMPLES = tomllib.loads((TOOLS / "schema_samples.toml").read_text(encoding="utf-8"))
NEEDS_TORCH = {"measure", "memory-check"}


def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write_schemas", TOOLS / "write_schemas.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TOOL = tool()


def schema(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((TOOL.FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("name", sorted(set(SAMPLES) - NEEDS_TORCH))
def test_a_schema_is_what_its_command_prints(name: str) -> None:
    assert schema(name) == TOOL.schema_of(name, SAMPLES[name]), "run tools/write_schemas.py"


def test_every_command_with_json_has_a_schema() -> None:
    root = build()
    printing = {c.name for c in COMMANDS if "--json" in _options(root[c.name])}
    assert printing <= set(schema_names())
    assert set(schema_names()) == set(SAMPLES)


def _options(app: Any) -> set[str]:
    return {name for argument in app.assemble_argument_collection() for name in argument.names}


def test_schemas_hold_for_other_questions(capsys: pytest.CaptureFixture[str]) -> None:
    question = ["--gpu", "b200-sxm", "--gpus", "32", "--seq", "16384", "--gbs", "128", "--json"]
    for name in ("plan", "estimate", "why-not"):
        main([name, "deepseek-v2-lite", *question, "--pp", "2", "--tp", "1"])
        assert list(TOOL.mismatches(json.loads(capsys.readouterr().out), schema(name))) == []


H100 = "--gpu h100-sxm --gpus 64 --seq 8192 --gbs 512"


@pytest.mark.parametrize(
    "line",
    [
        f"estimate llama-3.1-70b {H100} --tp 8 --pp 4 --vp 5",  # an even layout
        f"plan llama-3.1-70b {H100} --top 2 --explain-steps --tokens 1T --no-failures",
        f"check llama-3.1-70b {H100} --tp 8 --pp 3",
        f"why-not llama-3.1-70b {H100} --tp 8 --cp 2 --sharding zero3",
        "rules torchtitan-kv-heads",
        "models show glm-4.5-air",
    ],
)
def test_schemas_hold_for_more_questions(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = line.split()
    main([*words, "--json"])
    name = "models-show" if words[0] == "models" else words[0]
    assert list(TOOL.mismatches(json.loads(capsys.readouterr().out), schema(name))) == []


def test_one_of_several_shapes_must_fit() -> None:
    wanted = {"anyOf": [TOOL.inferred([{"a": 1, "b": 2}], ""), TOOL.inferred([{"c": "x"}], "")]}
    assert list(TOOL.mismatches({"c": "y"}, wanted)) == []
    assert list(TOOL.mismatches({"a": 1}, wanted)) == ["$.b is missing"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"a": 1}, ["$.b is missing"]),
        ({"a": "1", "b": []}, ["$.a is string, not integer"]),
        ({"a": 1, "b": [1.5, None], "c": 0}, ["$.b[1] is null, not number", "$.c is not in the schema"]),
    ],
)
def test_what_a_schema_refuses(value: Any, words: list[str]) -> None:
    wanted = TOOL.inferred([{"a": 1, "b": [0.5]}, {"a": 2, "b": []}], "")
    assert list(TOOL.mismatches(value, wanted)) == words


def test_commands_print_their_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "plan"]) == 0
    assert json.loads(capsys.readouterr().out) == schema("plan")
    assert main(["schema", "plna"]) == 2
    assert capsys.readouterr().err == "error: unknown schema 'plna'; did you mean 'plan'?\n"
    assert main(["schema"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith(" ")]
    assert {line.split()[0] for line in lines} == set(SAMPLES)
