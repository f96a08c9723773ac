"""Two hosts on one machine: network namespaces joined by a link of a given rate.

    sudo python tools/cluster_in_a_box.py calibrate --rate 1gbit --out box.yaml
    sudo python tools/cluster_in_a_box.py run --rate 1gbit -- python train.py …

``run`` starts the command in both hosts, with ``HOST_RANK`` (0 or 1), ``MASTER_ADDR``, ``MASTER_PORT`` and
gloo's interface set, and ends both when one fails. The link is a veth pair shaped both ways by a token
bucket (tbf), so bandwidth is known and latency that of the kernel. Needs Linux, root, iproute2.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
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
    if shutil.which("ip") is None or shutil.which("tc") is None:
        raise NotAllowedError("iproute2 (ip, tc) is not installed")
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


def run(rate: str, command: Sequence[str], *, limit_s: float = 900.0) -> int:
    """``command`` on both hosts; ``{host}`` in it is 0 or 1. The first bad exit code, or 0."""
    with hosts(rate) as names:
        children = [_start(name, i, command) for i, name in enumerate(names)]
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


def _start(name: str, host: int, command: Sequence[str]) -> subprocess.Popen[bytes]:
    link = f"{name[:-1]}{host}"
    env = {
        **os.environ, "GLOO_SOCKET_IFNAME": link, "TP_SOCKET_IFNAME": link, "MESHPLAN_HOST": f"host{host}",
        "HOST_RANK": str(host), "MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": str(PORT),
    }  # fmt: skip
    line = [part.replace("{host}", str(host)) for part in command]
    return subprocess.Popen(["ip", "netns", "exec", name, *line], env=env)


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
