"""What ``meshplan plan`` prints: every format, both widths, terminals that can do little."""

from __future__ import annotations

import csv
import io
import json
import math
from typing import Any

import pytest

from meshplan.cli import main
from meshplan.cost.models import COST_MODELS, DEFAULT
from meshplan.report.screen import Screen, bar
from meshplan.report.table import Column, display_width, markdown, table

RUN = [
    "plan", "meta-llama/Llama-3.1-70B", "--gpu", "h100-sxm", "--gpus", "64", "--seq", "8192", "--gbs", "512",
    "--cost-model", "handbook",
]  # fmt: skip
TOO_SMALL = [*RUN[:5], "8", *RUN[6:]]


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "80")


def out(capsys: pytest.CaptureFixture[str], argv: list[str], code: int = 0) -> str:
    assert main(argv) == code
    return capsys.readouterr().out


def answer(capsys: pytest.CaptureFixture[str], argv: list[str], code: int = 0) -> dict[str, Any]:
    def refuse(text: str) -> float:
        raise AssertionError(f"{text} in JSON")

    data: dict[str, Any] = json.loads(out(capsys, [*argv, "--json"], code), parse_constant=refuse)
    return data


TABLE_80 = """\
llama-3.1-70b on 64× NVIDIA H100 SXM5 80 GB in nodes of 8
NVLink 4 450 GB/s, network 50 GB/s · seq 8,192 · gbs 512 · bf16 · cost model
  handbook
3,430 candidates → 116 feasible; removed: 1,470 tp-in-node · 1,400 cp-min-tokens
  · 160 layers-divide-pp · 159 memory · 85 gbs-divides · 40 gpus-product

#  plan, inner to outer         step   rel    MFU           memory
1  tp4 cp2 dp4 pp2 mbs1      55.49 s  1.00  53.6%  █████▋ 66.4 GiB
2  tp4 cp2 dp2 pp4 mbs1      57.08 s  1.03  52.1%  ████▎  50.0 GiB
3  tp4 cp1 dp4 pp4 mbs1 re1  58.58 s  1.06  50.8%  █████▉ 69.2 GiB

#1 tp4 cp2 dp4 pp2 mbs1
one step: 55.49 s
  compute    49.61 s   89.4%  █████████████████▉
  tp          4.58 s    8.3%  █▋
  imbalance   0.70 s    1.3%  ▎
  bubble      0.43 s    0.8%  ▏
  dp          0.12 s    0.2%
  pp          0.04 s    0.1%
memory of the fullest GPU: 66.4 GiB of 71.2 GiB
  weights and gradients  32.9 GiB   49.5%  █████████▉
  activations            21.2 GiB   32.0%  ██████▍
  optimizer              12.3 GiB   18.5%  ███▊

closest miss: tp4 cp2 dp8 pp1 mbs1 re80 needs 79.3 GiB, 8.1 GiB too much; its
  step would take 1.28 × the fastest
showing 3 of 116 feasible plans; --top shows more
reN: N layers of every stage are recomputed in the backward pass
"""


def test_table_at_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert out(capsys, [*RUN, "--top", "3"]) == TABLE_80


def test_table_at_120_columns_says_where_the_step_goes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    lines = out(capsys, [*RUN, "--top", "3"]).splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("#  plan"))
    assert lines[head].split("  ")[-1] == "of the step, %"
    assert lines[head + 1].endswith("compute 89 · tp 8 · imbalance 1 · bubble 1")
    assert max(map(len, lines)) <= 120


def test_without_colour_there_is_no_escape_and_nothing_is_lost(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = out(capsys, RUN)
    assert "\x1b" not in plain  # not a terminal
    monkeypatch.setenv("FORCE_COLOR", "1")
    coloured = out(capsys, RUN)
    assert "\x1b[1m" in coloured
    assert coloured.replace("\x1b[1m", "").replace("\x1b[0m", "") == plain
    monkeypatch.setenv("NO_COLOR", "1")
    assert out(capsys, RUN) == plain


def test_a_terminal_without_unicode_gets_ascii() -> None:
    text = Screen(unicode=False).text("64× A → B · █▌ ≥ µs")
    assert text == "64x A -> B | ## >= us"
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    assert not Screen.of(stream, {}).unicode
    assert Screen.of(io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), {}).unicode


@pytest.mark.parametrize(
    ("env", "tty", "colour"),
    [
        ({}, False, False),
        ({}, True, True),
        ({"TERM": "dumb"}, True, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"CLICOLOR_FORCE": "1"}, False, True),
        ({"CLICOLOR_FORCE": "0"}, False, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False),
    ],
)
def test_colour(env: dict[str, str], tty: bool, colour: bool) -> None:
    class Stream(io.StringIO):
        encoding = "utf-8"  # type: ignore[assignment]

        def isatty(self) -> bool:
            return tty

    assert Screen.of(Stream(), env).colour is colour


class TestJson:
    def test_keys(self, capsys: pytest.CaptureFixture[str]) -> None:
        data = answer(capsys, [*RUN, "--top", "4"])
        assert {"schema_version", "model", "cluster", "workload", "counts", "plans"} <= set(data)
        assert data["schema_version"] == 1
        assert data["model"]["parameters"] == 70_553_706_496  # of the published checkpoint
        assert data["cluster"]["gpus"] == 64
        assert data["workload"] == {
            "seq": 8192, "gbs": 512, "tokens": 4194304, "precision": "bf16", "offload": "none",
            "offload_fraction": 1.0, "moe_imbalance": None, "capacity_factor": None,
        }  # fmt: skip
        wanted = {
            "rank", "tp", "cp", "pp", "dp", "mbs", "mfu", "step_s", "tokens_per_s_per_gpu", "memory_bytes",
            "memory", "time",
        }  # fmt: skip
        assert len(data["plans"]) == data["counts"]["shown"] == 4
        for place, plan in enumerate(data["plans"], 1):
            assert wanted <= set(plan)
            assert plan["rank"] == place

    def test_parts_sum_to_the_whole(self, capsys: pytest.CaptureFixture[str]) -> None:
        for plan in answer(capsys, [*RUN, "--top", "1000"])["plans"]:
            assert sum(plan["time"].values()) == pytest.approx(plan["step_s"], rel=1e-12)
            assert sum(plan["memory"].values()) == pytest.approx(plan["memory_bytes"], rel=1e-12)
            assert min(plan["memory"].values()) >= 0
            assert plan["tp"] * plan["cp"] * plan["pp"] * plan["dp"] == 64
            assert plan["micro_batches"] * plan["dp"] * plan["mbs"] == 512
            tokens = 8192 * 512 / plan["step_s"] / 64
            assert plan["tokens_per_s_per_gpu"] == pytest.approx(tokens)
            assert plan["relative"] >= 1 - 1e-9

    def test_counts_sum(self, capsys: pytest.CaptureFixture[str]) -> None:
        counts = answer(capsys, RUN)["counts"]
        assert counts["candidates"] == sum(counts["removed"].values()) + counts["memory"] + counts["feasible"]

    def test_no_plan_is_a_result_with_exit_code_1(self, capsys: pytest.CaptureFixture[str]) -> None:
        data = answer(capsys, TOO_SMALL, code=1)
        assert data["plans"] == []
        assert data["nothing"]["limit"] == "memory"
        assert data["nothing"]["smallest_gpus"] == 16
        assert data["closest_miss"]["excess_bytes"] > 0
        assert answer(capsys, RUN)["nothing"] is None

    def test_all_divisors_of_a_micro_batch(self, capsys: pytest.CaptureFixture[str]) -> None:
        argv = [*RUN[:9], "96", *RUN[10:], "--top", "10000"]
        assert {plan["mbs"] for plan in answer(capsys, argv)["plans"]} >= {1, 2, 3, 6}


def test_no_plan_says_what_limits_and_what_would_work(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(TOO_SMALL) == 1
    captured = capsys.readouterr()
    assert "→ 0 feasible" in captured.out
    assert "no plan fits 8 GPUs: memory: the smallest of 146 valid plans" in captured.err
    assert captured.err.endswith("; 16 GPUs would work\n")
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "column", "values"),
    [
        (["--tp", "4"], "tp", {4}),
        (["--tp", "2,4,8"], "tp", {2, 4, 8}),
        (["--tp", "2", "--tp", "8"], "tp", {2, 8}),
        (["--cp", "2"], "cp", {2}),
        (["--pp", "2,4"], "pp", {2, 4}),
        (["--dp", "4,8"], "dp", {4, 8}),
        (["--mbs", "2"], "mbs", {2}),
        (["--recompute", "all"], "recomputed_layers", {80, 40, 20, 16, 10, 8, 5}),
        (["--recompute", "none"], "recomputed_layers", {0}),
        (["--recompute", "3"], "recomputed_layers", {3}),
    ],
)
def test_every_dimension_can_be_fixed_or_listed(
    capsys: pytest.CaptureFixture[str], flags: list[str], column: str, values: set[int]
) -> None:
    plans = answer(capsys, [*RUN, *flags, "--top", "10000"])["plans"]
    assert plans
    assert {plan[column] for plan in plans} <= values


def test_the_order_changes_which_groups_cross_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    fixed = ["--tp", "4", "--cp", "2", "--pp", "2", "--mbs", "1"]
    inner = answer(capsys, [*RUN, *fixed])["plans"][0]
    data = answer(capsys, [*RUN, *fixed, "--order", "dp-cp-tp-pp"])
    assert data["order"] == "ep-dp-cp-tp-pp"
    # 4 × the bytes over the network, at a ninth of NVLink's bandwidth
    assert data["plans"][0]["time"]["tp"] == pytest.approx(9 * inner["time"]["tp"])


def test_csv(capsys: pytest.CaptureFixture[str]) -> None:
    rows = list(csv.DictReader(io.StringIO(out(capsys, [*RUN, "--format", "csv", "--top", "7"]))))
    plans = answer(capsys, [*RUN, "--top", "7"])["plans"]
    assert len(rows) == 7
    for row, plan in zip(rows, plans, strict=True):
        assert int(row["tp"]) == plan["tp"]
        assert float(row["step_s"]) == plan["step_s"]
        assert float(row["time.bubble"]) == plan["time"]["bubble"]
        assert float(row["memory.activations"]) == plan["memory"]["activations"]


def test_markdown(capsys: pytest.CaptureFixture[str]) -> None:
    lines = out(capsys, [*RUN, "--format", "markdown", "--top", "2"]).splitlines()
    assert lines[0].startswith("| # | plan, inner to outer | step |")
    assert lines[1].startswith("| ---: | --- | ---: |")
    assert "tp4 cp2 dp4 pp2 mbs1" in lines[2]
    assert len({line.count("|") for line in lines}) == 1
    assert len(lines) == 4


def test_cost_models_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert DEFAULT in COST_MODELS
    for name in COST_MODELS:
        assert answer(capsys, [*RUN[:-1], name])["cost_model"] == name


class TestTable:
    COLUMNS = (
        Column(title="#", cells=["1", "2"], right=True),
        Column(title="名称", cells=["显存", "ab"]),
        Column(title="last", cells=["x", "yy"], priority=2),
        Column(title="middle", cells=["m", "n"], priority=1),
    )

    def test_wide_characters_align(self) -> None:
        assert table(self.COLUMNS, 40) == [
            "#  名称  last  middle",
            "1  显存  x     m",
            "2  ab    yy    n",
        ]

    def test_the_least_important_columns_go_first(self) -> None:
        assert table(self.COLUMNS, 16)[0] == "#  名称  middle"
        assert table(self.COLUMNS, 8)[0] == "#  名称"
        assert table(self.COLUMNS, 1)[0] == "#  名称"

    def test_display_width(self) -> None:
        assert display_width("e\u0301") == 1
        assert display_width("流水线 pp") == 9

    def test_markdown_escapes_bars(self) -> None:
        assert markdown([Column(title="a|b", cells=["c"])]) == ["| a\\|b |", "| --- |", "| c |"]

    @pytest.mark.parametrize(
        ("share", "text"), [(0, "    "), (1, "████"), (2, "████"), (-1, "    "), (0.5, "██  ")]
    )
    def test_bar(self, share: float, text: str) -> None:
        assert bar(share, 4) == text
        assert math.isclose(len(bar(0.37, 9)), 9)


def test_rows_of_virtual_stages_fit_eighty_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names go short before they run over: vpN alone then says that stages are interleaved."""
    run = ["plan", "llama-3.1-70b", "--gpu", "h100-sxm", "--gpus", "64", "--seq", "8192", "--gbs", "512"]
    outputs = {}
    for width in ("80", "120"):
        monkeypatch.setenv("COLUMNS", width)
        assert main([*run, "--pp", "2", "--vp", "1,10,14"]) == 0
        outputs[width] = capsys.readouterr().out
        assert max(map(display_width, outputs[width].splitlines())) <= int(width)
    note = "vpN: N virtual stages a rank, interleaved\n"
    assert note in outputs["80"]
    assert note not in outputs["120"]
    assert " mbs1 interleaved " in outputs["120"]
    assert " mbs1 interleaved " not in outputs["80"].partition("≈:")[0]


@pytest.mark.parametrize(("objective", "certain"), [("memory", False), ("simplicity", False), ("step", True)])
def test_what_simulation_makes_certain_is_the_order_by_time(objective, certain, capsys):
    argv = ["plan", "llama-3.1-8b", "--gpu", "h100-sxm", "--gpus", "16", "--seq", "8192", "--gbs", "64"]
    assert main([*argv, "--objective", objective]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert ("no other can be faster than the first" in told) == certain
    assert (f"the order by {objective} does not rest on their times" in told) == (not certain)
    assert "others may be faster" not in told
