"""Every command means the same plan by "the best one", reads plans as printed, and refuses contradictions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshplan.cli import main
from meshplan.plan.kinds import CpKind, Recompute, Schedule, Sharding
from meshplan.plan.plans import ALL_LAYERS
from meshplan.report.plan_key import read_plan
from meshplan.report.why_view import _times
from meshplan.search.objective import ROOMY

QUESTIONS = {
    "tied": "llama-3.1-70b --gpu h100-sxm --gpus 64 --seq 8192 --gbs 512",
    "fsdp": "llama-3.1-8b --gpu h100 --gpus 64 --seq 8192 --gbs 512",
    "experts": "qwen3-30b-a3b --gpu h100-sxm --gpus 32 --seq 4096 --gbs 256",
}
DEGREES = (
    "tp",
    "cp",
    "pp",
    "dp",
    "vp",
    "ep",
    "etp",
    "mbs",
    "sharding",
    "schedule",
    "recomputed_layers",
    "layout",
)
RUN = QUESTIONS["tied"].split()


@pytest.fixture
def asked(capsys: pytest.CaptureFixture[str]) -> Callable[[list[str]], dict[str, Any]]:
    def ask(argv: list[str]) -> dict[str, Any]:
        assert main([*argv, "--json"]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    return ask


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether two commands name one plan with one step time."""
    names = [name for name in DEGREES if name in a and name in b]
    assert len(names) > 8
    return all(a[n] == b[n] for n in names) and a["step_s"] == pytest.approx(b["step_s"], rel=1e-9)


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS.keys())
def test_all_commands_name_one_first_plan(
    question: str, asked: Callable[[list[str]], dict[str, Any]], tmp_path: Path
) -> None:
    words = question.split()
    model, *rest = words
    flags = dict(zip(rest[::2], rest[1::2], strict=True))
    ranking = asked(["plan", *words])
    first = ranking["plans"][0]
    assert ranking["space"] == "small"

    one = asked(["plan", *words, "--top", "1", "--what-if", "nic=2x"])
    assert same(one["plans"][0], first)
    assert same(one["what_if"]["before"], first)
    why = asked(["why", *words])
    assert same(why["a"], first) or same(why["b"], first)
    wish = ["--tp", "8", "--pp", "1"]
    assert same(asked(["why-not", *words, *wish])["best"], first)
    assert same(asked(["why-not", *words, *wish, "--space", "small"])["best"], first)

    points = asked(["scale", *words, "--no-weak"])["points"]
    assert [p["plan"]["step_s"] if "plan" in p else p["step_s"] for p in points] == [first["step_s"]]
    job = tmp_path / "job.yaml"
    cluster = f"cluster: {{gpu: {flags['--gpu']}, gpus: {flags['--gpus']}}}"
    work = f"workload: {{seq: {flags['--seq']}, gbs: {flags['--gbs']}}}"
    text = f"model: {model}\n{cluster}\n{work}\n"
    job.write_text(text + "phases:\n  - {name: a, steps: 10}\n")
    assert same(asked(["plan", str(job)])["phases"][0]["plan"], first)
    job.write_text(text)
    read = asked(["read", str(job)])
    assert read["estimate"]["step_s"] == pytest.approx(first["step_s"], rel=1e-9)
    out = asked(["export", *words, "--to", "megatron", "--out", str(tmp_path / "out")])
    megatron = asked(["plan", *words, "--framework", "megatron", "--top", "1"])["plans"][0]
    assert {n: out["plan"][n] for n in ("tp", "cp", "pp", "dp", "vp", "mbs")} == {
        n: megatron[n] for n in ("tp", "cp", "pp", "dp", "vp", "mbs")
    }


def test_the_expert_walk_is_held_against_the_first_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *RUN, "--top", "1", "--explain-steps"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    first = text.split("1 tp", 1)[1].split(" s ")[0].split()
    assert f"ends at tp{' '.join(first[:-1])}: {first[-1]} s" in text


def test_no_nearly_full_plan_comes_first_among_ties(asked: Callable[[list[str]], dict[str, Any]]) -> None:
    question = "deepseek-v3 --gpu h100-sxm --gpus 2048 --seq 4096 --gbs 15360"
    ranking = asked(["plan", *question.split(), "--top", "50"])
    limit = ranking["cluster"]["memory_limit_bytes"]
    filled = np.array([plan["memory_bytes"] / limit for plan in ranking["plans"] if plan["tied"]])
    assert (filled > ROOMY).any()
    assert filled[0] <= ROOMY


@pytest.mark.parametrize("question", ["qwen3-32b --gpus 64 --gbs 512", "qwen2.5-72b --gpus 128 --gbs 1024"])
def test_the_first_plan_is_what_the_text_calls_it(
    question: str, asked: Callable[[list[str]], dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    """The simplest of the tied plans; or, if the simplest nearly fill the memory, of those that do not."""
    words = ["plan", *question.split(), "--gpu", "h100-sxm", "--seq", "8192", "--top", "1000"]
    ranking = asked(words)
    tied = [plan for plan in ranking["plans"] if plan["tied"]]
    limit = ROOMY * ranking["cluster"]["memory_limit_bytes"]
    roomy = [plan for plan in tied if plan["memory_bytes"] <= limit]
    assert tied[0]["complexity"] == min(plan["complexity"] for plan in roomy)
    assert main(words[:-2]) == 0
    text = " ".join(capsys.readouterr().out.split())
    of_all = tied[0]["complexity"] == min(plan["complexity"] for plan in tied)
    assert ("#1 is the simplest of these, #" in text) == of_all
    assert ("#1 is the simplest of these that leave 5% of the memory free, #" in text) != of_all


@pytest.mark.parametrize("memory", ["1GB", "40GB"])
def test_plans_that_do_not_fit_have_no_time(memory: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["plan", *RUN, "--top", "1", "--what-if", f"memory={memory}"]
    assert main(argv) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("that plan after"))
    assert "does not fit" in row
    assert " s " not in row
    assert main([*argv, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)["what_if"]["old_plan_after"]
    assert plan["recomputed_layers"] <= 80 // plan["pp"]


def test_plans_as_printed_are_read() -> None:
    read = read_plan("tp8 cp1 dp4 pp2 vp14 mbs1 interleaved 2,3×24,2×3")
    assert read == {
        "tp": 8, "cp": 1, "dp": 4, "pp": 2, "vp": 14, "mbs": 1, "schedule": Schedule.INTERLEAVED,
        "layout": (2, *[3] * 24, 2, 2, 2),
    }  # fmt: skip
    read = read_plan("tp2 cp2 all-gather zero3 re3 4×15,1 operators")
    assert read["cp_kind"] is CpKind.ALL_GATHER
    assert read["sharding"] is Sharding.ZERO3
    assert read["recompute_layers"] == 3
    assert read["recompute_modules"] == Recompute.OPERATORS
    assert read["layout"] == (*[4] * 15, 1)
    assert read_plan("tp2 ulysses re-all uneven") == {
        "tp": 2, "cp_kind": CpKind.ULYSSES, "recompute_layers": ALL_LAYERS,
    }  # fmt: skip
    assert read_plan("tp8,pp1,layout40.40")["layout"] == (40, 40)


def test_the_same_plan_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", *RUN, "--plan", "tp8,pp2", "--vs", "tp8,pp2"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert "are the same plan: tp8 cp1 dp4 pp2" in out


@pytest.mark.parametrize("command", ["why", "why-not"])
def test_flags_that_contradict_the_plan_are_refused(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, *RUN, "--plan", "tp8,pp1", "--tp", "4"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "error: --tp 4 contradicts --plan tp8,pp1, which says tp 8; drop one\n"


def test_factors_near_one_are_told_from_it() -> None:
    assert [_times(f) for f in (516 / 512, 2.0, 1.25, 0.999, 1.00004)] == ["1.01", "2", "1.2", "0.999", "1"]
