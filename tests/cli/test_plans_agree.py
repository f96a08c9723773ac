"""What ``plan`` ranks first is what ``check`` calls valid, ``estimate`` prices and ``timeline`` draws."""

from __future__ import annotations

import json
import re

import pytest

from meshplan.cli import main

QUESTIONS = [
    "llama-3.1-8b --gpu h100 --gpus 7 --seq 8192 --gbs 512",  # 32 layers over 7 ranks
    "llama-3.1-8b --gpu h100 --gpus 7 --seq 1 --gbs 7",  # one micro-batch
    "deepseek-v2-lite --gpu h100-sxm --gpus 16 --seq 4096 --gbs 64",  # 27 layers, experts
    "llama-3.1-70b --gpu h100-sxm --gpus 24 --seq 8192 --gbs 48 --framework megatron",
]
DEEPSEEK = "deepseek-v3 --gpu h100 --gpus 1792 --seq 4096 --gbs 15360 --pp 7 --tp 4 --ep 16 --mbs 1"
GLM = "glm-4.5-air --gpu h100-sxm --gpus 64 --seq 4096 --gbs 16 --tp 8 --pp 4 --ep 16 --mbs 2"


def asked(capsys: pytest.CaptureFixture[str], argv: list[str]) -> dict[str, object]:
    code = main([*argv, "--json"])
    out, err = capsys.readouterr()
    assert (code, err) == (0, ""), f"{' '.join(argv)}: {out}"
    found: dict[str, object] = json.loads(out)
    return found


def flags_of(plan: dict[str, object]) -> list[str]:
    degrees = ["tp", "cp", "dp", "pp", "vp", "ep", "etp", "mbs", "schedule", "sharding"]
    return [word for name in degrees for word in (f"--{name}", str(plan[name]))]


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_first_plans_are_valid_and_can_be_drawn(
    question: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = question.split()
    plans = asked(capsys, ["plan", *words, "--top", "8", "--recompute", "none"])["plans"]
    assert isinstance(plans, list)
    base = words[: words.index("--framework")] if "--framework" in words else words
    assert plans
    for plan in plans:
        flags = [*flags_of(plan), *([] if plan["sp"] else ["--no-sp"])]
        assert asked(capsys, ["check", *words, *flags])["valid"]
        asked(capsys, ["timeline", *base, *flags])


def test_check_cuts_as_plan_does(capsys: pytest.CaptureFixture[str]) -> None:
    base = DEEPSEEK.split()
    main(["estimate", *base, "--json"])  # it need not fit
    priced = json.loads(capsys.readouterr().out)["plan"]["layout"]
    found = asked(capsys, ["check", *base])
    assert found["plan"]["layout"] == priced  # type: ignore[index]
    assert sum(priced) == 61


@pytest.mark.parametrize(
    ("framework", "words"),
    [
        ("megatron", r"--decoder-first-pipeline-num-layers \d+ --decoder-last-pipeline-num-layers \d+"),
        ("megatron-bridge", r"num_layers_in_first_pipeline_stage \d+ num_layers_in_last_pipeline_stage \d+"),
        ("torchtitan", "module_fqns_per_model_part"),
    ],
)
def test_what_the_framework_must_be_told(
    framework: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """modelscope/ms-swift#5737: 46 layers over pp 4, which Megatron refuses without these flags."""
    base = GLM.split()
    assert main(["check", *base, "--framework", framework]) == 0
    assert re.search(words, " ".join(capsys.readouterr().out.split()))
    # Mindspeed's search takes even stages alone.
    assert main(["check", *base, "--framework", "mindspeed"]) == 1
    assert "error    layers-divide-pp" in capsys.readouterr().out
