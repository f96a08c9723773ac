"""Engines and launchers beside the reference one: torchtitan's log, any command, Slurm, several hosts."""

import json
import os
import shutil
import subprocess
import sys
import threading

import pytest

from meshplan.errors import InputError
from meshplan.measure.engines import CommandEngine, TorchtitanEngine, titan_steps
from meshplan.measure.failures import MachineError
from meshplan.measure.launch import Ended, LocalLauncher, PlainLauncher
from meshplan.measure.slurm import SlurmLauncher
from meshplan.measure.specs import RunSpec
from meshplan.measure.summary import summarise
from meshplan.measure.sweep import Sweep, _announce, follow
from meshplan.model.load import load_model
from meshplan.plan.plans import Plan
from meshplan.plan.workload import Workload
from meshplan.report.measure_html import measured_html
from meshplan.report.measure_view import measured_data


def spec(**more):
    values = {
        "model": load_model("llama-3.1-8b"), "workload": Workload(seq=4096, gbs=16), "plan": Plan(tp=2),
        "label": "tp2,zero1", "steps": 2, "warmup": 1, "check": False, **more,
    }  # fmt: skip
    return RunSpec(**values)


def titan_line(step, tps):
    return (
        f"[rank0]:[titan] 2026-01-01 00:00:0{step} - root - INFO - \x1b[31mstep: {step:2}  "
        "\x1b[32mloss:  7.97741"
        f"  \x1b[38;2;180;60;0mgrad_norm:  1.3216  \x1b[38;2;54;234;195mmemory: 40.12GiB(50.73%)  "
        f"\x1b[34mtps: {tps:,}  \x1b[36mtflops: 200.00  \x1b[35mmfu: 20.22%\x1b[39m"
    )


def test_steps_are_read_from_torchtitans_log():
    # tokens of a step over ranks and tokens a second of one: 65,536 / (2 · 16,384) = 2 s
    log = "\n".join(titan_line(s, t) for s, t in ((1, 400), (2, 16384), (2, 15000), (3, 32768), (4, 10)))
    found = titan_steps(log, spec())
    assert found.steps_s == pytest.approx(
        (65536 / 30000, 1.0)
    )  # the slower rank; warm-up and profile left out
    assert found.memory[0]["reserved_bytes"] == pytest.approx(40.12 * 2**30, abs=1)
    assert "no lines of steps" in titan_steps("loss: 3", spec())


def test_torchtitan_is_launched_with_what_the_export_writes(tmp_path):
    """A stand-in for the package, which needs GPUs: it takes the flags and writes the log."""
    package = tmp_path / "torchtitan"
    package.mkdir()
    (package / "__init__.py").write_text("")
    lines = [titan_line(s, 32768) for s in range(1, 8)]
    (package / "train.py").write_text(
        "import sys, meshplan_titan\n"
        "assert meshplan_titan.DEGREE == 2\n"
        "assert sys.argv[sys.argv.index('--training.steps') + 1] == '7'\n"
        "assert '--training.seed' in sys.argv\n"
        f"print({chr(10).join(lines)!r})\n"
    )
    engine = TorchtitanEngine(
        files=lambda s: {"meshplan_titan.py": f"DEGREE = {s.plan.tp}"}, extra=("--training.seed", "1")
    )

    class Plain(PlainLauncher):
        def run(self, processes, program, log, *, limit_s):
            env = {**self.env, "PYTHONPATH": f"{tmp_path}:{self.env['PYTHONPATH']}"}
            return PlainLauncher(env=env).run(
                processes, [sys.executable, "-m", *program], log, limit_s=limit_s
            )

    made = Sweep(
        specs=(spec(engine="torchtitan"),), folder=tmp_path / "runs", launcher=Plain(), rounds=1,
        limit_s=60.0, engine=engine,
    )  # fmt: skip
    (result,) = made.run(lambda _: None)
    assert (result.outcome, result.engine, result.reason) == ("ok", "torchtitan", "")
    assert result.steps_s == pytest.approx((1.0, 1.0))


WRITES = """
import json, sys
folder, plan = sys.argv[1:]
for rank, ms in ((0, 90), (1, 100)):
    events = []
    for i in range(3):
        events.append({"ph": "X", "name": f"ProfilerStep#{i}", "cat": "user_annotation", "ts": i * 2e5,
                       "dur": ms * 1e3, "pid": 1, "tid": 1})
        events.append({"ph": "X", "name": "aten::mm", "cat": "cpu_op", "ts": i * 2e5, "dur": 6e4,
                       "pid": 1, "tid": 1})
    data = {"distributedInfo": {"backend": "gloo", "rank": rank, "world_size": 2}, "traceEvents": events}
    json.dump(data, open(f"{folder}/trace-{rank}.json", "w"))
"""


def sweep(tmp_path, line, **more):
    engine = CommandEngine(line=line, **more)
    return Sweep(
        specs=(spec(engine="command", command=line),), folder=tmp_path / "runs", launcher=PlainLauncher(),
        rounds=1, limit_s=30.0, engine=engine,
    )  # fmt: skip


def test_any_command_is_measured_by_its_traces(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(WRITES)
    made = sweep(tmp_path, f"{sys.executable} {program} {{folder}} {{plan}}")
    (result,) = made.run(lambda _: None)
    assert (result.outcome, result.engine) == ("ok", "command")
    assert result.steps_s == pytest.approx((0.1, 0.1, 0.1))
    data = measured_data(summarise([result]), [result], {}, made.folder)
    assert data["plans"][0]["parts"]["matmul"] == pytest.approx(0.06 * 0.1 / 0.095, rel=0.01)
    page = measured_html(data)
    assert "tp2,zero1" in page
    assert "<script" not in page


def test_a_command_without_traces_is_a_result(tmp_path):
    (result,) = sweep(tmp_path, "true").run(lambda _: None)
    assert result.outcome == "crash"
    assert "left no traces" in result.reason
    (result,) = sweep(tmp_path / "b", "sh -c 'echo Error: no room; exit 4'").run(lambda _: None)
    assert result.outcome == "crash"
    assert "code 4" in result.reason
    assert "no room" in result.reason


def test_a_command_is_filled_in_or_refused(tmp_path):
    engine = CommandEngine(line="train --tp {tp} --pp {pp} --out '{folder}/x y' --n {ranks}")
    words = engine.program(spec(), tmp_path)
    assert words == ["train", "--tp", "2", "--pp", "1", "--out", f"{tmp_path}/x y", "--n", "2"]
    with pytest.raises(InputError, match="known are"):
        CommandEngine(line="train {nope}").program(spec(), tmp_path)


# ── Slurm ──────────────────────────────────────────────────────────────────────────────────────────


def fake_slurm(folder, state="COMPLETED", code=0):
    folder.mkdir()
    scripts = {
        "sbatch": f"cp $2 {folder}/submitted\necho 42",
        "scontrol": f'echo "JobId=42 JobName=meshplan JobState={state} ExitCode={code}:0"',
        "scancel": f"echo $1 > {folder}/cancelled",
    }
    for name, body in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def test_a_job_is_submitted_and_its_end_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", fake_slurm(tmp_path / "bin", code=3, state="FAILED"))
    launcher = SlurmLauncher(nodes=2, options=("--partition=gpu",), env={"A": "b c"})
    log = tmp_path / "log.txt"
    ended = launcher.run(16, ["meshplan.measure.worker", "x"], log, limit_s=600)
    assert ended.code == 3
    text = (tmp_path / "bin" / "submitted").read_text()
    for line in (
        "#SBATCH --nodes=2", "#SBATCH --partition=gpu", f"#SBATCH --output={log}", "#SBATCH --time=13",
        "export A='b c'",
    ):  # fmt: skip
        assert line in text.splitlines()
    assert "--nnodes 2 --nproc-per-node 8" in text
    assert text.splitlines()[-1].endswith("-m meshplan.measure.worker x")
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0


def test_a_job_that_does_not_end_is_cancelled(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", fake_slurm(tmp_path / "bin", state="RUNNING"))
    ended = SlurmLauncher().run(1, ["x"], tmp_path / "log.txt", limit_s=0.2)
    assert ended.code is None
    assert (tmp_path / "bin" / "cancelled").read_text() == "42\n"


def test_without_slurm_or_with_odd_ranks_it_is_said(tmp_path, monkeypatch):
    with pytest.raises(MachineError, match="7 ranks do not divide over 2 nodes"):
        SlurmLauncher(nodes=2).script(7, ["x"], tmp_path / "log", limit_s=1)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MachineError, match="'sbatch' is not on this machine"):
        SlurmLauncher().run(1, ["x"], tmp_path / "log.txt", limit_s=1)


def slurm_answers():
    if shutil.which("sinfo") is None:
        return False
    try:
        done = subprocess.run(
            ["sinfo", "-h", "-o", "%T"], capture_output=True, text=True, timeout=10, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0 and "idle" in done.stdout


def test_a_real_slurm_runs_a_job_and_gives_its_code(tmp_path):
    if not slurm_answers():
        pytest.skip("NO SLURM ANSWERS HERE: real jobs are not tested (Debian: slurmctld, slurmd, munge)")
    pytest.importorskip("torch", reason="torch is not installed: pip install 'meshplan[measure]'")
    ended = SlurmLauncher().run(1, ["json.tool", "--help"], tmp_path / "log.txt", limit_s=120)
    assert ended.code == 0, (tmp_path / "log.txt").read_text()
    bad = SlurmLauncher().run(1, ["no_such_module"], tmp_path / "bad.txt", limit_s=120)
    assert bad.code not in (0, None)
    assert "no_such_module" in (tmp_path / "bad.txt").read_text()


# ── several hosts ──────────────────────────────────────────────────────────────────────────────────


class Recorder(LocalLauncher):
    """A launcher that only notes what it would run."""

    ran: list = []  # noqa: RUF012

    def run(self, processes, program, log, *, limit_s):
        self.ran.append((processes, program, log.name))
        return Ended(code=0, seconds=0.0)


def test_another_host_runs_its_part_of_each_run_until_the_end(tmp_path):
    Recorder.ran.clear()
    for name in ("0-a", "1-a"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "command.txt").write_text("x")
    host = threading.Thread(
        target=follow, args=(tmp_path, Recorder(nodes=2, node_rank=1, address="h:1"), lambda _: None),
        kwargs={"limit_s": 120.0},
    )  # fmt: skip
    host.start()
    for i, name in enumerate(("0-a", "1-a")):
        _announce(tmp_path, {"run": name, "ranks": 4})
        for _ in range(2400):
            if len(Recorder.ran) > i:
                break
            threading.Event().wait(0.05)
    _announce(tmp_path, {"end": True})
    host.join(timeout=120)
    assert not host.is_alive()
    assert Recorder.ran == [
        (4, ["meshplan.measure.worker", str(tmp_path / name)], "log-1.txt") for name in ("0-a", "1-a")
    ]


def test_a_first_host_that_says_nothing_is_given_up(tmp_path, monkeypatch):
    from meshplan.measure import sweep as module

    monkeypatch.setattr(module, "PATIENCE_S", 0.2)
    with pytest.raises(MachineError, match="announced no run"):
        follow(tmp_path, Recorder(nodes=2, node_rank=1, address="h:1"), lambda _: None, limit_s=0.1)


# ── the command line ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--engine", "command"), "needs --command"),
        (("--engine", "command", "--command", "x", "--launcher", "slurm"), "launches by itself"),
        (("--nodes", "2", "--engine", "command", "--command", "x"), "needs --address"),
        (("--node-rank", "5", "--engine", "command", "--command", "x"), "none of --nodes 1"),
    ],
)
def test_what_does_not_go_together_is_refused(args, words, tmp_path, capsys):
    from meshplan.cli.app import run

    line = ["measure", "llama-3.1-8b", "--plan", "dp2", "--seq", "64", "--gbs", "2", *args]
    assert run([*line, "--out", str(tmp_path / "runs")]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_the_command_line_measures_a_command_without_torch(tmp_path, capsys):
    from meshplan.cli.app import run

    program = tmp_path / "train.py"
    program.write_text(WRITES)
    line = [
        "measure", "llama-3.1-8b", "--plan", "tp2", "--seq", "64", "--gbs", "2", "--rounds", "2", "--json",
        "--engine", "command", f"--command={sys.executable} {program} {{folder}} {{plan}}",
        "--out", str(tmp_path / "runs"), "--html", str(tmp_path / "m.html"),
    ]  # fmt: skip
    assert run(line) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["plans"][0]["rounds"] == 2
    assert "tp2" in (tmp_path / "m.html").read_text()
