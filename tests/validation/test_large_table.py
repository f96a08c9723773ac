"""The large table of published runs beside the repository, where there is one."""

import time
from pathlib import Path

import pytest

from meshplan.validation.rows import read_rows
from meshplan.validation.run import run
from meshplan.validation.summary import summarise

TABLE = Path(__file__).parents[2].parent / "shared" / "measurements" / "measurements.csv"


@pytest.fixture(scope="module")
def timed():
    if not TABLE.is_file():
        pytest.skip(f"NOT CHECKED: the table of published runs is not at {TABLE}")
    start = time.process_time()
    summary = summarise(run(read_rows(TABLE)), by=("source",))
    return summary, time.process_time() - start


def test_is_read_and_priced_in_well_under_a_minute(timed):
    summary, seconds = timed
    assert summary.rows == 2504
    assert summary.used + sum(summary.skipped.values()) == summary.rows
    assert summary.used > 1900
    assert seconds < 45


def test_beats_the_handbook(timed):
    summary, _ = timed
    assert summary.handbook.step.n > 500
    assert summary.same_rows.step.median < 0.6 * summary.handbook.step.median
    assert summary.same_rows.step.p90 < summary.handbook.step.p90


def test_every_skipped_row_has_a_reason(timed):
    summary, _ = timed
    assert all(reason.strip() for reason in summary.skipped)
