"""``meshplan timeline`` and ``plan --fidelity``: what they print, write and refuse."""

from __future__ import annotations

import itertools
import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from meshplan.cli import main

ASK = ["llama-3.1-70b", "--gpu", "h100-sxm", "--gpus", "64", "--seq", "8192"]
PLAN = [*ASK, "--gbs", "64", "--tp", "4", "--pp", "8"]


def run(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 0) -> str:
    assert main(["timeline", *argv]) == code
    return capsys.readouterr().out


def data(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(capsys, *argv, "--json", code=code))
    return found


def test_json_sums_up(capsys: pytest.CaptureFixture[str]) -> None:
    found = data(capsys, *PLAN)
    assert sum(found["time"].values()) == pytest.approx(found["step_s"])
    assert sum(found["memory"].values()) == pytest.approx(found["memory_bytes"])
    assert len(found["ranks"]) == len(found["stages"]) == 8
    for rank in found["ranks"]:
        assert rank["busy_s"] + rank["idle_s"] == pytest.approx(found["pipeline_s"])
        assert rank["peak_in_flight"] == 8 - rank["rank"]  # 1F1B
    idle = sum(rank["idle_s"] for rank in found["ranks"]) / 8 / found["pipeline_s"]
    assert found["bubble"] == pytest.approx(idle)
    assert max(rank["memory_bytes"] for rank in found["ranks"]) == pytest.approx(found["memory_bytes"])
    first, second = found["stages"][:2]
    assert found["ranks"][0]["activation_bytes"] == pytest.approx(8 * first["activation_bytes"])
    assert second["forward_s"] > 0
    path = found["critical_path"]
    assert path[0]["start"] == 0
    assert all(a["end"] <= b["start"] + 1e-9 for a, b in itertools.pairwise(path))
    assert found["plan"]["layout"] == [10] * 8
    assert found["fits"]


def test_the_step_is_the_one_plan_shows(capsys: pytest.CaptureFixture[str]) -> None:
    space = ["--tp", "4", "--pp", "8", "--cp", "1", "--mbs", "1", "--recompute", "none", "--space", "plain"]
    assert main(["plan", *ASK, "--gbs", "64", *space, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["fidelity"]["kind"] == "simulate"
    assert plan["plans"][0]["simulated"]
    found = data(capsys, *PLAN)
    assert found["step_s"] == pytest.approx(plan["plans"][0]["step_s"])
    assert found["memory_bytes"] == pytest.approx(plan["plans"][0]["memory_bytes"])


def test_the_layout_is_the_best_unless_given(capsys: pytest.CaptureFixture[str]) -> None:
    ask = ["llama-3.1-405b", "--gpu", "h100-sxm", "--gpus", "1024", "--seq", "8192", "--gbs", "512"]
    ask += ["--tp", "8", "--cp", "2"]
    assert data(capsys, *ask, "--pp", "16")["plan"]["layout"] == [7, *[8] * 14, 7]
    ends = data(capsys, *ask, "--pp", "16", "--vp", "8", "--recompute", "full")["plan"]["layout"]
    assert ends == [0, *[1] * 126, 0]
    own = data(capsys, *ask, "--pp", "4", "--layout", "31,32,32,31", "--recompute", "full", code=1)
    assert own["plan"]["layout"] == [31, 32, 32, 31]
    # As plans are shown, and as Megatron writes it.
    for text in ("31,32×2,31", "31, 32x2, 31", "Et*31|(t*32|)*2t*31L"):
        again = data(capsys, *ask, "--pp", "4", "--layout", text, "--recompute", "full", code=1)
        assert again == own


def test_terminal_in_plain_text(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    lines = run(capsys, *PLAN, "--schedule", "zb-v").splitlines()
    assert "\x1b" not in "".join(lines)
    assert max(map(len, lines)) <= 80
    rows = [line for line in lines if line.startswith("rank ") and line.endswith("%")]
    assert len(rows) == 8
    assert all(set("FIW") <= set(row) for row in rows)
    assert "layers of each stage: 5×16" in lines
    assert any(line.startswith("zb-v: 8 ranks, 16 stages, 32 micro-batches; pipeline ") for line in lines)


def test_svg_and_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    svg, trace = tmp_path / "a.svg", tmp_path / "a.json"
    found = data(capsys, *PLAN, "--svg", str(svg), "--trace", str(trace))
    root = ET.fromstring(svg.read_text(encoding="utf-8"))
    title = next(e.text or "" for e in root.iter() if e.tag.endswith("title"))
    assert title.startswith("1f1b: 8 ranks, 32 micro-batches; pipeline ")
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    for rank in range(8):
        slices = [e for e in events if e["ph"] == "X" and e["pid"] == rank]
        assert sum(e["dur"] for e in slices) == pytest.approx(found["pipeline_s"] * 1e6)
        counts = [e["args"]["bytes"] for e in events if e["ph"] == "C" and e["pid"] == rank]
        assert max(counts) == pytest.approx(found["ranks"][rank]["activation_bytes"])
        assert counts[-1] == pytest.approx(0, abs=1)


def test_schedules_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["1f1b", "interleaved", "zb-v", "dualpipe"]
    found = data(capsys, *ASK, "--gbs", "72", "--tp", "4", "--pp", "8", "--compare", ",".join(names))
    rows = {row["schedule"]: row for row in found["schedules"]}
    assert list(rows) == names
    one = data(capsys, *ASK, "--gbs", "72", "--tp", "4", "--pp", "8")
    assert rows["1f1b"]["step_s"] == pytest.approx(one["step_s"])
    assert rows["1f1b"]["bubble"] == pytest.approx(one["bubble"])
    assert rows["1f1b"]["memory_bytes"] == pytest.approx(one["memory_bytes"])
    assert rows["zb-v"]["bubble"] < rows["1f1b"]["bubble"]
    assert rows["interleaved"]["vp"] == 2
    assert not rows["interleaved"]["fits"]
    # 36 micro-batches are even, and 3 × 12; DualPipe runs.
    assert "error" not in rows["dualpipe"]
    text = run(capsys, *ASK, "--gbs", "66", "--tp", "4", "--pp", "8", "--compare", "1f1b,dualpipe")
    assert "schedule" in text
    assert "dualpipe: dualpipe needs an even number of micro-batches" in text


def test_more_than_the_memory_is_shown_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["timeline", *PLAN, "--schedule", "gpipe"]) == 1
    said = capsys.readouterr()
    assert "gpipe: 8 ranks" in said.out
    assert said.err.startswith("error: the plan does not fit: pipeline rank 7 needs ")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([*PLAN, "--layout", "10,10"], "--layout has 2 stages, and pp 8 × vp 1 is 8"),
        ([*PLAN, "--layout", "10,10,10,10,10,10,10,11"], "--layout has 81 layers in all, and llama-3.1-70b"),
        ([*PLAN, "--layout", "Et|t"], "0 L (loss)"),
        ([*PLAN, "--layout", "ten"], "'ten' is none of even, auto, layers a stage"),
        ([*PLAN, "--layout", "10x"], "'10x' is none of even, auto, layers a stage"),
        ([*PLAN, "--layout", "1x999999,1x999999"], "--layout has more than 100,000 stages"),
        ([*PLAN, "--schedule", "zb-u"], "did you mean zb-v"),
        ([*PLAN, "--schedule", "zb-v", "--vp", "3"], "the zb-v schedule takes vp 2, not 3"),
        ([*ASK, "--gbs", "66", "--tp", "4", "--pp", "8", "--schedule", "dualpipe"], "an even number"),
        ([*PLAN, "--compare", "1f1b,zbx"], "unknown schedule 'zbx'"),
        (
            [*PLAN, "--compare", "1f1b", "--trace", "x.json"],
            "--trace shows one schedule; leave out --compare",
        ),
        ([*PLAN, "--compare", "1f1b", "--schedule", "zb-v"], "leave out --schedule"),
        ([*PLAN, "--svg", "/no/such/folder/x.svg"], "cannot write '/no/such/folder/x.svg'"),
        (["llama-3.1-405b", *ASK[1:], "--gbs", "64", "--pp", "64", "--vp", "4"], "126 layers are fewer than"),
        ([*PLAN, "--stack", "megatron"], "stack"),
    ],
)
def test_one_sentence_and_exit_code_2(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["timeline", *argv]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert words in said.err
    assert said.err.count("\n") == 1


def test_fewer_micro_batches_than_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    argv = [*ASK, "--gbs", "8", "--tp", "4", "--pp", "8"]
    found = data(capsys, *argv)
    assert found["bubble"] > 0.5
    assert max(rank["peak_in_flight"] for rank in found["ranks"]) == 4


class TestFidelity:
    ASK = ("plan", *ASK, "--gbs", "512", "--mbs", "1")

    def test_says_how_many_and_why(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main([*self.ASK]) == 0
        text = " ".join(capsys.readouterr().out.split())
        assert " simulated: no other can be faster than the first " in text
        assert "; closed form off by " in text

    def test_estimate_alone(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main([*self.ASK, "--fidelity", "estimate", "--json"]) == 0
        estimate = json.loads(capsys.readouterr().out)
        assert estimate["fidelity"] == {"kind": "estimate"}
        assert not any(plan["simulated"] for plan in estimate["plans"])
        assert main([*self.ASK, "--fidelity", "simulate", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)["fidelity"]
        assert found["screened"] == estimate["counts"]["feasible"]
        assert 10 <= found["sure"] <= found["simulated"] <= found["screened"]
        assert found["left_open"] == 0

    def test_the_textbook_is_not_simulated(self, capsys: pytest.CaptureFixture[str]) -> None:
        asked = [*self.ASK, "--cost-model", "handbook"]
        assert main([*asked, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["fidelity"] == {"kind": "estimate"}
        assert main([*asked, "--fidelity", "simulate"]) == 2
        assert "plans of the handbook cost model cannot be simulated" in capsys.readouterr().err

    def test_another_word(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main([*self.ASK, "--fidelity", "exact"]) == 2
        assert "--fidelity 'exact' is not one of estimate, simulate" in capsys.readouterr().err

    def test_layouts_in_table_and_json(self, capsys: pytest.CaptureFixture[str]) -> None:
        ask = ["plan", "llama-3.1-405b", "--gpu", "h100-sxm", "--gpus", "1024", "--seq", "8192"]
        ask += ["--gbs", "512", "--pp", "16", "--tp", "8", "--space", "plain"]
        assert main(ask) == 0
        assert "pp16 mbs1 7,8×14,7" in capsys.readouterr().out
        assert main([*ask, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["plans"][0]["layout"] == [7, *[8] * 14, 7]
