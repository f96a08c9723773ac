"""Several precisions or orders in one question."""

from __future__ import annotations

import json

import pytest

from meshplan.cli import main

BASE = ["plan", "llama-3.1-8b", "--gpu", "h100-sxm", "--gpus", "16", "--seq", "8192", "--gbs", "64"]
ORDERS = "tp-cp-ep-dp-pp,tp-cp-ep-pp-dp"


def test_each_is_answered_as_if_asked_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*BASE, "--precision", "bf16,fp8", "--order", ORDERS, "--json"]) == 0
    both = json.loads(capsys.readouterr().out)
    found = {(v["precision"], v["order"]): v["best"] for v in both["variants"]}
    assert len(found) == 4
    for (precision, order), best in found.items():
        assert main([*BASE, "--precision", precision, "--order", order, "--json"]) == 0
        alone = json.loads(capsys.readouterr().out)
        assert best["step_s"] == alone["plans"][0]["step_s"]
        assert "variants" not in alone
    first = both["variants"][0]
    assert (first["precision"], first["order"]) == (both["workload"]["precision"], both["order"])
    assert first["best"]["step_s"] == both["plans"][0]["step_s"]


def test_the_fastest_is_shown_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*BASE, "--precision", "bf16,fp8", "--top", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["precision", "order", "best"]
    assert [line.split()[0] for line in lines if line.startswith(("fp8", "bf16"))] == ["fp8", "bf16"]
    assert "in full, fp8, tp-cp-ep-dp-pp:" in lines


def test_those_without_a_plan_come_last(capsys: pytest.CaptureFixture[str]) -> None:
    small = [*BASE, "--tp", "8", "--pp", "2", "--sharding", "zero1"]
    assert main([*small, "--objective", "memory", "--order", ORDERS, "--json"]) == 0
    assert [v["best"] is None for v in json.loads(capsys.readouterr().out)["variants"]] == [False, False]
    none = ["plan", "llama-3.1-70b", *BASE[2:5], "8", *BASE[6:], "--precision", "bf16,fp8"]
    assert main(none) == 1
    assert capsys.readouterr().out.count("none fits") == 2


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--precision", "bf16,fp7"], "'fp7' is not one of"),
        (["--precision", "bf16,fp8", "--format", "csv"], "--precision lists several values"),
        (["--order", ORDERS, "--format", "markdown"], "--order lists several values"),
        (["--order", "tp-cp-ep-dp-pp,tp-tp"], "names tp more than once"),
    ],
)
def test_refused(capsys: pytest.CaptureFixture[str], flags: list[str], words: str) -> None:
    assert main([*BASE, *flags]) == 2
    assert words in capsys.readouterr().err
