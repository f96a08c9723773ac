"""``meshplan check`` and ``meshplan rules`` as they are used."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from meshplan.cli import main
from meshplan.plan.rules import FRAMEWORKS, REGISTRY

BASE = ["check", "llama-3.1-70b", "--gpu", "h100-sxm", "--gpus", "64", "--seq", "8192", "--gbs", "64"]


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")


def run(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, str]:
    code = main([*BASE, *flags])
    return code, capsys.readouterr().out


def data(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    main([*BASE, *flags, "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_valid_plan_is_zero(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run(capsys, "--tp", "8", "--pp", "4")
    assert code == 0
    assert "valid for any framework" in text


def test_a_warning_alone_is_zero(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run(capsys, "--tp", "16", "--pp", "4")
    assert code == 0
    assert "warning  tp-in-node: tp 16 crosses nodes of 8 GPUs; tp 8 would not" in " ".join(text.split()) or (
        "tp-in-node" in text and "0 rules" not in text
    )


def test_every_broken_rule_is_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run(capsys, "--tp", "5", "--pp", "3", "--mbs", "7")
    assert code == 1
    for rule in ("gpus-product", "tp-divides-heads", "tp-kv-heads", "gbs-divides"):
        assert f"error    {rule}:" in text


def test_offered_flags_are_valid_when_typed(capsys: pytest.CaptureFixture[str]) -> None:
    given = {"--tp": "16", "--pp": "3"}
    found = data(capsys, *[word for pair in given.items() for word in pair], "--framework", "megatron")
    assert found["fixes"]
    for fix in found["fixes"]:
        flags = shlex.split(fix["flags"]) if isinstance(fix["flags"], str) else fix["flags"]
        asked = dict(zip(BASE[2::2], BASE[3::2], strict=True)) | given
        again = asked | dict(zip(flags[::2], flags[1::2], strict=True))
        base = [w for pair in again.items() for w in pair]
        assert main([*BASE[:2], *base, "--framework", "megatron"]) == 0
        capsys.readouterr()


def test_nonsense_is_two(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*BASE, "--tp", "x"]) == 2
    assert main([*BASE, "--framework", "megatorn"]) == 2
    assert "did you mean megatron?" in capsys.readouterr().err


def test_frameworks_differ(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--tp", "16", "--pp", "4", "--sharding", "zero1")
    assert run(capsys, *flags, "--framework", "megatron")[0] == 0
    code, text = run(capsys, *flags, "--framework", "torchtitan")
    assert code == 1
    assert "torchtitan-kv-heads" in text


def test_rules_are_listed_by_framework(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "--json"]) == 0
    every = json.loads(capsys.readouterr().out)["rules"]
    assert [r["id"] for r in every] == list(REGISTRY)
    assert all(r["sources"] and r["title"] for r in every)
    for framework in FRAMEWORKS:
        assert main(["rules", "--framework", framework]) == 0
        text = capsys.readouterr().out
        assert "gpus-product" in text
    assert main(["rules", "--framework", "torchtitan"]) == 0
    text = capsys.readouterr().out
    assert "torchtitan-kv-heads" in text
    assert "megatron-vp" not in text


def test_one_rule_is_shown_with_its_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "torchtitan-kv-heads"]) == 0
    text = capsys.readouterr().out
    assert "tp divides the KV heads" in text
    assert ".py" in text
    assert main(["rules", "tp-heads"]) == 2
    assert "did you mean 'tp-kv-heads'" in capsys.readouterr().err
