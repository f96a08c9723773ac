"""One question has one answer: the same software, plan and time from every command that is asked it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshplan.cli import main

QUESTION = ["llama-3.1-70b", "--gpu", "h100-sxm", "--gpus", "64", "--seq", "8192", "--gbs", "512"]
STACKS = {
    "any": "megatron-core-2025", "megatron": "megatron-core-2025", "megatron-bridge": "megatron-core-2025",
    "torchtitan": "torchtitan", "pytorch": "torchtitan", "accelerate": "torchtitan", "deepspeed": "deepspeed",
}  # fmt: skip
NAMES = ("tp", "cp", "pp", "dp", "vp", "mbs", "schedule", "sharding", "cp_kind")


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    code = main([*words, "--json"])
    out, err = capsys.readouterr()
    assert code == 0, f"{' '.join(words)}: {err}"
    found: dict[str, Any] = json.loads(out)
    return found


def named(plan: dict[str, Any]) -> dict[str, Any]:
    """What tells plans apart; without context parallelism there is no kind of it."""
    return {name: plan[name] for name in NAMES if name != "cp_kind" or plan["cp"] > 1}


@pytest.mark.parametrize("framework", STACKS)
def test_every_command_prices_the_same_plan_alike(
    framework: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    as_in = ("--framework", framework)
    planned = asked(capsys, "plan", *QUESTION, *as_in, "--top", "1")
    best = planned["plans"][0]
    step = pytest.approx(best["step_s"], rel=1e-12)
    assert planned["stack"] == STACKS[framework]
    why = asked(capsys, "why", *QUESTION, *as_in)
    assert best["step_s"] in [pytest.approx(why[side]["step_s"], rel=1e-12) for side in "ab"]
    scaled = asked(capsys, "scale", *QUESTION, *as_in, "--no-weak")
    assert scaled["points"][0]["plan"]["step_s"] == step
    flags = [word for name in NAMES for word in (f"--{name.replace('_', '-')}", str(best[name]))]
    flags += ["--recompute", "+".join([str(best["recomputed_layers"]), *best["recompute_modules"]])]
    flags += [] if best["sp"] or best["tp"] == 1 else ["--no-sp"]
    priced = asked(capsys, "estimate", *QUESTION, *as_in, *flags)
    assert (priced["step_s"], priced["stack"]["name"]) == (step, STACKS[framework])
    wish = ("--tp", str(best["tp"]), "--pp", str(best["pp"]))
    no = asked(capsys, "why-not", *QUESTION, *as_in, *wish)
    assert no["stack"] == STACKS[framework]
    if framework == "any":
        return
    exported = asked(capsys, "export", *QUESTION, "--to", framework, "--out", str(tmp_path))
    assert (exported["stack"], named(exported["plan"])) == (STACKS[framework], named(best))
    reading = asked(capsys, "read", str(tmp_path / "run.sh"), "--gpu", "h100-sxm")
    assert named(reading["plan"]) == named(best)
    assert reading["estimate"]["step_s"] == step


def test_the_stack_is_said_and_can_be_chosen(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    main(["plan", *QUESTION, "--framework", "torchtitan", "--top", "1"])
    assert "stack torchtitan" in " ".join(capsys.readouterr().out.split())
    flag = asked(capsys, "plan", *QUESTION, "--stack", "torchtitan", "--top", "1")
    job = tmp_path / "job.yaml"
    job.write_text(
        "model: llama-3.1-70b\ncluster: {gpu: h100-sxm, gpus: 64}\nworkload: {seq: 8192, gbs: 512}\n"
        "stack: torchtitan\n"
    )
    key = asked(capsys, "plan", str(job), "--top", "1")
    assert flag["stack"] == key["stack"] == "torchtitan"
    assert flag["plans"] == key["plans"]
    assert flag["plans"] != asked(capsys, "plan", *QUESTION, "--top", "1")["plans"]
    assert main(["plan", *QUESTION, "--stack", "torchtitan", "--cost-model", "handbook"]) == 2
    assert "--stack is for the full cost model" in capsys.readouterr().err
    assert main(["plan", *QUESTION, "--stack", "torchtitn"]) == 2
    assert "torchtitan" in capsys.readouterr().err


def test_ways_out_are_timed_as_plan_times_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *QUESTION, "--vp", "2", "--schedule", "1f1b"]) == 2
    said = capsys.readouterr().err
    best = asked(capsys, "plan", *QUESTION, "--schedule", "1f1b", "--top", "1")["plans"][0]
    assert f"no --vp (tp{best['tp']} " in said
    assert f"{best['step_s']:.2f} s a step" in said.split("no --schedule")[0]
