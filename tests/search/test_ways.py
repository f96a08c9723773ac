"""What is offered when no plan is left: every offer is asked again as a user would type it."""

from __future__ import annotations

import shlex

import pytest

from meshplan.cli import main

QUESTIONS = [
    "llama-3.1-8b --gpu h100-sxm --gpus 6 --gpus-per-node 6 --seq 8192 --gbs 72 --pp 6 --tp 5",
    "llama-3.1-70b --gpu h100-sxm --gpus 16 --seq 8192 --gbs 64 --tp 1 --pp 1 --sharding zero1",
    "llama-3.1-8b --gpu h100-sxm --gpus 7 --gpus-per-node 7 --seq 8192 --gbs 64 --pp 1",
    "llama-3.1-8b --gpu h100-sxm --gpus 16 --seq 8192 --gbs 64 --tp 3",
    "llama-3.1-405b --gpu h100-sxm --gpus 64 --seq 131072 --gbs 64 --cp 1",
    "mixtral-8x7b --gpu a100-80gb --gpus 16 --seq 8192 --gbs 16 --ep 3",
]


def offers(text: str) -> list[list[str]]:
    """The flags of every way in the sentence of an answer without a plan."""
    if "; otherwise " not in text:
        return []
    ways = text.split("; otherwise ")[1].split(", or ")
    return [shlex.split(way.split(" (")[0]) for way in ways]


def with_flags(line: list[str], flags: list[str]) -> list[str]:
    line, flags = list(line), list(flags)
    while flags:
        if flags[0] == "no":
            at = line.index(flags[1])
            del line[at : at + 2]
        elif flags[0] in line:
            line[line.index(flags[0]) + 1] = flags[1]
        else:
            line += flags[:2]
        del flags[:2]
    return line


@pytest.mark.parametrize("question", QUESTIONS)
def test_every_way_leaves_a_plan(question: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["plan", *question.split()]
    code = main(line)
    text = capsys.readouterr().err.splitlines()[-1]
    if code == 0:
        pytest.fail(f"there is a plan: {question}")
    found = offers(text)
    for flags in found:
        assert main([*with_flags(line, flags), "--fidelity", "estimate"]) == 0, (flags, text)
        capsys.readouterr()
    assert found or "GPUs would work" in text


def test_ways_are_as_short_as_they_can_be(capsys: pytest.CaptureFixture[str]) -> None:
    question = "llama-3.1-8b --gpu h100-sxm --gpus 16 --seq 8192 --gbs 64 --tp 3 --mbs 5"
    line = ["plan", *question.split()]
    assert main(line) == 2
    found = offers(capsys.readouterr().err)
    assert found
    assert all(len(flags) == 4 for flags in found)  # no single change is enough
    for flag in ("--tp", "--mbs"):
        assert main([*with_flags(line, ["no", flag]), "--fidelity", "estimate"]) == 2
