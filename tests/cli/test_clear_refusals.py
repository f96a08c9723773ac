"""A refusal names what was typed, where, and what would work."""

from __future__ import annotations

import pytest

from meshplan.cli.app import run
from meshplan.errors import InputError
from meshplan.web.question import Address

SIZE = ["llama-3.1-70b", "--seq", "8192", "--gbs", "512"]
ON = [*SIZE, "--gpu", "h100-sxm"]
PLAN = ["plan", *ON, "--gpus", "64"]
CASES = (
    ([*PLAN, "--nic", "-5 GB/s"], "--nic '-5 GB/s' is negative"),
    ([*PLAN, "--nic", "--top"], "--nic needs a value"),
    ([*PLAN, "--nic", "0 GB/s"], "nic must be above 0 like '50 GB/s' (--nic), not '0 GB/s'"),
    ([*PLAN, "--nic", "1e30 TB/s"], "'1e30 TB/s' is too large; 1 EB/s is the most"),
    ([*PLAN, "--tokens", "1T", "--watts", "-3"], "--watts must be watts from 0, like 700, not '-3'"),
    ([*PLAN, "--gpus-per-node", "7"], "use 63 or 70, or nodes of 8 (--gpus-per-node 8)"),
    (["plan", *ON, "--gpus", "100"], "use 96 or 104, or nodes of 10 (--gpus-per-node 10)"),
    (["plan", *SIZE, "--cluster", ""], "the name of the cluster file is empty"),
    (["validate", "--worst", "-1"], "--worst must be at least 0, not '-1'"),
    (["plan", *ON, "--gpus", "1_000"], "--gpus takes digits alone: write 1000, not '1_000'"),
    (["plan", *ON, "--gpus", "1,000"], "--gpus takes digits alone: write 1000, not '1,000'"),
    ([*PLAN, "--what-if", "nic=2x,nic=3x"], "--what-if changes nic twice; give one value"),
    ([*PLAN, "--what-if", "nic=2x,network=3x"], "--what-if changes network twice (it is nic too)"),
    (["plan", "\udce6\udca8\udca1\udce5\udc9e\udc8b", *PLAN[2:]], "unknown model '模型'"),
)
FILES = (
    ("job.yaml", "", ["plan"], "job file '{}' is empty"),
    ("job.yaml", "# later\n", ["plan"], "job file '{}' is empty"),
    ("cluster.yaml", "", ["plan", *SIZE, "--cluster"], "cluster file '{}' is empty"),
    ("cluster.yaml", 'gpu: h100-sxm\ngpus: "8"\n', ["plan", *SIZE, "--cluster"],
     "gpus must be a whole number, not the text '8'; write it without quotes"),
    ("t.json", '{"traceEvents": [', ["trace"], "it is cut off before its first event ends"),
    ("t.json", "", ["trace"], "it is empty"),
)  # fmt: skip


def said(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert run(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    return captured.err


@pytest.mark.parametrize(("argv", "words"), CASES)
def test_says_what_is_wrong(argv, words, capsys) -> None:
    assert words in said(argv, capsys)


@pytest.mark.parametrize(("name", "text", "argv", "words"), FILES)
def test_says_what_is_wrong_with_a_file(name, text, argv, words, tmp_path, capsys) -> None:
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    assert words.format(file) in said([*argv, str(file)], capsys)


def test_a_saved_answer_with_a_wrong_value(tmp_path, capsys) -> None:
    """No exception of Python shows through."""
    assert run([*PLAN, "--cost-model", "handbook", "--json"]) == 0
    text = capsys.readouterr().out
    file = tmp_path / "saved.json"
    file.write_text(text.replace('"step_s": ', '"step_s": "x", "was": '), encoding="utf-8")
    found = said(["report", str(file), "--out", str(tmp_path / "r.html")], capsys)
    assert "is not as meshplan writes it: a value in it is of another kind" in found
    assert "Error" not in found


def test_an_address_says_a_thing_once() -> None:
    assert Address.of([("gpus", "64"), ("gpus", "64")]).values == {"gpus": "64"}
    with pytest.raises(InputError, match="the address gives gpus twice"):
        Address.of([("gpus", "64"), ("gpus", "128")])
