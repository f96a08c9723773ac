"""A refusal names what was typed, where, and what would work."""

from __future__ import annotations

import json

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
    ([*PLAN, "--tokens", "1T", "--price", "1e300"], "GPU, from 0 to 1,000,000 like 2.50, not '1e300'"),
    (["models", "llama-70"], "unknown model 'llama-70'; did you mean"),
    (["gpus", "h100sx"], "unknown GPU 'h100sx'; did you mean"),
    (["schedule", "1f1b", "--ranks", "1000", "--micro-batches", "100000"], "; 2,000 micro-batches would do"),
    (["calibrate", "--out", "c.yaml", "--samples", "no-such"], "samples file 'no-such' does not exist"),
    ([*PLAN, "--language", "zh"], "--language is that of a report, and none is asked for; give --html FILE"),
    (["report", "x.json", "--json", "--language", "zh"], "give --out report.html or --svg FOLDER"),
    (["estimate", *ON, "--gpus", "64", "--tp", "8", "--pp", "16"], "= 128, not 64 GPUs; pp 8 or tp 4 would"),
    (
        ["estimate", *ON, "--gpus", "64", "--tp", "4", "--pp", "16", "--cp", "8"],
        "tp 4 × cp 8 × dp 1 × pp 16 = 512, not 64 GPUs; pp 2 or cp 1 would",
    ),
    (
        ["estimate", *ON, "--gpus", "64", "--tp", "6", "--pp", "3"],
        "tp 6 does not divide 64 GPUs; tp 4 × cp 1 × dp 8 × pp 2 would (and ",
    ),
    (["why", *ON, "--gpus", "64", "--vs", "tp3"], "tp 2 or 4 would (and 4 more: tp-divides-heads, "),
    (
        ["timeline", *ON, "--gpus", "64", "--pp", "4", "--layout", "odd"],
        "'odd' is none of even, auto, layers",
    ),
    (["plan", "\udce6\udca8\udca1\udce5\udc9e\udc8b", *PLAN[2:]], "unknown model '模型'"),
)
TIMES = ("0", "0.0", "-5", "-5d", "0 d")
PHASES = """model: llama-3.1-8b
cluster: {gpu: h100-sxm, gpus: 16}
phases:
  - {name: short, seq: 8192, gbs: 64, tokens: 1T}
  - {name: long, seq: 32768, gbs: 16, tokens: 100B}
"""
FILES = (
    ("samples.json", "{}", ["calibrate", "--out", "c.yaml", "--samples"],
     "give the .samples.json that calibrate wrote beside its cluster file"),
    ("job.yaml", "model: llama-3.1-8b\nspace: {size: full}\n", ["plan"],
     "space: unknown key 'size'; size stands at the top of the file, beside model, cluster, workload and"),
    ("job.yaml", "model: llama-3.1-8b\nseq: 8192\n", ["plan"], "'seq'; seq stands under workload"),
    ("job.yaml", "model: llama-3.1-8b\nworkload: {tp: 8}\n", ["plan"], "'tp'; tp stands under space"),
    ("job.yaml", "model: llama-3.1-8b\nworkload: {gpu: h200}\n", ["plan"], "'gpu'; gpu stands under cluster"),
    *(("job.yaml", PHASES, [command], "has phases, which `meshplan plan` alone takes together; ask about one"
       " of them with its --seq and --gbs, such as --seq 8192 --gbs 64")
      for command in ("why", "estimate", "timeline", "check")),
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


@pytest.mark.parametrize("time", TIMES)
def test_a_time_that_cannot_be_says_one_that_can(time, capsys) -> None:
    found = said([*PLAN, "--tokens", "1T", f"--gpu-mttf={time}"], capsys)
    assert f"--gpu-mttf must be a time above zero like '2100 d' or '50000 h', not '{time}'" in found


@pytest.mark.parametrize("command", ["estimate", "timeline", "check"])
def test_an_even_layout_is_a_word_wherever_one_plan_is_named(command, capsys) -> None:
    """126 layers over 16 stages: the ends, with embedding and head, have 7."""
    argv = [command, "llama-3.1-405b", *SIZE[1:], "--gpu", "h200", "--gpus", "128", "--tp", "8", "--pp", "16"]
    run([*argv, "--layout", "even", "--json"])
    even = json.loads(capsys.readouterr().out)
    run([*argv, "--layout", "7,8x14,7", "--json"])
    assert even == json.loads(capsys.readouterr().out)
    run([*argv, "--layout", "auto", "--json"])
    usual = json.loads(capsys.readouterr().out)
    run([*argv, "--json"])
    assert usual == json.loads(capsys.readouterr().out)


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


def test_a_saved_answer_with_numbers_beyond_any_machine(tmp_path, capsys) -> None:
    """Neither an overflow of Python's nor a warning of numpy's shows through."""
    assert run([*PLAN, "--tp", "8", "--pp", "1,2", "--json"]) == 0
    saved = json.loads(capsys.readouterr().out)
    file = tmp_path / "saved.json"
    saved["asked"]["space"]["tp"] = [10**30]
    file.write_text(json.dumps(saved), encoding="utf-8")
    assert "a value in it is of another kind" in said(["report", str(file), "--json"], capsys)
    saved["asked"]["space"]["tp"] = [8]
    for plan in saved["plans"]:
        plan["step_s"] = 1e308
        plan["time"] = dict.fromkeys(plan["time"], 1e308)
    file.write_text(json.dumps(saved), encoding="utf-8")
    assert run(["report", str(file), "--out", str(tmp_path / "r.html")]) in (0, 2)
    told = capsys.readouterr().err
    assert "Warning" not in told
    assert "bug" not in told


def test_an_address_says_a_thing_once() -> None:
    assert Address.of([("gpus", "64"), ("gpus", "64")]).values == {"gpus": "64"}
    with pytest.raises(InputError, match="the address gives gpus twice"):
        Address.of([("gpus", "64"), ("gpus", "128")])
