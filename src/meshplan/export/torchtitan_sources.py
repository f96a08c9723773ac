"""Where torchtitan settings come from: a command line, a configuration module, or the TOML before 0.3.

All become ``section.field`` → value. Modules are read as syntax trees; nothing in them is run.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from meshplan.errors import InputError
from meshplan.export.found import Settings
from meshplan.export.trees import literal_of, path_of


def titan_flags(args: Settings, policies: list[str]) -> Settings:
    """A command line as ``section.field`` settings; hyphens and ``no-`` as tyro reads them, and the
    subcommands that choose activation checkpointing."""
    values: dict[str, Any] = {}
    missing: dict[str, tuple[str, ...]] = {}
    for flag, given in args.values.items():
        value = given
        section, dot, field = (part.replace("-", "_") for part in flag[2:].rpartition("."))
        name = f"{section}{dot}{field}"
        if dot and field.startswith("no_") and value is True:
            name, value = f"{section}.{field[3:]}", False
        if name == "activation_checkpoint.mode":
            name = "checkpointing"
        if isinstance(value, list) and name != "parallelism.module_fqns_per_model_part":
            value = value[0]
        if flag in args.missing:
            missing[name] = args.missing[flag]
        if name in values:
            raise InputError(f"{name} is given twice ({values[name]} and {value}); keep one")
        values[name] = value
    if policies:
        values["checkpointing"] = policies[-1].partition(":")[2]
    return Settings(values, missing)


def titan_toml(table: Mapping[str, Any]) -> Settings:
    """The TOML of earlier releases as ``section.field`` settings."""
    values: dict[str, Any] = {}
    for section, fields in table.items():
        if isinstance(fields, Mapping):
            values |= {f"{section}.{field}": value for field, value in fields.items()}
    return Settings(values)


def titan_module(tree: ast.Module) -> Settings:
    """A configuration module as ``section.field`` settings, literals only."""
    runs = [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and any(isinstance(call, ast.Call) and path_of(call.func)[-2:] == ["Trainer", "Config"]
                for call in ast.walk(node))
    ]  # fmt: skip
    if len(runs) > 1:
        raise InputError(
            f"it holds {len(runs)} configurations ({runs[0]}, {runs[1]} ...); keep the one you mean, or read"
            " the command that names it with --config"
        )
    values: dict[str, Any] = {}
    constants = {
        node.targets[0].id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and len(node.targets) == 1
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
    }
    if "HEADS" in constants:
        values["llama"] = constants
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and path_of(statement.targets[0]) == ["ROPE"]:
            table = literal_of(statement.value, "ROPE")
            values |= {f"rope.{name}": value for name, value in table.items()}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torchtitan.models."):
            values.setdefault("module", (node.module or "").split(".")[2])
        elif isinstance(node, ast.Call):
            _call(node, values)
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            path = path_of(node.targets[0])
            if len(path) == 2 and path[0] == "rope":
                values[f"rope.{path[1]}"] = literal_of(node.value, path[1])
            elif len(path) >= 3 and path[-2] in ("training", "parallelism"):
                values[f"{path[-2]}.{path[-1]}"] = literal_of(node.value, path[-1])
        elif isinstance(node, ast.keyword) and node.arg == "activation_checkpoint":
            values["checkpointing"] = _policy(node.value)
    if not any(name in ("flavor", "llama") or "." in name for name in values):
        raise InputError("it is a Python file of torchtitan that sets nothing of a run")
    return Settings(values)


def _call(node: ast.Call, values: dict[str, Any]) -> None:
    name = path_of(node.func)
    section = {"ParallelismConfig": "parallelism", "TrainingConfig": "training"}.get(name[-1] if name else "")
    if section:
        for keyword in node.keywords:
            if keyword.arg:
                place = f"{section}.{keyword.arg}"
                if place in values:
                    raise InputError(f"{place} is given twice, in two {name[-1]}; keep one")
                values[place] = literal_of(keyword.value, keyword.arg)
    elif name and name[-1] == "model_registry":
        if node.args:
            values["flavor"] = literal_of(node.args[0], "model_registry")
        for keyword in node.keywords:
            if keyword.arg == "converters":
                values["converters"] = ast.unparse(keyword.value)


def _policy(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and node.value is None:
        return "none"
    text = ast.unparse(node)
    return "full" if text.startswith("FullAC") else "selective" if text.startswith("SelectiveAC") else text
