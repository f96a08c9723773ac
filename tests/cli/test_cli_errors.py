"""Every kind of bad input ends in one sentence on standard error and exit code 2, never in a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from meshplan.cli import main
from meshplan.cli.app import COMMANDS, build

BASE = ["--gpu", "h100-sxm", "--gpus", "64", "--seq", "8192", "--gbs", "512", "--cost-model", "handbook"]
MODEL = "llama-3.1-70b"
CLUSTER_FILE = str(Path(__file__).parents[2] / "examples" / "cluster.yaml")


def plan(*flags: str, model: str = MODEL, **changed: str) -> list[str]:
    """A command line like the README's with some flags added or given another value."""
    base = list(BASE)
    for name, value in changed.items():
        base[base.index(f"--{name.replace('_', '-')}") + 1] = value
    return ["plan", model, *base, *flags]


# command line, the sentence
SENTENCES = [
    (["pln"], "unknown command 'pln'; did you mean plan?"),
    (["--vresion"], "unknown option '--vresion'; commands are"),
    (["plan"], "MODEL is missing; see `meshplan plan --help`"),
    (["plan", MODEL], "--gpu and --gpus are missing"),
    (["plan", MODEL, *BASE[:4]], "--seq and --gbs are missing"),
    (["plan", MODEL, *BASE[:6]], "--gbs is missing"),
    (plan("--tpp", "4"), "unknown option --tpp; did you mean --tp or --pp?"),
    (plan("--tp"), "--tp needs a value"),
    (plan("other"), "unexpected argument 'other'; see `meshplan plan --help`"),
    (plan("--seq", "4096"), "--seq is given more than once"),
    (plan(model=""), "a model needs a name or a path"),
    (plan(model="llama70b"), "unknown model 'llama70b'; did you mean"),
    (plan(model="no-such-model-at-all"), "unknown model 'no-such-model-at-all'; see 'meshplan models'"),
    (plan(gpu="h100sx"), "unknown GPU 'h100sx'; did you mean"),
    (plan(gpus="64x"), "--gpus must be a whole number, not '64x'"),
    (plan(gpus="nan"), "--gpus must be a whole number, not 'nan'"),
    (plan(gpus="1.5"), "--gpus must be a whole number, not '1.5'"),
    (plan(gpus="0"), "--gpus must be from 1 to 10,000,000, not '0'"),
    (plan(gpus="-64"), "--gpus must be from 1 to 10,000,000, not '-64'"),
    (plan(gpus="20"), "20 GPUs do not fill whole nodes of 8; use 16 or 24"),
    (plan(gpus="99999999"), "--gpus must be from 1 to 10,000,000, not '99999999'"),
    (plan(gpus="9" * 40), "--gpus must be from 1 to 10,000,000"),
    (plan(seq="1e4"), "--seq must be a whole number, not '1e4'"),
    (plan(seq="0"), "--seq must be from 1 to 1,000,000,000, not '0'"),
    (plan(seq="4000000000"), "--seq must be from 1 to 1,000,000,000, not '4000000000'"),
    (plan(seq="9" * 30), "--seq must be from 1 to 1,000,000,000, not '999"),
    (plan(gbs="1000000001"), "--gbs must be from 1 to 1,000,000,000, not '1000000001'"),
    (plan(gbs="inf"), "--gbs must be a whole number, not 'inf'"),
    (plan("--top", "0"), "--top must be from 1 to 1,000,000,000, not '0'"),
    (plan("--tp", "2,x"), "--tp must be a whole number, not 'x'"),
    (plan("--tp", "2,"), "--tp must be a whole number, not ''"),
    (plan("--tp", ",".join(["1"] * 101)), "--tp lists 101 values; 100 is the most"),
    (plan("--sharding", "zero4"), "--sharding 'zero4' is not one of ddp, zero1, zero2, zero3; did you mean"),
    (plan("--schedule", "1f1"), "--schedule '1f1' is not one of gpipe, 1f1b"),
    (plan("--recompute", "half"), "--recompute 'half' is not a number of layers or one of none, auto, all"),
    (plan("--order", "tp-dp-pp"), "--order: order 'tp-dp-pp' leaves out cp"),
    (plan("--order", "tp-cp-dp-pp-xp"), "unknown dimension 'xp'; known: tp, cp, ep, dp, pp"),
    (plan("--precision", "fp32x"), "--precision 'fp32x' is not one of bf16, fp16"),
    (plan("--format", "yaml"), "--format 'yaml' is not one of table, json, csv, markdown"),
    (plan(cost_model="handbok"), "unknown cost model 'handbok'; did you mean 'handbook'?"),
    (plan("--nic", "400"), "'400' has no unit; write '400 GB/s' or '400 Gb/s'"),
    (plan("--nic", "fast"), "nic: 'fast' is not a bandwidth"),
    (plan("--cluster", CLUSTER_FILE), "--gpu contradicts the cluster file"),
    (plan("--cluster", "no.yaml"), "cluster file 'no.yaml' does not exist"),
    (plan("--price", "3", "--no-failures"), "--price, --no-failures are about a whole run; say how long"),
    (["mfu", MODEL, "--gpu", "h100", "--tokens-per-s", "99999"], "no GPU does that"),
    (["mfu", MODEL, "--gpu", "h100", "--tflops", "990"], "at most 989 TFLOP/s in dense bf16, not 990"),
    (["plan", MODEL, "--cluster", "no.yaml", *BASE[4:]], "cluster file 'no.yaml' does not exist"),
    (plan(model="no/such/job.yaml"), "job file 'no/such/job.yaml' does not exist"),
    (plan(model="./no/config.json"), "does not exist"),
    (plan("--recompute", "81"), "--recompute 81 is more than the 80 layers of llama-3.1-70b"),
    (
        ["estimate", MODEL, *BASE[:8], "--pp", "2", "--recompute", "41"],
        "--recompute 41 is more than the 40 layers of the fullest of pp 2 ranks; --recompute full recomputes",
    ),
    (
        ["export", MODEL, *BASE[:8], "--to", "megatron", "--out", ""],
        "--out is empty; name a folder for the files",
    ),
    (
        ["estimate", MODEL, *BASE[:8], "--pp", "2", "--schedule", "interleaved"],
        "needs vp above 1; vp 2 would",
    ),
    (["estimate", MODEL, *BASE[:8], "--pp", "2", "--vp", "2", "--schedule", "1f1b"], "not 1f1b; vp 1 would"),
    # No plan is valid: a flag or the question itself is wrong.
    (plan("--tp", "3"), "no plan is valid for 64 GPUs: tp 3 does not divide 64 heads; tp 2 or 4 would"),
    (plan("--tp", "128"), "tp 128 does not divide 64 heads; tp 64 would"),
    (plan("--pp", "3"), "80 layers do not divide over pp 3; pp 2 or 4 would"),
    (plan("--dp", "5"), "dp 5 does not divide 64 GPUs; dp 4 or 8 would"),
    (
        plan("--tp", "4", "--cp", "1", "--dp", "2", "--pp", "4"),
        "tp 4 × cp 1 × dp 2 × pp 4 = 32, not 64 GPUs; dp 4 would; 32 GPUs",
    ),
    (
        plan("--mbs", "3", "--dp", "8", "--tp", "8"),
        "gbs 512 does not divide over dp 8 × mbs 3 = 24; gbs 504 or 528 would",
    ),
    (plan("--vp", "2"), "vp 2 needs an interleaved schedule, not 1f1b"),
    (plan("--ep", "2"), "ep 2 needs experts, and llama-3.1-70b has none; ep 1 would"),
    (
        plan(gpus="7"),
        "no plan is valid for 7 GPUs: gbs 512 does not divide over dp 7 × mbs 1 = 7; gbs 511 or 518 would",
    ),
    (
        plan(gpus="1024", gbs="1"),
        "no plan is valid for 1,024 GPUs: gbs 1 does not divide over dp 4 × mbs 1 = 4",
    ),
]


@pytest.mark.parametrize(("argv", "words"), SENTENCES, ids=lambda v: v if isinstance(v, str) else "")
def test_sentence(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert words in err
    assert "Traceback" not in err


BAD_MODELS = [
    ("truncated", b'{"model_type": "llama", "hidden_size": 40', "not valid JSON"),
    ("empty", b"", "is empty"),
    ("list", b"[1, 2]", ""),
    ("missing", b'{"model_type": "llama", "hidden_size": 4096}', "is missing"),
    ("text", b'{"model_type": "llama", "hidden_size": "many", "num_hidden_layers": 2}', "hidden_size"),
    ("nan", b'{"model_type": "llama", "hidden_size": NaN, "num_hidden_layers": 2}', ""),
    ("negative", b'{"model_type": "llama", "hidden_size": -1, "num_hidden_layers": 2}', "hidden_size"),
    ("binary", b"\x00\xff\xfe\x01" * 10, "not UTF-8"),
]


@pytest.mark.parametrize(("content", "words"), [m[1:] for m in BAD_MODELS], ids=[m[0] for m in BAD_MODELS])
def test_bad_model_file(
    content: bytes, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    assert main(plan(model=str(file))) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert words in err


def test_a_huge_file_is_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.json"
    with file.open("wb") as stream:
        stream.truncate(1 << 36)  # 64 GiB, sparse
    assert main(plan(model=str(file))) == 2
    assert "larger than" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.json"
    file.write_text("{}")
    file.chmod(0)
    assert main(plan(model=str(file))) == 2
    assert "permission denied" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["--json"], ["--format", "json"], ["--format=json"]])
def test_with_json_an_error_is_json_too(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(plan("--tp", "3", *flags)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    error = json.loads(err)
    assert error["exit_code"] == 2
    assert "tp 3 does not divide 64 heads" in error["error"]


def test_an_interrupt_that_python_wraps_is_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that meets ``__set_name__`` while a module is read comes as its cause."""

    def interrupted(*args: object, **kwargs: object) -> None:
        raise RuntimeError("Error calling __set_name__ on 'Field'") from KeyboardInterrupt()

    monkeypatch.setattr("meshplan.cli.plan.planned", interrupted)
    assert (
        main(["plan", "llama-3.1-8b", "--gpu", "h100-sxm", "--gpus", "8", "--seq", "8", "--gbs", "8"]) == 130
    )
    assert capsys.readouterr() == ("", "error: interrupted\n")


def test_interrupt_is_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("meshplan.cli.plan.planned", interrupted)
    assert main(plan()) == 130
    assert capsys.readouterr() == ("", "error: interrupted\n")


def test_a_bug_is_one_line_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise ZeroDivisionError("two\nlines")

    monkeypatch.setattr("meshplan.cli.plan.planned", broken)
    assert main(plan()) == 70
    err = capsys.readouterr().err
    assert err.startswith("error: a bug in meshplan")
    assert "ZeroDivisionError: two" in err
    assert "MESHPLAN_DEBUG=1" in err
    assert err.count("\n") == 1
    monkeypatch.setenv("MESHPLAN_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        main(plan())


def test_a_closed_pipe_is_no_error() -> None:
    command = f"{sys.executable} -m meshplan handbook --json | head -c 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stderr == ""


def test_commands_are_listed_without_importing_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    bare = capsys.readouterr().out
    assert main(["--help"]) == 0
    assert capsys.readouterr().out == bare
    for command in COMMANDS:
        assert f"  {command.name} " in bare
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("meshplan 0.")


@pytest.mark.parametrize("command", [c.name for c in COMMANDS])
def test_every_command_exists_and_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"Usage: meshplan {command}")
    assert "object at 0x" not in out
    assert build()[command].name[0] == command
