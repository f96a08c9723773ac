"""``meshplan models`` as people and programs meet it: output, exit codes, one-sentence errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshplan.cli import main
from meshplan.model.presets import preset_names


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(list(argv))
    out, err = capsys.readouterr()
    return code, out, err


def test_the_list_has_every_preset(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    code, out, err = run(capsys, "models")
    assert (code, err) == (0, "")
    assert {line.split()[0] for line in out.splitlines() if line} >= set(preset_names())
    assert max(map(len, out.splitlines())) <= 100
    assert "70.55 B" in out


def test_the_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "models", "--json")
    data = json.loads(out)
    assert code == 0
    assert data["schema_version"] == 1
    by_name = {entry["name"]: entry for entry in data["models"]}
    assert set(by_name) == set(preset_names())
    assert by_name["llama-3.1-70b"]["parameters"] == 70_553_706_496


def test_one_model_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "models", "show", "deepseek-v3", "--json", "--seq", "4096")
    data = json.loads(out)
    assert code == 0
    assert data["parameters"] == sum(data["parts"].values()) == 671_026_404_352
    assert data["active_parameters"] == sum(data["active_parts"].values())
    assert data["mtp_parameters"] > 0
    assert data["seq"] == 4096
    printed = {"causal": 250, "full": 281, "6n": 220}
    assert {k: round(data["flop_per_token"][k] / 1e9) for k in printed} == printed
    assert round(data["flop_per_token_with_mtp"]["causal"] / 1e9) == 260
    assert [(kind["count"], kind["mlp"]["kind"]) for kind in data["layers"]] == [(3, "dense"), (58, "moe")]


def test_one_model_for_people(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = run(capsys, "models", "show", "meta-llama/Llama-3.1-70B")
    assert (code, err) == (0, "")
    assert out.startswith("llama-3.1-70b\n70.55 B parameters (70,553,706,496)")
    assert "GQA 64/8 × 128" in out
    assert "449.2" in out
    assert max(map(len, out.splitlines())) <= 80


def test_a_file_is_shown_like_a_preset(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "vocab_size": 100,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    code, out, _ = run(capsys, "models", "show", str(tmp_path), "--json")
    assert code == 0
    layer = 4 * 64 * 64 + 3 * 64 * 128 + 2 * 64
    assert json.loads(out)["parameters"] == 2 * layer + 2 * 100 * 64 + 64


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("models", "show", "llama70b"), "unknown model 'llama70b'; did you mean"),
        (("models", "show", "none/config.json"), "does not exist"),
        (("models", "show", ""), "needs a name or a path"),
        (("models", "show", "llama-3-8b", "--seq", "0"), "--seq must be from 1 to 1,000,000,000, not '0'"),
        (("models", "show", "llama-3-8b", "--seq", "many"), "--seq must be a whole number"),
    ],
)
def test_what_cannot_be_shown_is_one_sentence(
    argv: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, *argv)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err
