"""Reduce a long series to the points that a chart can show, without losing a peak."""

from __future__ import annotations

import math
from collections.abc import Iterable

Point = tuple[float, float]

_MAX_BUFFERED = 512


def downsample(points: Iterable[Point], x_from: float, x_to: float, columns: int) -> list[Point]:
    """Keep the first, last, lowest and highest point of each column. `points` have ascending x.

    One point per column whose y is not finite is kept as well, because it interrupts the line.
    """
    kept: list[Point] = []
    column: list[Point] = []
    current = -1
    scale = columns / (x_to - x_from) if x_to > x_from else 0.0
    for point in points:
        index = int((point[0] - x_from) * scale)
        if index != current:
            kept += _extremes(column)
            column, current = [], index
        column.append(point)
        if len(column) > _MAX_BUFFERED:
            column = _extremes(column)
    return kept + _extremes(column)


def _extremes(column: list[Point]) -> list[Point]:
    if len(column) <= 4:
        return column
    finite = [n for n, (_, y) in enumerate(column) if math.isfinite(y)]
    kept = {0, len(column) - 1}
    if finite:
        kept |= {min(finite, key=lambda n: column[n][1]), max(finite, key=lambda n: column[n][1])}
    if len(finite) < len(column):
        kept.add(next(n for n, (_, y) in enumerate(column) if not math.isfinite(y)))
    return [column[n] for n in sorted(kept)]
