"""Where numbers come from, in Chinese: titles, addresses and figures stay, what stands around is said."""

from __future__ import annotations

import re
from functools import cache

import pytest

from meshplan import Plan, Workload, cluster_of, load_model
from meshplan.cluster.presets import gpu_names
from meshplan.cost.full.explain import explain
from meshplan.cost.full.model import FullModel
from meshplan.cost.full.stack import stack_names
from meshplan.errors import MeshplanError
from meshplan.report.cited import cited, parts
from meshplan.report.words import words_in

ENGLISH, CHINESE = words_in("en"), words_in("zh")
FRAME = re.compile(
    r"(?<![\w./-])(of|the|as|and|with|without|between|for|from|than|says?|taken|assumed|over|that|has|is|are|an?"
    r"|in|on|ports?|runs?|shares?|report|paper|figures?|halved|median|medians|best|rest|points?)(?![\w./-])"
)
"""Words that are no titles."""
MOST_LEFT = 0.05
"""Share of the citations that may have been added in English since."""


@cache
def sources() -> frozenset[str]:
    """What the evidence of many estimates cites."""
    found: set[str] = set()
    asked = [
        (gpu, stack, name)
        for gpu in gpu_names()
        for stack, name in (("megatron-core-2025", "llama-3.1-70b"),)
    ]
    asked += [("h100-sxm", stack, "mixtral-8x7b") for stack in stack_names()]
    for gpu, stack, name in asked:
        for precision in ("bf16", "fp8"):
            work = Workload(seq=8192, gbs=512, precision=precision)
            try:
                evidence = explain(
                    FullModel.of(stack), load_model(name), cluster_of(gpu, 64), work, Plan(tp=2, pp=2, dp=16)
                )
            except MeshplanError:  # a GPU without curves, or without that precision
                continue
            found |= {term.source for term in evidence.terms}
    return frozenset(found)


def test_numbers_and_addresses_stay() -> None:
    assert len(sources()) > 60
    for source in sources():
        chinese = cited(source, CHINESE)
        for value in re.findall(r"https?://\S+[\w/]|\d[\d,.]*\d|\d", source):
            assert value in chinese, (source, chinese)
        assert cited(source, ENGLISH) == source


def test_what_stands_around_is_chinese() -> None:
    left = {cited(source, CHINESE) for source in sources() if FRAME.search(cited(source, CHINESE))}
    assert len(left) <= MOST_LEFT * len(sources()), left


@pytest.mark.parametrize(
    ("english", "chinese"),
    [
        ("taken over from h100-pcie; between nodes as H100", "取自 h100-pcie；节点间与 H100 相同"),
        (
            "https://example.org/a.html (four 200 Gb/s ports for 8 GPUs)",
            "https://example.org/a.html (四个 200 Gb/s 端口供 8 张 GPU)",
        ),
        ("https://example.org/of/the/report", "https://example.org/of/the/report"),
        ("A title of a paper, 2031", "A title of a paper, 2031"),
    ],
)
def test_citations(english: str, chinese: str) -> None:
    assert cited(english, CHINESE) == chinese


def test_both_languages_have_the_same_names() -> None:
    for english, chinese in parts():
        assert sorted(re.findall(r"\{\w+\}", english)) == sorted(re.findall(r"\{\w+\}", chinese))
        assert re.search(r"[\u4e00-\u9fff\uff00-\uffef]", chinese)
    assert len({english for english, _ in parts()}) == len(parts())
