"""Writes docs/validation.md: ``write_validation_page.py [--also FILE TITLE] [--check] [PAGE]``.

The page holds the figures of ``meshplan validate`` on the table that ships with meshplan, the families
that miss their target with the reason as far as it is known (``validation_notes.toml``), the targets on a
larger table (``validation_targets.toml``, whose figures ``--measure FILE`` takes and keeps), and, with
``--also``, the summary of another table. ``--check`` writes nothing and returns 1 if the page differs.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import validation_targets

from meshplan.report.table import Column, markdown
from meshplan.report.validation_view import (
    family_columns,
    overview,
    right_verdicts,
    stack_columns,
    sweep_columns,
    worst_columns,
)
from meshplan.validation.figures import own_rows
from meshplan.validation.rows import Row, read_rows
from meshplan.validation.run import run
from meshplan.validation.summary import Family, Summary, summarise

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "validation.md"
TARGET = 0.07
"""Median error of step time that a family should stay below."""
WORST = 15

INTRODUCTION = """\
# How far the estimates are from real runs

This page is written by `tools/write_validation_page.py`; `meshplan validate` prints the same figures.

An error is the estimate over the measurement, less 1. *signed* is the median with its sign, *median*,
*mean* and *P90* are of the absolute error. *time n* and *mem n* count the rows whose source prints a step
time and a peak memory. *tau* is Kendall's rank correlation of estimated and measured step time within a
sweep (one model, cluster, batch and sequence; five or more plans), *regret* how much slower the plan
estimated fastest was than the fastest one. *fitted* counts the scalars of a software stack that were set
on published runs; all rows of a stack share them, none is tuned alone. The handbook is the textbook model
of `--cost-model handbook`, on the rows it can price.
"""
TABLE = """\
## The table that comes with meshplan

{rows} runs, transcribed from papers, documentation and repositories; the column `ref` of
`validation/data/figures.csv` names the source of each. {used} could be used.
"""


def main() -> int:
    """Writes or checks the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", nargs="?", type=Path, default=PAGE)
    parser.add_argument("--also", nargs=2, action="append", default=[], metavar=("FILE", "TITLE"))
    parser.add_argument("--measure", type=Path, metavar="FILE")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if options.measure:
        validation_targets.write(validation_targets.measure(options.measure))
    text = "\n".join(page(options.also)).rstrip() + "\n"
    if options.check:
        current = options.page.read_text(encoding="utf-8") if options.page.is_file() else ""
        if current != text:
            print(
                f"{options.page} is not what the cost model says today; run {Path(__file__).name}",
                file=sys.stderr,
            )
            return 1
        return 0
    options.page.parent.mkdir(exist_ok=True)
    options.page.write_text(text, encoding="utf-8")
    return 0


def page(also: list[list[str]]) -> Iterator[str]:
    """The lines of the page."""
    yield INTRODUCTION
    yield from validation_targets.section()
    own = _summary(own_rows())
    yield TABLE.format(rows=own.rows, used=own.used)
    yield from _overview(own)
    yield from _section("### By source", family_columns(own.by, "source"))
    yield from _missed(own)
    yield from _section("### By software stack", stack_columns(own))
    if own.whole.sweeps:
        yield from _section("### Sweeps", sweep_columns(own))
    yield from _section(f"### The {WORST} largest errors of step time", worst_columns(own.worst))
    for file, title in also:
        summary = _summary(read_rows(file))
        yield f"## {title}\n\n{summary.used:,} of {summary.rows:,} runs could be used.\n"
        yield from _overview(summary)
        yield from _skipped(summary)
        yield from _section("### By source", family_columns(summary.by, "source"))
        yield from _section("### By software stack", stack_columns(summary))


def _summary(rows: list[Row]) -> Summary:
    return summarise(run(rows), worst=WORST)


def _section(title: str, columns: list[Column]) -> list[str]:
    return [title, "", *markdown(columns), ""]


def _overview(summary: Summary) -> Iterator[str]:
    yield from [*markdown(overview(summary)), ""]
    whole = summary.whole
    if whole.sweeps:
        tau, regret = f"{whole.mean_tau:.2f}", f"{whole.mean_regret:.1%}"
        yield f"{len(whole.sweeps)} sweeps: mean tau {tau}, mean regret {regret}.\n"
    right, oom = right_verdicts(whole.oom), whole.oom
    if right is not None and oom.oom_oom + oom.ran_oom:
        yield (
            f"Out of memory: {right:.0%} of verdicts right; {oom.oom_oom} of {oom.oom_oom + oom.ran_oom}"
            f" runs that ran out were foreseen, {oom.oom_ran} of {oom.oom_ran + oom.ran_ran} that ran were"
            " refused.\n"
        )


def _missed(summary: Summary) -> Iterator[str]:
    """Families above the target, worst first, with what is known of the reason."""
    notes = tomllib.loads((HERE / "validation_notes.toml").read_text(encoding="utf-8"))

    def error(family: Family) -> float:
        return family.step.median or 0.0

    missed = sorted(((f, n) for n, f in summary.by.items() if error(f) > TARGET), key=lambda x: -error(x[0]))
    if not missed:
        return
    yield f"Families whose median error of step time is above {TARGET:.0%}:\n"
    for family, name in missed:
        reason = " ".join(notes.get(name, "The reason is not known yet.").split())
        yield f"- **{name}** ({error(family):.1%}): {reason}"
    yield ""


def _skipped(summary: Summary) -> Iterator[str]:
    if summary.skipped:
        yield "Not used:\n"
        yield from (f"- {count:,} rows: {reason}" for reason, count in summary.skipped.items())
        yield ""


if __name__ == "__main__":
    sys.exit(main())
