"""Two hosts on one machine: network namespaces joined by a link of a given rate.

    sudo python tools/cluster_in_a_box.py calibrate --rate 1gbit --out box.yaml
    sudo python tools/cluster_in_a_box.py run --rate 1gbit -- python train.py …

``run`` starts the command in both hosts, with ``HOST_RANK`` (0 or 1), ``MASTER_ADDR``, ``MASTER_PORT`` and
gloo's interface set, and ends both when one fails. The link is a veth pair shaped both ways by a token
bucket (tbf), so bandwidth is known and latency that of the kernel. Ranks that would take turns on too few
cores can have an equal part of one each (cgroups), as the link has its rate: a rank then computes as fast
while the others wait as while they work. Needs Linux, root, iproute2, util-linux.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import sleep

ADDRESSES = ("10.123.0.1", "10.123.0.2")
PORT = 29571


class NotAllowedError(RuntimeError):
    """This machine does not let us make namespaces."""


def sh(*command: str) -> None:
    """Run a command; its last words are the error."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotAllowedError(f"'{' '.join(command)}': {(done.stderr or done.stdout).strip()}")


@contextmanager
def hosts(rate: str) -> Iterator[tuple[str, str]]:
    """Names of two namespaces joined at ``rate`` (as tc writes it: ``1gbit``); gone afterwards."""
    missing = [program for program in ("ip", "tc", "nsenter") if shutil.which(program) is None]
    if missing:
        raise NotAllowedError(f"iproute2 (ip, tc) or util-linux (nsenter) is not installed: {missing[0]}")
    tag = f"mp{os.getpid() % 100000}"
    names, links = (f"{tag}a", f"{tag}b"), (f"{tag}0", f"{tag}1")
    try:
        for name in names:
            sh("ip", "netns", "add", name)
        sh("ip", "link", "add", links[0], "type", "veth", "peer", "name", links[1])
        for name, link, address in zip(names, links, ADDRESSES, strict=True):
            sh("ip", "link", "set", link, "netns", name)
            inside = ("ip", "netns", "exec", name)
            sh(*inside, "ip", "addr", "add", f"{address}/24", "dev", link)
            sh(*inside, "ip", "link", "set", link, "up")
            sh(*inside, "ip", "link", "set", "lo", "up")
            sh(
                *inside,
                "tc",
                "qdisc",
                "add",
                "dev",
                link,
                "root",
                "tbf",
                "rate",
                rate,
                "burst",
                "256kb",
                "latency",
                "50ms",
            )
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


PERIOD_US = 10_000
FIRST = 16
"""How much more of a core the ranks get than what else the machine does."""


def _cgroups() -> Path:
    """Where control groups of the CPU are, of the first or second version."""
    first = Path("/sys/fs/cgroup/cpu")
    return first if (first / "cpu.shares").exists() else first.parent


@contextmanager
def parts_of_cores(names: Sequence[str], ranks: int) -> Iterator[bool]:
    """A control group for each rank, ``NAME + local rank``, with its part of the cores; whether there are
    any. With one rank for a core there is nothing to part, and without cgroups ranks take turns."""
    base = _cgroups()
    quota = int(PERIOD_US * (os.cpu_count() or 1) / (len(names) * max(ranks, 1)))
    files: dict[str, object] = {
        "cpu.cfs_period_us": PERIOD_US,
        "cpu.cfs_quota_us": quota,
        "cpu.shares": 1024 * FIRST,
    }
    if not (base / "cpu.shares").exists():  # the second version
        files = {"cpu.max": f"{quota} {PERIOD_US}", "cpu.weight": 100 * FIRST}
    made: list[Path] = []
    try:
        yield quota < PERIOD_US and _made(base, names, ranks, files, made)
    finally:
        for group in made:
            for _ in range(50):
                try:
                    group.rmdir()
                    break
                except OSError:  # its last process is still on its way out
                    sleep(0.1)


def _made(
    base: Path, names: Sequence[str], ranks: int, files: Mapping[str, object], made: list[Path]
) -> bool:
    try:
        for group in (base / f"{name}{rank}" for name in names for rank in range(ranks)):
            group.mkdir()
            made.append(group)
            for file, value in files.items():
                (group / file).write_text(str(value))
    except OSError as error:
        print(f"ranks take turns on the cores, as there are no control groups: {error}", file=sys.stderr)
        return False
    return True


def join_part() -> None:
    """In a rank: go into the control group that was made for it, if one was."""
    group = os.environ.get("MESHPLAN_CPU_GROUP")
    if group:
        Path(group + os.environ["LOCAL_RANK"], "cgroup.procs").write_text(str(os.getpid()))


def run(rate: str, command: Sequence[str], *, limit_s: float = 900.0, ranks: int = 1) -> int:
    """``command`` on both hosts; ``{host}`` in it is 0 or 1. The first bad exit code, or 0. Of ``ranks`` that
    it starts on each host, those that call ``join_part`` get their part of the cores."""
    with hosts(rate) as names, parts_of_cores(names, ranks) as parted:
        children = [_start(name, i, command, parted=parted) for i, name in enumerate(names)]
        try:
            waited = 0.0
            while any(c.poll() is None for c in children):
                if waited > limit_s or any(c.poll() for c in children):
                    break
                sleep(0.1)
                waited += 0.1
        finally:
            for child in children:
                if child.poll() is None:
                    child.terminate()
            for child in children:
                try:
                    child.wait(timeout=15)
                except subprocess.TimeoutExpired:
                    child.kill()
        return next((c.returncode for c in children if c.returncode), 0)


def _start(name: str, host: int, command: Sequence[str], *, parted: bool) -> subprocess.Popen[bytes]:
    link = f"{name[:-1]}{host}"
    env = {
        **os.environ, "GLOO_SOCKET_IFNAME": link, "TP_SOCKET_IFNAME": link, "MESHPLAN_HOST": f"host{host}",
        "HOST_RANK": str(host), "MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": str(PORT),
    }  # fmt: skip
    if parted:
        env["MESHPLAN_CPU_GROUP"] = str(_cgroups() / name)
    line = [part.replace("{host}", str(host)) for part in command]
    # ``ip netns exec`` would hide the control groups behind a /sys of its own.
    return subprocess.Popen(["nsenter", f"--net=/run/netns/{name}", *line], env=env)


def calibrate(rate: str, out: Path, processes: int) -> int:
    """``meshplan calibrate`` over both hosts."""
    line = [
        sys.executable, "-m", "meshplan", "calibrate", "--nodes", "2", "--node-rank", "{host}", "--address",
        f"{ADDRESSES[0]}:{PORT}", "--processes", str(processes), "--out", str(out),
    ]  # fmt: skip
    return run(rate, line)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Two hosts on one machine, joined by a link of a given rate."
    )
    kinds = parser.add_subparsers(dest="what", required=True)
    one = kinds.add_parser("calibrate", help="meshplan calibrate over both hosts")
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--processes", type=int, default=1, help="ranks on each host")
    two = kinds.add_parser("run", help="a command on both hosts")
    two.add_argument("command", nargs=argparse.REMAINDER)
    for kind in (one, two):
        kind.add_argument("--rate", default="1gbit", help="of the link, as tc writes it")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # hosts are taken down however we are ended
    try:
        if args.what == "calibrate":
            return calibrate(args.rate, args.out, args.processes)
        return run(args.rate, [part for part in args.command if part != "--"])
    except NotAllowedError as error:
        print(f"error: no cluster in a box here: {error}", file=sys.stderr)
        return 3


if __name__ == "__main__":
    sys.exit(main())
