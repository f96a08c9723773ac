"""What the tests of the page share: the page as a process of its own, as people start it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import IO

import pytest


class Server:
    """``meshplan serve`` in a process of its own."""

    def __init__(self, *more: str) -> None:
        self.said: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "meshplan", "serve", "--port", "0", *more],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        self.url = self._address(self.process.stderr)
        self._ear = threading.Thread(target=self._listen, args=(self.process.stderr,), daemon=True)
        self._ear.start()

    def _address(self, stream: IO[str]) -> str:
        for line in stream:
            self.said.append(line)
            found = re.search(r"http://\S+", line)
            if found:
                return found[0]
        raise AssertionError(f"the server did not start: {''.join(self.said)}")

    def _listen(self, stream: IO[str]) -> None:
        self.said += stream

    def stop(self) -> int:
        """End it as Ctrl-C does; what it exits with."""
        self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(60)
        finally:
            self.process.kill()
            self.process.wait()
            self._ear.join(5)
            if self.process.stderr is not None:
                self.process.stderr.close()


@pytest.fixture(scope="session")
def start_server() -> type[Server]:
    """To start a server of one's own."""
    return Server


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    found = Server()
    yield found
    found.stop()
