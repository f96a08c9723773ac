"""What a launch file says, before and after defaults are filled in."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from meshplan.errors import InputError, shown
from meshplan.export.shell_values import Word
from meshplan.model.model import Model

MOST = 10**12


@dataclass(kw_only=True, slots=True)
class Found:
    """What a file says. What it leaves open is ``None`` or absent.

    ``columns`` holds columns of ``Plan`` (dp only where the file says it). ``defaults`` names what the
    framework fills in by itself (name → value), ``unknown`` the flags nobody knows, ``problems`` why it
    would not start, ``notes`` what was left aside.
    """

    kind: str
    what: str
    columns: dict[str, Any] = field(default_factory=dict)
    model: Model | None = None
    model_name: str | None = None
    order: tuple[str, ...] | None = None
    gpu: str | None = None
    gpus: int | None = None
    gpus_per_node: int | None = None
    nic: str | None = None
    stack: str | None = None
    seq: int | None = None
    gbs: int | None = None
    accumulation: int | None = None
    """Micro-batches of a data-parallel rank in a step."""
    precision: str | None = None
    offload: str | None = None
    offload_fraction: float | None = None
    moe_imbalance: float | None = None
    capacity_factor: float | None = None
    connections: str | None = None
    """``CUDA_DEVICE_MAX_CONNECTIONS`` where the framework cares; empty: not in the file."""
    defaults: dict[str, str] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def default(self, name: str, value: Any) -> Any:
        """Note that ``name`` was not there and takes ``value``."""
        self.defaults[name] = str(getattr(value, "label", value))
        return value


class Settings:
    """Named values of one file, each asked for at most once; every complaint names the value's place.

    A value is text from a command line or a plain Python, JSON or YAML value.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        missing: Mapping[str, tuple[str, ...]] | None = None,
        twice: Mapping[str, str] | None = None,
    ) -> None:
        self.values = dict(values)
        self.missing = dict(missing or {})
        self.twice = dict(twice or {})
        self.asked: set[str] = set()

    def has(self, name: str) -> bool:
        """Whether it is there, as something other than null."""
        self.asked.add(name)
        return self.values.get(name) is not None or name in self.missing

    def raw(self, name: str) -> Any:
        """The value as it is; ``None`` where it is not there. Raises ``InputError`` for one given twice."""
        self.asked.add(name)
        if name in self.twice:
            raise InputError(self.twice[name])
        if name in self.missing:
            what = " and ".join(self.missing[name])
            raise InputError(f"{name} is {shown(what).strip(chr(39))}, which has no value in this file")
        return self.values.get(name)

    def count(self, name: str, *, low: int = 1, most: int = MOST) -> int | None:
        """A whole number from ``low`` on, or ``None`` where it is not there."""
        value = self.raw(name)
        if value is None or value in ("None", "null", "~"):
            return None
        if isinstance(value, int) and not isinstance(value, bool):
            number = value
        elif isinstance(value, str) and re.fullmatch(r"[+-]?[0-9][0-9_]{0,15}", value.strip()):
            number = int(value)
        else:
            raise InputError(f"{name} must be a whole number, not {shown(value)}")
        if not low <= number <= most:
            raise InputError(f"{name} must be from {low} to {most:,}, not {number:,}")
        return number

    def number(self, name: str, low: float, high: float) -> float | None:
        """A number from ``low`` to ``high``, or ``None`` where it is not there."""
        value = self.raw(name)
        if value is None or value in ("None", "null", "~"):
            return None
        try:
            number = math.nan if isinstance(value, bool | list) else float(value)
        except (TypeError, ValueError):
            number = math.nan
        if math.isnan(number):
            raise InputError(f"{name} must be a number, not {shown(value)}")
        if not low <= number <= high:
            raise InputError(f"{name} must be from {low:g} to {high:g}, not {number:g}")
        return number

    def truth(self, name: str) -> bool | None:
        """True or false, or ``None`` where it is not there."""
        value = self.raw(name)
        if value is None or isinstance(value, bool):
            return value
        words = {
            "true": True,
            "1": True,
            "yes": True,
            "on": True,
            "false": False,
            "0": False,
            "no": False,
            "off": False,
        }
        found = words.get(str(value).strip().lower())
        if found is None:
            raise InputError(f"{name} must be true or false, not {shown(value)}")
        return found

    def text(self, name: str) -> str | None:
        """A text, or ``None`` where it is not there."""
        value = self.raw(name)
        if value is None or value in ("None", "null"):
            return None
        if isinstance(value, int | float | list | dict):
            raise InputError(f"{name} must be text, not {shown(value)}")
        return str(value)

    def choice(self, name: str, known: Mapping[str, Any]) -> Any:
        """The meaning of a word of ``known``, or ``None`` where it is not there."""
        value = self.text(name)
        if value is None:
            return None
        if value not in known:
            raise InputError(f"{name} must be one of {', '.join(known)}, not {shown(value)}")
        return known[value]


def options_of(words: Iterable[Word], *, strict: bool = True) -> tuple[Settings, list[str]]:
    """``--flag value …`` words as settings, and the words that belong to no flag.

    A flag's values are the words up to the next one; none: ``True``, several: a list. Raises
    ``InputError`` for a flag given twice; unless ``strict`` only once its value is asked for.
    """
    values: dict[str, Any] = {}
    missing: dict[str, tuple[str, ...]] = {}
    twice: dict[str, str] = {}
    loose: list[str] = []
    name: str | None = None
    listed = list(words)
    for i, word in enumerate(listed):
        text = word.text
        if text.startswith("--") and len(text) > 2:
            flag, sep, value = text.partition("=")
            if flag in values and (sep or values[flag] is not True):
                after = listed[i + 1].text if not sep and i + 1 < len(listed) else value
                old, new = _said(values[flag]), "again" if after.startswith("--") or not after else after
                twice[flag] = f"{flag} is given twice ({old} and {new}); keep one"
                if strict:
                    raise InputError(twice[flag])
            values[flag] = value if sep else True
            name = None if sep else flag
            if word.missing:
                missing[flag] = word.missing
        elif name is None:
            loose.append(text)
        else:
            if word.missing:
                missing[name] = (*missing.get(name, ()), *word.missing)
            old = values[name]
            values[name] = text if old is True else [*(old if isinstance(old, list) else [old]), text]
    return Settings(values, missing, twice), loose


def _said(value: Any) -> str:
    return "set" if value is True else " ".join(value) if isinstance(value, list) else str(value)


def table(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A nested table of a configuration, ``auto`` values as not given; empty where it is not there."""
    value = data.get(name)
    if value is None or value == "auto":
        return {}
    if not isinstance(value, Mapping):
        raise InputError(f"{name} must be a table, not {shown(value)}")
    return {key: None if item == "auto" and key != "stages" else item for key, item in value.items()}
