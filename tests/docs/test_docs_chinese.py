"""The start and the guides in Chinese: in step with the English ones, page by page."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ["index.md", *sorted(f"guides/{file.name}" for file in (DOCS / "guides").glob("*.md"))]
FENCE = re.compile(r"^(`{3,})([^\n`]*)\n(.*?)^\1$", re.DOTALL | re.MULTILINE)
STRING = re.compile(r'"[^"]*"')
CODE = re.compile(r"`([^`]+)`")


def both(page: str) -> tuple[str, str]:
    english = (DOCS / page).read_text(encoding="utf-8")
    chinese = (DOCS / "zh" / page).read_text(encoding="utf-8")
    return english, chinese


def prose(text: str) -> str:
    return FENCE.sub("", text)


def blocks(text: str) -> list[tuple[str, str]]:
    """First line and body of every block. Words in pictures are translated, all else is not."""
    found = []
    for _, info, body in FENCE.findall(text):
        if info.startswith("{toctree}"):
            continue
        picture = info.startswith("{picture}")
        numbers = " ".join(sorted(re.findall(r"\d[\d,]*\d|\d", info)))
        head = f"{{picture}} {numbers}" if picture else info
        found.append((head, STRING.sub('""', body) if picture else body))
    return found


def links(text: str, page: PurePosixPath) -> list[str]:
    """Where links lead, from the root; a Chinese page may lead to an English one where it has no other."""
    found = []
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        parts: list[str] = []
        for part in (page.parent / target).parts:
            parts = parts[:-1] if part == ".." else [*parts, part]
        found.append("/".join(parts).removeprefix("zh/"))
    return found


def test_there_is_a_page_for_each() -> None:
    there = sorted(str(file.relative_to(DOCS / "zh")) for file in (DOCS / "zh").rglob("*.md"))
    assert there == sorted(PAGES)
    assert len(there) == 8


@pytest.mark.parametrize("page", PAGES)
def test_same_headings(page: str) -> None:
    english, chinese = (re.findall(r"^#+", prose(text), re.MULTILINE) for text in both(page))
    assert english == chinese
    assert len(english) > 4


@pytest.mark.parametrize("page", PAGES)
def test_same_code(page: str) -> None:
    english, chinese = both(page)
    assert blocks(english) == blocks(chinese)
    assert len(blocks(english)) > 3
    assert sorted(CODE.findall(prose(english))) == sorted(CODE.findall(prose(chinese)))


@pytest.mark.parametrize("page", PAGES)
def test_same_numbers_and_links(page: str) -> None:
    def numbers(text: str) -> list[str]:
        bare = re.sub(r"\]\([^)]*\)", "]", CODE.sub("", prose(text)))
        return sorted(re.findall(r"(?<![\w.])\d[\d.,]*\d|(?<![\w.])\d", bare))

    english, chinese = both(page)
    assert numbers(english) == numbers(chinese)
    assert links(english, PurePosixPath(page)) == links(chinese, PurePosixPath("zh") / page)


@pytest.mark.parametrize("page", PAGES)
def test_as_many_paragraphs_list_items_and_rows(page: str) -> None:
    def shape(text: str) -> list[str]:
        kinds = []
        for part in re.split(r"\n\s*\n", prose(text).strip()):
            first = part.lstrip().split("\n", 1)[0]
            kinds += ["|"] * part.count("\n|") if first.startswith("|") else []
            kinds += ["-"] * len(re.findall(r"^- ", part, re.MULTILINE))
            if not first.startswith(("|", "-", "#")) and first:
                kinds.append("p")
        return kinds

    english, chinese = both(page)
    assert shape(english) == shape(chinese)


def test_chinese_pages_are_chinese() -> None:
    for page in PAGES:
        text = CODE.sub("", prose(both(page)[1]))
        assert len(re.findall(r"[\u4e00-\u9fff]", text)) > 100, page
