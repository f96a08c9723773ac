"""Writes the usual error of each cost model for dense and MoE models: ``write_bands.py [--check]``.

Into ``src/meshplan/search/data/bands.toml``, from the published runs that ship with meshplan; the figures
are those of ``docs/validation.md``. ``--check`` writes nothing and returns 1 if the file differs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from meshplan.validation.baseline import handbook_outcomes
from meshplan.validation.figures import own_rows
from meshplan.validation.metrics import Errors, grouped
from meshplan.validation.run import Outcome, run

FILE = Path(__file__).parent.parent / "src" / "meshplan" / "search" / "data" / "bands.toml"
LEAST = 8
"""Runs from which a median says something."""
HEAD = """\
# Median absolute error of step time on published runs, by cost model and kind of model.
# Written by tools/write_bands.py; do not edit.
"""


def main() -> int:
    """Writes or checks the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    text = bands()
    if not check:
        FILE.write_text(text, encoding="utf-8")
        return 0
    if FILE.is_file() and FILE.read_text(encoding="utf-8") == text:
        return 0
    print(f"{FILE} is not what the cost model says today; run {Path(__file__).name}", file=sys.stderr)
    return 1


def bands() -> str:
    """The file's text."""
    outcomes = run(own_rows()).outcomes
    lines = [HEAD]
    for name, found in (
        ("full", outcomes),
        ("handbook", tuple(handbook_outcomes(o.case for o in outcomes).values())),
    ):
        for kind, members in sorted(grouped(found, _kind).items()):
            errors = Errors.of(o.step_error for o in members)
            if errors.median is not None and errors.n >= LEAST:
                lines.append(f"[{name}.{kind}]\nmedian = {errors.median:.4f}\nruns = {errors.n}\n")
    return "\n".join(lines)


def _kind(outcome: Outcome) -> str:
    return "moe" if outcome.case.row.whole("experts", 0) else "dense"


if __name__ == "__main__":
    sys.exit(main())
