"""``meshplan gpus`` as people see it."""

import json

import pytest

from meshplan.cli import main
from meshplan.cluster.presets import gpu_names


@pytest.fixture
def run(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")

    def run(*argv):
        code = main(list(argv))
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_the_list(run, monkeypatch):
    code, out, err = run("gpus")
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in lines[1 : 1 + len(gpu_names())]] == list(gpu_names())
    assert max(map(len, lines)) <= 100
    (h100,) = (line for line in lines if line.startswith("h100-sxm"))
    assert " ".join(h100.split()) == "h100-sxm 80.0 GiB 3.35 TB/s 989 1,979 – 450 GB/s × 8 50 GB/s 700 W"
    monkeypatch.setenv("COLUMNS", "60")
    assert max(map(len, run("gpus")[1].splitlines())) <= 60


def test_the_list_as_json(run):
    code, out, _ = run("gpus", "--json")
    data = json.loads(out)
    assert code == 0
    assert data["schema_version"] == 1
    assert [gpu["name"] for gpu in data["gpus"]] == list(gpu_names())


def test_one_gpu(run):
    code, out, err = run("gpus", "show", "H100 SXM")
    assert (code, err) == (0, "")
    assert out.startswith("NVIDIA H100 SXM5 80 GB (h100-sxm)\n")
    rows = {line[:20].strip(): line[20:] for line in out.splitlines()}
    assert "989 TFLOP/s" in rows["peak bf16"]
    assert "3.35 TB/s" in rows["memory bandwidth"]
    assert "https://www.nvidia.com/en-us/data-center/h100/" in out


def test_where_sources_disagree_is_said(run):
    assert "Where sources disagree" in run("gpus", "show", "ascend-910b")[1]


def test_one_gpu_as_json(run):
    code, out, _ = run("gpus", "show", "mi300x", "--json")
    data = json.loads(out)
    assert code == 0
    assert data["name"] == "mi300x"
    assert data["hbm_bytes"] == 192 * 2**30
    assert data["peak_flops"]["bf16"] == 1307e12
    assert data["scaleup_peer_bandwidth"] == 64e9
    assert data["sources"]["watts"].startswith("https://www.amd.com/")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["show", "h101"], "unknown GPU 'h101'; did you mean 'H100'?"),
        (["show"], "is missing"),
        (["show", "h100", "h200"], "unexpected argument 'h200'"),
        (["--jsn"], "unknown option --jsn"),
    ],
)
def test_what_cannot_be_is_one_sentence(run, argv, words):
    code, out, err = run("gpus", *argv)
    assert (code, out) == (2, "")
    assert words in err
    assert len(err.splitlines()) == 1
