"""Reading a Hugging Face ``config.json``, without running any of the model's code.

The ``model_type`` picks the row or function that knows the architecture; a configuration that nests a
language model (``text_config``) is followed to it. What is not known is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, Final

from meshplan.errors import InputError, nearest, shown
from meshplan.files import read_text
from meshplan.model.adapters import ADAPTERS
from meshplan.model.decoder import read_decoder
from meshplan.model.families import FAMILIES
from meshplan.model.fields import Fields
from meshplan.model.model import Model
from meshplan.model.numerics import with_numerics
from meshplan.model.unknown import unknown_kinds

_NESTED: Final = ("text_config", "llm_config", "language_config", "thinker_config")
_FLAT: Final = {
    "qwen2_vl": "qwen2_vl_text",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "llama4": "llama4_text",
    "glm46v": "glm4v_text",
    "glm4v": "glm4v_text",
    "glm4v_moe": "glm4v_moe_text",
    "kimi_k25": "kimi_k2",
    "qwen2_5_omni_text": "qwen2",
}
"""Types of whole multimodal models, and the language model's when the file does not say or is flat."""
_FORBIDDEN: Final = (
    "moe_latent_size",
    "routed_expert_hidden_size",
    "attn_res_block_size",
    "linear_attn_config",
)
"""Fields that no known architecture has: with one of them, a known name means something else."""


def known_types() -> tuple[str, ...]:
    """Every ``model_type`` that can be read, sorted."""
    return tuple(sorted({*FAMILIES, *ADAPTERS, *_FLAT}))


def read_config(path: str | Path, *, name: str = "", source: str = "") -> Model:
    """The model that the ``config.json`` at ``path`` (the file, or a folder holding it) describes.

    ``name`` and ``source`` replace those made from the path.

    Raises ``InputError``, one sentence, for a file that cannot be read, is not the JSON of a model, has
    missing, mistyped, absurd or contradictory sizes, or layers of a kind that is not known.
    """
    file = Path(path)
    where = f"model file {shown(path, 200)}"
    try:
        if file.is_dir():
            file = file / "config.json"
    except (OSError, ValueError):
        pass  # read_text says what is wrong
    config = parse(read_text(file, what="model file"), where)
    own = file.parent.resolve().name if file.name == "config.json" else file.stem
    model = model_from_config(config, name=name or own or "model", where=where)
    return replace(model, source=source or str(path))


def parse(text: str, where: str) -> dict[str, Any]:
    """The JSON object in ``text``; ``where`` names it in messages. Raises ``InputError``."""
    if not text.strip():
        raise InputError(f"{where} is empty")
    try:
        data = json.loads(text, object_pairs_hook=lambda pairs: _once(pairs, where))
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise InputError(f"{where} is not valid JSON: {error.msg.lower()} at {place}") from None
    except RecursionError:
        raise InputError(f"{where} is not a model configuration: its JSON is nested too deeply") from None
    except ValueError as error:
        raise InputError(f"{where} is not valid JSON: {str(error).lower()}") from None
    if not isinstance(data, dict):
        raise InputError(f"{where} must hold a JSON object, not {type(data).__name__}")
    return data


def _once(pairs: list[tuple[str, Any]], where: str) -> dict[str, Any]:
    """A JSON object none of whose keys is given twice: which of the values counts, readers differ about."""
    table = dict(pairs)
    if len(table) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise InputError(f"{where} gives {shown(twice)} twice; keep one")
    return table


def model_from_config(config: Mapping[str, Any], *, name: str, where: str | None = None) -> Model:
    """The model that a parsed ``config.json`` describes; ``where`` names it in messages."""
    where = where or f"the configuration of {name}"
    fields, notes = _language_model(Fields(config, where))
    kind = fields.word("model_type")
    for field in _FORBIDDEN:
        if fields.data.get(field):
            raise _refused(fields, kind)
    if kind in ADAPTERS:
        model = ADAPTERS[kind](fields)
    elif kind in FAMILIES:
        model = read_decoder(fields, FAMILIES[kind])
    else:
        raise _refused(fields, kind)
    model = with_numerics(fields, model)
    return replace(model, name=name, notes=(*notes, *model.notes))


def _language_model(f: Fields) -> tuple[Fields, tuple[str, ...]]:
    """The fields of the language model, nested or not, with what was left aside."""
    if f.data.get("is_encoder_decoder") is True:
        raise f.fail("encoder-decoder models are not known, only decoders")
    inner = f
    notes: tuple[str, ...] = ()
    for _ in range(3):
        names = [name for name in _NESTED if inner.has(name)]
        if not names:
            break
        outer, inner = inner, inner.table(names[0])
        tied = {name: outer.data[name] for name in ("tie_word_embeddings",) if outer.has(name)}
        kind = inner.data.get("model_type") or outer.data.get("model_type")
        inner = Fields({**inner.data, **tied, "model_type": kind}, inner.where)
    if inner is not f or f.has("vision_config", "audio_config"):
        notes = ("the language model alone is planned: encoders of images, audio or video are left out",)
    kind = inner.data.get("model_type")
    if not isinstance(kind, str):
        raise f.fail("model_type is missing" if kind is None else "model_type must be a string")
    if kind in _FLAT:
        inner = Fields({**inner.data, "model_type": _FLAT[kind]}, inner.where)
    return inner, notes


def _refused(f: Fields, kind: str) -> InputError:
    """Why a configuration cannot be read: an unknown kind of layer, or an unknown architecture."""
    kinds = unknown_kinds(f.data)
    if kinds:
        listed = " and ".join(kinds[:3])
        return f.fail(f"model_type {shown(kind)} has layers of a kind that is not known: {listed}")
    close = [
        name for name in nearest(kind, known_types(), 1) if SequenceMatcher(None, kind, name).ratio() > 0.7
    ]
    hint = f"; the nearest known one is '{close[0]}'" if close else ""
    return f.fail(f"model_type {shown(kind)} is not a known architecture{hint}")
