"""Whole runs and job files with phases, against published totals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshplan.cli import main

EXAMPLES = Path(__file__).parents[2] / "examples"


def answer(capsys: pytest.CaptureFixture[str], argv: list[str], code: int = 0) -> dict[str, Any]:
    assert main([*argv, "--json"]) == code
    data: dict[str, Any] = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    return data


def complaint(capsys: pytest.CaptureFixture[str], argv: list[str]) -> str:
    assert main(argv) == 2
    seen = capsys.readouterr()
    assert not seen.out
    assert seen.err.count("\n") == 1
    return seen.err


def test_deepseek_v3_total(capsys: pytest.CaptureFixture[str]) -> None:
    """arXiv 2412.19437, table 1: 2.664 M H800 hours for 14.8 T tokens, 2.788 M with the extension of the
    context; $2 an hour make $5.576 M."""
    code = main(["plan", str(EXAMPLES / "deepseek-v3.yaml"), "--json"])
    assert code == 0  # it ran, so that it must fit
    data = json.loads(capsys.readouterr().out)
    assert data["tokens"] == pytest.approx(14.8e12 + 1000 * (1920 * 32768 + 480 * 131072))
    assert data["gpu_hours"] == pytest.approx(2.788e6, rel=0.15)
    assert data["usd"] == pytest.approx(5.576e6, rel=0.15)
    hours = [p["run"]["gpu_hours"] for p in data["phases"]]
    assert sum(hours[:2]) == pytest.approx(2.664e6, rel=0.16)
    assert sum(hours[2:]) == pytest.approx(0.119e6, rel=0.15)


def test_deepseek_v3_hours_of_one_plan(capsys: pytest.CaptureFixture[str]) -> None:
    """The same table: 180 K H800 hours for a trillion tokens, with the plan of the anchors."""
    argv = ["estimate", "deepseek-v3", "--gpu", "h800", "--gpus", "2048", "--seq", "4096", "--gbs", "15360",
            "--pp", "16", "--ep", "64", "--schedule", "dualpipe", "--stack", "deepseek-v3", "--precision",
            "fp8", "--recompute", "norm+mla-up-proj", "--tokens", "1e12"]  # fmt: skip
    code = main([*argv, "--json"])
    assert code in (0, 1)
    run = json.loads(capsys.readouterr().out)["run"]
    assert run["gpu_hours"] == pytest.approx(180e3, rel=0.15)
    assert run["wall_s"] == pytest.approx(sum(run["wall"].values()), rel=1e-9)


def test_llama_3_phases(capsys: pytest.CaptureFixture[str]) -> None:
    """arXiv 2407.21783, 3.3 and 3.4; 30.84 M H100 hours (model card of Llama 3.1)."""
    data = answer(capsys, ["plan", str(EXAMPLES / "llama-3-405b.yaml")])
    assert data["tokens"] == pytest.approx(15.6e12, rel=0.001)
    assert data["gpu_hours"] == pytest.approx(30.84e6, rel=0.15)
    mfu = [phase["plan"]["mfu"] for phase in data["phases"]]
    assert 0.37 < min(mfu) < max(mfu) < 0.45  # "BF16 MFU of 38-43 %"
    kinds = [p["transition"] and p["transition"]["kind"] for p in data["phases"]]
    # another sharding and twice the GPUs cut the shards anew; cp 16 with an eighth of dp keeps them
    assert kinds == [None, "reshard", "reshard", "groups"]
    assert data["phases"][2]["transition"]["checkpoint_bytes"] == pytest.approx(405.85e9 * 14, rel=0.001)


def test_a_larger_batch_moves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(
        "model: llama-3.1-8b\ncluster: {gpu: h100-sxm, gpus: 64}\nphases:\n"
        "  - {tokens: 1T, seq: 8192, gbs: 256, plan: tp2}\n  - {tokens: 1T, seq: 8192, gbs: 512, plan: tp2}\n"
    )
    second = answer(capsys, ["plan", str(job)])["phases"][1]
    assert second["transition"]["kind"] == "batch"


def test_a_plan_is_kept_where_a_restart_costs_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second phase is a few steps long: whatever another plan would gain, ten minutes are more."""
    job = tmp_path / "job.yaml"
    job.write_text(
        "model: llama-3.1-8b\ncluster: {gpu: h100-sxm, gpus: 64}\nphases:\n"
        "  - {name: a, tokens: 1T, seq: 8192, gbs: 256}\n"
        "  - {name: b, steps: 5, seq: 16384, gbs: 256}\n"
        "  - {name: c, tokens: 1T, seq: 131072, gbs: 64}\n"
    )
    data = answer(capsys, ["plan", str(job)])
    first, second, third = data["phases"]
    degrees = ("tp", "cp", "pp", "dp")
    assert [second["plan"][d] for d in degrees] == [first["plan"][d] for d in degrees]
    assert second["transition"]["seconds"] == 0
    if second["kept_instead_of"] is not None:
        assert second["kept_instead_of"]["step_s"] <= second["plan"]["step_s"]
    assert third["plan"]["cp"] > 1
    assert data["wall_s"] >= sum(p["run"]["wall_s"] for p in data["phases"])


def test_tokens_on_plan(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["plan", "llama-3.1-8b", "--gpu", "h100-sxm", "--gpus", "64", "--seq", "8192", "--gbs", "256"]
    ideal = answer(capsys, [*argv, "--tokens", "1T", "--no-failures", "--price", "2", "--watts", "1 kW"])
    run, best = ideal["run"], ideal["plans"][0]
    steps = -(-(10**12) // (8192 * 256))
    assert run["steps"] == steps
    assert run["wall_s"] == pytest.approx(steps * best["step_s"])
    assert run["usd"] == pytest.approx(64 * steps * best["step_s"] / 3600 * 2)
    assert run["energy_j"] == pytest.approx(64 * steps * best["step_s"] * 1000)
    real = answer(capsys, [*argv, "--tokens", "1T", "--gpu-mttf", "300 d", "--restart", "30 min"])["run"]
    assert real["wall_s"] > run["wall_s"]
    assert real["goodput"] < 1
    assert main([*argv, "--tokens", "1T"]) == 0
    assert "goodput" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("phases: []\nmodel: llama-3.1-8b", "missing"),
        ("phases: [{tokens: 1T, seq: 8192}]", "gbs missing"),
        ("phases: [{seq: 8192, gbs: 64}]", "either tokens or steps"),
        ("phases: [{seq: 8192, gbs: 64, tokens: 1T, steps: 4}]", "either tokens or steps"),
        ("phases: [{seq: 8192, gbs: 64, token: 1T}]", "did you mean tokens"),
        ("phases: [{seq: 8192, gbs: 64, tokens: many}]", "number of tokens like 15e12 or 15T"),
        ("phases: [{seq: 8192, gbs: 64, tokens: 1T, plan: tp3}]", "does not divide"),
        ("phases: [{seq: 8192, gbs: 64, tokens: 1T, plan: tq3}]", "write it like tp4,cp2,pp2"),
        ("phases: [7]", "list of tables"),
        ("phases: [{seq: 8192, gbs: 64, tokens: 1T, gpus: 12}]", "12"),
    ],
)
def test_job_files_that_make_no_sense(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, expected: str
) -> None:
    job = tmp_path / "job.yaml"
    head = "" if "model" in text else "model: llama-3.1-8b\ncluster: {gpu: h100-sxm, gpus: 64}\n"
    job.write_text(head + text + "\n")
    assert expected in complaint(capsys, ["plan", str(job)])


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--tokens", "lots"], "15e12 or 15T"),
        (["--tokens", "1T", "--price", "-1"], "dollars an hour"),
        (["--tokens", "1T", "--watts", "700 J"], "power"),
        (["--tokens", "1T", "--restart", "10"], "no unit"),
        (["--tokens", "1T", "--format", "csv"], "table or json"),
        (["--tokens", "1T", "--gpu-mttf", "1 h"], "leaves no time"),
    ],
)
def test_flags_that_make_no_sense(
    capsys: pytest.CaptureFixture[str], flags: list[str], expected: str
) -> None:
    argv = ["plan", "llama-3.1-8b", "--gpu", "h100-sxm", "--gpus", "4096", "--seq", "8192", "--gbs", "4096"]
    assert expected in complaint(capsys, [*argv, *flags])
