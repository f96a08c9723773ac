"""Job and cluster files: one file with the whole question; flags win; contradictions are said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshplan.cli import main

CLUSTER_FILE = Path(__file__).parents[2] / "examples" / "cluster.yaml"

JOB = """\
model: llama-3.1-70b
cluster:
  gpu: h100-sxm
  gpus: 64
workload:
  seq: 8192
  gbs: 512
space:
  tp: [2, 4]
  mbs: 1
cost_model: handbook
"""
CLUSTER = """\
gpu: h100-sxm
gpus: 128
tiers:
  - {span: 8, bandwidth: 450 GB/s}
  - {bandwidth: 400 Gb/s}
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    return file


def answer(capsys: pytest.CaptureFixture[str], argv: list[str]) -> dict[str, Any]:
    assert main(["plan", *argv, "--json", "--top", "1000"]) == 0
    data: dict[str, Any] = json.loads(capsys.readouterr().out)
    return data


def test_one_file_holds_the_whole_question(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = answer(capsys, [str(job)])
    flags = ["llama-3.1-70b", "--gpu", "h100-sxm", "--gpus", "64", "--seq", "8192", "--gbs", "512"]
    same = answer(capsys, [*flags, "--tp", "2,4", "--mbs", "1", "--cost-model", "handbook"])
    data["cluster"].pop("name")
    same["cluster"].pop("name")
    assert data == same


def test_toml_reads_the_same(job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    toml = tmp_path / "job.toml"
    toml.write_text(
        'model = "llama-3.1-70b"\ncost_model = "handbook"\n[cluster]\ngpu = "h100-sxm"\ngpus = 64\n'
        "[workload]\nseq = 8192\ngbs = 512\n[space]\ntp = [2, 4]\nmbs = 1\n"
    )
    assert answer(capsys, [str(toml)])["plans"] == answer(capsys, [str(job)])["plans"]


def test_flags_win(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = answer(capsys, [str(job), "--gpus", "128", "--seq", "4096", "--tp", "8", "--nic", "25 GB/s"])
    assert data["cluster"]["gpus"] == 128
    assert data["cluster"]["tiers"][-1]["bandwidth_bytes_per_s"] == 25e9
    assert data["workload"]["seq"] == 4096
    assert data["workload"]["gbs"] == 512
    assert {plan["tp"] for plan in data["plans"]} == {8}
    assert {plan["mbs"] for plan in data["plans"]} == {1}


def test_space_takes_every_dimension(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.yaml"
    space = (
        "space:\n  tp: 4\n  cp: [1, 2]\n  pp: 2,4\n  dp: [2, 4]\n  ep: 1\n  etp: 1\n  vp: 1\n  mbs: [1, 2]\n"
        "  schedule: 1f1b\n  sharding: [zero1]\n  recompute: [auto, none, 4]\n  order: tp-cp-dp-pp\n"
    )
    file.write_text(JOB[: JOB.index("space:")] + space + "cost_model: handbook\n")
    plans = answer(capsys, [str(file)])["plans"]
    assert {plan["pp"] for plan in plans} <= {2, 4}
    assert 4 in {plan["recomputed_layers"] for plan in plans}


def test_paths_are_from_the_job_files_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    (folder / "ours.yaml").write_text(CLUSTER)
    (folder / "config.json").write_text(
        json.dumps({
            "model_type": "llama", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
            "num_key_value_heads": 8, "intermediate_size": 2048, "vocab_size": 32000,
        })
    )  # fmt: skip
    file = folder / "job.yaml"
    file.write_text("model: ./config.json\ncluster: ours.yaml\nworkload: {seq: 4096, gbs: 256}\n")
    data = answer(capsys, [str(file), "--cost-model", "handbook"])
    assert data["model"]["hidden"] == 512
    assert data["cluster"]["gpus"] == 128
    assert data["cluster"]["name"] == "ours"


def test_cluster_file_with_another_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "ours.yaml"
    file.write_text(CLUSTER)
    argv = [
        "llama-3.1-8b",
        "--cluster",
        str(file),
        "--seq",
        "8192",
        "--gbs",
        "64",
        "--cost-model",
        "handbook",
    ]
    assert answer(capsys, argv)["cluster"]["gpus"] == 128
    assert answer(capsys, [*argv, "--gpus", "16"])["cluster"]["gpus"] == 16


# change to the job file, flags, words of the sentence
REFUSED = [
    (("model: llama-3.1-70b\n", ""), [], "model is missing"),
    (("model: llama-3.1-70b", "model: [a]"), [], "model must be a name"),
    (("model:", "modle:"), [], "unknown key 'modle'; did you mean model?"),
    (("seq: 8192", "sequence: 8192"), [], "workload: unknown key 'sequence'; did you mean seq?"),
    (("seq: 8192", "seq: 8k"), [], "workload.seq must be a whole number, not '8k'"),
    (("seq: 8192", "seq: 8192.5"), [], "workload.seq must be a number or a name, not '8192.5'"),
    (("seq: 8192", "seq: .nan"), [], "workload.seq must be a number or a name, not 'nan'"),
    (("seq: 8192", "seq: -1"), [], "workload.seq must be from 1 to 1,000,000,000, not '-1'"),
    (("seq: 8192", "seq: true"), [], "workload.seq must be a number or a name, not 'True'"),
    (("  seq: 8192\n", ""), [], "--seq is missing (or workload in job file"),
    (("gbs: 512", "gbs: [512]"), [], "workload.gbs must be a number or a name"),
    (("tp: [2, 4]", "tp: []"), [], "space.tp is an empty list"),
    (("tp: [2, 4]", "tp: [2, four]"), [], "space.tp must be a whole number, not 'four'"),
    (("tp: [2, 4]", "tensor: 4"), [], "space: unknown key 'tensor'"),
    (("space:\n  tp: [2, 4]\n  mbs: 1", "space: 4"), [], "space must be a table, not '4'"),
    (("gpu: h100-sxm", "gpu: h100-smx"), [], "unknown GPU 'h100-smx'; did you mean"),
    (("gpus: 64", "gpus: 64 GPUs"), [], "cluster: gpus must be a whole number"),
    (("gpus: 64", "gpus: 64\n  nodes: 8"), [], "cluster: unknown key 'nodes'"),
    (("gpus: 64", "gpus: 64\n  nic: 400"), [], "'400' has no unit"),
    (("cost_model: handbook", "cost_model: book"), [], "unknown cost model 'book'"),
    (("  gpus: 64", "  gpus: 64\n  gpus: 128"), [], "job file"),
    (("model: llama", "model: {llama"), [], "job file"),
    (
        ("  gpus: 64", "  gpus: 64\n  tiers: [{bandwidth: 450 GB/s}]"),
        ["--nic", "50 GB/s"],
        "--nic contradicts the tiers of job file",
    ),
    (
        ("cluster:\n  gpu: h100-sxm\n  gpus: 64", f"cluster: {CLUSTER_FILE}"),
        ["--gpu", "h200"],
        "--gpu contradicts the cluster file",
    ),
]


@pytest.mark.parametrize(("change", "flags", "words"), REFUSED, ids=[words[:40] for *_, words in REFUSED])
def test_refused(
    change: tuple[str, str], flags: list[str], words: str, job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert change[0] in JOB
    job.write_text(JOB.replace(*change))
    assert main(["plan", str(job), *flags]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert words in captured.err


def test_a_binary_job_file(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job.write_bytes(b"\xff\x00\xfe" * 50)
    assert main(["plan", str(job)]) == 2
    assert "is not UTF-8 text" in capsys.readouterr().err
