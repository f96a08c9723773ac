"""Sweeps, results and processes, without torch: launchers and programs that do as they are told."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from meshplan.errors import InputError
from meshplan.measure.failures import MachineError
from meshplan.measure.launch import Ended, LocalLauncher, watch
from meshplan.measure.results import Result, append, read
from meshplan.measure.specs import RunSpec, spec_data, spec_of
from meshplan.measure.summary import summarise
from meshplan.measure.sweep import Sweep
from meshplan.model.load import load_model
from meshplan.plan.kinds import CpKind, Recompute, Schedule, Sharding
from meshplan.plan.plans import Plan
from meshplan.plan.workload import Workload

MODEL = load_model("mixtral-8x7b")
WORK = Workload(seq=128, gbs=8, precision="fp32")


def spec(**plan):
    label = ",".join(f"{k}{v}" for k, v in plan.items())
    return RunSpec(model=MODEL, workload=WORK, plan=Plan(**plan), label=label, check=False)


class Told:
    """Plays what ranks do: ``does[label]`` is a list of step times, or what fails."""

    def __init__(self, does):
        self.does, self.ran = does, []

    def command(self, processes, program):
        return ["torchrun", str(processes), *program]

    def run(self, processes, program, log, *, limit_s):
        folder = Path(program[-1])
        label = json.loads((folder / "run.json").read_text())["label"]
        self.ran.append(label)
        log.write_text("exitcode  : -9\n")
        what = self.does[label]
        if what == "hang":
            return Ended(code=None, seconds=limit_s)
        if what == "killed":
            return Ended(code=1, seconds=1.0)
        if isinstance(what, str):
            failed = {"kind": what, "reason": f"it was {what}", "trace": ""}
            (folder / "failed-1.json").write_text(json.dumps(failed))
            (folder / "failed-0.json").write_text(json.dumps({**failed, "kind": "crash"}))
            return Ended(code=1, seconds=1.0)
        for r in range(processes):
            ranks = {
                "rank": r,
                "host": "a",
                "agreement": "",
                "steps_s": what,
                "memory": {"process_bytes": 7 + r},
            }
            (folder / f"rank-{r}.json").write_text(json.dumps(ranks))
        return Ended(code=0, seconds=1.0)


def sweep(tmp_path, does, rounds=2):
    specs = tuple(spec(**{label[:2]: int(label[2:])}) for label in does)
    launcher = Told(does)
    return Sweep(specs=specs, folder=tmp_path, launcher=launcher, rounds=rounds, limit_s=5), launcher


def test_specs_survive_the_manifest():
    full = RunSpec(
        model=MODEL,
        workload=WORK,
        label="x",
        order=("cp", "tp", "ep", "dp", "pp"),
        plan=Plan(
            tp=2,
            pp=2,
            vp=2,
            dp=2,
            cp_kind=CpKind.ALL_GATHER,
            schedule=Schedule.ZB_V,
            sharding=Sharding.ZERO2,
            layout=(9, 8, 8, 7),
            recompute_modules=Recompute.MLP | Recompute.CORE_ATTN,
        ),
    )
    again = spec_of(json.loads(json.dumps(spec_data(full))))
    assert again == full
    assert again.key == full.key
    assert spec(tp=2).key != spec(dp=2).key


def test_plans_run_round_robin_and_failures_are_results(tmp_path):
    does = {"tp2": [1.0, 1.1], "dp2": "oom", "pp2": "hang", "dp1": "killed", "tp1": [2.0, 2.0]}
    tried, launcher = sweep(tmp_path, does)
    results = tried.run(lambda _: None)
    # after running out of memory once it is not tried again; what hung or was killed is
    assert launcher.ran == ["tp2", "dp2", "pp2", "dp1", "tp1", "tp2", "pp2", "dp1", "tp1"]
    outcomes = {(r.label, r.outcome) for r in results}
    assert outcomes == {("tp2", "ok"), ("dp2", "oom"), ("pp2", "hang"), ("dp1", "crash"), ("tp1", "ok")}
    assert next(r.reason for r in results if r.label == "dp1").startswith("a rank was killed by signal 9")
    assert [m.label for m in summarise(results)][:2] == ["tp2", "tp1"]


def test_an_interrupted_sweep_goes_on_where_it_was(tmp_path):
    does = {"tp2": [1.0], "dp2": [2.0]}
    tried, first = sweep(tmp_path, does)
    ends = iter([None, None, KeyboardInterrupt()])
    whole = first.run

    def run(*args, **kwargs):
        if (end := next(ends)) is not None:
            raise end
        return whole(*args, **kwargs)

    first.run = run
    with pytest.raises(KeyboardInterrupt):
        tried.run(lambda _: None)
    assert len(read(tried.results)) == 2
    with tried.results.open("a") as out:  # and the machine died in the middle of a line
        out.write('{"key": "abc", "lab')
    again, second = sweep(tmp_path, does)
    results = again.run(lambda _: None)
    assert second.ran == ["tp2", "dp2"]
    assert sorted((r.label, r.round) for r in results) == [("dp2", 0), ("dp2", 1), ("tp2", 0), ("tp2", 1)]
    assert len(read(tried.results)) == 4


def test_two_sweeps_in_one_folder_are_refused(tmp_path):
    tried, _ = sweep(tmp_path, {"tp2": [1.0]})
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(MachineError, match="another measurement is running") as caught:
            tried.run(lambda _: None)
    assert caught.value.exit_code == 3


def test_a_folder_that_cannot_be_written_is_said(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    tried, _ = sweep(blocked / "runs", {"tp2": [1.0]})
    with pytest.raises(MachineError, match="cannot be written"):
        tried.run(lambda _: None)


def test_a_full_disk_is_said():
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here, so no full disk to write to")
    with pytest.raises(MachineError, match="the disk is full"):
        append(Path("/dev/full"), Result(key="k", label="l", round=0, outcome="ok"))


def test_lines_of_another_schema_are_refused(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text('{"schema_version": 99}\n')
    with pytest.raises(InputError, match="line 1 has schema '99'"):
        read(path)


def of(label, *rounds):
    return [
        Result(key=label, label=label, round=i, outcome="ok", steps_s=tuple(steps))
        for i, steps in enumerate(rounds)
    ]


def test_overlapping_intervals_are_ties_and_outliers_are_counted():
    fast = of("fast", [1.00, 1.01, 1.02, 1.00, 9.0], [1.03, 1.04, 1.05, 1.04, 1.03])
    near = of("near", [1.04, 1.05, 1.06, 1.05, 1.05], [1.08, 1.09, 1.08, 1.09, 1.08])
    slow = of("slow", [2.0, 2.0, 2.0, 2.0, 2.0], [2.01, 2.01, 2.0, 2.0, 2.0])
    found = summarise([*slow, *near, *fast])
    assert [(m.label, m.rank, m.tied) for m in found] == [
        ("fast", 1, True),
        ("near", 1, True),
        ("slow", 3, False),
    ]
    assert found[0].outliers == 1
    assert found[0].step_s == pytest.approx(1.03)


# ── processes ────────────────────────────────────────────────────────────────────────────────────

FAMILY = """
import subprocess, sys, time, pathlib
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
pathlib.Path(sys.argv[1]).write_text(str(child.pid))
time.sleep(60)
"""


def gone(pid, patience=60.0):
    until = time.monotonic() + patience
    while time.monotonic() < until:
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.05)
    return False


def test_a_run_over_its_limit_is_ended_with_its_children(tmp_path):
    pid = tmp_path / "pid"
    for limit_s in (1.5, 6, 24):  # a busy machine may need longer until the child is there
        with (tmp_path / "log").open("wb") as log:
            ended = watch([sys.executable, "-c", FAMILY, str(pid)], log, dict(os.environ), limit_s=limit_s)
        assert ended.code is None
        if pid.exists() and pid.read_text():
            break
    assert gone(int(pid.read_text()))


def test_ctrl_c_ends_the_children(tmp_path):
    pid = tmp_path / "pid"
    code = (
        "import os, sys; from meshplan.measure.launch import watch\n"
        f"watch([sys.executable, '-c', {FAMILY!r}, {str(pid)!r}], open(os.devnull, 'wb'), dict(os.environ),"
        " limit_s=60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE)
    until = time.monotonic() + 120
    while not (pid.exists() and pid.read_text()) and time.monotonic() < until:
        time.sleep(0.05)
    parent.send_signal(signal.SIGINT)
    parent.communicate(timeout=120)
    assert gone(int(pid.read_text()))


def test_a_port_in_use_is_said():
    import socket

    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        launcher = LocalLauncher(address=f"localhost:{port}")
        with pytest.raises(MachineError, match=f"port {port} is in use"):
            launcher.check()
