"""Reading one configuration: every field checked for type and size, every complaint one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshplan.errors import InputError, shown

MAX_LAYERS = 10_000
MAX_HIDDEN = 1 << 20
MAX_WIDTH = 1 << 24
MAX_HEADS = 1 << 16
MAX_EXPERTS = 1 << 20
MAX_VOCAB = 1 << 30
MAX_TOKENS = 1 << 31

_REQUIRED: Any = object()
_PER_LAYER = {
    "head_dim",
    "intermediate_size",
    "moe_intermediate_size",
    "num_attention_heads",
    "num_experts",
    "num_experts_per_tok",
    "num_key_value_heads",
    "num_local_experts",
}


class Fields:
    """A JSON object of a configuration; ``where`` names it in messages.

    Every reader takes one or more names for the same field and uses the first that is present and not
    ``null``; without any, ``default``, or ``InputError`` when there is none.
    """

    __slots__ = ("data", "where")

    def __init__(self, data: Mapping[str, Any], where: str) -> None:
        self.data = data
        self.where = where

    def has(self, *names: str) -> bool:
        """Whether one of ``names`` is present and not ``null``."""
        return any(self.data.get(name) is not None for name in names)

    def fail(self, message: str) -> InputError:
        """An error about this configuration, to be raised."""
        return InputError(f"{self.where}: {message}")

    def integer(self, *names: str, default: int | None = None, low: int = 1, high: int = MAX_WIDTH) -> int:
        """A whole number from ``low`` to ``high``."""
        name, value = self._find(names, _REQUIRED if default is None else default)
        return self._whole(name, value, low, high)

    def optional(self, *names: str, low: int = 1, high: int = MAX_TOKENS) -> int | None:
        """A whole number, or ``None`` when the field is absent or ``null``."""
        name, value = self._find(names, None)
        return None if value is None else self._whole(name, value, low, high)

    def number(self, *names: str, low: float, high: float) -> float:
        """A finite number from ``low`` to ``high``."""
        name, value = self._find(names, _REQUIRED)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise self.fail(f"{name} must be a number from {low:g} to {high:g}, not {_described(value)}")
        return value

    def flag(self, *names: str, default: bool | None = None) -> bool:
        """``true`` or ``false``."""
        name, value = self._find(names, _REQUIRED if default is None else default)
        if not isinstance(value, bool):
            raise self.fail(f"{name} must be true or false, not {_described(value)}")
        return value

    def word(self, *names: str, default: str | None = None) -> str:
        """A string."""
        name, value = self._find(names, _REQUIRED if default is None else default)
        if not isinstance(value, str):
            raise self.fail(f"{name} must be a string, not {_described(value)}")
        return value

    def integers(self, name: str, *, low: int = 0, high: int = MAX_WIDTH) -> list[int]:
        """A list of whole numbers; booleans count as 0 and 1."""
        return [
            int(item) if isinstance(item, bool) else self._whole(f"{name}[{i}]", item, low, high)
            for i, item in enumerate(self.items(name))
        ]

    def words(self, name: str) -> list[str]:
        """A list of strings."""
        items = self.items(name)
        for i, item in enumerate(items):
            if not isinstance(item, str):
                raise self.fail(f"{name}[{i}] must be a string, not {_described(item)}")
        return items

    def items(self, name: str, count: int | None = None) -> list[Any]:
        """A list, of ``count`` entries if given."""
        _, value = self._find((name,), _REQUIRED)
        if not isinstance(value, list):
            raise self.fail(f"{name} must be a list, not {_described(value)}")
        if count is not None and len(value) != count:
            raise self.fail(f"{name} has {len(value)} entries for {count} layers")
        return value

    def table(self, name: str) -> Fields:
        """A nested object; an empty one when absent or ``null``."""
        _, value = self._find((name,), {})
        if not isinstance(value, dict):
            raise self.fail(f"{name} must be an object, not {_described(value)}")
        return Fields(value, f"{self.where}, {name}")

    def layer(self, i: int) -> Fields:
        """The fields of layer ``i``: these, with what ``per_layer_config`` says of it on top."""
        overrides = self.table("per_layer_config").data
        mine = overrides.get(str(i))
        if mine is None:
            return self
        if not isinstance(mine, dict):
            raise self.fail(f"per_layer_config[{i}] must be an object, not {_described(mine)}")
        for name in mine:
            if name not in _PER_LAYER:
                raise self.fail(f"per_layer_config[{i}] changes {shown(name)}, which is not known")
        return Fields({**self.data, **mine}, f"{self.where}, per_layer_config[{i}]")

    def _find(self, names: tuple[str, ...], default: Any) -> tuple[str, Any]:
        for name in names:
            value = self.data.get(name)
            if value is not None:
                return name, value
        if default is _REQUIRED:
            raise self.fail(f"{names[0]} is missing")
        return names[0], default

    def _whole(self, name: str, value: Any, low: int, high: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.fail(f"{name} must be a whole number from {low} to {high}, not {_described(value)}")
        return value


def _described(value: Any) -> str:
    if isinstance(value, str):
        return f"the string {shown(value)}"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, int) and value.bit_length() > 100:
        return f"a number of {value.bit_length()} bits"
    return str(value)
