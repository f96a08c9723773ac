"""Sentences of the rooms below in Chinese: rules, errors, assumptions, evidence."""

from __future__ import annotations

import re

import numpy as np
import pytest

from meshplan import Plan, Plans, Space, Workload, cluster_of, load_gpu, load_model, search
from meshplan.cost.full.explain import LEFT_OUT, explain
from meshplan.cost.full.model import FullModel
from meshplan.cost.handbook import Handbook
from meshplan.errors import InputError
from meshplan.model import unknown
from meshplan.plan.kinds import CpKind, Recompute, Schedule, Sharding
from meshplan.plan.rules import RULES, Rule, Setting, rules_of
from meshplan.plan.rules.registry import FRAMEWORKS
from meshplan.report.said import said, sentences
from meshplan.report.words import words_in
from meshplan.units import one_is_singular

ENGLISH, CHINESE = words_in("en"), words_in("zh")
CASES = (
    ("llama-3.1-70b", 64, 8192, 512), ("mixtral-8x7b", 64, 8191, 512), ("deepseek-v3", 128, 4096, 500),
    ("gpt-oss-120b", 64, 131072, 64), ("llama-3.2-1b", 64, 131073, 7),
)  # fmt: skip
HARD = {
    "layout-stages", "layout-layers", "megatron-order", "megatron-fsdp-order", "torchtitan-order",
    "deepspeed-layout", "mindspeed-cp-tokens",
}  # fmt: skip
"""Rules about layouts and orders, which the plans below have none of."""


def rules() -> list[Rule]:
    return list(dict.fromkeys([*RULES, *(rule for name in FRAMEWORKS for rule in rules_of(name))]))


def many(count: int) -> Plans:
    chance = np.random.default_rng(0)

    def some(*values: int) -> np.ndarray:
        return chance.choice(np.array(values), count)

    return (
        Plans.of(Plan())
        .take(np.zeros(count, dtype=np.int64))
        .replace(
            tp=some(1, 2, 3, 4, 5, 6, 8, 16), sp=some(0, 1), cp=some(1, 2, 3, 4, 5, 8),
            cp_kind=some(*map(int, CpKind)), pp=some(1, 2, 3, 4, 5, 8, 16), vp=some(1, 2, 3, 5),
            schedule=some(*map(int, Schedule)), dp=some(1, 2, 3, 4, 8, 64),
            sharding=some(*map(int, Sharding)), replicas=some(1, 2, 3),
            ep=some(1, 2, 3, 8, 16), etp=some(1, 2, 3), mbs=some(1, 2, 3, 4),
            recompute_layers=some(0, 1, 2), recompute_modules=some(*(int(module) for module in Recompute)),
        )
    )  # fmt: skip


@pytest.fixture(scope="module")
def reasons() -> dict[str, set[str]]:
    """By rule what it says of plans that break it."""
    found: dict[str, set[str]] = {}
    table = many(1500)
    settings = [
        Setting(load_model(name), cluster_of("h100-sxm", gpus), Workload(seq=seq, gbs=gbs))
        for name, gpus, seq, gbs in CASES
    ]
    for precision in ("fp16", "nvfp4"):
        work = Workload(
            seq=4096, gbs=64, precision=precision, offload="optimizer", offload_fraction=0.5,
            capacity_factor=1.2,
        )  # fmt: skip
        settings.append(settings[2]._replace(workload=work))
    for setting in settings:
        for rule in rules():
            for row in np.flatnonzero(~rule.passes(setting, table))[:3].tolist():
                found.setdefault(rule.id, set()).add(rule.explain(setting, table[row]))
    return found


def chinese(text: str) -> str:
    found = said(text, CHINESE)
    assert re.search(r"[\u4e00-\u9fff]", found), text
    assert said(text, ENGLISH) == one_is_singular(text)
    # The same numbers stand in both.
    for value in re.findall(r"\d[\d,.]*\d|\d", text):
        assert value in found, (text, found)
    return found


def test_every_rule_says_its_reason_in_chinese(reasons: dict[str, set[str]]) -> None:
    # Good practice is not checked where plans are refused.
    must = {rule.id for rule in rules() if not rule.practice} - HARD
    assert must <= reasons.keys()
    for name in must:
        for text in reasons[name]:
            found = chinese(text)
            assert not re.search(r"\b(does|needs?|would|have|has|not|than|with)\b", found), (text, found)


def test_assumptions_evidence_and_what_is_left_out() -> None:
    for name, gpu, plan in (
        ("llama-3.1-70b", "h100-sxm", Plan(tp=8, pp=2, dp=4)),
        ("qwen3-235b-a22b", "b200", Plan(tp=2, ep=8, pp=4, dp=8)),
        ("llama-3.1-8b", "h20", Plan(tp=8, cp=2, dp=4)),
    ):
        found = explain(
            FullModel.of(), load_model(name), cluster_of(gpu, 64), Workload(seq=8192, gbs=512), plan
        )
        for text in (*found.assumptions, *(term.what for term in found.terms), *LEFT_OUT):
            chinese(text)
    book = search(
        load_model("llama-3.1-8b"), cluster_of("h100-sxm", 8), Workload(seq=8192, gbs=64),
        space=Space(tp=(1, 2), cp=(1,), pp=(1,)), cost_model=Handbook(),
    )  # fmt: skip
    for text in book.costs.assumptions:
        chinese(text)


def test_why_nothing_fits() -> None:
    found = search(
        load_model("llama-3.1-70b"), cluster_of("h100-sxm", 8), Workload(seq=8192, gbs=512),
        space=Space(tp=(8,)),
    )  # fmt: skip
    assert found.nothing is not None
    assert chinese(found.nothing.reason).startswith("显存：")


@pytest.mark.parametrize(
    "ask",
    [
        lambda: load_gpu("h100x"),
        lambda: load_gpu("zzzzqq"),
        lambda: cluster_of("h100-sxm", 12),
        lambda: Workload(seq=0, gbs=1),
        lambda: Workload(seq=8192, gbs=1, precision="fp1"),  # type: ignore[arg-type]
    ],
)
def test_errors_of_a_question(ask: object) -> None:
    with pytest.raises(InputError) as error:
        ask()  # type: ignore[operator]
    chinese(str(error.value))


def test_what_is_not_known_stays_and_nothing_is_filled_in_twice() -> None:
    assert said("never heard of this", CHINESE) == "never heard of this"
    assert said("x" * 5000, CHINESE) == "x" * 5000
    assert said("unknown GPU '{what}{0}'", CHINESE) == "不认识的 GPU：'{what}{0}'"
    assert (
        said("tp 3 does not divide 64 heads; a new end", CHINESE) == "tp 3 不能整除 64 个注意力头；a new end"
    )


def test_every_kind_of_layer_that_is_refused_has_a_chinese_name() -> None:
    kinds = {kind for kind, _ in unknown._SIGNS} | {kind for _, kind in unknown._NAMES}
    assert len(kinds) > 15
    for kind in kinds:
        told = said(f"f: model_type 'x' has layers of a kind that is not known: {kind} (field)", CHINESE)
        assert told.startswith("f：model_type 'x' 含有不支持的层：")
        assert not re.search(r"layers|attention|experts|embeddings|connections|values", told), told


def test_places_quotations_and_what_else_stands_against_a_plan() -> None:
    assert said("the config.json: hidden_size is missing", CHINESE) == "config.json：缺少 hidden_size"
    # What was typed is left alone, whatever it holds.
    assert said("unknown GPU 'a; b is missing'", CHINESE) == "不认识的 GPU：'a; b is missing'"
    assert (
        said(
            "tp 3 does not divide 16 GPUs; tp 2 or 4 would (and 2 more: sp-divides-seq, tp-kv-heads)", CHINESE
        )
        == "tp 3 不能整除 16 张 GPU；tp 为 2 或 4 则可以（另有 2 条：sp-divides-seq, tp-kv-heads）"
    )
    told = said("memory: the smallest of 3 plans (tp 8) needs 9 GiB a GPU (optimizer 5 GiB, gradients 2 GiB)"
                " of the 8 GiB there are", CHINESE)  # fmt: skip
    assert (
        told == "显存：3 个方案中最小的（tp 8）每张 GPU 需要 9 GiB（优化器 5 GiB, 梯度 2 GiB），而只有 8 GiB"
    )


def test_both_languages_have_the_same_names() -> None:
    every = sentences()
    assert len(every) > 100
    for english, other in every:
        assert sorted(re.findall(r"\{\w+\}", english)) == sorted(re.findall(r"\{\w+\}", other))
        assert re.search(r"[\u4e00-\u9fff]", other)
    assert len({english for english, _ in every}) == len(every)
