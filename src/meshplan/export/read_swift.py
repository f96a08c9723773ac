"""ms-swift's ``megatron sft``, ``pt`` and ``rlhf``: Megatron's settings under names with underscores.

Defaults that differ from Megatron's as in ms-swift 4 (``swift/megatron/arguments/megatron_args.py``):
micro-batch 1, global batch 16, distributed optimizer and bf16 on, experts not split over tensor parallelism.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshplan.errors import InputError
from meshplan.export.found import Found, options_of
from meshplan.export.read_bridge import of_fields
from meshplan.export.shell_values import Word
from meshplan.model.load import load_model
from meshplan.model.model import Model

SWIFT_TASKS = ("sft", "pt", "rlhf")
_NOT_FULL = ("lora", "longlora", "adalora", "llamapro")
_DEFAULTS: dict[str, Any] = {"micro_batch_size": 1, "global_batch_size": 16}
_RENAMED = {"max_length": "seq_length"}


def read_swift(words: Sequence[Word], what: str, environment: dict[str, str]) -> Found:
    """What these flags say. Raises ``InputError`` where no model is named, and for adapters."""
    options, _ = options_of(words, strict=False)
    values = {_name(flag): value for flag, value in options.values.items()}
    for flag, sentence in options.twice.items():
        if _name(flag) in ("model", "seq_length") or _name(flag).endswith("_size"):
            raise InputError(sentence)
    for name in ("tuner_type", "train_type"):
        if values.get(name) in _NOT_FULL:
            raise InputError(f"--{name} {values[name]} trains adapters, and only full training is planned")
    named = values.pop("model", None)
    if "--model" in options.missing:
        options.raw("--model")
    if not isinstance(named, str):
        raise InputError("it does not say which model it trains (--model)")
    known: Model | None
    try:
        known = load_model(named)
    except InputError:
        known = None
    filled = {name: value for name, value in _DEFAULTS.items() if name not in values}
    missing = {_name(flag): names for flag, names in options.missing.items()}
    found = of_fields({**filled, **values}, missing, known, what, environment)
    for name, title in (("micro_batch_size", "micro batch"), ("global_batch_size", "gbs")):
        if name in filled:
            found.default(title, filled[name])
    if "expert_tensor_parallel_size" not in values:
        found.columns["etp"] = 1
        found.defaults.pop("etp", None)
    found.model_name = named
    return found


def _name(flag: str) -> str:
    name = flag.lstrip("-").replace("-", "_")
    return _RENAMED.get(name, name)
