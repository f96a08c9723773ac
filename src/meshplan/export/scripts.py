"""Launch settings in shell scripts, command lines and lists of arguments."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from meshplan.cluster.files import parse_table
from meshplan.errors import InputError, shown
from meshplan.export.documents import KINDS, of_module, other_framework, python_of, read_json, toml_of
from meshplan.export.found import Found, Settings, options_of
from meshplan.export.header import read_facts, take_facts
from meshplan.export.launcher_words import environment_of, take_launcher
from meshplan.export.read_accelerate import read_accelerate
from meshplan.export.read_bridge import override_words, read_bridge
from meshplan.export.read_deepspeed import read_deepspeed
from meshplan.export.read_megatron import OWN, read_megatron
from meshplan.export.read_swift import SWIFT_TASKS, read_swift
from meshplan.export.read_torchtitan import read_torchtitan
from meshplan.export.shell import read_shell
from meshplan.export.shell_expand import Script
from meshplan.export.shell_follow import Sibling
from meshplan.export.shell_tokens import NAME, literal
from meshplan.export.shell_values import Word
from meshplan.export.torchtitan_sources import titan_flags, titan_module, titan_toml

_PARALLEL_FIELD = re.compile(
    r"(^|\.)(tensor_model_parallel_size|pipeline_model_parallel_size|context_parallel_size)$"
)


def read_script(text: str, sibling: Sibling, arguments: Sequence[str] | None = None) -> Found:
    """Settings in a shell script or a list of arguments, as started with ``arguments``; raises ``InputError``
    where there are none, or an argument that decides is not known."""
    try:
        return _read_script(text, sibling, arguments)
    except InputError as error:
        raise InputError(f"{error}{_about_arguments(str(error), text, arguments)}") from None


_POSITION = re.compile(r"\$\{?[1-9@*#]")


def _about_arguments(error: str, text: str, arguments: Sequence[str] | None) -> str:
    """What to do where an error is about an argument of the script: give it, by the names it has there."""
    if not _POSITION.search(error):
        return ""
    names = {int(n): name for name, n in re.findall(rf"({NAME})=[\"']?\$\{{?([0-9]+)", text)}
    used = [int(n) for n in re.findall(r"\$\{?([1-9][0-9]?)", text)]
    most = max((*names, *used), default=0)
    told = " ".join(names.get(i, f"${i}") for i in range(1, most + 1)) if most else "…"
    if arguments:
        return f"; {len(arguments)} arguments were given, and the script takes: {told}"
    return f"; the script takes arguments: give them after the file, as in: read FILE -- {told}"


def _read_script(text: str, sibling: Sibling, arguments: Sequence[str] | None) -> Found:
    script = read_shell(text, sibling, arguments)
    _unfold(script)
    environment = environment_of(script)
    command = _evaluated(_training_command(script))
    words = [word.text for word in command]
    what = "a launch script" if len(script.commands) > 1 or "\n" in text.strip() else "an argument list"
    found = _of_command(command, words, environment, sibling, what)
    for variable in () if found is not None else _argument_variables(script):
        found = found or _of_command(variable, [w.text for w in variable], environment, sibling, what)
    if found is None:
        raise InputError(f"it has no launch settings of a known framework ({KINDS}){other_framework(text)}")
    take_launcher(found, script)
    for name, part in script.followed.items():
        take_facts(found, read_facts(part))
        found.notes.append(f"{shown(name)} beside it was read with it")
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
    run = [command for command in script.commands if command and command[0].text != "echo"]
    best = max(
        run or script.commands,
        key=lambda c: sum("=" in w.text or w.text.startswith("--") for w in c),
        default=[],
    )
    lines = loose if len(loose) > len(flags) else flags
    return lines if len(lines) > len(best) else list(best)


def _evaluated(command: list[Word]) -> list[Word]:
    """The words of ``eval``, whose quotes count once more."""
    if not command or command[0].text != "eval":
        return command
    try:
        inner = read_shell(literal(" ".join(word.raw for word in command[1:]))).commands
    except InputError:
        return command
    return max(inner, key=len, default=command)


def _of_command(
    command: Sequence[Word], words: list[str], environment: dict[str, str], sibling: Sibling, what: str
) -> Found | None:
    _refuse_program(words)
    if "torchtitan.train" in words or any(word.startswith("--parallelism.") for word in words):
        return _titan_command(command, words, sibling, what)
    fields = override_words(command)
    names = fields.values
    if any(_PARALLEL_FIELD.search(name) for name in names) or ("recipe" in names and len(names) > 1):
        return read_bridge(fields, f"{what} of Megatron-Bridge or NeMo", environment)
    swift = _swift_words(command)
    if swift is not None:
        return read_swift(swift, f"{what} of ms-swift (Megatron)", environment)
    if sum(any(word == flag or word.startswith(flag + "=") for word in words) for flag in OWN) >= 2:
        options, _ = options_of(_after_program(command), strict=False)
        return read_megatron(options, f"{what} of Megatron-LM", environment)
    recipe = next((w for w in words if w.endswith(".py") and _sibling_python(sibling, w) is not None), None)
    if recipe is not None:
        return _of_sibling(recipe, sibling)
    return _with_config(command, words, sibling, what)


def _swift_words(command: Sequence[Word]) -> Sequence[Word] | None:
    """The flags after ``megatron sft`` and its kin."""
    for i, word in enumerate(command[:-1]):
        if word.text.rpartition("/")[2] == "megatron" and command[i + 1].text in SWIFT_TASKS:
            return command[i + 2 :]
    return None


_NO_TRAINING = re.compile(
    r"(pretrain_(bert|t5|ict|vlm|vision\w*|retro|biencoder|realm)|train_dualencoder|run_text_generation\w*|"
    r"text_generation\w*|generate\w*|\w*inference\w*|\w*convert\w*|preprocess_data|evaluate\w*)\.py$"
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
        base = titan_toml(toml_of(beside) or {})
    elif tree is not None:
        base = titan_module(tree)
    else:
        return read_torchtitan(settings, f"{what} of torchtitan")
    own = {name: value for name, value in settings.values.items() if name not in ("module", "config")}
    return read_torchtitan(Settings({**base.values, **own}, settings.missing), f"{what} of torchtitan")


def _sibling_python(sibling: Sibling, name: str) -> ast.Module | None:
    text = sibling(name)
    return python_of(text) if text is not None else None


def _of_sibling(name: str, sibling: Sibling) -> Found | None:
    tree, text = _sibling_python(sibling, name), sibling(name)
    if tree is None or text is None:
        return None
    try:
        return of_module(tree, text)
    except InputError:
        return None


def _with_config(command: Sequence[Word], words: list[str], sibling: Sibling, what: str) -> Found | None:
    """A script around a configuration file of DeepSpeed or accelerate."""
    flags = ("--deepspeed_config", "--deepspeed", "--config_file")
    if not any(word.partition("=")[0] in flags for word in words):
        return None
    options, _ = options_of(command)
    for flag in flags:
        name = options.values.get(flag)
        if not isinstance(name, str) or not name.endswith((".json", ".yaml", ".yml")):
            continue
        beside = sibling(name)
        if beside is None:
            raise InputError(f"{flag} names {shown(name)}, which is not beside it; read that file instead")
        return config_beside(beside, options, what)
    return None


def config_beside(text: str, options: Settings, what: str, batch: Mapping[str, Any] | None = None) -> Found:
    """A DeepSpeed or accelerate configuration with the flags of the script that names it.

    ``batch`` holds sizes that the script says and the configuration leaves to it (``auto``).
    """
    facts = read_facts(text)
    if text.lstrip().startswith("{"):
        base = read_json(text)
        data = json.loads(text)
        for name, value in (batch or _batch_of(options)).items():
            if data.get(name) in (None, "auto"):
                data[name] = value
        found = read_deepspeed(data, f"{what} of DeepSpeed", options)
        found.model_name = found.model_name or base.model_name
    else:
        found = read_accelerate(
            parse_table(text, toml=False, where="its YAML"), f"{what} of accelerate", options
        )
    return trained_by_script(found, options, facts)


def _batch_of(options: Settings) -> dict[str, Any]:
    """Batch sizes among the flags of a training script that takes them from there."""
    named = {
        "train_micro_batch_size_per_gpu": "per_device_train_batch_size",
        "gradient_accumulation_steps": "gradient_accumulation_steps",
    }
    found: dict[str, Any] = {}
    for name, flag in named.items():
        for spelled in (f"--{flag}", f"--{flag.replace('_', '-')}"):
            value = options.count(spelled) if options.has(spelled) else None
            if value is not None:
                found[name] = value
    return found


def trained_by_script(found: Found, options: Settings, facts: Mapping[str, str]) -> Found:
    """Model and sequence that the training script's own flags say, under the usual names."""
    lengths = ("--seq-length", "--max_length", "--max_seq_length", "--max-seq-length", "--cutoff_len")
    found.seq = next((options.count(name) for name in lengths if options.has(name)), None) or found.seq
    models = ("--model_name_or_path", "--model-name-or-path", "--model", "--model_id", "--base_model")
    named = next((options.raw(name) for name in models if options.has(name)), None)
    if isinstance(named, str):
        found.model_name = found.model_name or named
    take_facts(found, facts)
    return found
