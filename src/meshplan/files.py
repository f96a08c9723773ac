"""Files that people name, read and written: one sentence when it cannot be done; never more read than a
limit, never half a file written."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from meshplan.errors import InputError, shown

MIB = 1 << 20


def read_text(path: str | Path, *, limit_bytes: int = 8 * MIB, what: str = "model file") -> str:
    """The UTF-8 text of the regular file ``path``, without a byte-order mark.

    ``what`` names the kind of file in messages. Raises ``InputError`` when there is no such file, it
    is a folder, a pipe or a device, cannot be read, is larger than ``limit_bytes`` or is not UTF-8.
    """
    label = f"{what} {shown(path, 200)}"
    try:
        file = Path(path)
        mode = file.stat().st_mode
        if stat.S_ISDIR(mode):
            raise InputError(f"{label} is a folder, not a file")
        if not stat.S_ISREG(mode):
            raise InputError(f"{label} is not a regular file")
        with file.open("rb") as stream:
            data = stream.read(limit_bytes + 1)
    except FileNotFoundError:
        raise InputError(f"{label} does not exist") from None
    except PermissionError:
        raise InputError(f"{label} may not be read (permission denied)") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{label} cannot be read: {reason.lower()}") from None
    if len(data) > limit_bytes:
        raise InputError(f"{label} is larger than {limit_bytes / MIB:g} MiB, too large for a {what}")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{label} is not UTF-8 text (byte {error.start})") from None


def write_text(path: str | Path, text: str | Callable[[TextIO], Any]) -> None:
    """Write ``text``, or what a function writes to a stream, as UTF-8: whole or not at all.

    It is written beside its place and renamed into it, so that an error leaves what was there; a pipe, a
    device or standard output is written directly. A link's target is what is replaced. Raises
    ``InputError`` when the file cannot be written.
    """
    label = shown(path, 200)
    try:
        target = Path(path).resolve()
        if target.is_dir():
            raise InputError(f"cannot write {label}: it is a folder")
        there = target.exists()
        if there and not target.is_file():
            with target.open("w", encoding="utf-8", newline="\n") as stream:
                _put(stream, text)
            return
        if there and not os.access(target, os.W_OK):
            raise InputError(f"cannot write {label}: permission denied")
        mode = stat.S_IMODE(target.stat().st_mode) if there else 0o666 & ~_umask()
        import tempfile  # here, as most commands write no file

        part, name = tempfile.mkstemp(prefix=".meshplan-", dir=target.parent, text=False)
        try:
            with os.fdopen(part, "w", encoding="utf-8", newline="\n") as stream:
                _put(stream, text)
            Path(name).chmod(mode)
            Path(name).replace(target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot write {label}: {reason.lower()}") from None


def _put(stream: TextIO, text: str | Callable[[TextIO], Any]) -> None:
    if isinstance(text, str):
        stream.write(text)
    else:
        text(stream)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
