"""Parse counts, sizes and durations as people write them, and format them again.

The caller chooses the kind of quantity; text of another kind (`64MiB` for a count) is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

COUNT_UNITS: Mapping[str, int] = {
    "": 1,
    "k": 10**3,
    "K": 10**3,
    "M": 10**6,
    "B": 10**9,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}
BYTE_UNITS: Mapping[str, int] = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
DURATION_UNITS: Mapping[str, float] = {
    "": 1,
    "ms": 0.001,
    "s": 1,
    "sec": 1,
    "m": 60,
    "min": 60,
    "h": 3600,
    "d": 86400,
}

_COUNT = "a whole number such as 1000, 1e9, 20B or 64Ki"
_BYTES = "a size such as 64MiB, 100MB or a number of bytes"
_DURATION = "a duration such as 90m, 36h, 1h30m, 1:30:00 or a number of seconds"

_NUMBER = r"[0-9][0-9_]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_QUANTITY = re.compile(rf"({_NUMBER})\s*([A-Za-z]*)")
_QUANTITIES = re.compile(rf"(?:{_NUMBER}\s*[A-Za-z]+\s*)+")
_CLOCK = re.compile(r"(?:([0-9]+)(?:-|d\s+))?([0-9]+):([0-5][0-9]):([0-5][0-9](?:\.[0-9]+)?)")


def parse_count(value: object) -> int:
    """Parse a count of at least 0: `1_000`, `1e9`, `"20B"`, `"64Ki"`.

    A number with a unit is rounded to the nearest whole number, as for sizes.

    Raises:
        ValueError: the value is not such a count.
    """
    return _parse_whole(value, COUNT_UNITS, _COUNT, fold_case=False)


def parse_bytes(value: object) -> int:
    """Parse a size in bytes, at least 0: `1024`, `"64MiB"`, `"100 MB"` (case does not matter).

    Raises:
        ValueError: the value is not such a size.
    """
    return _parse_whole(value, BYTE_UNITS, _BYTES, fold_case=True)


def parse_duration(value: object) -> float:
    """Parse a duration in seconds: `90`, `"90m"`, `"1h30m"`, `"1:30:00"`, `"2-00:00:00"`.

    Raises:
        ValueError: the value is not such a duration.
    """
    if not isinstance(value, str):
        return _checked(value, _DURATION, value)
    text = value.strip()
    if match := _CLOCK.fullmatch(text):
        days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
        return days * 86400 + hours * 3600 + minutes * 60 + seconds
    if not (_QUANTITIES.fullmatch(text) or _QUANTITY.fullmatch(text)):
        raise ValueError(f"must be {_DURATION}, got {value!r}")
    seconds = 0.0
    for number, unit in _QUANTITY.findall(text):
        if unit not in DURATION_UNITS:
            raise ValueError(f"must be {_DURATION}, got {value!r}")
        seconds += float(number) * DURATION_UNITS[unit]
    return _checked(seconds, _DURATION, value)


def format_count(count: float) -> str:
    """Format a count with at most three significant digits: `999`, `1.23M`, `20B`."""
    size = abs(count)
    for factor, unit in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K")):
        if size >= factor * 0.9995:
            return f"{_three_digits(count / factor)}{unit}"
    return _three_digits(count)


def format_bytes(size: float) -> str:
    """Format a size in binary units with three significant digits: `512 B`, `1.5 KiB`, `64 MiB`."""
    for factor, unit in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if abs(size) >= factor:
            return f"{_three_digits(size / factor)} {unit}"
    return f"{_three_digits(size)} B"


def format_duration(seconds: float) -> str:
    """Format a duration as `parse_duration` reads it: `0.25s`, `42s`, `1:30:00`, `1d 12:00:00`."""
    if not math.isfinite(seconds):
        return "unknown"
    if seconds < 9.995:
        return f"{_three_digits(max(seconds, 0.0))}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    days, rest = divmod(whole, 86400)
    clock = f"{rest // 3600}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    return f"{days}d {clock}" if days else clock


def _parse_whole(value: object, units: Mapping[str, int], kind: str, *, fold_case: bool) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 0:
            raise ValueError(f"must be {kind}, got {value!r}")
        return value
    factor = 1
    number: object = value
    if isinstance(value, str):
        match = _QUANTITY.fullmatch(value.strip())
        unit = "" if match is None else str(match[2])
        unit = unit.lower() if fold_case else unit
        if match is None or unit not in units:
            raise ValueError(f"must be {kind}, got {value!r}")
        if match[1].replace("_", "").isdigit():
            return int(match[1]) * units[unit]
        number, factor = float(match[1]), units[unit]
    amount = _checked(number, kind, value) * factor
    if factor == 1 and amount != round(amount):
        raise ValueError(f"must be {kind}, got {value!r}")
    return round(amount)


def _checked(number: object, kind: str, value: object) -> float:
    """Return a finite, non-negative number; the error message shows `value`."""
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise ValueError(f"must be {kind}, got {value!r}")
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"must be {kind}, got {value!r}")
    return float(number)


def _three_digits(number: float) -> str:
    """Format a number with at most three significant digits, without trailing zeros or exponent."""
    decimals = 2 if abs(number) < 9.995 else 1 if abs(number) < 99.95 else 0
    text = f"{number:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
