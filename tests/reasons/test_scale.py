"""Scaling: the textbook's two batches on 1,024 GPUs, shares that sum, curves, the command's faces."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from meshplan.cli import main
from meshplan.cli.scale import read_counts
from meshplan.cluster.presets import cluster_of
from meshplan.cost.models import cost_model_named
from meshplan.cost.scenarios import SCENARIOS
from meshplan.errors import InputError
from meshplan.model.load import load_model
from meshplan.plan.rules import HANDBOOK_RULES
from meshplan.plan.space import Space
from meshplan.plan.workload import Workload
from meshplan.search.reasons import Case
from meshplan.search.scaling import USEFUL, scaling
from meshplan.search.search import search

RUN = ["scale", "llama-3.1-70b", "--gpu", "h100-sxm", "--seq", "8192"]


def textbook() -> Case:
    scenario = next(s for s in SCENARIOS if s.id == "D")
    return Case(
        model=scenario.model, cluster=scenario.cluster, workload=scenario.workload,
        space=Space.handbook(), cost_model=scenario.cost_model, rules=HANDBOOK_RULES,
    )  # fmt: skip


def test_the_textbooks_batches_on_1024_gpus() -> None:
    """Published: 53.7 % MFU on 64 GPUs with 512 sequences, 47.6 % on 1,024; 52.0 % there with 2,048."""
    found = scaling(textbook(), [64, 1024], [512, 2048], weak=False)
    mfu = {(p.gpus, p.gbs): float(p.costs.mfu[0]) for p in found.points if p.costs is not None}
    assert mfu[64, 512] == pytest.approx(0.537, abs=0.0005)
    assert mfu[1024, 512] == pytest.approx(0.476, abs=0.0005)
    assert mfu[1024, 2048] == pytest.approx(0.520, abs=0.0005)
    far = next(p for p in found.points if (p.gpus, p.gbs) == (1024, 512))
    assert far.efficiency == pytest.approx(47.6 / 53.7, abs=0.002)
    # printed shares of the step: compute 79, TP 17, DP 4
    assert far.shares[USEFUL] + far.shares["kernels"] == pytest.approx(0.79, abs=0.005)
    assert far.shares["tp"] == pytest.approx(0.17, abs=0.005)
    assert far.shares["dp"] == pytest.approx(0.04, abs=0.005)


@pytest.mark.parametrize("cost_model", ["handbook", "full"])
def test_points_are_searches_of_their_own_and_shares_sum_to_one(cost_model: str) -> None:
    model = cost_model_named(cost_model)
    case = Case(
        model=load_model("llama-3.1-8b"), cluster=cluster_of("h100-sxm", 64),
        workload=Workload(seq=8192, gbs=128), space=Space(), cost_model=model,
        ties=False,
    )  # fmt: skip
    found = scaling(case, [8, 24, 64], [128, 48])
    assert list(found.curves) == ["strong, gbs 128", "strong, gbs 48", "weak, gbs 128 on 8"]
    assert [p.gbs for p in found.curves["weak, gbs 128 on 8"]] == [128, 384, 1024]
    for point in found.points:
        workload = replace(case.workload, gbs=point.gbs)
        again = search(
            case.model, cluster_of("h100-sxm", point.gpus), workload, cost_model=model, advise=False,
            fidelity="estimate",
        )  # fmt: skip
        if point.costs is None:
            assert not len(again)
            assert point.reason
            continue
        assert float(point.costs.step_s[0]) == pytest.approx(float(again.costs.step_s[0]), rel=1e-12)
        assert sum(point.shares.values()) == pytest.approx(1, abs=1e-9)
        assert point.tokens_per_s == pytest.approx(workload.tokens / float(again.costs.step_s[0]))
        assert min(point.shares.values()) > -1e-9


def test_where_nothing_fits_the_point_says_so() -> None:
    case = replace(textbook(), cluster=textbook().cluster.with_gpus(64))
    found = scaling(case, [8, 64], [512], weak=False)
    assert found.points[0].reason.startswith("no plan fits the memory: the smallest needs ")
    assert found.points[0].efficiency is None
    assert found.points[1].efficiency == 1.0


def test_where_no_plan_is_valid_the_point_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    """512 sequences on a million GPUs: 64 ranks of each would have to share a sequence or a layer."""
    ask = ["scale", "llama-3.1-70b", "--gpu", "h100-sxm", "--seq", "8192", "--gbs", "512"]
    assert main([*ask, "--gpus", "1000000", "--json"]) == 1
    reason = json.loads(capsys.readouterr().out)["points"][0]["reason"]
    assert reason.startswith("no valid plan: ")
    assert main([*ask, "--gpus", "1000000"]) == 1
    text = capsys.readouterr().out
    assert "no valid plan: " in text
    assert "bars, every GPU's time" not in text


def test_lists_given_twice_are_one_list_and_every_curve_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    ask = ["scale", "gpt2", "--gpu", "h100-sxm", "--seq", "1024", "--space", "plain"]
    batches = [str(8 * n) for n in range(1, 11)]
    argv = [*ask, "--gpus", "8", *(word for gbs in batches for word in ("--gbs", gbs))]
    assert main([*argv, "--cost-model", "handbook"]) == 0
    text = capsys.readouterr().out
    for mark, gbs in zip("abcdefghij", batches, strict=True):
        assert f"{mark}  strong scaling: {gbs} sequences a step" in text


def test_a_batch_that_cannot_grow_with_the_gpus_keeps_its_row() -> None:
    """Nine sequences on 16 GPUs are 13.5 on 24 and 18 on 32."""
    case = Case(
        model=load_model("llama-3.1-8b"), cluster=cluster_of("h100-sxm", 32),
        workload=Workload(seq=8192, gbs=9), space=Space(), cost_model=cost_model_named("handbook"),
    )  # fmt: skip
    weak = scaling(case, [16, 24, 32], [9]).curves["weak, gbs 9 on 16"]
    assert [point.gpus for point in weak] == [16, 24, 32]
    assert weak[1].reason == "9 sequences on 16 GPUs would be 13.5 on 24"
    assert weak[1].costs is None
    assert weak[2].gbs == 18


def test_counts() -> None:
    assert read_counts("64..1000", "--gpus") == (64, 128, 256, 512)
    assert read_counts("64, 96,64", "--gpus") == (64, 96)
    with pytest.raises(InputError, match=r"write 64\.\.512"):
        read_counts("512..64", "--gpus")
    with pytest.raises(InputError, match="whole number"):
        read_counts("64..many", "--gpus")


@pytest.mark.parametrize("width", [80, 120])
def test_text(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")
    assert main([*RUN, "--gpus", "8..256", "--gbs", "512"]) == 0
    seen = capsys.readouterr()
    lines = seen.out.splitlines()
    assert max(map(len, lines)) <= width
    assert "no plan fits the memory" in seen.out  # 70B on 8 GPUs
    bars = [line for line in lines if line.endswith("|") and "no plan" not in line]
    assert len({len(line) for line in bars}) == 1  # every bar is full
    for words in ("strong scaling", "weak scaling", "MFU of the best plan", "GPUs", "the model's own FLOP"):
        assert words in seen.out


def test_the_marks_of_the_plot_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RUN, "--gpus", "64,128", "--gbs", "256,512", "--cost-model", "handbook"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert (
        "plot: a strong scaling, gbs 256 · b strong scaling, gbs 512 · c weak scaling, gbs 256 on 64" in told
    )
    assert "* where curves meet" in told
    assert main([*RUN, "--gpus", "64,128", "--gbs", "512", "--no-weak", "--cost-model", "handbook"]) == 0
    alone = capsys.readouterr().out
    assert "plot: a strong scaling, gbs 512\n" in alone
    assert "curves meet" not in alone


def test_ascii(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from meshplan.report.screen import Screen

    monkeypatch.setattr("meshplan.cli.scale.Screen.of", lambda: Screen(width=80, unicode=False))
    assert main([*RUN, "--gpus", "64,128", "--gbs", "512", "--no-weak"]) == 0
    assert capsys.readouterr().out.isascii()


def test_json_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RUN, "--gpus", "64,128", "--gbs", "512", "--no-weak", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [(p["gpus"], p["gbs"]) for p in data["points"]] == [(64, 512), (128, 512)]
    assert data["points"][1]["plan"]["step_s"] < data["points"][0]["plan"]["step_s"]
    assert main([*RUN, "--gpus", "8", "--gbs", "512"]) == 1
    capsys.readouterr()
    assert main([*RUN, "--gpus", "1..1048576", "--gbs", "512,1024"]) == 2
    assert "fewer" in capsys.readouterr().err
    assert main([*RUN, "--gpus", "64"]) == 2
    assert "--gbs" in capsys.readouterr().err
