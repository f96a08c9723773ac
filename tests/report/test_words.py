"""One file of texts: both languages complete, the same names filled in, nothing unused, nothing missing."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from meshplan.cli.job import SPACE
from meshplan.cost.models import COST_MODELS
from meshplan.errors import UnknownNameError
from meshplan.plan.space import SIZES
from meshplan.plan.workload import OFFLOADS
from meshplan.report.words import LANGUAGES, all_texts, words_in
from meshplan.search.objective import OBJECTIVES

SOURCE = Path(__file__).parents[2] / "src" / "meshplan"
FILES = [*sorted((SOURCE / "report").glob("*.py")), *sorted((SOURCE / "web").glob("*.py"))]
CJK = re.compile("[\u4e00-\u9fff]")
SAME = {"page.title", "part.mfu", "table.rank", "table.mfu", "report.moe", "report.headline"}
"""Keys whose text is the same in both languages."""


@pytest.mark.parametrize("key", sorted(all_texts()))
def test_both_languages_say_the_same_names(key: str) -> None:
    texts = all_texts()[key]
    assert set(texts) == set(LANGUAGES)
    fields = [sorted(re.findall(r"\{(\w*)\}", texts[language])) for language in LANGUAGES]
    assert fields[0] == fields[1]
    assert all(text.strip() == text and text for text in texts.values())
    if key not in SAME:
        assert CJK.search(texts["zh"]), "the Chinese text has no Chinese in it"
        assert not CJK.search(texts["en"])


def asked_keys() -> tuple[set[str], set[str]]:
    """Keys that code asks for: whole ones, and the fixed beginnings of those put together."""
    whole: set[str] = set()
    begun: set[str] = set()
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not (
                isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute) and node.args
            ):
                continue
            name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            if name != "words":
                continue
            for part in ast.walk(node.args[0]):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    match = re.fullmatch(r"(\w+)\.(\w*)", part.value)
                    if match:
                        (whole if match[2] else begun).add(part.value)
                    elif re.fullmatch(r"\.\w+", part.value):
                        begun.add(part.value)
    return whole, begun


def test_every_key_that_code_asks_for_is_there() -> None:
    whole, _ = asked_keys()
    assert len(whole) > 60
    assert whole <= set(all_texts())


def test_no_text_is_unused() -> None:
    whole, begun = asked_keys()
    used = {
        key
        for key in all_texts()
        if key in whole
        or any(key.startswith(b) or key.endswith(b) for b in begun)
        or key.startswith(("part.", "value."))
    }
    assert set(all_texts()) == used


def test_values_with_a_text_are_values_that_there_are() -> None:
    choices = {
        "space": (*SPACE, *SIZES), "offload": OFFLOADS, "framework": ("any",), "objective": OBJECTIVES,
        "cost_model": tuple(COST_MODELS),
    }  # fmt: skip
    known = {f"value.{of}_{name}" for of, names in choices.items() for name in names}
    assert {key for key in all_texts() if key.startswith("value.")} <= known | {
        "value.none", "value.all", "value.even", "value.optimizer",
    }  # fmt: skip
    assert words_in("zh").value("memory", "objective") == "显存（memory）"
    assert words_in("zh").value("bf16", "precision") == "bf16"
    assert words_in("en").value("cp_kind", "space") == "cp kind"


def test_a_part_without_a_text_keeps_its_name() -> None:
    words = words_in("zh")
    assert words.part("head and loss") == "输出头与损失"
    assert words.part("context and NCCL") == "CUDA 上下文与 NCCL"
    assert words.part("something_new") == "something new"


def test_unknown_language() -> None:
    with pytest.raises(UnknownNameError, match="unknown language 'fr'"):
        words_in("fr")
