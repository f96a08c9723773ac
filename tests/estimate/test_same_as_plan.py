"""A plan of a ranking and the same plan asked for alone: the same time and memory."""

from __future__ import annotations

import json
from typing import Any

import pytest

from meshplan.cli import main
from meshplan.cluster.presets import cluster_of
from meshplan.model.load import load_model
from meshplan.plan.space import Space
from meshplan.plan.workload import Workload
from meshplan.search.search import search

DEGREES = ("tp", "cp", "pp", "vp", "dp", "ep", "etp", "mbs", "replicas")
QUESTIONS = (
    ("llama-3.1-405b", "--gpus 1024 --seq 8192 --gbs 512 --tp 8 --cp 1,2 --pp 16,32"),
    ("llama-3.1-70b", "--gpus 64 --seq 8192 --gbs 256 --tp 4 --pp 1,2,4,8 --schedule 1f1b,zb-v"),
    ("llama-3.1-70b", "--gpus 64 --seq 8192 --gbs 512 --space full --tp 4 --pp 2 --cp 1"),
    ("deepseek-v3", "--gpus 1024 --seq 4096 --gbs 4096 --tp 1 --cp 1 --pp 16 --ep 8,64"),
)


def asked(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    main([*argv, "--json"])
    said = capsys.readouterr()
    assert said.out, said.err
    found: dict[str, Any] = json.loads(said.out)
    return found


def flags_of(plan: dict[str, Any]) -> list[str]:
    flags = [word for name in DEGREES for word in (f"--{name}", str(plan[name]))]
    flags += ["--schedule", plan["schedule"], "--sharding", plan["sharding"], "--cp-kind", plan["cp_kind"]]
    again = "+".join([str(plan["recomputed_layers"]), *plan["recompute_modules"]])
    return [*flags, "--recompute", again, *([] if plan["sp"] else ["--no-sp"])]


@pytest.mark.parametrize(("model", "question"), QUESTIONS)
def test_estimate_of_a_plans_flags_is_the_plans_own(
    model: str, question: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Layers cut the same way, pipelines simulated the same way; also of a plan put first as simple."""
    ask = ["--gpu", "h100-sxm", *question.split()]
    plans = asked(capsys, "plan", model, *ask, "--top", "8")["plans"]
    assert len(plans) > 1
    assert plans[0]["simulated"]
    sizes = [word for flag in ("--gpus", "--seq", "--gbs") for word in (flag, ask[ask.index(flag) + 1])]
    for plan in (p for p in plans if p["simulated"]):
        alone = asked(capsys, "estimate", model, "--gpu", "h100-sxm", *sizes, *flags_of(plan))
        assert alone["plan"]["layout"] == plan["layout"]
        assert alone["step_s"] == pytest.approx(plan["step_s"], rel=1e-12)
        assert alone["memory_bytes"] == pytest.approx(plan["memory_bytes"], rel=1e-12)
        fullest = max(alone["stages"], key=lambda stage: stage["memory_bytes"])
        assert fullest["memory_bytes"] == pytest.approx(plan["memory_bytes"], rel=1e-12)
        assert sum(stage["ranks"] for stage in alone["stages"]) == plan["pp"]


def test_search_simulates_unless_told_otherwise() -> None:
    """The default of Python is that of the command line."""
    question = (load_model("llama-3.1-8b"), cluster_of("h100-sxm", 16), Workload(seq=8192, gbs=64))
    space = Space(tp=(1, 2), pp=(2, 4), cp=(1,))
    assert search(*question, space=space).simulated is not None
    assert search(*question, space=space, fidelity="estimate").simulated is None


def test_estimate_by_the_closed_form(capsys: pytest.CaptureFixture[str]) -> None:
    ask = ["llama-3.1-70b", "--gpu", "h100-sxm", "--gpus", "64", "--seq", "8192", "--gbs", "512", "--tp", "8"]
    exact = asked(capsys, "estimate", *ask, "--pp", "4", "--vp", "2", "--recompute", "full")
    closed = asked(
        capsys, "estimate", *ask, "--pp", "4", "--vp", "2", "--recompute", "full", "--fidelity", "estimate"
    )
    assert closed["step_s"] != exact["step_s"]
    assert closed["step_s"] == pytest.approx(exact["step_s"], rel=0.05)
