"""Reading and writing quantities: expected values by hand."""

import doctest
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshplan import units
from meshplan.errors import InputError
from meshplan.units import (
    format_bandwidth,
    format_bytes,
    format_bytes_as_sold,
    format_count,
    format_flops,
    format_percent,
    format_seconds,
    one_is_singular,
    parse_bandwidth,
    parse_bytes,
    parse_flops,
    parse_power,
    parse_seconds,
)

READERS = (parse_bytes, parse_bandwidth, parse_seconds, parse_flops, parse_power)


def test_doctests():
    results = doctest.testmod(units)
    assert results.attempted > 10
    assert results.failed == 0


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (parse_bytes, "80 GiB", 85_899_345_920),
        (parse_bytes, "80 GB", 80_000_000_000),
        (parse_bytes, "80GB", 80_000_000_000),
        (parse_bytes, "  1.5 TiB ", 1.5 * 2**40),
        (parse_bytes, "512 B", 512),
        (parse_bytes, "4 kB", 4000),
        (parse_bytes, "4 KiB", 4096),
        (parse_bytes, ".5 MB", 500_000),
        (parse_bandwidth, "400 Gb/s", 50e9),
        (parse_bandwidth, "400 Gbps", 50e9),
        (parse_bandwidth, "400 Gbit/s", 50e9),
        (parse_bandwidth, "50 GB/s", 50e9),
        (parse_bandwidth, "450e9 B/s", 450e9),
        (parse_bandwidth, "3.35 TB/s", 3.35e12),
        (parse_bandwidth, "8 Gib/s", 2**30),
        (parse_seconds, "5 us", 5e-6),
        (parse_seconds, "5 µs", 5e-6),  # U+00B5, the micro sign
        (parse_seconds, "5 μs", 5e-6),  # U+03BC, the Greek letter
        (parse_seconds, "20 ms", 0.02),
        (parse_seconds, "3.4us", 3.4e-6),
        (parse_seconds, "2 h", 7200),
        (parse_seconds, "1 d", 86400),
        (parse_flops, "989 TFLOP/s", 989e12),
        (parse_flops, "2.5 PFLOPS", 2.5e15),
        (parse_power, "700 W", 700),
        (parse_power, "1.2 kW", 1200),
    ],
)
def test_reads(read, text, value):
    assert read(text) == value


@pytest.mark.parametrize(
    ("read", "text", "words"),
    [
        (parse_bytes, "80", "'80' has no unit; write '80 GiB' or '80 GB'"),
        (parse_bytes, 80, "'80' has no unit; write '80 GiB' or '80 GB'"),
        (parse_bandwidth, "450", "'450' has no unit; write '450 GB/s' or '450 Gb/s'"),
        (parse_bandwidth, 450e9, "has no unit"),
        (parse_bytes, "400 Gb", "b is bits, B is bytes"),
        (parse_bytes, "80 gb", "did you mean '80 GB'?"),
        (parse_bandwidth, "400 Gb", "did you mean '400 GB/s' or '400 Gb/s'?"),
        (parse_seconds, "5 US", "did you mean '5 us'?"),
        (parse_bytes, "-5 GB", "is negative"),
        (parse_bytes, "nan GB", "is not a size"),
        (parse_bytes, "inf GB", "is not a size"),
        (parse_bytes, "1e400 GB", "too large"),
        (parse_bytes, "1,5 GB", "is not a size"),
        (parse_bytes, "５ GB", "is not a size"),
        (parse_bytes, "", "write it like '80 GiB' or '80 GB'"),
        (parse_bytes, None, "write it like '80 GiB' or '80 GB'"),
        (parse_bytes, True, "is not a size"),
        (parse_bytes, ["80 GB"], "is not a size"),
        (parse_flops, "989", "write '989 TFLOP/s'"),
        (parse_power, "700 watts", "write it like '700 W'"),
    ],
)
def test_refuses(read, text, words):
    with pytest.raises(InputError) as error:
        read(text, what="here")
    assert str(error.value).startswith("here: ")
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@given(st.text(max_size=40) | st.floats() | st.integers() | st.none() | st.lists(st.integers()))
def test_any_input_is_a_quantity_or_one_sentence(value):
    for read in READERS:
        text, found = "one line", 0.0
        try:
            found = read(value)
        except InputError as error:
            text = str(error)
        assert len(text.splitlines()) == 1
        assert len(text) < 300
        assert math.isfinite(found)
        assert found >= 0


@given(st.floats(1e-3, 1e17))
def test_what_is_printed_can_be_read_again(value):
    """To the digits shown: three significant for decimal units, one after the point for binary ones."""
    assert parse_bandwidth(format_bandwidth(value)) == pytest.approx(value, rel=0.006, abs=0.006)
    assert parse_flops(format_flops(value)) == pytest.approx(value, rel=0.006, abs=0.006)
    assert parse_bytes(format_bytes(value)) == pytest.approx(value, rel=0.06, abs=0.6)
    assert parse_seconds(format_seconds(value)) == pytest.approx(value, rel=0.06)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (format_bytes(80 * 2**30), "80.0 GiB"),
        (format_bytes(0), "0 B"),
        (format_bytes(1023.6), "1.0 KiB"),
        (format_bytes(2**20 - 1), "1.0 MiB"),
        (format_bytes(5.7 * 2**40), "5.7 TiB"),
        (format_bytes_as_sold(80e9), "80 GB"),
        (format_bandwidth(450e9), "450 GB/s"),
        (format_bandwidth(3.35e12), "3.35 TB/s"),
        (format_bandwidth(999.96e9), "1 TB/s"),
        (format_flops(989e12), "989 TFLOP/s"),
        (format_flops(2.25e15), "2.25 PFLOP/s"),
        (format_seconds(0), "0 s"),
        (format_seconds(5e-6), "5.00 µs"),
        (format_seconds(0.9999), "1.00 s"),
        (format_seconds(59.94), "59.9 s"),
        (format_seconds(90), "1.5 min"),
        (format_seconds(3599.9), "1.0 h"),
        (format_seconds(4.5 * 86400), "4.5 d"),
        (format_count(1284), "1,284"),
        (format_count(70_553_706_496), "70.55 B"),
        (format_count(999_999), "999,999"),
        (format_count(999_999_999), "1.00 B"),
        (format_count(1.02e12), "1.02 T"),
        (format_percent(0.537), "53.7%"),
        (format_percent(1, 0), "100%"),
    ],
)
def test_writes(text, expected):
    assert text == expected


@pytest.mark.parametrize(
    ("many", "one"),
    [
        ("1 ranks are idle", "1 rank is idle"),
        ("over 1 pipeline ranks and 1 micro-batches", "over 1 pipeline rank and 1 micro-batch"),
        ("1 plans have 1 copies, 1 processes", "1 plan has 1 copy, 1 process"),
        ("1 of 1 feasible plans fit", "1 of 1 feasible plan fits"),
        ("11 plans, 0.1 days, 1,001 ranks, 2/1 stages", "11 plans, 0.1 days, 1,001 ranks, 2/1 stages"),
        ("fewer than pp 1 stages; rank 1 holds", "fewer than pp 1 stages; rank 1 holds"),
        ("1 f1b, 1 fits, 1 as is", "1 f1b, 1 fits, 1 as is"),
    ],
)
def test_one_thing_is_in_the_singular(many: str, one: str) -> None:
    assert one_is_singular(many) == one
