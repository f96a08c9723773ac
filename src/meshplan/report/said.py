"""Sentences that the rooms below say (errors, rules, assumptions, evidence), in the reader's language.

Those rooms write one English sentence; this room knows its Chinese form from ``data/sentences.toml``, where
``{names}`` stand for what varies. A sentence that is not known there stays as it is.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import NamedTuple

from meshplan.report.words import Words

_FILE = Path(__file__).parent / "data" / "sentences.toml"
_NAME = re.compile(r"\{(\w+)\}")
_LIST = re.compile(r"(?<=\S) (and|or) (?=\S)")
_JOINS = {"and": "和", "or": "或"}
MOST_CHARACTERS = 600
"""Longer texts hold something a user dropped: not sentences of ours."""


class _Pattern(NamedTuple):
    english: re.Pattern[str]
    chinese: str


def said(sentence: str, words: Words) -> str:
    """``sentence`` in the language of ``words``.

    >>> from meshplan.report.words import words_in
    >>> said("tp 3 does not divide 64 heads; tp 2 or 4 would", words_in("zh"))
    'tp 3 不能整除 64 个注意力头；tp 为 2 或 4 则可以'
    """
    if words.language == "en" or len(sentence) > MOST_CHARACTERS:
        return sentence
    whole = _known(sentence)
    if whole is not None:
        return whole
    parts = sentence.split("; ")
    found = [_known(part) for part in parts]
    if len(parts) == 1 or None in found[:1]:
        return sentence
    return "；".join(part if other is None else other for part, other in zip(parts, found, strict=True))


def _known(sentence: str) -> str | None:
    """The Chinese form of a sentence, if there is one."""
    for pattern in _patterns():
        match = pattern.english.fullmatch(sentence)
        if match is not None:
            values = {name: _LIST.sub(_joined, value) for name, value in match.groupdict().items()}
            return pattern.chinese.format(**values)
    return None


def _joined(match: re.Match[str]) -> str:
    return f" {_JOINS[match[1]]} "


@cache
def sentences() -> tuple[tuple[str, str], ...]:
    """English and Chinese, in the order they are tried."""
    with _FILE.open("rb") as file:
        return tuple((entry["en"], entry["zh"]) for entry in tomllib.load(file)["said"])


@cache
def _patterns() -> tuple[_Pattern, ...]:
    return tuple(_Pattern(_pattern(english), chinese) for english, chinese in sentences())


def _pattern(english: str) -> re.Pattern[str]:
    """What matches ``english``, each name any text but a semicolon."""
    parts = _NAME.split(english)
    found = [re.escape(text) if i % 2 == 0 else f"(?P<{text}>[^;]+?)" for i, text in enumerate(parts)]
    return re.compile("".join(found))
