"""What stops a measurement that is not the plan's fault: the machine, the folder, the launcher."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from meshplan.errors import MeshplanError, shown


class MachineError(MeshplanError):
    """The request makes sense, but this machine cannot do it now: one sentence, exit code 3."""

    exit_code = 3


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say in one sentence when a file cannot be written (disk full, read-only, no permission)."""
    try:
        yield
    except OSError as error:
        reason = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the quota is used up"}.get(
            error.errno or 0, (error.strerror or str(error)).lower()
        )
        raise MachineError(f"{shown(path, 200)} cannot be written: {reason}") from None
