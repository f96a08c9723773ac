"""What a command is doing, on standard error, when it takes longer than a moment."""

import os
import sys
import time
from collections.abc import Callable

QUIET_S = 1.0
"""Commands that are done by then say nothing."""


def progress() -> Callable[[str], None]:
    """Tells what is being done; silent for the first second and with ``MESHPLAN_NO_PROGRESS``."""
    start = time.monotonic()
    silent = bool(os.environ.get("MESHPLAN_NO_PROGRESS"))

    def told(text: str) -> None:
        if not silent and time.monotonic() - start > QUIET_S:
            print(f"({text})", file=sys.stderr, flush=True)

    return told
