"""``meshplan estimate``: its JSON, its text, its exit codes and what it refuses."""

import json
import os
import subprocess
import sys

import pytest

from meshplan.cli import main

ASK = ["--gpu", "h100-sxm", "--gpus", "64", "--seq", "8192", "--gbs", "512"]
LLAMA = ["estimate", "llama-3.1-70b", *ASK]
FITS = [*LLAMA, "--tp", "8", "--pp", "4", "--recompute", "full"]


def run(capsys, *argv):
    code = main(list(argv))
    out, err = capsys.readouterr()
    return code, out, err


def test_json_has_every_key_and_parts_sum(capsys):
    code, out, err = run(capsys, *FITS, "--vp", "5", "--json")
    data = json.loads(out)
    assert code == 0
    assert err == ""
    assert {
        "schema_version", "model", "cluster", "workload", "plan", "stack", "step_s", "tokens_per_s_per_gpu",
        "mfu", "hfu", "memory_bytes", "memory_limit_bytes", "fits", "time", "hidden", "memory", "stages",
        "provenance", "assumptions",
    } <= set(data)  # fmt: skip
    assert sum(data["time"].values()) == pytest.approx(data["step_s"], rel=1e-9)
    assert sum(data["memory"].values()) == pytest.approx(data["memory_bytes"], rel=1e-9)
    assert max(sum(s["memory"].values()) for s in data["stages"]) == pytest.approx(data["memory_bytes"])
    assert data["fits"] is (data["memory_bytes"] <= data["memory_limit_bytes"])
    assert data["tokens_per_s_per_gpu"] == pytest.approx(8192 * 512 / 64 / data["step_s"])
    plan = data["plan"]
    assert (plan["dp"], plan["schedule"], plan["sharding"], plan["micro_batches"]) == (
        2, "interleaved", "zero1", 256,
    )  # fmt: skip
    assert sum(stage["ranks"] for stage in data["stages"]) == 4
    assert {term["provenance"] for term in data["provenance"]} <= {
        "measured", "fitted", "datasheet", "assumed", "counted",
    }  # fmt: skip


def test_mfu_and_hfu_against_hand_arithmetic(capsys):
    _, out, _ = run(capsys, *FITS, "--json")
    data = json.loads(out)
    per_token = 449e9  # physics of the same model and sequence: GFLOP a token, causal
    useful = per_token * 8192 * 512 / (data["step_s"] * 64 * 989.4e12)
    assert data["mfu"] == pytest.approx(useful, rel=0.005)
    # Every layer's forward pass again: a third more, but for the head (3 · 2 · 8,192 · 128,256 FLOP).
    head = 6 * 8192 * 128256
    assert data["hfu"] / data["mfu"] == pytest.approx(1 + (per_token - head) / 3 / per_token, rel=0.005)


def test_nothing_recomputed_means_hfu_is_mfu(capsys):
    _, out, _ = run(capsys, *LLAMA, "--tp", "8", "--pp", "8", "--json")
    data = json.loads(out)
    assert data["hfu"] == pytest.approx(data["mfu"])


@pytest.mark.parametrize(
    ("detail", "there", "not_there"),
    [
        ("time", ["one step:", "matmul"], ["memory of the fullest", "what the numbers rest on"]),
        ("memory", ["memory of the fullest", "pipeline ranks"], ["one step:"]),
        ("all", ["one step:", "pipeline ranks", "aiconfigurator", "left out:"], []),
    ],
)
def test_detail(capsys, detail, there, not_there):
    code, out, _ = run(capsys, *FITS, "--detail", detail)
    assert code == 0
    assert all(text in out for text in there)
    assert not any(text in out for text in not_there)


def test_a_plan_that_does_not_fit_says_by_how_much(capsys):
    code, out, err = run(capsys, "estimate", "llama-3.1-70b", *ASK)
    assert code == 1
    assert "DOES NOT FIT" in out
    assert err.startswith("error: the plan does not fit: ")
    assert "GiB more than the 79.1 GiB there are" in err
    code, out, err = run(capsys, "estimate", "llama-3.1-70b", *ASK, "--json")
    assert (code, err) == (1, "")
    assert json.loads(out)["fits"] is False


def test_layers_that_do_not_divide_get_an_uneven_layout(capsys):
    ask = ["--gpu", "h100-sxm", "--gpus", "8192", "--seq", "8192", "--gbs", "2048"]
    _, out, _ = run(capsys, "estimate", "llama-3.1-405b", *ask, "--tp", "8", "--pp", "16", "--json")
    data = json.loads(out)
    assert data["plan"]["layout"] == [7, *[8] * 14, 7]
    assert [(s["first_rank"], s["ranks"], s["layers"]) for s in data["stages"]] == [
        (0, 1, 7), (1, 14, 8), (15, 1, 7),
    ]  # fmt: skip


def test_layouts_as_people_write_them(capsys):
    for text in ("9,11,11,9,10,10,10,10", "Et*9|(t*11|)*2,t*9|(t*10|)*3,t*10L"):
        code, out, _ = run(capsys, *LLAMA, "--tp", "8", "--pp", "8", "--layout", text, "--json")
        assert code in (0, 1)
        assert json.loads(out)["plan"]["layout"] == [9, 11, 11, 9, 10, 10, 10, 10]


@pytest.mark.parametrize("fidelity", ["simulate", "estimate"])
def test_a_dualpipe_rank_shows_both_of_its_stages(fidelity, capsys):
    """Rank i of four holds stages i and 3 - i (DeepSeek-V3, arXiv 2412.19437, figure 5)."""
    flags = "--tp 8 --pp 4 --schedule dualpipe --layout 19,22,21,18"
    code, out, _ = run(capsys, *LLAMA, *flags.split(), "--fidelity", fidelity, "--json")
    assert code in (0, 1)
    stages = json.loads(out)["stages"]
    assert [(s["layers_of_stages"], s["layers"]) for s in stages] == [([19, 18], 37), ([22, 21], 43)]
    _, out, _ = run(capsys, *LLAMA, *flags.split(), "--fidelity", fidelity)
    table = out[out.index("pipeline ranks") :].splitlines()[1:3]
    assert [" ".join(line.replace("(embedding + head)", "").split()[:6]) for line in table] == [
        "0 and 1 more 19 +",
        "1 and 1 more 22 +",
    ]
    assert [line.split(" + ")[-1].split()[0] for line in table] == ["18", "21"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--tp 3", "tp 3 does not divide 64 GPUs; tp 2 or 4 would"),
        ("--tp 4 --dp 4", "tp 4 × cp 1 × dp 4 × pp 1 = 16, not 64 GPUs"),
        ("--pp 128", "80 layers are fewer than pp 128 × vp 1 = 128 stages"),
        ("--ep 8", "ep 8 needs experts, and llama-3.1-70b has none; ep 1 would"),
        ("--mbs 3", "gbs 512 does not divide over dp 64 × mbs 3 = 192; gbs 384 or 576 would"),
        ("--cp 64 --tp 1 --seq 4160", "seq 4,160 does not divide into 2 × cp 64 parts"),
        ("--pp 4 --schedule 1f1b --vp 2", "vp 2 needs an interleaved schedule, not 1f1b; vp 1 would"),
        ("--pp 4 --layout 20,20,20,21", "--layout has 81 layers in all, and llama-3.1-70b has 80"),
        ("--pp 4 --layout 40,40", "--layout has 2 stages, and pp 4 × vp 1 is 4"),
        ("--pp 4 --layout a,b", "--layout 'a,b' is none of even, auto, layers a stage"),
        ("--replicas 3", "replicas 3 does not divide dp 64; replicas 2 or 4 would"),
        (
            "--stack megatron-core-2052",
            "unknown stack 'megatron-core-2052'; did you mean 'megatron-core-2025'",
        ),
        ("--stack x", "unknown stack 'x'; known: "),
        ("--tp 0", "--tp must be from 1 to 10,000,000, not '0'"),
        ("--tp 8.5", "--tp must be a whole number, not '8.5'"),
        ("--schedule zigzag", "--schedule 'zigzag' is not one of gpipe, 1f1b"),
        ("--sharding fsdp", "--sharding 'fsdp' is not one of ddp, zero1, zero2, zero3"),
        ("--recompute some", "--recompute 'some' is not a number of layers or one of none, auto"),
        ("--detail everything", "--detail 'everything' is not one of summary, memory, time, all"),
        ("--precision int8", "--precision 'int8' is not one of bf16"),
    ],
)
def test_refuses_in_one_sentence(capsys, flags, words):
    ask = [f for f in LLAMA if f != "8192"] if "--seq" in flags else LLAMA
    ask = [f for f in ask if not ("--seq" in flags and f == "--seq")]
    code, out, err = run(capsys, *ask, *flags.split())
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert words in err


def test_a_gpu_without_the_precision(capsys):
    ask = ["--gpu", "a100-80gb", "--gpus", "8", "--seq", "4096", "--gbs", "8", "--precision", "fp8"]
    code, _, err = run(capsys, "estimate", "llama-3.1-8b", *ask)
    assert code == 2
    assert "fp8" in err


def test_errors_are_json_too(capsys):
    code, _, err = run(capsys, *LLAMA, "--tp", "3", "--json")
    assert code == 2
    assert json.loads(err)["exit_code"] == 2


def test_answers_in_a_few_times_what_importing_numpy_takes():
    """Processor time beside another in the same run, so that a busy machine does not decide; about 3 times on
    a quiet one (``benchmarks/bench_import.py``)."""
    command = "import sys; from meshplan.cli import main; sys.exit(main())"

    def seconds(*argv):
        before = os.times()
        subprocess.run([sys.executable, *argv], check=True, capture_output=True)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    rounds = [
        (seconds("-c", command, *FITS), seconds("-c", "import numpy"), seconds("-c", "pass")) for _ in "12345"
    ]
    own, numpy, bare = (min(column) for column in zip(*rounds, strict=True))
    assert own - bare < 10 * (numpy - bare)


def test_as_many_layers_are_recomputed_as_the_fullest_rank_was_given(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """32 layers divide over 4 ranks, and are cut unevenly all the same: the head's rank gets fewer."""
    question = ["llama-3.1-8b", "--gpu", "h100-sxm", "--gpus", "64", "--seq", "8192", "--gbs", "512"]
    question += ["--pp", "4", "--tp", "2", "--json"]
    assert main(["estimate", *question]) == 0
    layout = json.loads(capsys.readouterr().out)["plan"]["layout"]
    assert sum(layout) == 32
    assert max(layout) > 8
    for command in ("estimate", "timeline"):
        assert main([command, *question, "--recompute", str(max(layout))]) == 0
        capsys.readouterr()
        assert main([command, *question, "--recompute", str(max(layout) + 1)]) == 2
        assert f"is more than the {max(layout)} layers of the fullest" in capsys.readouterr().err
