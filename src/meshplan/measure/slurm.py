"""Runs as Slurm jobs: a generated batch script, submitted, watched, cancelled; no daemon of our own."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep

from meshplan.errors import InputError
from meshplan.measure.failures import MachineError, writing
from meshplan.measure.launch import Ended

POLL_S = 1.0
PORT = 29512
QUEUE_S = 24 * 3600.0
"""A job may wait this long for its turn; only its run counts against the time limit."""
RUNNING = ("RUNNING", "COMPLETING", "STAGE_OUT")
WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "SUSPENDED", "RESV_DEL_HOLD")


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmLauncher:
    """``sbatch`` for each run; the folder must be one that the nodes see too.

    ``options``: what goes to ``sbatch`` besides (``--partition=…``, ``--account=…``, ``--gpus-per-node=8``).
    """

    nodes: int = 1
    options: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _options(self.options)

    def command(self, processes: int, program: Sequence[str]) -> list[str]:
        """The line that submits."""
        return ["sbatch", "--parsable", "job.sbatch"]

    def script(self, processes: int, program: Sequence[str], log: Path, *, limit_s: float) -> str:
        """The batch script: one launcher a node, which meet at the first node."""
        if processes % self.nodes:
            raise MachineError(f"{processes} ranks do not divide over {self.nodes} nodes")
        minutes = int(limit_s // 60) + 3
        variables = {"MESHPLAN_TIME_LIMIT": str(limit_s), "PYTHONUNBUFFERED": "1", **self.env}
        torchrun = [
            sys.executable, "-m", "torch.distributed.run", "--nnodes", str(self.nodes), "--nproc-per-node",
            str(processes // self.nodes), "--max-restarts", "0", "--rdzv-backend", "c10d",
        ]  # fmt: skip
        lines = [
            "#!/usr/bin/env bash",
            "#SBATCH --job-name=meshplan",
            f"#SBATCH --nodes={self.nodes}",
            "#SBATCH --ntasks-per-node=1",
            f"#SBATCH --output={log.resolve()}",
            "#SBATCH --error=" + str(log.resolve()),
            f"#SBATCH --time={minutes}",
            *(f"#SBATCH {o}" for o in _options(self.options)),
            "set -euo pipefail",
            *(f"export {k}={shlex.quote(v)}" for k, v in variables.items()),
            'export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" TOKENIZERS_PARALLELISM=false',
            'first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            f'exec srun --kill-on-bad-exit=1 {shlex.join(torchrun)} --rdzv-id "$SLURM_JOB_ID"'
            f' --rdzv-endpoint "$first:{PORT}" -m {shlex.join(program)}',
        ]
        return "\n".join(lines) + "\n"

    def run(self, processes: int, program: Sequence[str], log: Path, *, limit_s: float) -> Ended:
        """Submit and wait; the job is cancelled when the limit is up or this process is interrupted. Raises
        ``MachineError`` where there is no Slurm, or it does not take the job."""
        if shutil.which("sbatch") is None:
            raise MachineError("Slurm's 'sbatch' is not on this machine; use --launcher local")
        script = log.with_name("job.sbatch")
        with writing(script):
            script.write_text(self.script(processes, program, log, limit_s=limit_s))
        told = _slurm("sbatch", "--parsable", str(script))
        job = told.split(";")[0].strip()
        submitted, started = monotonic(), 0.0
        try:
            while True:
                state, code = _state(job)
                if state in RUNNING and not started:
                    started = monotonic()
                if state not in (*RUNNING, *WAITING):
                    seconds = monotonic() - (started or submitted)
                    return Ended(
                        code=None if state == "TIMEOUT" else (code or int(state != "COMPLETED")),
                        seconds=seconds,
                    )
                if (
                    started and monotonic() - started > limit_s
                ) or monotonic() - submitted > QUEUE_S + limit_s:
                    _cancel(job)
                    return Ended(code=None, seconds=monotonic() - (started or submitted))
                sleep(POLL_S)
        except BaseException:
            _cancel(job)
            raise


def _options(words: Sequence[str]) -> list[str]:
    """One option a line, with the value that follows it. Raises ``InputError`` where no option begins."""
    if words and not words[0].startswith("-"):
        raise InputError(f"--sbatch takes sbatch's own options, --partition={words[0]} say, not {words[0]}")
    lines: list[str] = []
    for word in words:
        if word.startswith("-"):
            lines.append(shlex.quote(word))
        else:
            lines[-1] += f" {shlex.quote(word)}"
    return lines


def _state(job: str) -> tuple[str, int]:
    """State and exit code of a job."""
    text = _slurm("scontrol", "show", "job", job, "-o")
    words = dict(w.split("=", 1) for w in text.split() if "=" in w)
    return words.get("JobState", "UNKNOWN"), int(words.get("ExitCode", "0:0").split(":")[0])


def _cancel(job: str) -> None:
    subprocess.run(["scancel", job], capture_output=True, check=False, timeout=30)


def _slurm(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except subprocess.TimeoutExpired:
        raise MachineError(f"Slurm does not answer: '{command[0]}' took a minute") from None
    if done.returncode:
        why = (done.stderr or done.stdout).strip().splitlines()
        raise MachineError(f"Slurm's '{command[0]}' failed: {why[-1] if why else done.returncode}")
    return done.stdout
