"""What ``plan`` prices for a framework, ``export`` writes for it: nothing that it asks for is dropped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshplan.cli import main

RUN = ["qwen3-30b-a3b", "--gpu", "b200-sxm", "--gpus", "16", "--seq", "4096", "--gbs", "64"]
ALL = ("megatron", "megatron-bridge", "torchtitan", "deepspeed", "accelerate", "pytorch")
OFFERED: dict[str, tuple[list[str], tuple[str, ...]]] = {
    # Megatron-Core: optimizer_cpu_offload and optimizer_offload_fraction (arguments.py); DeepSpeed:
    # offload_optimizer with ZeRO 1 to 3, its ratio with ZeRO 3 (runtime/zero/offload_config.py); FSDP2's
    # CPUOffloadPolicy and torchtitan's enable_cpu_offload move parameters and gradients too
    "offload": (["--offload", "optimizer"], ("megatron", "megatron-bridge", "deepspeed")),
    "a part": (
        ["--offload", "optimizer", "--offload-fraction", "0.5"],
        ("megatron", "megatron-bridge", "deepspeed"),
    ),
    # moe_expert_capacity_factor of Megatron-Core; scripts of PyTorch and DeepSpeed set their own
    "capacity": (["--capacity-factor", "1.25"], ("megatron", "megatron-bridge", "deepspeed", "pytorch")),
    # torchtitan: mixed_precision_param is bfloat16 or float32; DeepSpeed's configuration has bf16 and fp16;
    # accelerate's mixed_precision no, fp16, bf16, fp8
    "fp16": (["--precision", "fp16"], ("megatron", "megatron-bridge", "deepspeed", "accelerate", "pytorch")),
    "fp8": (
        ["--precision", "fp8"],
        ("megatron", "megatron-bridge", "torchtitan", "accelerate", "pytorch"),
    ),
    "nvfp4": (["--precision", "nvfp4"], ("megatron", "megatron-bridge", "torchtitan", "pytorch")),
}


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main([*argv])
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.parametrize("framework", ALL)
@pytest.mark.parametrize("name", OFFERED)
def test_what_is_ranked_can_be_launched_as_priced(
    name: str, framework: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags, offered = OFFERED[name]
    ask = [*RUN, *flags]
    planned, text, err = run(capsys, "plan", *ask, "--framework", framework, "--json")
    out = str(tmp_path / "launch")
    written, told, refused = run(capsys, "export", *ask, "--to", framework, "--out", out, "--json")
    sharded = ["--sharding", "zero3"] if (name, framework) == ("a part", "deepspeed") else []
    estimated, _, _ = run(capsys, "estimate", *ask, "--framework", framework, *sharded)
    if framework not in offered:
        assert (planned, written, estimated) == (2, 2, 2)
        assert "there" in refused or "FSDP2" in refused
        assert err == refused  # the same sentence
        return
    assert (planned, written) == (0, 0)
    assert estimated in (0, 1)
    best, launch = json.loads(text)["plans"][0], json.loads(told)
    for number in ("step_s", "memory_bytes"):
        assert launch["plan"][number] == pytest.approx(best[number], rel=1e-9)
    main_file = str(Path(out) / launch["main"])
    code, read, _ = run(capsys, "read", main_file, "--json", *_only_ours(framework, name))
    assert code == 0
    assert _asked(json.loads(read)["workload"]) == _asked(json.loads(text)["workload"])


def _only_ours(framework: str, name: str) -> list[str]:
    """What the user's own script sets, and no launch file holds."""
    own = name == "capacity" and framework in ("deepspeed", "pytorch")
    return ["--capacity-factor", "1.25"] if own else []


def _asked(workload: dict[str, Any]) -> dict[str, Any]:
    return {k: workload[k] for k in ("precision", "offload", "offload_fraction", "capacity_factor")}


@pytest.mark.parametrize("stack", ["torchtitan", "torchtitan-compile", "automodel", "fsdp-2024"])
@pytest.mark.parametrize(
    "command",
    [["plan"], ["estimate", "--ep", "8"], ["why"], ["why-not", "--ep", "2"], ["scale", "--gpus", "16"]],
    ids=lambda command: command[0],
)
def test_a_stack_of_fsdp_prices_no_offload_that_it_has_not(
    command: list[str], stack: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ask = [word for word in RUN if command[0] != "scale" or word not in ("--gpus", "16")]
    code, out, err = run(capsys, *command[:1], *ask, *command[1:], "--offload", "optimizer", "--stack", stack)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: stack {stack}: FSDP2 keeps weights and gradients in host memory together")


def test_host_memory_is_no_way_out_where_the_framework_has_none(capsys: pytest.CaptureFixture[str]) -> None:
    ask = ["llama-3.1-70b", "--gpu", "h100-sxm", "--gpus", "8", "--seq", "8192", "--gbs", "512"]
    _, _, err = run(capsys, "plan", *ask)
    assert "--offload optimizer (" in err
    _, _, err = run(capsys, "plan", *ask, "--framework", "torchtitan")
    assert "no plan fits 8 GPUs" in err
    assert "--offload" not in err
    run(capsys, "why-not", *ask, "--framework", "torchtitan", "--tp", "8", "--json")
    code, _, err = run(
        capsys, "plan", *RUN, "--framework", "torchtitan", "--what-if", "offload=optimizer", "--top", "1"
    )
    assert code == 2
    assert err.startswith("error: --what-if: FSDP2 keeps")


def test_the_optimizer_of_megatron_and_deepspeed_that_host_memory_holds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for flags, told in (
        (["--framework", "megatron", "--sharding", "zero3"], "which is zero1 without FSDP, not zero3"),
        (["--framework", "deepspeed", "--sharding", "ddp"], "and ddp shards none"),
        (
            ["--framework", "deepspeed", "--sharding", "zero1", "--offload-fraction", "0.5"],
            "with zero3 only, not zero1",
        ),
    ):
        for command in ("plan", "estimate"):
            code, out, err = run(capsys, command, *RUN, "--offload", "optimizer", *flags)
            assert (code, out) == (2, ""), command
            assert told in err
        code, out, _ = run(capsys, "check", *RUN, "--offload", "optimizer", *flags)
        assert code == 1
        assert told in " ".join(out.split())
