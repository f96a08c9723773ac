"""Start one run on this machine (or across hosts), watch it, and end every process of it."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep

from meshplan.errors import InputError, shown
from meshplan.measure.failures import MachineError, writing
from meshplan.measure.meet import come, wait_for_hosts

GRACE_S = 8.0
"""Between asking processes to end and ending them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """How a launch ended; ``code`` is ``None`` where the time limit did it."""

    code: int | None
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalLauncher:
    """``torchrun`` here. Across hosts, start the same command on each with ``nodes`` and its ``node_rank``:
    they meet at ``address`` (host:port)."""

    nodes: int = 1
    node_rank: int = 0
    address: str = ""
    env: dict[str, str] = field(default_factory=dict)

    def command(self, processes: int, program: Sequence[str]) -> list[str]:
        """The command line that runs ``program`` (a module and its arguments) on ``processes`` ranks."""
        if processes % self.nodes:
            raise MachineError(f"{processes} ranks do not divide over {self.nodes} hosts")
        line = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            str(processes // self.nodes),
        ]
        if self.nodes == 1:
            line += ["--standalone"] if not self.address else self._meet()
        else:
            line += ["--nnodes", str(self.nodes), "--node-rank", str(self.node_rank), *self._meet()]
        return [*line, "--max-restarts", "0", "-m", *program]

    def __post_init__(self) -> None:
        if self.address:
            self._where()

    def _where(self) -> tuple[str, int]:
        host, _, port = self.address.rpartition(":") if ":" in self.address else (self.address, "", "29500")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise InputError(f"--address is HOST:PORT with a port up to 65535, not {shown(self.address)}")
        return host, int(port)

    def _meet(self) -> list[str]:
        host, port = self._where()
        return ["--master-addr", host, "--master-port", str(port)]

    def check(self) -> None:
        """Wait for the other hosts. Raise ``MachineError`` for an address that cannot be used: port taken,
        a host that does not answer."""
        if not self.address:
            return
        host, port = self._where()
        if self.nodes == 1:
            _check_free(port)
        elif self.node_rank == 0:
            wait_for_hosts(port, self.nodes)
        else:
            come(host, port, self.node_rank)

    def run(self, processes: int, program: Sequence[str], log: Path, *, limit_s: float) -> Ended:
        """Run to the end or the limit; no process of it is left, also after Ctrl-C."""
        self.check()
        threads = str(max((os.cpu_count() or 1) // max(processes // self.nodes, 1), 1))
        env = {
            "OMP_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "false", **os.environ,
            "MESHPLAN_TIME_LIMIT": str(limit_s), "PYTHONUNBUFFERED": "1", **self.env,
        }  # fmt: skip
        with writing(log), log.open("wb") as out:
            return watch(self.command(processes, program), out, env, limit_s=limit_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlainLauncher:
    """The program is a whole command line, run as it is."""

    env: dict[str, str] = field(default_factory=dict)

    def command(self, processes: int, program: Sequence[str]) -> list[str]:
        """The line itself."""
        return list(program)

    def run(self, processes: int, program: Sequence[str], log: Path, *, limit_s: float) -> Ended:
        """Run to the end or the limit."""
        with writing(log), log.open("wb") as out:
            return watch(program, out, {**os.environ, **self.env}, limit_s=limit_s)


def watch(command: Sequence[str], out: object, env: dict[str, str], *, limit_s: float) -> Ended:
    """Run one command in a session of its own until it ends or ``limit_s`` passed."""
    started = monotonic()
    try:
        child = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=env,  # type: ignore[call-overload]
            start_new_session=True, preexec_fn=_end_with_parent,  # noqa: PLW1509
        )  # fmt: skip
    except FileNotFoundError:
        raise MachineError(f"'{command[0]}' is not there to be run") from None
    try:
        while child.poll() is None:
            if monotonic() - started > limit_s:
                end(child)
                return Ended(code=None, seconds=monotonic() - started)
            sleep(0.05)
    except BaseException:
        end(child)
        raise
    return Ended(code=child.returncode, seconds=monotonic() - started)


def end(child: subprocess.Popen[bytes]) -> None:
    """Ask a launcher to end its ranks, and make sure: ranks also end when their launcher does."""
    for number, patience in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, 2.0)):
        try:
            os.killpg(child.pid, number)
        except ProcessLookupError:
            break
        try:
            child.wait(timeout=patience)
            break
        except subprocess.TimeoutExpired:
            continue
    child.poll()


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def _check_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            raise MachineError(f"port {port} is in use on this host; give another with --address") from None
