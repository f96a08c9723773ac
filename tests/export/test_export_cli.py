"""``meshplan export`` and ``meshplan read`` as people run them: files, exit codes, messages, JSON."""

from __future__ import annotations

import io
import json
import os
import stat
import sys
from pathlib import Path

import pytest

from meshplan.cli import main
from meshplan.export.folder import write
from meshplan.export.targets import TARGETS

ASK = ["llama-3.1-8b", "--gpu", "h100-sxm", "--gpus", "16", "--seq", "8192", "--gbs", "64"]


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(list(words))
    out, err = capsys.readouterr()
    return code, out, err


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    code, out, err = run(capsys, *words)
    assert code == 2, (code, out, err)
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1, err
    return err


@pytest.mark.parametrize("target", TARGETS)
def test_export_then_read(target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "launch")
    code, text, err = run(
        capsys, "export", *ASK, "--to", target, "--out", out, "--launcher", "slurm", "--json"
    )
    assert (code, err) == (0, "")
    data = json.loads(text)
    assert set(data["files"]) == {p.name for p in Path(out).iterdir()}
    assert stat.S_IMODE((Path(out) / "run.sh").stat().st_mode) & 0o100
    code, text, err = run(capsys, "read", f"{out}/run.sh", "--json")
    assert err == ""
    read = json.loads(text)
    for key in ("model", "cluster", "workload", "plan", "rules", "estimate", "better"):
        assert key in read
    assert code == 0, read["problems"]
    same = (
        "tp",
        "cp",
        "pp",
        "dp",
        "ep",
        "etp",
        "vp",
        "mbs",
        "sp",
        "cp_kind",
        "schedule",
        "layout",
        "sharding",
        "replicas",
        "recomputed_layers",
        "recompute_modules",
    )
    assert {k: read["plan"][k] for k in same} == {k: data["plan"][k] for k in same}
    assert read["estimate"]["step_s"] == pytest.approx(data["plan"]["step_s"])
    assert read["rules"] == []
    assert read["model"]["name"] == "llama-3.1-8b"


def test_read_json_has_the_keys_of_plan_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "x")
    run(capsys, "export", *ASK, "--to", "megatron", "--out", out)
    _, text, _ = run(capsys, "read", f"{out}/run.sh", "--json")
    code, plans, err = run(capsys, "plan", *ASK, "--top", "1", "--json")
    assert code == 0, err
    plan = json.loads(plans)["plans"][0]
    of_rankings = {"rank", "relative", "simulated", "tied", "pareto", "complexity"}
    assert set(json.loads(text)["plan"]) == set(plan) - of_rankings


def test_the_plan_the_flags_fix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "x")
    code, text, err = run(
        capsys, "export", *ASK, "--to", "megatron", "--out", out, "--tp", "2", "--pp", "2", "--cp", "1",
        "--mbs", "2", "--vp", "1", "--recompute", "none",
    )  # fmt: skip
    assert (code, err) == (0, "")
    args = (tmp_path / "x" / "megatron.args").read_text()
    for line in (
        "--tensor-model-parallel-size 2",
        "--pipeline-model-parallel-size 2",
        "--micro-batch-size 2",
    ):
        assert f"\n{line}\n" in args
    assert "bash " in text


def test_what_a_target_cannot_say_is_said_with_its_price(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text, _ = run(
        capsys,
        "export",
        *ASK,
        "--to",
        "torchtitan",
        "--out",
        str(tmp_path / "x"),
        "--sharding",
        "zero1",
        "--json",
    )
    assert code == 0
    notes = json.loads(text)["notes"]
    assert any(
        n["part"] == "sharding" and n["written"] == "zero2" and n["step_change"] is not None for n in notes
    )


def test_nothing_is_overwritten_without_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "x"
    words = ["export", *ASK, "--to", "megatron", "--out", str(out)]
    assert run(capsys, *words)[0] == 0
    assert run(capsys, *words)[0] == 0, "the same files again are no change"
    (out / "run.sh").write_text("mine\n")
    before = {p.name: p.read_text() for p in out.iterdir()}
    assert "--force" in refused(capsys, *words)
    assert {p.name: p.read_text() for p in out.iterdir()} == before
    code, text, err = run(capsys, *words, "--diff")
    assert (code, err) == (0, "")
    assert "-mine" in text
    assert {p.name: p.read_text() for p in out.iterdir()} == before
    assert run(capsys, *words, "--force")[0] == 0
    assert (out / "run.sh").read_text().startswith("#!/usr/bin/env bash")


def test_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error on the way leaves what was there, and no temporary folder."""
    target = tmp_path / "x"
    write(target, {"a": "old a", "b": "old b"})
    original = Path.write_text

    def full(self: Path, text: str, *args: object, **kwargs: object) -> int:
        if self.name == "b":
            raise OSError(28, "No space left on device")
        return original(self, text, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "write_text", full)
    from meshplan.errors import InputError

    with pytest.raises(InputError, match="no space left"):
        write(target, {"a": "new a", "b": "new b"}, force=True)
    assert sorted(p.name for p in target.iterdir()) == ["a", "b"]
    assert (target / "a").read_text() == "old a"
    with pytest.raises(InputError, match="no space left"):
        write(tmp_path / "fresh", {"b": "new b"})
    assert not (tmp_path / "fresh").exists()


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--to", "megatron"], "--out"),
        (["--out", "x"], "--to"),
        (["--to", "megatrom", "--out", "x"], "megatron"),
        (["--to", "megatron", "--out", "x", "--launcher", "lsf"], "torchrun"),
        (["--to", "megatron", "--out", "x", "--plan", "100000"], "--plan"),
        (["--to", "megatron", "--out", "x", "--plan", "0"], "--plan must be from 1 to"),
        (["--to", "megatron", "--out", "/dev/null/x"], "'/dev/null' is none"),
    ],
)
def test_bad_export(words: list[str], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert part in refused(capsys, "export", *ASK, *words)


def test_a_model_the_target_does_not_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask = ["export", "mixtral-8x7b", "--gpu", "h100-sxm", "--gpus", "16", "--seq", "4096", "--gbs", "64"]
    for target in ("torchtitan", "megatron-bridge"):
        assert "mixtral-8x7b" in refused(capsys, *ask, "--to", target, "--out", str(tmp_path / "x"))
    assert not (tmp_path / "x").exists()


def test_read_from_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32"
        " --group-query-attention"
        " --num-query-groups 8 --swiglu --disable-bias-linear --normalization RMSNorm --vocab-size 128256"
        " --untie-embeddings-and-output-weights --position-embedding-type rope --seq-length 8192 --bf16"
        " --micro-batch-size 1 --global-batch-size 128 --tensor-model-parallel-size 8"
        " --use-distributed-optimizer"
    )
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    code, out, err = run(capsys, "read", "-", "--gpus", "64")
    assert (code, err) == (0, "")
    assert "llama-3-8b" in out
    assert "better: " in out
    assert "- --tensor-model-parallel-size 8" in out


def test_exit_one_where_it_would_not_start_or_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    big = tmp_path / "big.sh"
    run(capsys, "export", *ASK, "--to", "megatron", "--out", str(tmp_path / "x"))
    text = (tmp_path / "x" / "run.sh").read_text()
    big.write_text(
        text.replace("--micro-batch-size 1", "--micro-batch-size 4").replace(
            "--seq-length 8192", "--seq-length 131072"
        )
    )
    code, out, err = run(capsys, "read", str(big))
    assert (code, err) == (1, "")
    assert "DOES NOT FIT" in out
    wrong = tmp_path / "wrong.sh"
    wrong.write_text(text.replace("--global-batch-size 64", "--global-batch-size 63"))
    code, out, err = run(capsys, "read", str(wrong), "--json")
    assert (code, err) == (1, "")
    assert [rule["id"] for rule in json.loads(out)["rules"]]


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"\x7fELF\x02\x01\x01\x00\x00\x00", "binary"),
        (b"\xff\xfe\x00h\x00e", "UTF-8"),
        (b"", "empty"),
        (b"iteration 1 | loss 10.2 | lr 1e-4\n" * 300_000, "too large"),
        (b'{"train_batch_size": 8, ', "not complete JSON"),
        (b"torchrun train.py --plugin gemini # colossalai\n", "ColossalAI"),
    ],
)
def test_bad_files(content: bytes, part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "launch.sh"
    file.write_bytes(content)
    assert part in refused(capsys, "read", str(file))
    assert list(tmp_path.iterdir()) == [file]


def test_bad_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "does not exist" in refused(capsys, "read", str(tmp_path / "none.sh"))
    assert "folder" in refused(capsys, "read", str(tmp_path))
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert "regular" in refused(capsys, "read", str(fifo))


def test_a_job_file_is_answered_by_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        "model: llama-3.1-8b\ncluster: {gpu: h100-sxm, gpus: 16}\nworkload:"
        " {seq: 8192, gbs: 64}\nspace: {tp: [2]}\n"
    )
    code, out, err = run(capsys, "read", str(file))
    assert (code, err) == (0, "")
    assert "tp2" in out
    assert "drop --model" in refused(capsys, "read", str(file), "--model", "gpt-3-175b")
    code, out, err = run(capsys, "read", str(file), "--json", "--gpus", "32")
    assert (code, err) == (0, "")
    data = json.loads(out)
    assert data["plan"]["tp"] == 2
    assert data["cluster"]["gpus"] == 32
    assert data["estimate"]["fits"]
    assert data["better"]["gain"] == 0.0


TOO_LARGE = ["llama-3.1-70b", "--gpu", "h100-sxm", "--gpus", "8", "--seq", "8192", "--gbs", "16"]


def test_a_plan_that_does_not_fit_is_not_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for more in ([], ["--force"], ["--diff"]):
        out = tmp_path / "x"
        code, text, err = run(capsys, "export", *TOO_LARGE, "--to", "megatron", "--out", str(out), *more)
        assert (code, text) == (1, "")
        assert err.startswith("error: no plan fits 8 GPUs: memory: ")
        assert not out.exists()
        # what is offered works: 16 GPUs, and optimizer states in host memory
        assert "; 16 GPUs would work; otherwise --offload optimizer (" in err
    more = ["16" if word == "8" else word for word in TOO_LARGE]
    for i, argv in enumerate((more, [*TOO_LARGE, "--offload", "optimizer"])):
        assert run(capsys, "export", *argv, "--to", "megatron", "--out", str(tmp_path / str(i)))[0] == 0


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--pp", "2"], "accelerate has no pipeline for training (pp 2); pp 1 would; otherwise no --pp ("),
        (["--tp", "3"], "tp 3 does not divide 64 heads; tp 2 or 4 would; otherwise no --tp ("),
    ],
)
def test_a_combination_that_cannot_be_is_an_error_of_the_question(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], told: str
) -> None:
    ask = ["llama-3.1-70b", "--gpu", "h100-sxm", "--gpus", "64", "--seq", "8192", "--gbs", "512"]
    assert told in refused(capsys, "export", *ask, "--to", "accelerate", "--out", str(tmp_path / "x"), *flags)


def test_a_plan_that_does_not_fit_is_written_if_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "x"
    code, text, err = run(
        capsys, "export", *TOO_LARGE, "--to", "megatron", "--out", str(out), "--allow-oversize"
    )
    assert (code, err) == (0, "")
    assert "(more than there is)" in text
    assert run(capsys, "read", str(out / "run.sh"))[0] == 1


def test_a_plan_that_grows_in_the_target_is_passed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What counts is whether the plan fits as the target runs it; here every one grows too large."""
    from meshplan.cli import export as command

    true_price = command.price_of

    def larger(*args):
        from dataclasses import replace

        costs = true_price(*args)
        return replace(costs, memory_limit_bytes=1.0)

    monkeypatch.setattr(command, "price_of", larger)
    code, text, err = run(capsys, "export", *ASK, "--to", "deepspeed", "--out", str(tmp_path / "x"))
    assert (code, text) == (1, "")
    assert "as deepspeed would run it" in err
    assert err.count("\n") == 1
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(("launcher", "starts"), [("torchrun", "run.sh"), ("slurm", "job.sbatch")])
def test_a_folder_is_read_by_the_file_that_starts_the_run(
    launcher: str, starts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "launch"
    assert run(capsys, "export", *ASK, "--to", "megatron", "--launcher", launcher, "--out", str(out))[0] == 0
    code, text, err = run(capsys, "read", str(out), "--json")
    assert (code, err) == (0, f"reading {out / starts}\n")
    _, same, _ = run(capsys, "read", str(out / starts), "--json")
    assert text == same


def test_a_folder_without_launch_files_says_what_could_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "has no job.sbatch, jobset.yaml, sky.yaml or run.sh; name a script" in refused(
        capsys, "read", str(tmp_path)
    )
    for name in ("b.sh", "a.yaml", "notes.txt"):
        (tmp_path / name).write_text("x")
    assert refused(capsys, "read", str(tmp_path)).endswith("; name one of its files: a.yaml, b.sh\n")


def test_launch_files_need_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine")
    for name in ("file", "file/deeper/still"):
        told = refused(capsys, "export", *ASK, "--to", "megatron", "--out", str(tmp_path / name))
        assert f"launch files go into a folder, and '{tmp_path / 'file'}' is none; name a folder" in told
    assert (tmp_path / "file").read_text() == "mine"
