"""Token ids of documents -> rows of `seq_len + 1`. In: ids in document order. Out: full shards of
rows, the ids left over, and the pieces that the rows hold.

`flow`: documents follow one another without a gap; a row may hold the end of one and the start of
the next. Ids that fill no last row are the part's tail; the tails of all parts are joined in part
order when the dataset is published, so a split drops less than one row in all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from convert.inputs.document import Document
from convert.output.provenance import Pieces, without_text

FIRST_IDS = 1 << 16
Ids = NDArray[Any]
Lengths = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Packed:
    """The end of a part: its last rows [N, row_ids], its tail [fewer than row_ids], all pieces."""

    rows: Ids
    tail: Ids
    pieces: Pieces
    padding: int = 0


class Packer(Protocol):
    """Fills the rows of one split of one part."""

    def add(self, documents: Sequence[Document], ids: Ids, lengths: Lengths) -> Iterator[Ids]:
        """Take documents' ids [sum of lengths]; yields full shards [rows_per_shard, row_ids]."""
        ...

    def finish(self) -> Packed:
        """What is left."""
        ...


class ConcatPacker:
    """One document after another."""

    def __init__(self, row_ids: int, rows_per_shard: int, dtype: np.dtype[Any]) -> None:
        self._row_ids = row_ids
        self._full = rows_per_shard * row_ids
        self._shard = np.empty(min(self._full, FIRST_IDS), dtype)
        self._filled = 0
        self._documents: list[Document] = []
        self._lengths: list[Lengths] = []

    def add(self, documents: Sequence[Document], ids: Ids, lengths: Lengths) -> Iterator[Ids]:
        """See `Packer.add`; a yielded shard is overwritten when the next one is asked for."""
        self._documents += without_text(documents)
        self._lengths.append(lengths)
        while len(ids):
            room = self._full - self._filled
            taken = ids[:room]
            self._reserve(self._filled + len(taken))
            self._shard[self._filled : self._filled + len(taken)] = taken
            self._filled += len(taken)
            ids = ids[room:]
            if self._filled == self._full:
                yield self._shard.reshape(-1, self._row_ids)
                self._filled = 0

    def _reserve(self, wanted: int) -> None:
        """Memory grows with the data, up to a shard: the limit may be far larger than the data."""
        if wanted > len(self._shard):
            grown = np.empty(min(self._full, max(wanted, 2 * len(self._shard))), self._shard.dtype)
            grown[: self._filled] = self._shard[: self._filled]
            self._shard = grown

    def finish(self) -> Packed:
        """See `Packer.finish`."""
        whole = self._filled // self._row_ids * self._row_ids
        lengths = np.concatenate(self._lengths) if self._lengths else np.empty(0, np.int64)
        pieces = Pieces(
            documents=self._documents,
            first=np.cumsum(lengths) - lengths,
            tokens=lengths,
            offset=np.zeros(len(lengths), np.int64),
        )
        return Packed(
            rows=self._shard[:whole].reshape(-1, self._row_ids),
            tail=self._shard[whole : self._filled].copy(),
            pieces=pieces,
        )


def with_borders(ids: Ids, lengths: Lengths, *, before: Lengths, after: Lengths) -> Ids:
    """Set begin-of-text and end-of-text around documents.

    `ids` [sum of lengths] are the documents one after another; `before` and `after` [documents]
    hold the id to set there, or -1 for none.
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
