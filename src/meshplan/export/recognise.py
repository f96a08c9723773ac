"""Telling what a launch file is by its content, and handing it to the reader that knows it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from meshplan.cluster.files import parse_table
from meshplan.errors import InputError, shown
from meshplan.export.documents import is_json, of_module, of_tables, python_of, read_json, toml_of
from meshplan.export.found import Found
from meshplan.export.header import read_facts, take_facts
from meshplan.export.manifests import is_manifest, read_manifest
from meshplan.export.read_accelerate import read_accelerate
from meshplan.export.scripts import read_script
from meshplan.export.shell_follow import Sibling
from meshplan.export.yaml_settings import is_trainer_yaml, read_model_args, read_trainer_yaml

_TAKES_ARGUMENTS = re.compile(r"\$\{?[1-9@*#]|\bshift\b")


def recognise(
    text: str, *, where: str, sibling: Sibling = lambda name: None, arguments: Sequence[str] = ()
) -> Found | Mapping[str, Any]:
    """What a file says, or the table of a meshplan job file. ``where`` names the file in messages;
    ``arguments``: what a script is started with.

    Raises ``InputError``, one sentence, for a file that is of no known kind, damaged, or contradicts itself.
    """
    try:
        if "\0" in text:
            raise InputError("it is a binary file, not text")
        if not text.strip():
            raise InputError("it is empty")
        if arguments and not _TAKES_ARGUMENTS.search(text):
            raise InputError(f"unexpected argument {shown(arguments[0])}: nothing in it reads one")
        found = _by_content(text, sibling, arguments)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    if isinstance(found, Found):
        take_facts(found, read_facts(text))
    return found


def _by_content(text: str, sibling: Sibling, arguments: Sequence[str]) -> Found | Mapping[str, Any]:
    start = text.lstrip()[:1]
    if start == "{" or (start == "[" and text.rstrip().endswith("]") and is_json(text)):
        return read_json(text)
    if is_manifest(text):
        return read_manifest(text, sibling)
    table = toml_of(text)
    if table is not None:
        return of_tables(table)
    tree = python_of(text)
    if tree is not None:
        return of_module(tree, text)
    if re.search(r"^MODEL_ARGS:\s*(#.*)?$", text, re.MULTILINE):
        return read_model_args(text)
    if is_trainer_yaml(text):
        return read_trainer_yaml(text, sibling)
    if re.search(r"^(compute_environment|distributed_type|parallelism_config):", text, re.MULTILINE):
        return read_accelerate(parse_table(text, toml=False, where="its YAML"), "an accelerate configuration")
    if _is_job(text):
        return parse_table(text, toml=False, where="it")
    return read_script(text, sibling, tuple(arguments) or None)


def _is_job(text: str) -> bool:
    keys = set(re.findall(r"^([a-z_]+):", text, re.MULTILINE))
    return "model" in keys and bool(keys & {"cluster", "workload", "space"})
