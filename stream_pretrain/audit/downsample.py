"""Long series -> what a chart can show. In: points, x ascending. Out: fewer points, no peak lost.
Draws nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

Point = tuple[float, float]

_MOST_WAITING = 512


def thin(points: Iterable[Point], x_from: float, x_to: float, columns: int) -> list[Point]:
    """At most four points a column, in order: the first, the last, the least and the greatest.

    Points whose y is not finite are kept, one a column, as they interrupt the line.
    """
    kept: list[Point] = []
    column: list[Point] = []
    current = -1
    scale = columns / (x_to - x_from) if x_to > x_from else 0.0
    for point in points:
        place = int((point[0] - x_from) * scale)
        if place != current:
            kept += _extremes(column)
            column, current = [], place
        column.append(point)
        if len(column) > _MOST_WAITING:
            column = _extremes(column)
    return kept + _extremes(column)


def _extremes(column: list[Point]) -> list[Point]:
    if len(column) <= 4:
        return column
    finite = [n for n, (_, y) in enumerate(column) if math.isfinite(y)]
    places = {0, len(column) - 1}
    if finite:
        places |= {min(finite, key=lambda n: column[n][1]), max(finite, key=lambda n: column[n][1])}
    if len(finite) < len(column):
        places.add(next(n for n, (_, y) in enumerate(column) if not math.isfinite(y)))
    return [column[n] for n in sorted(places)]
