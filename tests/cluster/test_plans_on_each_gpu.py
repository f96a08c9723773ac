"""A small model is planned on every GPU that the presets know, alone and on eight."""

import json

import pytest

from meshplan.cli import main
from meshplan.cluster.presets import gpu_names, load_gpu


@pytest.mark.parametrize("name", gpu_names())
def test_one_and_eight(name, capsys):
    precision = "bf16" if "bf16" in load_gpu(name).peak_flops else "fp16"
    flags = [
        "--gbs",
        "8",
        "--seq",
        "1024",
        "--space",
        "small",
        "--fidelity",
        "estimate",
        "--cp",
        "1",
        "--json",
    ]
    seconds = []
    for gpus in ("1", "8"):
        code = main(["plan", "gpt2", "--gpu", name, "--gpus", gpus, "--precision", precision, *flags])
        out, err = capsys.readouterr()
        assert (code, err) == (0, "")
        best = json.loads(out)["plans"][0]
        seconds.append(best["step_s"])
        assert 0 < best["mfu"] < 1
    assert seconds[1] < seconds[0]


@pytest.mark.parametrize(("name", "precision"), [("a40", "fp8"), ("t4", "bf16"), ("v100s-pcie-32gb", "bf16")])
def test_what_a_part_lacks_is_one_sentence(name, precision, capsys):
    code = main(
        [
            "plan",
            "gpt2",
            "--gpu",
            name,
            "--gpus",
            "8",
            "--precision",
            precision,
            "--gbs",
            "8",
            "--seq",
            "1024",
        ]
    )
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert f"GPU {name} has no {precision} matrix multiplication" in err
    assert len(err.splitlines()) == 1
