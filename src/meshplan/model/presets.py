"""Models known by name: one TOML file each, and the other names people type for them.

A preset file holds the sizes of ``Model`` under the same names, the distinct layers as ``[kinds.NAME]``
tables with the fields of ``Layer``, and the stack as groups of kinds::

    layers = [{ of = ["local", "global"], times = 13 }]

An attention table with ``kv_rank`` is ``LatentAttention``, an MLP table with ``experts`` is ``Moe``.
Keys are strict: an unknown one is an error. ``aliases.toml`` lists the other names.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

from meshplan.errors import InputError, UnknownNameError
from meshplan.model.layers import Attention, LatentAttention, Layer, Mlp, Moe
from meshplan.model.model import Model
from meshplan.model.rope import Rope, rope_of_table

DATA = Path(__file__).parent / "data"
_ALIASES = "aliases.toml"
_NAME = re.compile(r"[a-z0-9][a-z0-9.\-]{0,63}")
_SUFFIXES = ("-instruct", "-base", "-chat", "-hf", "-it", "-pt", "-bf16")


def preset_names() -> tuple[str, ...]:
    """Names of all shipped models, sorted."""
    return tuple(sorted(file.stem for file in DATA.glob("*.toml") if file.name != _ALIASES))


def preset_name(name: str) -> str | None:
    """The preset that ``name`` stands for, or ``None``.

    Case, underscores and endings that do not change the sizes (``-Instruct``, ``-hf`` …) are ignored, the
    publisher's name on the hub may be there or not: ``meta-llama/Llama-3.1-70B-Instruct`` and
    ``llama-3.1-70b`` are the same. Another organisation's model of that name is not.
    """
    wanted = _plain(name)
    if _NAME.fullmatch(wanted) and wanted != "aliases" and (DATA / f"{wanted}.toml").is_file():
        return wanted
    return aliases().get(wanted)


def preset(name: str) -> Model:
    """The preset called ``name`` (canonical name or alias). Raises ``UnknownNameError``."""
    canonical = preset_name(name)
    if canonical is None:
        raise UnknownNameError("model", name, preset_names(), "see 'meshplan models' for the known ones")
    return _load(canonical)


@cache
def aliases() -> Mapping[str, str]:
    """Alias, in plain form → preset name; hub names with and without their organisation."""
    with (DATA / _ALIASES).open("rb") as file:
        table: Mapping[str, list[str]] = tomllib.load(file)
    found: dict[str, str] = {}
    for name, others in table.items():
        for alias in map(_plain, others):
            found[alias] = found[alias.rpartition("/")[2]] = name
    return found


def _plain(name: str) -> str:
    plain = name.strip().lower().replace("_", "-").replace(" ", "-")
    while plain.endswith(_SUFFIXES):
        plain = plain[: plain.rindex("-")]
    return plain


@cache
def _load(name: str) -> Model:
    with (DATA / f"{name}.toml").open("rb") as file:
        return model_from_table(name, tomllib.load(file))


_MODEL_KEYS = {f.name for f in fields(Model)} - {"name", "layers", "mtp", "notes"}
_ROPE_KEYS = {f.name for f in fields(Rope)} - {"skips"} | {"skip_every"}


def model_from_table(name: str, table: Mapping[str, Any]) -> Model:
    """The model a preset table describes. Raises ``InputError`` for unknown or missing keys."""
    where = f"preset '{name}'"
    table = dict(table)
    kinds = {key: _layer(value, f"{where}, kind '{key}'") for key, value in table.pop("kinds", {}).items()}
    layers = _stack(table.pop("layers", []), kinds, where)
    mtp = _stack(table.pop("mtp", []), kinds, where)
    _check(table, _MODEL_KEYS, where)
    if "rope" in table:
        _check(table["rope"], _ROPE_KEYS, where)
        table["rope"] = rope_of_table(table["rope"], len(layers))
    try:
        return Model(name=name, layers=layers, mtp=mtp, **table)
    except TypeError as error:
        raise InputError(f"{where}: {error}") from None


def _stack(groups: Any, kinds: Mapping[str, Layer], where: str) -> tuple[Layer, ...]:
    stack: list[Layer] = []
    for group in groups:
        _check(group, {"of", "times"}, where)
        unknown = [kind for kind in group["of"] if kind not in kinds]
        if unknown:
            raise InputError(f"{where}: no kind is called '{unknown[0]}'")
        stack += [kinds[kind] for kind in group["of"]] * group["times"]
    return tuple(stack)


def _layer(table: Mapping[str, Any], where: str) -> Layer:
    table = dict(table)
    attention, mlp = table.pop("attention", None), table.pop("mlp", None)
    _check(table, {f.name for f in fields(Layer)} - {"attention", "mlp"}, where)
    return Layer(
        attention=attention
        and _part(LatentAttention if "kv_rank" in attention else Attention, attention, where),
        mlp=mlp and _part(Moe if "experts" in mlp else Mlp, mlp, where),
        **table,
    )


def _part(kind: type[Any], table: Mapping[str, Any], where: str) -> Any:
    _check(table, {f.name for f in fields(kind)}, where)
    if kind is LatentAttention:
        table = {"q_rank": None, **table}
    try:
        return kind(**table)
    except TypeError as error:
        raise InputError(f"{where}: {error}") from None


def _check(table: Mapping[str, Any], known: set[str], where: str) -> None:
    for key in table:
        if key not in known:
            raise InputError(f"{where}: {UnknownNameError('key', key, sorted(known))}")
