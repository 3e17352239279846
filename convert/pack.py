"""Token ids of documents -> rows of `seq_len + 1`. In: ids in document order. Out: full shards of rows, then a tail.

Documents follow one another without a gap; a row may hold the end of one and the start of the next. Ids that do not
fill a last row are the tail: the tails of all parts are joined in part order when the dataset is published, so the
whole dataset drops less than one row, not one per part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass
class Rows:
    """Fills rows of one split of one part; gives them up a shard at a time."""

    row_ids: int
    rows_per_shard: int
    dtype: np.dtype[Any]
    taken: int = 0
    _pending: list[NDArray[Any]] = field(default_factory=list)
    _count: int = 0

    def add(self, ids: NDArray[Any]) -> Iterator[NDArray[Any]]:
        """Append ids; yields every shard of rows [rows_per_shard, row_ids] that is now full."""
        self._pending.append(ids.astype(self.dtype, copy=False))
        self._count += len(ids)
        capacity = self.rows_per_shard * self.row_ids
        while self._count >= capacity:
            yield self._take(capacity).reshape(-1, self.row_ids)

    def finish(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """The last rows [N, row_ids] (N may be 0) and the tail [fewer than row_ids]."""
        whole = self._count // self.row_ids * self.row_ids
        rows = self._take(whole).reshape(-1, self.row_ids)
        return rows, self._take(self._count)

    def _take(self, count: int) -> NDArray[Any]:
        flat = np.concatenate(self._pending) if self._pending else np.empty(0, self.dtype)
        taken, rest = flat[:count], flat[count:]
        self._pending = [rest] if len(rest) else []
        self._count = len(rest)
        self.taken += count
        return taken


def with_borders(
    ids: NDArray[Any],
    lengths: NDArray[np.int64],
    *,
    before: NDArray[np.int64],
    after: NDArray[np.int64],
) -> NDArray[Any]:
    """Set begin-of-text and end-of-text around documents.

    `ids` [sum of lengths] are the documents one after another; `before` and `after` [documents] hold the id to set
    there, or -1 for none.
    """
    starts, ends = before >= 0, after >= 0
    sizes = lengths + starts + ends
    borders = np.concatenate(([0], np.cumsum(sizes)))
    framed = np.empty(borders[-1], dtype=ids.dtype)
    is_text = np.ones(borders[-1], dtype=bool)
    first, last = borders[:-1][starts], borders[1:][ends] - 1
    is_text[first] = is_text[last] = False
    framed[is_text] = ids
    framed[first], framed[last] = before[starts], after[ends]
    return framed
