"""Telling what a launch file is by its content, and handing it to the reader that knows it."""

from __future__ import annotations

import ast
import json
import re
import tomllib
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from meshplan.cluster.files import parse_table
from meshplan.errors import InputError, shown
from meshplan.export.found import Found, Settings, options_of
from meshplan.export.header import read_facts
from meshplan.export.launcher_words import environment_of, take_launcher
from meshplan.export.read_megatron import OWN, read_megatron
from meshplan.export.read_other import (
    override_words,
    read_accelerate,
    read_bridge,
    read_deepspeed,
    read_pytorch,
    recipe_fields,
    take_facts,
)
from meshplan.export.read_torchtitan import read_torchtitan, titan_flags, titan_module, titan_toml
from meshplan.export.shell import Script, Word, read_shell

KINDS = "Megatron-LM, Megatron-Bridge or NeMo, torchtitan, DeepSpeed, accelerate, meshplan"
_OTHERS = {
    "colossalai": "ColossalAI", "maxtext": "MaxText", "paddle.distributed": "PaddlePaddle", "llmfoundry": "llm-foundry",
    "llm-foundry": "llm-foundry", "axolotl": "Axolotl", "llamafactory": "LLaMA-Factory", "nanotron": "nanotron",
    "torchtune": "torchtune", "torchtnt": "TorchTNT", "pytorch_lightning": "PyTorch Lightning", "swift sft": "ms-swift",
    "xtuner": "XTuner", "levanter": "Levanter", "gpt-neox": "GPT-NeoX", "mindspeed": "MindSpeed",
    "horovodrun": "Horovod", "sky launch": "SkyPilot",
}  # fmt: skip
_PARALLEL_FIELD = re.compile(
    r"(^|\.)(tensor_model_parallel_size|pipeline_model_parallel_size|context_parallel_size)$"
)
Sibling = Callable[[str], str | None]
"""The text of a file named in the launch file, from the same folder; ``None`` where there is none."""


def recognise(text: str, *, where: str, sibling: Sibling = lambda name: None) -> Found | Mapping[str, Any]:
    """What a file says, or the table of a meshplan job file. ``where`` names the file in messages.

    Raises ``InputError``, one sentence, for a file that is of no known kind, damaged, or contradicts itself.
    """
    try:
        if "\0" in text:
            raise InputError("it is a binary file, not text")
        if not text.strip():
            raise InputError("it is empty")
        found = _by_content(text, sibling)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    if isinstance(found, Found):
        take_facts(found, read_facts(text))
    return found


def _by_content(text: str, sibling: Sibling) -> Found | Mapping[str, Any]:
    start = text.lstrip()[:1]
    if start == "{" or (start == "[" and text.rstrip().endswith("]") and _is_json(text)):
        return _json(text)
    table = _toml(text)
    if table is not None:
        return _tables(table, "TOML")
    tree = _python(text)
    if tree is not None:
        return _module(tree, text)
    if re.search(
        r"^(compute_environment|distributed_type|fsdp_config|parallelism_config):", text, re.MULTILINE
    ):
        return read_accelerate(_no_twice(text), "an accelerate configuration")
    if _is_job(text):
        return parse_table(text, toml=False, where="it")
    return _script(text, sibling)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _json(text: str) -> Found:
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
        raise InputError(
            f"it is not complete JSON: {error.msg.lower()} at line {error.lineno}, column {error.colno}"
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


def _toml(text: str) -> dict[str, Any] | None:
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


def _tables(table: dict[str, Any], kind: str) -> Found | Mapping[str, Any]:
    if {"workload", "space"} & set(table) or ("model" in table and isinstance(table["model"], str)):
        return table
    if {"training", "parallelism", "experimental"} & set(table):
        found = read_torchtitan(titan_toml(table), "a torchtitan configuration (TOML, before 0.3)")
        found.notes.append("torchtitan 0.3 no longer reads TOML")
        return found
    raise InputError(
        f"it is {kind} with the sections {', '.join(map(str, list(table)[:5]))}, of no known framework"
    )


def _python(text: str) -> ast.Module | None:
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


def _module(tree: ast.Module, text: str) -> Found:
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
    raise InputError(f"it is a Python file without settings of a known framework ({KINDS}){_which(text)}")


def _no_twice(text: str) -> dict[str, Any]:
    return parse_table(text, toml=False, where="its YAML")


def _is_job(text: str) -> bool:
    keys = set(re.findall(r"^([a-z_]+):", text, re.MULTILINE))
    return "model" in keys and bool(keys & {"cluster", "workload", "space"})


def _script(text: str, sibling: Sibling) -> Found:
    script = read_shell(text)
    _unfold(script)
    environment = environment_of(script)
    command = _training_command(script)
    words = [word.text for word in command]
    what = "a launch script" if len(script.commands) > 1 or "\n" in text.strip() else "an argument list"
    found = _of_command(command, words, environment, sibling, what)
    for variable in () if found is not None else _argument_variables(script):
        found = found or _of_command(variable, [w.text for w in variable], environment, sibling, what)
    if found is None:
        raise InputError(f"it has no launch settings of a known framework ({KINDS}){_which(text)}")
    take_launcher(found, script)
    if script.branches:
        found.notes.append(
            "the script has branches or loops; their assignments were all read, the last one counts"
        )
    return found


def _unfold(script: Script) -> None:
    """Add the commands of scripts inside a word: ``bash -c "python …"``."""
    for command in list(script.commands):
        for word in command:
            if " --" in word.raw and ("\n" in word.raw or ".py" in word.raw):
                try:
                    script.commands += read_shell(word.raw).commands
                except InputError:
                    continue


def _argument_variables(script: Script) -> list[list[Word]]:
    """Variables that hold an argument list, longest first: scripts that another one sources."""
    found = []
    for words in script.variables.values():
        parts = [Word(part) for word in words for part in word.raw.split()] if len(words) == 1 else words
        if sum(word.text.startswith("--") for word in parts) >= len(OWN) // 2:
            found.append(parts)
    return sorted(found, key=len, reverse=True)


def _training_command(script: Script) -> list[Word]:
    """The command that trains: the one with most flags, joined with lines that are flags alone."""
    flags = [
        word
        for command in script.commands
        if command and command[0].text.startswith("--")
        for word in command
    ]
    loose = [
        word
        for command in script.commands
        if command and re.match(r"(-|[\w.]+=|activation[-_]checkpoint:)", command[0].text)
        for word in command
    ]
    best = max(
        script.commands, key=lambda c: sum("=" in w.text or w.text.startswith("--") for w in c), default=[]
    )
    lines = loose if len(loose) > len(flags) else flags
    return lines if len(lines) > len(best) else list(best)


def _of_command(
    command: Sequence[Word], words: list[str], environment: dict[str, str], sibling: Sibling, what: str
) -> Found | None:
    _refuse_program(words)
    if "torchtitan.train" in words or any(word.startswith("--parallelism.") for word in words):
        return _titan_command(command, words, sibling, what)
    fields = override_words(words)
    if any(_PARALLEL_FIELD.search(name) for name in fields) or ("recipe" in fields and len(fields) > 1):
        return read_bridge(fields, f"{what} of Megatron-Bridge or NeMo", environment)
    if sum(any(word == flag or word.startswith(flag + "=") for word in words) for flag in OWN) >= 2:
        options, _ = options_of(_after_program(command))
        return read_megatron(options, f"{what} of Megatron-LM", environment)
    recipe = next((w for w in words if w.endswith(".py") and _sibling_python(sibling, w) is not None), None)
    if recipe is not None:
        return _of_sibling(recipe, sibling)
    return _with_config(command, words, sibling, what)


_NO_TRAINING = re.compile(
    r"(pretrain_(bert|t5|ict|vlm|vision\w*|retro|biencoder|realm)|train_dualencoder|run_text_generation\w*|"
    r"text_generation\w*|\w*inference\w*|\w*convert\w*|preprocess_data|evaluate\w*)\.py$"
)


def _refuse_program(words: Sequence[str]) -> None:
    for before, word in zip(["", *words], words, strict=False):
        if before == "-m" and "inference" in word:
            raise InputError(f"it starts {word}, and only training of decoders is planned")
        if _NO_TRAINING.search(word):
            raise InputError(f"it starts {word.rpartition('/')[2]}, and only training of decoders is planned")


def _after_program(words: Sequence[Word]) -> Sequence[Word]:
    """The program's own words: what comes before it is the launcher's."""
    for i, word in enumerate(words):
        if word.text.endswith(".py"):
            return words[i + 1 :]
        if word.text == "-m" and i and i + 1 < len(words):
            name = words[i + 1].text
            if not name.startswith("torch.distributed"):
                return words[i + 2 :]
    return words


def _titan_command(command: Sequence[Word], words: list[str], sibling: Sibling, what: str) -> Found:
    start = words.index("torchtitan.train") + 1 if "torchtitan.train" in words else 0
    policy = re.compile(r"activation[-_]checkpoint:")
    own_words = [word for word in command[start:] if not policy.match(word.text)]
    options, _ = options_of(own_words)
    settings = titan_flags(options, [word.text for word in command[start:] if policy.match(word.text)])
    module = str(settings.values.get("module", ""))
    toml = settings.values.get("job.config_file")
    beside = sibling(str(toml)) if isinstance(toml, str) else None
    tree = _sibling_python(sibling, module + ".py") if module else None
    if beside is not None:
        base = titan_toml(_toml(beside) or {})
    elif tree is not None:
        base = titan_module(tree)
    else:
        return read_torchtitan(settings, f"{what} of torchtitan")
    own = {name: value for name, value in settings.values.items() if name not in ("module", "config")}
    found = read_torchtitan(Settings({**base.values, **own}, settings.missing), f"{what} of torchtitan")
    return found


def _sibling_python(sibling: Sibling, name: str) -> ast.Module | None:
    text = sibling(name)
    return _python(text) if text is not None else None


def _of_sibling(name: str, sibling: Sibling) -> Found | None:
    tree, text = _sibling_python(sibling, name), sibling(name)
    if tree is None or text is None:
        return None
    try:
        return _module(tree, text)
    except InputError:
        return None


def _with_config(command: Sequence[Word], words: list[str], sibling: Sibling, what: str) -> Found | None:
    """A script around a configuration file of DeepSpeed or accelerate."""
    options, _ = options_of(command)
    for flag in ("--deepspeed_config", "--deepspeed", "--config_file"):
        name = options.values.get(flag)
        if not isinstance(name, str) or not name.endswith((".json", ".yaml", ".yml")):
            continue
        beside = sibling(name)
        if beside is None:
            raise InputError(f"{flag} names {shown(name)}, which is not beside it; read that file instead")
        return _config_beside(beside, options, what)
    return None


def _config_beside(text: str, options: Settings, what: str) -> Found:
    facts = read_facts(text)
    if text.lstrip().startswith("{"):
        base = _json(text)
        data = json.loads(text)
        found = read_deepspeed(data, f"{what} of DeepSpeed", options)
        found.model_name = found.model_name or base.model_name
    else:
        found = read_accelerate(_no_twice(text), f"{what} of accelerate", options)
    found.seq = options.count("--seq-length") or options.count("--max_length") or found.seq
    take_facts(found, facts)
    return found


def _which(text: str) -> str:
    low = text.lower()
    name = next((title for mark, title in _OTHERS.items() if mark in low), None)
    return f"; it looks like {name}" if name else ""
