"""Citations in the reader's language: titles, addresses and figures stay, what stands around them is said."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path

from meshplan.report.said import MOST_CHARACTERS, said
from meshplan.report.words import Words

_FILE = Path(__file__).parent / "data" / "citations.toml"
_NAME = re.compile(r"\{(\w+)\}")
_NAMES = (
    "name", "file", "version", "commit", "paper", "gpu", "shape", "precision", "clock", "long", "short",
)  # fmt: skip
"""Names that stand for words; all others are amounts."""
_WORDS = r"[^\s;,()][^;,()]*?"
_UNIT = r"(?: ?%| (?:[KMGTP]?[Bb]/s|[TP]FLOP/s|µs|ms|W)(?![\w/]))"
_ONE = rf"(?:\d+ x )?\d(?:[\d.,-]*\d)?{_UNIT}?"
_AMOUNT = rf"{_ONE}(?: of {_ONE})?"
_COUNTS = {
    "one": "一个", "two": "两个", "three": "三个", "four": "四个", "eight": "八个",
}  # fmt: skip
_COUNT = re.compile(rf"\b({'|'.join(_COUNTS)}) (?=\d)")


def cited(source: str, words: Words) -> str:
    """Where a number comes from, in the language of ``words``.

    >>> from meshplan.report.words import words_in
    >>> cited("https://example.org/a (eight 400 Gb/s ports)", words_in("zh"))
    'https://example.org/a (八个 400 Gb/s 端口)'
    """
    whole = said(source, words)
    if words.language == "en" or whole != source or len(source) > MOST_CHARACTERS:
        return whole
    for english, chinese in _parts():
        source = english.sub(chinese, source)
    source = _COUNT.sub(lambda match: _COUNTS[match[1]] + " ", source)
    return re.sub(r";\s+(?=\S)", "；", source) if re.search("[\u4e00-\u9fff]", source) else source


@cache
def parts() -> tuple[tuple[str, str], ...]:
    """English and Chinese, in the order they are replaced."""
    with _FILE.open("rb") as file:
        return tuple((entry["en"], entry["zh"]) for entry in tomllib.load(file)["part"])


@cache
def _parts() -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple((_pattern(english), _NAME.sub(r"\\g<\1>", chinese)) for english, chinese in parts())


def _pattern(english: str) -> re.Pattern[str]:
    """What matches ``english`` where words begin and end."""
    pieces = _NAME.split(english)
    found = [
        re.escape(text) if i % 2 == 0 else f"(?P<{text}>{_WORDS if text in _NAMES else _AMOUNT})"
        for i, text in enumerate(pieces)
    ]
    begin = r"(?<![\w/.-])" if english[0].isalnum() or english[0] == "{" else ""
    end = r"(?![\w/-])" if english[-1].isalnum() else ""
    if english.endswith("}"):
        end = r"(?=[;,)）；，]|$)" if pieces[-2] in _NAMES else r"(?![\w.]|,\d)"
    return re.compile(begin + "".join(found) + end)
