"""Counts, sizes and durations as people write them."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_pretrain.units import (
    format_bytes,
    format_count,
    format_duration,
    parse_bytes,
    parse_count,
    parse_duration,
)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (1000, 1000),
        (0, 0),
        (1e9, 10**9),
        ("1e9", 10**9),
        ("20B", 20 * 10**9),
        ("3.2B", 3_200_000_000),
        ("1_000", 1000),
        ("64Ki", 65536),
        ("2Gi", 2**31),
        ("5M", 5 * 10**6),
        ("1.5 T", 15 * 10**11),
        ("10k", 10_000),
        ("9007199254740993", 9007199254740993),
    ],
)
def test_a_count_is_read(text: Any, count: int) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize(
    "value", ["64MiB", "90m", "1:30:00", "", "x", "-1", -1, 1.5, "1.0001K1", True, None, [1],
              math.nan, math.inf, "20 B tokens", "1e-3", "٣"]
)  # fmt: skip
def test_what_is_no_count_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"must be a whole number such as .*, got "):
        parse_count(value)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (1024, 1024),
        ("64MiB", 64 * 2**20),
        ("100MB", 10**8),
        ("100 mb", 10**8),
        ("1.5GiB", 3 * 2**29),
        ("2TB", 2 * 10**12),
        ("512B", 512),
    ],
)
def test_a_size_is_read(text: Any, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("value", ["64M", "64Ki", "1.5", "90m", "much", False, -2, 0.5])
def test_what_is_no_size_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="must be a size such as"):
        parse_bytes(value)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (90, 90),
        (0.5, 0.5),
        ("90", 90),
        ("90s", 90),
        ("90m", 5400),
        ("1h30m", 5400),
        ("1h 30min", 5400),
        ("1:30:00", 5400),
        ("36h", 129600),
        ("2d", 172800),
        ("2-00:00:00", 172800),
        ("1d 12:00:00", 129600),
        ("250ms", 0.25),
    ],
)
def test_a_duration_is_read(text: Any, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "value", ["1:30", "5 parsecs", "20B", "1h30", "", "-5m", -1, True, "1:60:00"]
)
def test_what_is_no_duration_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="must be a duration such as"):
        parse_duration(value)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1K"),
        (1_234_567, "1.23M"),
        (999_999, "1M"),
        (20 * 10**9, "20B"),
        (12_345, "12.3K"),
        (2.5, "2.5"),
    ],
)
def test_a_count_is_shown_in_three_digits(count: float, text: str) -> None:
    assert format_count(count) == text


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (512, "512 B"), (1536, "1.5 KiB"), (64 * 2**20, "64 MiB")]
)
def test_a_size_is_shown_in_binary_units(size: float, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.25, "0.25s"),
        (42.4, "42s"),
        (59.9, "0:01:00"),
        (5400, "1:30:00"),
        (129600, "1d 12:00:00"),
        (math.inf, "unknown"),
        (-1, "0s"),
    ],
)
def test_a_duration_is_shown_as_a_clock(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.floats(min_value=0, max_value=1e8))
def test_a_shown_duration_is_read_back(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, abs=0.51)


@given(st.integers(min_value=0, max_value=10**15))
def test_shown_counts_and_sizes_are_read_back(number: int) -> None:
    assert parse_count(format_count(number)) == pytest.approx(number, rel=0.006, abs=0.5)
    assert parse_bytes(format_bytes(number)) == pytest.approx(number, rel=0.006, abs=0.5)
