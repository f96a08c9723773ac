"""The command line. Thin: reads flags, calls the rooms below, prints what ``report`` makes."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # imports here come before an interrupt is taken care of
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``meshplan`` with these arguments (default: the process's) and return its exit code.

    0 done; 1 no plan fits; 2 the request cannot be met as asked; 70 a bug in meshplan;
    130 interrupted. Results go to standard output, everything else to standard error.
    """
    try:
        from meshplan.cli.app import run

        return run(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:  # before the command itself takes care
        print("error: interrupted", file=sys.stderr)
        return 130
