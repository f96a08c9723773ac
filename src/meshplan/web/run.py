"""Starting the server: the socket, the token, the browser."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import secrets
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable

import uvicorn

from meshplan.errors import InputError, shown
from meshplan.search.heap import keep_freed_memory
from meshplan.web.app import create_app
from meshplan.web.guard import LOOPBACK


def serve(*, host: str, port: int, open_browser: bool, token: str | None) -> int:
    """Serve until Ctrl-C. Raises ``InputError`` where the address cannot be had."""
    alone = is_loopback(host)
    if token is not None and not (16 <= len(token) <= 200 and token.isascii() and token.isalnum()):
        raise InputError("the token must be 16 to 200 plain letters and digits")
    if token is None and not alone:
        token = secrets.token_hex(24)
    listening = bound(host, port)
    address = page_address(listening, host, token)
    keep_freed_memory()
    app = create_app(hosts=frozenset(LOOPBACK) if alone else None, token=token)
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, date_header=False,
        timeout_graceful_shutdown=1, limit_concurrency=400, timeout_keep_alive=30,
    )  # fmt: skip

    def announce() -> None:
        print(f"meshplan is at {address} (Ctrl-C ends it)", file=sys.stderr, flush=True)
        if not alone:
            print("other machines that can reach this one need that token", file=sys.stderr, flush=True)
        if open_browser:
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    with contextlib.suppress(KeyboardInterrupt), contextlib.closing(listening):  # Ctrl-C is the way to end it
        _Server(config, announce).run(sockets=[listening])
    return 0


class _Server(uvicorn.Server):
    """Says where it is once it answers."""

    def __init__(self, config: uvicorn.Config, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then say so."""
        await super().startup(sockets)
        self._announce()


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens there. Raises ``InputError``."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError, IndexError):
        raise _no_address(host) from None
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(256)
    except OSError as error:
        found.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise _no_address(host) from None
        reason = (error.strerror or str(error)).lower()
        raise InputError(
            f"cannot listen on {host} port {port}: {reason}; --port 0 takes a free one"
        ) from None
    return found


def _no_address(host: str) -> InputError:
    """What is said of a host that cannot be listened on."""
    return InputError(
        f"--host {shown(host)} is no address of this machine; 127.0.0.1 is for this machine alone,"
        " 0.0.0.0 for all that reach it, and the port is --port"
    )


def page_address(listening: socket.socket, host: str, token: str | None) -> str:
    """The page's address for people."""
    port = listening.getsockname()[1]
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}/" + (f"?token={token}" if token else "")
