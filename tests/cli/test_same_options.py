"""Every command that is asked about a run takes the same options, and hands them on to what it prints."""

from __future__ import annotations

import html
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from meshplan.cli import main
from meshplan.cli.app import COMMANDS, build

QUESTION = {
    "--offload",
    "--offload-fraction",
    "--moe-imbalance",
    "--capacity-factor",
    "--precision",
    "--stack",
}
"""What the software and a step do: every command that prices a plan must be told."""
ONE_PLAN = QUESTION | {"--framework", "--order"}
SEARCH = ONE_PLAN | {"--objective", "--space"}
TAKES = {
    "plan": SEARCH, "why": SEARCH, "why-not": SEARCH, "scale": SEARCH, "export": SEARCH,
    "estimate": ONE_PLAN, "timeline": ONE_PLAN, "check": ONE_PLAN,
    "read": QUESTION,  # a launch file says its framework, its order and its plan
}  # fmt: skip
ELSEWHERE = {
    "models", "gpus", "mfu", "handbook", "mesh", "schedule", "rules", "report", "serve", "measure", "trace",
    "calibrate", "memory-check", "validate", "schema", "doctor", "completion",
}  # fmt: skip
"""Commands that price no plan of a question."""


def options_of(command: str) -> set[str]:
    """The long options of a command, from the command line itself."""
    collection = build()[command].assemble_argument_collection()
    return {name for argument in collection for name in argument.names if name.startswith("--")}


def test_every_command_is_known_here() -> None:
    assert {command.name for command in COMMANDS} == set(TAKES) | ELSEWHERE


@pytest.mark.parametrize("command", TAKES)
def test_the_same_options_everywhere(command: str) -> None:
    assert TAKES[command] <= options_of(command)


# ── one question, priced alike by all ────────────────────────────────────────────────────────────

BASE = ["mixtral-8x7b", "--gpu", "h100-sxm", "--gpus", "16", "--seq", "4096", "--gbs", "64"]
PLAN = ["--tp", "2", "--pp", "2", "--ep", "2", "--mbs", "2", "--sharding", "zero1", "--recompute", "full"]
HABITS = [
    "--moe-imbalance",
    "1.3",
    "--capacity-factor",
    "2.5",
    "--offload",
    "optimizer",
    "--offload-fraction",
    "0.5",
    "--precision",
    "fp8",
]
MORE = [*HABITS, "--stack", "megatron-bridge", "--framework", "megatron", "--order", "tp-cp-ep-pp-dp"]
JOB = """
model: mixtral-8x7b
cluster: {gpu: h100-sxm, gpus: 16}
workload:
  {seq: 4096, gbs: 64, precision: fp8, moe_imbalance: 1.3, capacity_factor: 2.5, offload: optimizer,
   offload_fraction: 0.5}
space: {order: tp-cp-ep-pp-dp}
framework: megatron
stack: megatron-bridge
"""


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    code = main([*words, "--json"])
    out, err = capsys.readouterr()
    assert code in (0, 1), f"{' '.join(words)}: {err}"
    found: dict[str, Any] = json.loads(out)
    return found


def steps(capsys: pytest.CaptureFixture[str], words: list[str]) -> dict[str, float]:
    """The step time of one plan from every command."""
    rest = ["--dp", "4", "--cp", "1", "--vp", "1", "--schedule", "1f1b", "--etp", "1"]
    key = "tp2,pp2,ep2,etp1,mbs2,cp1,vp1,1f1b,zero1,recompute=full"
    why = asked(capsys, "why", *words, "--plan", key, "--vs", "tp4,pp1")
    return {
        "plan": asked(capsys, "plan", *words, *PLAN, *rest)["plans"][0]["step_s"],
        "estimate": asked(capsys, "estimate", *words, *PLAN)["step_s"],
        "timeline": asked(capsys, "timeline", *words, *PLAN)["step_s"],
        "why": next(why[side]["step_s"] for side in "ab" if why[side]["pp"] == 2),
        "why-not": asked(capsys, "why-not", *words, *PLAN, *rest)["plan"]["step_s"],
    }


def test_flags_and_job_file_price_a_plan_alike(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(JOB)
    by_flags, by_file = steps(capsys, [*BASE, *MORE]), steps(capsys, [str(job)])
    assert by_flags == by_file
    plain = asked(capsys, "estimate", *BASE, *PLAN)["step_s"]
    assert {name: pytest.approx(step, rel=1e-12) for name, step in by_flags.items()} == dict.fromkeys(
        by_flags, by_flags["estimate"]
    )
    assert by_flags["estimate"] != plain


@pytest.mark.parametrize("i", range(0, len(MORE), 2))
def test_no_option_is_without_effect(i: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Each alone changes the price, in every command by as much."""
    flag, value = MORE[i : i + 2]
    value = "torchtitan" if flag == "--framework" else value
    if flag == "--capacity-factor":
        value = "1.5"
    alone = ["--offload", "optimizer", flag, value] if flag == "--offload-fraction" else [flag, value]
    estimate = asked(capsys, "estimate", *BASE, *PLAN, *alone)["step_s"]
    timeline = asked(capsys, "timeline", *BASE, *PLAN, *alone)["step_s"]
    assert estimate == timeline
    assert estimate != asked(capsys, "estimate", *BASE, *PLAN, *alone[:-2])["step_s"]


# ── what is printed to ask again ─────────────────────────────────────────────────────────────────

DENSE = [
    "llama-3.1-8b",
    "--gpu",
    "h100-sxm",
    "--gpus",
    "16",
    "--seq",
    "4096",
    "--gbs",
    "64",
    "--space",
    "plain",
]
MINE = "gpu: h100-sxm\ngpus: 16\ntiers:\n- {name: a, span: 4, bandwidth: 450 GB/s, latency: 3 us}\n" + (
    "- {name: b, span: 16, bandwidth: 25 GB/s, latency: 14 us}\n"
)
VARIANTS = {
    "plain": DENSE,
    "experts": [*BASE, *MORE, "--space", "plain", "--tp", "1,2"],
    "objective": [*DENSE, "--objective", "memory"],
    "stack": [*DENSE, "--stack", "torchtitan"],
    "stack of the framework": [*DENSE, "--framework", "torchtitan"],
    "own stack": [*DENSE, "--stack", "mine.toml"],
    "no ties": [*DENSE, "--no-ties"],
    "closed form": [*DENSE, "--fidelity", "estimate"],
    "even": [
        *DENSE[:3],
        "--gpus",
        "12",
        *DENSE[5:7],
        "--gbs",
        "96",
        "--gpus-per-node",
        "4",
        "--layout",
        "even",
    ],
    "pareto": [*DENSE, "--pareto"],
    "handbook": [*DENSE, "--cost-model", "handbook"],
    "network": [*DENSE, "--gpus-per-node", "4", "--nic", "100 Gb/s"],
    "cluster file": ["llama-3.1-8b", "--cluster", "mine.yaml", *DENSE[5:], "--objective", "simplicity"],
    "dimensions": [
        *DENSE[:-1],
        "full",
        "--tp",
        "2",
        "--cp-kind",
        "ulysses",
        "--sp",
        "on,off",
        "--replicas",
        "1",
    ],
}
NO_KEY = ("no ties", "closed form", "pareto")
"""What a job file has no key for."""


def ranking(capsys: pytest.CaptureFixture[str], words: list[str]) -> tuple[Any, ...]:
    found = asked(capsys, *words)
    plans = [(p["step_s"], p["memory_bytes"], p["tp"], p["pp"], p["mbs"]) for p in found["plans"]]
    return plans, found["counts"], found["stack"], found["objective"]


@pytest.mark.parametrize("name", VARIANTS)
def test_what_is_printed_to_ask_again_gives_the_same(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(MINE)
    Path("mine.toml").write_text('name = "mine"\ntitle = "Mine"\nmatmul = 0.7\n')
    question = VARIANTS[name]
    first = ranking(capsys, ["plan", *question, "--html", "report.html"])
    page = html.unescape(Path("report.html").read_text(encoding="utf-8"))
    shown = [re.findall(rf"<pre[^>]*>({start}[^<]*)</pre>", page) for start in ("meshplan", "model:")]
    (command,), (job,) = shown
    Path("job.yaml").write_text(job)
    assert ranking(capsys, shlex.split(command)[1:]) == first
    if name not in NO_KEY:
        assert ranking(capsys, ["plan", "job.yaml"]) == first
