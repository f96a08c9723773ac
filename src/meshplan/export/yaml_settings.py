"""Launch settings in YAML: Megatron-LM's test configurations, and arguments of a Hugging Face trainer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from meshplan.cluster.files import parse_table
from meshplan.errors import InputError
from meshplan.export.found import Found, Settings
from meshplan.export.read_deepspeed import read_deepspeed
from meshplan.export.read_megatron import read_megatron
from meshplan.export.scripts import config_beside, trained_by_script
from meshplan.export.shell_follow import Sibling

_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)\}?")
_ADAPTERS = ("lora", "freeze", "oft")


def read_model_args(text: str) -> Found:
    """``MODEL_ARGS`` of ``tests/functional_tests/…/model_config.yaml``: Megatron flags as a table."""
    data = parse_table(text, toml=False, where="its YAML")
    args = data.get("MODEL_ARGS")
    if not isinstance(args, Mapping) or not args:
        raise InputError("MODEL_ARGS must be a table of Megatron-LM flags")
    values: dict[str, Any] = {}
    missing: dict[str, tuple[str, ...]] = {}
    for flag, given in args.items():
        if given is None or given is False:
            continue
        value = given
        if isinstance(given, str):
            value = given.split() if " " in given.strip() and not given.strip().startswith("(") else given
            if names := tuple(dict.fromkeys("$" + name for name in _VARIABLE.findall(given))):
                missing[str(flag)] = names
        values[str(flag)] = value
    env = data.get("ENV_VARS")
    environment = {str(k): str(v) for k, v in env.items()} if isinstance(env, Mapping) else {}
    return read_megatron(Settings(values, missing), "a test configuration of Megatron-LM", environment)


def is_trainer_yaml(text: str) -> bool:
    """Whether a text holds arguments of a Hugging Face trainer, as LLaMA-Factory and TRL take them."""
    return all(
        re.search(rf"^{name}:", text, re.MULTILINE)
        for name in ("model_name_or_path", "per_device_train_batch_size")
    )


def read_trainer_yaml(text: str, sibling: Sibling) -> Found:
    """Such arguments, with the DeepSpeed configuration they name, if it is beside them.

    Raises ``InputError`` for adapters and for a configuration that is not there.
    """
    data = parse_table(text, toml=False, where="its YAML")
    kind = data.get("finetuning_type", "full")
    if kind in _ADAPTERS or data.get("use_peft") is True:
        raise InputError(f"it trains adapters ({kind}), and only full training is planned")
    options = Settings({f"--{name}": value for name, value in data.items()})
    what = "arguments of a Hugging Face trainer"
    named = data.get("deepspeed")
    batch = {
        "train_micro_batch_size_per_gpu": data["per_device_train_batch_size"],
        "gradient_accumulation_steps": data.get("gradient_accumulation_steps", 1),
    }
    if isinstance(named, str):
        beside = sibling(named)
        if beside is None:
            raise InputError(f"deepspeed names {named!r}, which is not beside it; put it there, or read it")
        return config_beside(beside, options, what, batch)
    found = read_deepspeed({**batch, "bf16": {"enabled": data.get("bf16") is True}}, what, options)
    found.notes.append("it names no DeepSpeed configuration; replicated data parallelism is taken")
    return trained_by_script(found, options, {})
