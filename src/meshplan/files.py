"""Reading files that people name: one sentence when it cannot be done, and never more than a limit."""

from __future__ import annotations

import stat
from pathlib import Path

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
