"""Chrome traces (JSON, gzip or not) an event at a time: memory does not grow with the file.

A PyTorch profiler trace is one object whose ``traceEvents`` hold nearly all of it; the JSON array form of
the trace format is read too. What follows a cut (a profiler killed half way) is missing, and said.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from meshplan.errors import InputError, shown

CHUNK = 1 << 20
MOST_EVENT = 1 << 24
"""Characters of one event or one other value; more is no trace."""
_SPACE = " \t\r\n,"


@dataclass
class TraceFile:
    """Iterate for events; ``head`` holds the other top-level values seen so far, ``cut`` whether the file
    ended too early."""

    path: Path
    head: dict[str, Any] = field(default_factory=dict)
    cut: bool = False
    events: int = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Each event once. Raises ``InputError`` for a file that is no trace."""
        where = f"trace {shown(self.path, 200)}"
        try:
            with _opened(self.path) as stream:
                reader = _Reader(stream)
                try:
                    yield from self._top(reader, where)
                except _EndedError:
                    self.cut = True
        except (EOFError, zlib.error, gzip.BadGzipFile):
            self.cut = True
        except UnicodeDecodeError as error:
            raise InputError(f"{where} is not text (byte {error.start})") from None
        except (OSError, IsADirectoryError) as error:
            raise InputError(f"{where} cannot be read: {(error.strerror or str(error)).lower()}") from None
        if not self.events and self.cut:
            what = "cut off before its first event ends" if self.path.stat().st_size else "empty"
            raise InputError(f"{where} is not a Chrome trace with events: it is {what}")
        if not self.events and not self.head:
            raise InputError(f"{where} is not a Chrome trace: it has no traceEvents")

    def _top(self, reader: _Reader, where: str) -> Iterator[dict[str, Any]]:
        first = reader.peek()
        if first == "[":
            yield from self._list(reader, where)
            return
        if first != "{":
            raise InputError(f"{where} is not a Chrome trace: it starts with {shown(first)}")
        reader.skip()
        while (mark := reader.peek()) != "}":
            if mark != '"':
                raise InputError(f"{where} is not valid JSON at a top-level key")
            key = reader.value(where)
            if reader.peek(":") != ":":
                raise InputError(f"{where} is not valid JSON after {shown(key)}")
            reader.skip()
            if key == "traceEvents" and reader.peek() == "[":
                yield from self._list(reader, where)
            else:
                self.head[key] = reader.value(where)

    def _list(self, reader: _Reader, where: str) -> Iterator[dict[str, Any]]:
        reader.skip()
        while reader.peek() != "]":
            event = reader.value(where)
            if isinstance(event, dict):
                self.events += 1
                yield event
        reader.skip()


class _EndedError(Exception):
    """The text ended inside a value."""


class _Reader:
    """JSON values off a stream, one at a time."""

    def __init__(self, stream: IO[str]) -> None:
        self.stream, self.buffer, self.at = stream, "", 0
        self.decoder = json.JSONDecoder()

    def more(self) -> bool:
        text = self.stream.read(CHUNK)
        self.buffer = self.buffer[self.at :] + text
        self.at = 0
        return bool(text)

    def peek(self, _what: str = "") -> str:
        """The next character that is no space or comma."""
        while True:
            while self.at < len(self.buffer) and self.buffer[self.at] in _SPACE:
                self.at += 1
            if self.at < len(self.buffer):
                return self.buffer[self.at]
            if not self.more():
                raise _EndedError

    def skip(self) -> None:
        self.at += 1

    def value(self, where: str) -> Any:
        """The JSON value that starts here."""
        self.peek()
        while True:
            try:
                found, end = self.decoder.raw_decode(self.buffer, self.at)
            except json.JSONDecodeError as error:
                held = len(self.buffer) - self.at
                if held > MOST_EVENT:
                    raise InputError(f"{where} is not valid JSON: {error.msg}") from None
                if not self.more():
                    raise _EndedError from None
            except RecursionError:
                raise InputError(f"{where} is nested too deeply") from None
            else:
                # A number at the end of what was read may go on in what was not.
                if end == len(self.buffer) and isinstance(found, int | float) and self.more():
                    continue
                self.at = end
                return found


def _opened(path: Path) -> IO[str]:
    with path.open("rb") as file:
        magic = file.read(2)
    if magic == b"\x1f\x8b":
        return gzip.open(path, "rt", encoding="utf-8", errors="replace")
    return path.open(encoding="utf-8")
