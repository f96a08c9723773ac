"""What a command is doing, on standard error, when it takes longer than a moment."""

import json
import os
import sys
import time
from collections.abc import Callable

from meshplan.units import one_is_singular

QUIET_S = 1.0
"""Commands that are done by then say nothing; later ones not more often than this."""
_told = {"hushed": False}


def hush(on: bool) -> None:
    """Whether nothing may be told: with ``--json``, whose standard error has errors as objects alone."""
    _told["hushed"] = on


def hushed() -> bool:
    """Whether nothing may be told."""
    return _told["hushed"]


def fault(text: str) -> None:
    """Why the answer is no, on standard error, beside an answer in words."""
    print(f"error: {one_is_singular(text)}", file=sys.stderr)


def note(text: str) -> None:
    """Something to know about the answer, on standard error; with ``--json`` as an object."""
    text = one_is_singular(text)
    print(json.dumps({"note": text}) if hushed() else f"note: {text}", file=sys.stderr)


def progress() -> Callable[[str], None]:
    """Tells what is being done, once a second, on a terminal; silent with ``--json`` and with
    ``MESHPLAN_NO_PROGRESS``."""
    last = time.monotonic()
    silent = hushed() or bool(os.environ.get("MESHPLAN_NO_PROGRESS")) or not sys.stderr.isatty()

    def told(text: str) -> None:
        nonlocal last
        if not silent and time.monotonic() - last > QUIET_S:
            last = time.monotonic()
            print(f"({text})", file=sys.stderr, flush=True)

    return told
