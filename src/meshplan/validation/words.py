"""Words of a row that nobody knows, and what the row is priced as instead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from meshplan.validation.cases import LOW_PRECISIONS, WHOLE_PRECISIONS, Case
from meshplan.validation.rows import Row

TIERS = ("A", "B", "C")
NOT_GIVEN = ("", "unknown")


@dataclass(frozen=True, slots=True)
class OddWord:
    """A cell's word that is not understood; ``taken_as`` says what stands for it."""

    column: str
    value: str
    taken_as: str


def odd_tier(row: Row) -> Iterator[OddWord]:
    """The tier of ``row``, where it is none."""
    tier = row.text["tier"]
    if tier not in ("", *TIERS):
        yield OddWord("tier", tier, "not given")


def odd_words(case: Case) -> Iterator[OddWord]:
    """What of ``case``'s row was read as if it were not there. Unknown GPUs and shardings are not among
    them: their rows are skipped."""
    yield from odd_tier(case.row)
    recompute, precision = case.row.text["recompute"], case.row.text["precision"]
    if "recompute" in case.assumed and recompute.lower() not in NOT_GIVEN:
        yield OddWord("recompute", recompute, "not given")
    known = precision.lower() in (*NOT_GIVEN, *WHOLE_PRECISIONS)
    if not known and not precision.lower().startswith(LOW_PRECISIONS):
        yield OddWord("precision", precision, case.workload.precision)
