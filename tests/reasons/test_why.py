"""Two plans side by side: the textbook's figures, sums, slopes and turning points by hand."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from meshplan.cli import main
from meshplan.cluster.presets import cluster_of
from meshplan.cost.models import cost_model_named
from meshplan.cost.scenarios import SCENARIOS
from meshplan.model.load import load_model
from meshplan.plan.kinds import Schedule
from meshplan.plan.plans import Plan
from meshplan.plan.rules import HANDBOOK_RULES
from meshplan.plan.space import Space
from meshplan.plan.workload import Workload
from meshplan.report.part_words import MEANING, MEMORY_MEANING, reason
from meshplan.report.screen import Screen
from meshplan.search.reasons import Case, answer, asked_again
from meshplan.search.reasons_compare import MEMORY, RESOURCES, compare, sensitivities
from meshplan.search.reasons_flip import flips
from meshplan.search.search import search

RUN = ["llama-3.1-70b", "--gpu", "h100-sxm", "--gpus", "64", "--seq", "8192", "--gbs", "512"]
A, B = {"tp": 4, "cp": 2, "pp": 2, "mbs": 1}, {"tp": 8, "cp": 1, "pp": 1, "mbs": 1}
"""First and fifth of the textbook's 70B on 64 GPUs: 53.7 % and 49.3 % MFU."""


def textbook() -> Case:
    scenario = SCENARIOS[0]
    return Case(
        model=scenario.model, cluster=scenario.cluster, workload=scenario.workload,
        space=Space.handbook(), cost_model=scenario.cost_model, rules=HANDBOOK_RULES,
    )  # fmt: skip


def full(model: str = "llama-3.1-70b", gpu: str = "h100-sxm", gpus: int = 64, gbs: int = 512) -> Case:
    return Case(
        model=load_model(model), cluster=cluster_of(gpu, gpus), workload=Workload(seq=8192, gbs=gbs),
        space=Space(), cost_model=cost_model_named("full"),
    )  # fmt: skip


def two(case: Case, a: dict[str, int], b: dict[str, int]) -> Any:
    first, second = answer(case, a).costs, answer(case, b).costs
    assert first is not None
    assert second is not None
    return compare(first, second)


def test_the_textbooks_first_and_fifth_plan() -> None:
    found = two(textbook(), A, B)
    assert found.slower == pytest.approx(53.7 / 49.3 - 1, abs=0.002)
    by_part = {d.part: d for d in found.time}
    # shares of the step as printed: TP 8 % of the first, 18 % of the fifth; imbalance and bubble 1
    assert by_part["tp"].a / float(found.a.step_s[0]) == pytest.approx(0.08, abs=0.005)
    assert by_part["tp"].b / float(found.b.step_s[0]) == pytest.approx(0.18, abs=0.005)
    assert found.time[0].part == "tp"
    assert by_part["imbalance"].more < 0
    assert by_part["bubble"].more < 0
    assert by_part["compute"].more == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("case", [textbook(), full()], ids=["handbook", "full"])
def test_differences_of_the_parts_are_the_difference(case: Case) -> None:
    found = two(case, A, B)
    step = float(found.b.step_s[0] - found.a.step_s[0])
    assert sum(d.more for d in found.time) == pytest.approx(step, rel=1e-9)
    memory = float(found.b.memory_bytes[0] - found.a.memory_bytes[0])
    assert sum(d.more for d in found.memory) == pytest.approx(memory, abs=1.0)


def test_slopes_of_the_textbook_model_by_hand() -> None:
    """Every time is an amount over a rate, so the slopes sum to -1 (Euler). With tp alone inside the node
    (the fifth plan) the links' slope is tp's share, the network's that of dp."""
    case = textbook()
    found = answer(case, B)
    assert found.costs is not None
    slopes = sensitivities(case, found.plan)
    by_name = {row.resource.name: row.per_cent for row in slopes.rows}
    share = {part: float(v[0] / found.costs.step_s[0]) for part, v in found.costs.time.items()}
    assert sum(by_name.values()) == pytest.approx(-1, abs=2e-4)
    assert slopes.fixed == pytest.approx(0, abs=2e-4)
    assert by_name["scaleup"] == pytest.approx(-share["tp"], abs=2e-4)
    assert by_name["network"] == pytest.approx(-share["dp"], abs=2e-4)
    assert by_name["peak"] == pytest.approx(-share["compute"], abs=2e-4)
    assert by_name["hbm_bandwidth"] == 0
    assert slopes.binding.resource.name == "peak"


def test_slopes_of_the_full_model_are_shares() -> None:
    """Nothing gets slower with better hardware, and no more than all of the step depends on it."""
    case = full()
    slopes = sensitivities(case, answer(case, A).plan)
    for row in slopes.rows:
        assert -1 <= row.per_cent <= 1e-6
    assert -1e-3 <= slopes.fixed < 0.2


def test_a_turning_point_by_hand() -> None:
    """With f times the bandwidth inside a node, tp takes a share 1/f of its time. The fifth plan has no
    pipeline: T_B = c + tp_B/f + dp. The first has: T_A = (c + i + tp_A/f + p)(1 + 1/m) + dp, m = 128."""
    case = textbook()
    found = two(case, A, B)
    a = {d.part: d.a for d in found.time}
    b = {d.part: d.b for d in found.time}
    m = 512 / 4
    fixed_a = (a["compute"] + a["imbalance"] + a["pp"]) * (1 + 1 / m) + a["dp"]
    fixed_b = b["compute"] + b["dp"]
    factor = (b["tp"] - a["tp"] * (1 + 1 / m)) / (fixed_a - fixed_b)
    plans = [asked_again(answer(case, wish).plan, case.space) for wish in (A, B)]
    flip = next(flip for flip in flips(case, *plans) if flip.name == "scaleup")
    assert flip.factor == pytest.approx(factor, rel=0.03)
    assert flip.factor >= factor * 0.999


@pytest.mark.parametrize("case", [textbook(), full()], ids=["handbook", "full"])
def test_every_turning_point_holds_and_is_one(case: Case) -> None:
    """Asked again from the start, B wins with the value and does not with a tenth of the change less."""
    costs = two(case, A, B)
    wishes = (A, B) if float(costs.a.step_s[0]) <= float(costs.b.step_s[0]) else (B, A)
    plans = [asked_again(answer(case, wish).plan, case.space) for wish in wishes]
    found = flips(case, *plans)
    assert found
    scaled = {r.name: r.scaled for r in (*RESOURCES, MEMORY)}
    for flip in found:
        if flip.name == "gbs":
            again = case.of(replace(case.workload, gbs=int(flip.value))).price(*plans)
            assert int(flip.value) % (plans[0].dp * plans[0].mbs) == 0
        else:
            again = case.on(scaled[flip.name](case.cluster, flip.factor)).price(*plans)
            near = flip.factor**0.9
            before = case.on(scaled[flip.name](case.cluster, near)).price(*plans)
            assert not _wins(before), flip
        assert _wins(again), flip
        assert float(again.step_s[1]) == pytest.approx(flip.b_step_s, rel=1e-6)


def _wins(costs: Any) -> bool:
    fits, step = costs.fits, costs.step_s
    return bool(fits[1]) and (not bool(fits[0]) or float(step[1]) < float(step[0]))


# ── the command ──────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(autouse=True)
def _eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE"):
        monkeypatch.delenv(name, raising=False)


def out(capsys: pytest.CaptureFixture[str], argv: list[str], code: int = 0) -> str:
    assert main(argv) == code
    return capsys.readouterr().out


@pytest.mark.parametrize("more", [[], ["--cost-model", "handbook"]])
def test_text_fits_the_screen_and_says_why(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    argv = ["why", *RUN, "--space", "plain", "--plan", "tp8,pp1", "--vs", "tp4,cp2,pp2", *more]
    text = out(capsys, argv)
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text
    for words in (
        "B spends more on",
        "(pp − 1) / micro-batches",
        "what A waits for",
        "B would be the better one",
    ):
        assert words in " ".join(text.split())
    monkeypatch.setenv("FORCE_COLOR", "1")
    coloured = out(capsys, argv)
    assert coloured.replace("\x1b[1m", "").replace("\x1b[0m", "") == text


QUESTIONS = [
    [*RUN],
    [*RUN, "--cost-model", "handbook"],
    [*RUN, "--plan", "tp8,pp4,vp10,mbs2", "--vs", "tp2,pp4,vp5,zero3"],
    ["llama-3.1-8b", "--gpu", "h100-sxm", "--gpus", "8", "--seq", "8192", "--gbs", "8"],
    ["qwen3-30b-a3b", "--gpu", "h100-sxm", "--gpus", "64", "--seq", "4096", "--gbs", "256"],
]


@pytest.mark.parametrize("argv", QUESTIONS, ids=lambda argv: " ".join(argv[-2:]))
def test_printed_parts_sum_to_the_printed_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, argv: list[str]
) -> None:
    """Decimal arithmetic on what stands on the page: columns sum, rows subtract, the sums are the steps."""
    monkeypatch.setenv("COLUMNS", "120")
    text = out(capsys, ["why", *argv]).replace("−", "-")
    number = r"[+-]?\d+\.\d+"
    for title in ("time", "memory"):
        block = text[text.index(f"\n{title}") :]
        rows = re.findall(rf"^(\S.*?) +({number})(?: m?s)? +({number})(?: m?s)? +({number})", block, re.M)
        rows = rows[: [row[0] for row in rows].index("sum") + 1]
        parts = [[Decimal(cell) for cell in row[1:]] for row in rows]
        assert len(parts) > 3
        for column in range(3):
            assert sum(part[column] for part in parts[:-1]) == parts[-1][column], rows
        assert all(part[1] - part[0] == part[2] for part in parts), rows
        if title == "time":
            steps = [Decimal(step) for step in re.findall(rf"step ({number}) m?s ·", text)]
            assert steps == parts[-1][:2]


def test_reasons_know_of_virtual_stages_and_of_parts_that_one_plan_has_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """arXiv 2205.05198, 4.2.3: interleaving keeps 1 + (p - 1) / (p v) as much as without, here 4 · 1.075
    micro-batches; only the second plan recomputes."""
    text = " ".join(out(capsys, ["why", *QUESTIONS[2]]).split())
    assert "20 layers × 4.3 micro-batches in flight (vp 10)" in text
    assert "20 layers × 4.6 micro-batches in flight (vp 5)" in text
    assert re.search(r"that were not kept\): B \d+ of 20 layers a rank; A has none", text)
    same = ["--plan", "tp8,cp1,dp4,pp2,mbs1,vp14", "--vs", "tp8,cp1,dp4,pp2,mbs1,vp1"]
    best = " ".join(out(capsys, ["why", *RUN, *same]).split())
    told = next(line for line in best.split(" s ") if line.startswith("dp (gradients"))
    assert "both 4 ranks (dp · cp), 4.41 B parameters each; A is vp14 interleaved" in told


def test_json_is_the_same_and_a_is_the_better_plan(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["why", *RUN, "--cost-model", "handbook", "--plan", "tp8,pp1,mbs1", "--json"]
    data = json.loads(out(capsys, argv))
    best = search(
        load_model("llama-3.1-70b"), cluster_of("h100-sxm", 64), Workload(seq=8192, gbs=512),
        cost_model=cost_model_named("handbook"),
    )  # fmt: skip
    assert data["a"]["step_s"] == pytest.approx(float(best.costs.step_s[0]))
    assert data["b"]["tp"] == 8
    assert data["b"]["step_s"] >= data["a"]["step_s"]
    assert sum(row["more"] for row in data["time"]) == pytest.approx(
        data["b"]["step_s"] - data["a"]["step_s"], rel=1e-9
    )


def test_the_best_plan_is_held_against_the_next(capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(out(capsys, ["why", *RUN, "--json"]))
    assert {data[side]["name"][:2] for side in "ab"} == {"#1", "#2"}


def test_a_plan_that_does_not_fit_is_said_to(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(out(capsys, ["why", *RUN, "--space", "plain", "--plan", "tp1,pp1,cp1"], 1).split())
    assert "does not fit" in text
    assert "more than there is" in text
    assert "memory of a GPU" in text  # the change that would make it fit


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--plan", "tp3"], "does not divide"),
        (["--plan", "tp"], "no part of a plan"),
        (["--plan", "tp2,tp4"], "more than once"),
        (["--plan", "tp8", "--stack", "no-such-stack"], "unknown stack"),
        (["--plan", "tp8", "--cost-model", "handbook", "--stack", "llama-3"], "full cost model"),
        (["--plan", "layout3.4,pp2"], "7 layers in all"),
    ],
)
def test_plans_that_cannot_be(capsys: pytest.CaptureFixture[str], flags: list[str], expected: str) -> None:
    assert main(["why", *RUN, *flags]) == 2
    assert expected in capsys.readouterr().err


# ── the words ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("part", "plan", "expected"),
    [
        ("bubble", Plan(tp=4, pp=4, dp=4), "(pp − 1) / micro-batches = 3/128 = 2.3%"),
        (
            "bubble",
            Plan(tp=4, pp=4, dp=4, vp=5, schedule=Schedule.INTERLEAVED),
            "(pp − 1) / (vp · micro-batches) = 3/640 = 0.5%",
        ),
        ("tp", Plan(tp=8, dp=8), "tp 8: 128.0 MiB a block, 7/8 of it over links"),  # 2 · 8192 · 8192 bytes
        ("tp", Plan(dp=64), "tp 1: nothing to exchange"),
        ("recompute", Plan(tp=4, pp=2, dp=8, recompute_layers=15), "15 of 40 layers a stage"),
        ("recompute", Plan(pp=3, layout=(27, 27, 26), recompute_layers=3), "3 of 26 to 27 layers a stage"),
        ("dp", Plan(tp=8, pp=2, dp=4), "4 ranks (dp · cp), 4.41 B parameters each"),  # 70.55 / 16
        ("cp", Plan(tp=4, cp=4, dp=4), "cp 4, ring: 3 hops, 2,048 tokens each"),
        # 2 · 8192 · 8192 bytes / tp 8; 512 / 4 micro-batches, each through ten stages of every rank
        (
            "pp",
            Plan(tp=8, pp=2, dp=4, vp=10, schedule=Schedule.INTERLEAVED),
            "16.0 MiB to the next stage, 128 micro-batches × vp 10 both ways",
        ),
    ],
)
def test_the_numbers_that_decide_a_part(part: str, plan: Plan, expected: str) -> None:
    case = full()
    assert reason(part, plan, case.setting) == expected


def test_layers_of_v_shaped_stages() -> None:
    """Rank r of two holds stages r and 3 - r: 1 + 4 and 2 + 3 layers."""
    plan = Plan(pp=2, vp=2, schedule=Schedule.ZB_V, layout=(1, 2, 3, 4), recompute_layers=1)
    assert reason("recompute", plan, full().setting) == "1 of 5 layers a rank"


def test_every_part_of_both_models_has_a_meaning() -> None:
    for case in (textbook(), full(), full("qwen3-30b-a3b", gbs=64)):
        costs = case.search(keep=1).costs
        assert set(costs.time) <= set(MEANING)
        assert set(costs.memory) <= set(MEMORY_MEANING)


@pytest.mark.parametrize(
    ("module", "argv"),
    [
        ("why", ["why", *RUN, "--plan", "tp8,pp1", "--cost-model", "handbook"]),
        ("why_not", ["why-not", *RUN, "--tp", "1", "--pp", "8", "--cost-model", "handbook"]),
        ("why_not", ["why-not", *RUN, "--tp", "3"]),
    ],
)
def test_terminals_that_show_ascii_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, module: str, argv: list[str]
) -> None:
    monkeypatch.setattr(f"meshplan.cli.{module}.Screen.of", lambda: Screen(width=80, unicode=False))
    main(argv)
    assert capsys.readouterr().out.isascii()
