"""Text that goes into shell scripts, YAML and Python, quoted so that no value can be more than a value."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Option = tuple[str, ...]
"""A flag and its values, all plain text."""

_PLAIN_YAML = re.compile(r"[A-Za-z/][A-Za-z0-9_./\-]*")
_YAML_WORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}


def comment(text: str) -> str:
    """``text`` as one line of a comment: no line ends, nothing that a terminal would obey."""
    return "".join(ch if ch.isprintable() else "?" for ch in text)


def option_lines(options: Iterable[Option]) -> list[str]:
    """One line an option, each part quoted for a shell: ``--seq-length 8192``."""
    return [" ".join(map(shlex.quote, option)) for option in options]


def shell_array(name: str, groups: Sequence[tuple[str, Sequence[Option]]]) -> str:
    """A bash array of options, with a comment above each group."""
    lines = [f"{name}=("]
    for title, options in groups:
        if options:
            lines += [f"  # {comment(title)}", *(f"  {line}" for line in option_lines(options))]
    return "\n".join([*lines, ")"])


def exports(env: Mapping[str, str]) -> list[str]:
    """``export NAME=value`` lines."""
    return [f"export {name}={shlex.quote(value)}" for name, value in env.items()]


def yaml_text(value: Any, indent: int = 0) -> str:
    """Plain data (tables, lists, text, numbers, truth, nothing) as block YAML; text is quoted unless safe.

    Text of several lines becomes a literal block.
    """
    return "\n".join(_yaml_lines(value, indent)) + "\n"


def _yaml_lines(value: Any, indent: int) -> list[str]:
    pad = " " * indent
    if isinstance(value, Mapping) and value:
        lines = []
        for key, item in value.items():
            lines += _under(f"{pad}{_scalar(str(key))}:", item, indent)
        return lines
    if isinstance(value, list | tuple) and value:
        lines = []
        for item in value:
            if isinstance(item, Mapping) and item:
                first, *rest = _yaml_lines(item, indent + 2)
                lines += [f"{pad}- {first.lstrip()}", *rest]
            else:
                lines.append(f"{pad}- {_flow(item)}")
        return lines
    return [pad + _flow(value)]


def _under(head: str, item: Any, indent: int) -> list[str]:
    if isinstance(item, str) and "\n" in item and all(c.isprintable() or c == "\n" for c in item):
        keep = "" if item.endswith("\n") else "-"
        body = [" " * (indent + 2) + line if line else "" for line in item.rstrip("\n").split("\n")]
        return [f"{head} |{keep}", *body]
    if isinstance(item, Mapping | list | tuple) and item:
        return [head, *_yaml_lines(item, indent + 2)]
    return [f"{head} {_flow(item)}"]


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    text = str(value)
    if _PLAIN_YAML.fullmatch(text) and text.lower() not in _YAML_WORDS:
        return text
    return json.dumps(text)


def python_text(value: Any) -> str:
    """A Python literal."""
    return repr(value)


def number_text(value: float) -> str:
    """A number in as few digits as bring it back."""
    return repr(float(value))
