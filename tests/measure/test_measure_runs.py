"""``meshplan measure`` on two gloo processes, as a user runs it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'meshplan[measure]'")
pytestmark = pytest.mark.oracle

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "max_position_embeddings": 512,
}


def command(tmp_path, *more):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return [
        sys.executable,
        "-m",
        "meshplan",
        "measure",
        str(tmp_path / "config.json"),
        "--seq",
        "64",
        "--gbs",
        "4",
        "--rounds",
        "1",
        "--out",
        str(tmp_path / "runs"),
        *more,
    ]


def test_two_plans_are_measured_checked_profiled_and_not_run_again(tmp_path):
    line = command(tmp_path, "--plan", "dp2", "--plan", "pp2", "--steps", "3", "--json")
    done = subprocess.run(line, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert {p["label"] for p in data["plans"]} == {"dp2,zero3", "pp2,1f1b,zero3"}
    for p in data["plans"]:
        assert "gradients differ by at most" in p["agreement"]
        assert sum(p["parts"].values()) == pytest.approx(p["step_s"])
        assert p["low"] <= p["step_s"] <= p["high"]
    assert sent_in_a_step(tmp_path / "runs", "pp2") == said_of_a_stage(tmp_path / "config.json")
    again = subprocess.run(line, capture_output=True, text=True, timeout=240, check=False)
    assert json.loads(again.stdout)["plans"] == data["plans"]
    text = subprocess.run(line[:-1], capture_output=True, text=True, timeout=240, check=False)
    assert "2 of 2 runs are there already" in text.stderr


def sent_in_a_step(folder, label):
    """Calls and bytes of what the first stage sent and got in a profiled step, from its trace."""
    from meshplan.trace.breakdown import read_traces

    (spec,) = [p for p in folder.glob("**/run.json") if json.loads(p.read_text())["label"].startswith(label)][
        :1
    ]
    found = read_traces(sorted(spec.parent.glob("trace-*.json.gz")))
    steps = len({s.step for s in found.steps})
    return {
        row.call.kind: (row.calls / steps, row.calls * row.call.size_bytes / steps)
        for row in found.calls
        if row.rank == 0 and row.call.dim == "pp" and row.call.kind in ("send", "recv")
    }


def said_of_a_stage(config):
    from meshplan.measure.memory.volumes import volumes
    from meshplan.model.load import load_model
    from meshplan.plan.kinds import Sharding
    from meshplan.plan.plans import Plan
    from meshplan.plan.workload import Workload

    work = Workload(seq=64, gbs=4, precision="fp32")
    plan = Plan(pp=2, sharding=Sharding.ZERO3)
    said = volumes(load_model(str(config)), work, plan, micro_batches=4)
    return {v.kind: (4, v.size_bytes) for v in said if v.dim == "pp"}


def ranks_of(folder):
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"meshplan.measure.worker" in words and str(folder).encode() in b" ".join(words):
                found.append((int(entry.name), b"torch.distributed.run" in words))
    return found


def wait_for(what, patience=240.0):
    until = time.monotonic() + patience
    while time.monotonic() < until:
        if found := what():
            return found
        time.sleep(0.2)
    raise AssertionError("it did not come to that")


def test_a_killed_rank_is_a_result_and_nothing_is_left(tmp_path):
    line = command(tmp_path, "--plan", "dp2", "--steps", "100000", "--no-check")
    run = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    folder = (tmp_path / "runs").resolve()
    workers = wait_for(lambda: [p for p, launcher in ranks_of(folder) if not launcher][1:])
    time.sleep(1.0)
    os.kill(workers[0], signal.SIGKILL)
    _, told = run.communicate(timeout=240)
    assert run.returncode == 3, told
    (result,) = [json.loads(x) for x in (tmp_path / "runs" / "results.jsonl").read_text().splitlines()]
    assert result["outcome"] == "crash"
    assert not ranks_of(folder)


def test_a_killed_command_leaves_no_rank(tmp_path):
    line = command(tmp_path, "--plan", "dp2", "--steps", "100000", "--no-check")
    run = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    folder = (tmp_path / "runs").resolve()
    wait_for(lambda: [p for p, launcher in ranks_of(folder) if not launcher][1:])
    run.kill()
    run.wait()
    wait_for(lambda: not ranks_of(folder), patience=240)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--plan", "tp4"), "KV heads"),
        (("--plan", "tp16"), "tp"),
        ((), "--top with a cluster"),
        (("--plan", "dp3"), "gbs"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_starts(tmp_path, args, words):
    done = subprocess.run(command(tmp_path, *args), capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert not (tmp_path / "runs").exists()
