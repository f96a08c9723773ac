"""Every sentence of the pictures, the report and the page, in English and Chinese, from one file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from meshplan.errors import UnknownNameError
from meshplan.units import one_is_singular

_FILE = Path(__file__).parent / "data" / "words.toml"
LANGUAGES: Mapping[str, str] = {"en": "English", "zh": "中文"}
"""Code → the language's own name."""
HTML_CODES: Mapping[str, str] = {"en": "en", "zh": "zh-CN"}


@dataclass(frozen=True, slots=True)
class Words:
    """The texts of one language by key (``section.name``)."""

    language: str
    texts: Mapping[str, str]

    def __call__(self, key: str, **values: object) -> str:
        """The text of ``key`` with its ``{names}`` filled in."""
        text = self.texts[key].format(**values)
        return one_is_singular(text) if self.language == "en" else text

    def part(self, name: str) -> str:
        """What people call a part of the time or memory; one without a text keeps its own name."""
        return self.texts.get(f"part.{key_of(name)}", name.replace("_", " "))

    def value(self, name: str, of: str = "") -> str:
        """What people call a value, or a choice ``of`` a field; one without a text keeps its own name."""
        return self.texts.get(f"value.{of}_{key_of(name)}" if of else f"value.{key_of(name)}", name)


def key_of(name: str) -> str:
    """A part's name as it stands in the file."""
    return name.replace(" ", "_").lower()


def words_in(language: str) -> Words:
    """The texts of ``en`` or ``zh``. Raises ``UnknownNameError``."""
    if language not in LANGUAGES:
        raise UnknownNameError("language", language, LANGUAGES, f"known: {', '.join(LANGUAGES)}")
    return _words(language)


@cache
def _words(language: str) -> Words:
    return Words(language, {key: texts[language] for key, texts in all_texts().items()})


@cache
def all_texts() -> Mapping[str, Mapping[str, str]]:
    """Key → language → text."""
    with _FILE.open("rb") as file:
        sections = tomllib.load(file)
    return {
        f"{section}.{name}": texts for section, entries in sections.items() for name, texts in entries.items()
    }
