"""Before a run across hosts: wait until all of them are there, and say which is not.

The first host listens where ``torchrun`` will meet afterwards; each other one says its number and waits for
the word to start. Nothing else passes, and the port is free again when the run begins.
"""

from __future__ import annotations

import os
import socket
from time import monotonic, sleep

from meshplan.measure.failures import MachineError

WORD = b"meshplan "
START = b"start\n"


def patience_s() -> float:
    """Seconds a host waits for the others: two minutes, for commands that people start one by one."""
    return float(os.environ.get("MESHPLAN_PATIENCE", "120"))


def wait_for_hosts(port: int, nodes: int) -> None:
    """On the first host. Raises ``MachineError`` for a port in use and for hosts that do not come in time."""
    until, came = monotonic() + patience_s(), dict[int, socket.socket]()
    with _listening(port) as door:
        try:
            while len(came) < nodes - 1:
                door.settimeout(max(until - monotonic(), 0.01))
                try:
                    guest, _ = door.accept()
                except TimeoutError:
                    missing = ", ".join(str(i) for i in range(1, nodes) if i not in came)
                    raise MachineError(
                        f"host {missing} of {nodes} did not come to port {port} in {patience_s():g} s;"
                        " start the same command there with its --node-rank"
                    ) from None
                number = _number(guest)
                if number is None or not 0 < number < nodes:
                    guest.close()
                else:
                    came[number] = guest
            for guest in came.values():
                guest.sendall(START)
                _until_closed(guest)
        except OSError as error:
            raise MachineError(f"a host left while the others came: {_why(error)}") from None
        finally:
            for guest in came.values():
                guest.close()


def come(host: str, port: int, node_rank: int) -> None:
    """On every other host. Raises ``MachineError`` where nobody answers in time."""
    until = monotonic() + patience_s()
    while True:
        try:
            with socket.create_connection((host, port), timeout=3) as to:
                to.sendall(WORD + b"%d\n" % node_rank)
                to.settimeout(max(until - monotonic(), 0.01))
                if to.recv(len(START)) == START:
                    return
                why = "it is not meshplan's first host, or gave up"
        except OSError as error:
            why = _why(error)
        if monotonic() > until:
            raise MachineError(f"{host}:{port} does not answer: {why}")
        sleep(0.2)


def _listening(port: int) -> socket.socket:
    door = socket.socket()
    door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        door.bind(("", port))
    except OSError:
        door.close()
        raise MachineError(f"port {port} is in use on this host; give another with --address") from None
    door.listen()
    return door


def _number(guest: socket.socket) -> int | None:
    """Which host a guest says it is; ``None`` for something else that knocks."""
    guest.settimeout(3)
    try:
        said = guest.recv(64)
    except OSError:
        return None
    digits = said.removeprefix(WORD).strip()
    return int(digits) if said.startswith(WORD) and digits.isdigit() else None


def _until_closed(guest: socket.socket) -> None:
    """The other side hangs up first, so that no port is left waiting here."""
    guest.settimeout(3)
    while guest.recv(64):
        pass


def _why(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
