"""The READMEs: in step with each other, and what they show is what commands print."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest

from meshplan.cli import main
from meshplan.cli.app import COMMANDS

REPO = Path(__file__).parents[2]
ENGLISH = (REPO / "README.md").read_text(encoding="utf-8")
CHINESE = (REPO / "README.zh-CN.md").read_text(encoding="utf-8")
QUESTION = "--gpu h100-sxm --gpus 64 --seq 8192 --gbs 512"
CONFIG = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
}  # fmt: skip
ELSEWHERE = ("validate", "export", "read", "serve", "measure", "calibrate", "trace")
"""Commands that wait for a browser, take minutes or need files of others: they have tests of their own."""
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("update_readme", REPO / "tools" / "update_readme.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def blocks(text: str, language: str) -> list[str]:
    return [body for name, body in BLOCK.findall(text) if name == language]


def prose(text: str) -> str:
    return BLOCK.sub("", text)


def test_same_headings() -> None:
    def levels(text: str) -> list[str]:
        return [line.split(" ")[0] for line in prose(text).splitlines() if line.startswith("#")]

    assert levels(ENGLISH) == levels(CHINESE)
    assert len(levels(ENGLISH)) > 4


def test_same_code() -> None:
    assert BLOCK.findall(ENGLISH) == BLOCK.findall(CHINESE)
    assert len(BLOCK.findall(ENGLISH)) > 4

    def inline(text: str) -> list[str]:
        return sorted(re.findall(r"`([^`\n]+)`", prose(text)))

    assert inline(ENGLISH) == inline(CHINESE)


def test_same_numbers_and_links() -> None:
    def numbers(text: str) -> list[str]:
        return sorted(re.findall(r"(?<![\w.])\d[\d.,]*\d|\d", prose(text)))

    def links(text: str) -> list[str]:
        return sorted(link for link in re.findall(r"\]\(([^)]+)\)", text) if not link.startswith("README"))

    assert numbers(ENGLISH) == numbers(CHINESE)
    assert links(ENGLISH) == links(CHINESE)


def test_each_names_the_other_and_stays_short() -> None:
    assert "(README.zh-CN.md)" in ENGLISH
    assert "(README.md)" in CHINESE
    for text in (ENGLISH, CHINESE):
        assert text.count("\n") <= 175
        for link in re.findall(r"\]\(([^):]+)\)", text):
            assert (REPO / link).exists(), link


@pytest.mark.parametrize("text", [ENGLISH, CHINESE], ids=["english", "chinese"])
def test_what_is_shown_is_what_commands_print(text: str) -> None:
    # To write the output anew: python tools/update_readme.py
    assert tool().refreshed(text) == text
    shown = blocks(text, "console")
    assert shown[0].startswith("$ meshplan plan meta-llama/Llama-3.1-70B --gpu h100-sxm --gpus 64 ")
    assert all(block.count("\n") > 3 for block in shown)


def test_the_python_example_runs() -> None:
    (example,) = blocks(ENGLISH, "python")
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(example, "README.md", "exec"), {})
    lines = out.getvalue().splitlines()
    assert re.fullmatch(r"\d+ \d+ \d+ \d+ \d\d\.\d%", lines[0])
    assert any(line.startswith("matmul ") for line in lines)


def test_the_job_file_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (job,) = blocks(ENGLISH, "yaml")
    file = tmp_path / "job.yaml"
    file.write_text(job, encoding="utf-8")
    assert main(["plan", str(file)]) == 0
    assert "llama-3.1-70b on 64" in capsys.readouterr().out


def test_every_command_in_the_text_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = [c for c in re.findall(r"`(meshplan [^`]+)`", ENGLISH) if "COMMAND" not in c]
    assert {c.split()[1] for c in commands} <= {c.name for c in COMMANDS}
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(blocks(ENGLISH, "yaml")[0], encoding="utf-8")
    Path("cluster.yaml").write_text("gpu: h100-sxm\ngpus: 64\n", encoding="utf-8")
    Path("path/to").mkdir(parents=True)
    Path("path/to/config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    for command in commands:
        if command.split()[1] in ELSEWHERE:
            continue
        filled = re.sub(r"(?<=plan) …", f" llama-3.1-70b {QUESTION}", command).replace("…", QUESTION)
        words = [{"MODEL": "llama-3.1-70b", "NAME": "llama-3.1-8b"}.get(w, w) for w in shlex.split(filled)]
        assert main(words[1:]) == 0, (command, capsys.readouterr().err)
        assert capsys.readouterr().out


@pytest.mark.parametrize(
    ("kind", "fields", "named"),
    [
        ("t5", {"is_encoder_decoder": True}, "encoder-decoder"),
        ("bert", {}, "bidirectional encoder layers"),
        ("mamba2", {"state_size": 128}, "Mamba state-space layers"),
        ("qwen3_next", {"linear_num_key_heads": 16}, "linear attention"),
    ],
)
def test_what_is_no_decoder_is_refused_by_name(
    kind: str, fields: dict[str, object], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**CONFIG, "model_type": kind, **fields}), encoding="utf-8")
    assert main(["plan", str(file), "--gpu", "h100-sxm", "--gpus", "8", "--seq", "8192", "--gbs", "8"]) == 2
    assert named in capsys.readouterr().err
