"""Launch settings in documents: JSON, TOML, Python modules. Each is told by its own marks."""

from __future__ import annotations

import ast
import json
import re
import tomllib
import warnings
from collections.abc import Mapping
from typing import Any

from meshplan.errors import InputError, shown
from meshplan.export.found import Found
from meshplan.export.read_bridge import read_bridge, recipe_fields
from meshplan.export.read_deepspeed import read_deepspeed
from meshplan.export.read_pytorch import read_pytorch
from meshplan.export.read_torchtitan import read_torchtitan
from meshplan.export.torchtitan_sources import titan_module, titan_toml

KINDS = "Megatron-LM, Megatron-Bridge or NeMo, torchtitan, DeepSpeed, accelerate, meshplan"
_OTHERS = {
    "device_train_microbatch_size": "llm-foundry",
    "colossalai": "ColossalAI", "maxtext": "MaxText", "paddle.distributed": "PaddlePaddle",
    "llmfoundry": "llm-foundry", "llm-foundry": "llm-foundry", "axolotl": "Axolotl",
    "llamafactory": "LLaMA-Factory", "nanotron": "nanotron", "torchtune": "torchtune",
    "torchtnt": "TorchTNT", "pytorch_lightning": "PyTorch Lightning", "swift sft": "ms-swift",
    "xtuner": "XTuner", "levanter": "Levanter", "gpt-neox": "GPT-NeoX", "mindspeed": "MindSpeed",
    "horovodrun": "Horovod", "sky launch": "SkyPilot",
}  # fmt: skip


def other_framework(text: str) -> str:
    """A clause naming the framework that a text looks like, where it is a known one."""
    low = text.lower()
    name = next((title for mark, title in _OTHERS.items() if mark in low), None)
    return f"; it looks like {name}" if name else ""


def read_json(text: str) -> Found:
    """A DeepSpeed configuration; raises ``InputError`` for broken or other JSON."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table: dict[str, Any] = {}
        for key, value in pairs:
            if key in table:
                raise InputError(f"{shown(key)} is given twice; keep one")
            table[key] = value
        return table

    try:
        data = json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        what = error.msg.lower().removesuffix(" at")
        raise InputError(
            f"it is not complete JSON: {what} at line {error.lineno}, column {error.colno}"
        ) from None
    except (RecursionError, ValueError) as error:
        raise InputError(f"it is not usable JSON: {str(error)[:80].lower()}") from None
    if not isinstance(data, dict):
        raise InputError(f"it is a JSON {type(data).__name__}, not a DeepSpeed configuration")
    if "model_type" in data or "architectures" in data:
        raise InputError("it is a model's config.json, not a launch file; give it to `meshplan plan`")
    own = {
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "zero_optimization",
        "gradient_accumulation_steps",
    }
    if not own & set(data):
        raise InputError(f"it is JSON without any of {', '.join(sorted(own))}, so no DeepSpeed configuration")
    return read_deepspeed(data, "a DeepSpeed configuration")


def is_json(text: str) -> bool:
    """Whether a text is whole JSON."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def toml_of(text: str) -> dict[str, Any] | None:
    """The table of a TOML text; ``None`` for what is none."""
    if not re.search(r"^\s*\[[\w.\- ]+\]\s*(#.*)?$", text, re.MULTILINE):
        return None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        if re.match(r"\s*(#[^!].*\n\s*)*\[(model|training|parallelism|job|workload|space|cluster)", text):
            if "overwrite" in message or "twice" in message:
                raise InputError(f"a key is given twice: {message[0].lower()}{message[1:]}") from None
            raise InputError(f"it is not complete TOML: {message[0].lower()}{message[1:]}") from None
        return None
    except RecursionError:
        raise InputError("it is TOML nested too deeply") from None


def of_tables(table: dict[str, Any]) -> Found | Mapping[str, Any]:
    """Settings in TOML: torchtitan's before 0.3, or the table of a meshplan job."""
    if {"workload", "space"} & set(table) or ("model" in table and isinstance(table["model"], str)):
        return table
    if {"training", "parallelism", "experimental"} & set(table):
        found = read_torchtitan(titan_toml(table), "a torchtitan configuration (TOML, before 0.3)")
        found.notes.append("torchtitan 0.3 no longer reads TOML")
        return found
    raise InputError(
        f"it is TOML with the sections {', '.join(map(str, list(table)[:5]))}, of no known framework"
    )


def python_of(text: str) -> ast.Module | None:
    """The syntax tree of a Python module; ``None`` for what is none."""
    if not re.search(r"^(import |from \w[\w.]* import |def |class |MESH_NAMES = )", text, re.MULTILINE):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except SyntaxError as error:
        if re.search(r"^(#!.*\bpython|import |from \w[\w.]* import )", text):
            raise InputError(f"it is Python with an error at line {error.lineno}: {error.msg}") from None
        return None
    except (ValueError, RecursionError, MemoryError):
        return None


def of_module(tree: ast.Module, text: str) -> Found:
    """Settings in a Python module, told by what it imports."""
    imported = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    imported += [
        alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    ]
    assigned = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    if {"MESH_NAMES", "STAGE_BOUNDS"} <= assigned:
        return read_pytorch(tree, "a PyTorch mesh module of meshplan")
    if any(name.startswith("torchtitan") for name in imported):
        return read_torchtitan(titan_module(tree), "a torchtitan configuration module")
    if any(name.startswith(("megatron.bridge", "nemo")) for name in imported):
        return read_bridge(recipe_fields(tree), "a Megatron-Bridge recipe", {})
    raise InputError(
        f"it is a Python file without settings of a known framework ({KINDS}){other_framework(text)}"
    )
