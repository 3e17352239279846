"""Pack the token ids of documents into rows of `seq_len + 1` ids.

Ids in document order come in; shards of rows, the ids that fill no row, and the spans of documents
that the rows hold come out. With `concat` packing, documents follow one another without a gap, and
a row may hold the end of one and the start of the next. The ids after the last full row are the
part's tail; the tails of all parts are joined in part order when the dataset is published, so a
split drops less than one row in all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from convert.inputs.document import Document
from convert.output.provenance import DocumentSpans, without_text

INITIAL_IDS = 1 << 16
Ids = NDArray[Any]
Lengths = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class PackedPart:
    """The end of a part: its last rows [N, row_ids], its tail [< row_ids] and all its spans."""

    rows: Ids
    tail: Ids
    spans: DocumentSpans
    padding: int = 0


class Packer(Protocol):
    """Fills the rows of one split of one part."""

    def add(self, documents: Sequence[Document], ids: Ids, lengths: Lengths) -> Iterator[Ids]:
        """Add the ids [sum of lengths] of documents; yield shards [rows_per_shard, row_ids]."""
        ...

    def finish(self) -> PackedPart:
        """Return what no full shard held."""
        ...


class ConcatPacker:
    """The packer of `concat`: one document after another."""

    def __init__(self, row_ids: int, rows_per_shard: int, dtype: np.dtype[Any]) -> None:
        self._row_ids = row_ids
        self._full = rows_per_shard * row_ids
        self._shard = np.empty(min(self._full, INITIAL_IDS), dtype)
        self._filled = 0
        self._documents: list[Document] = []
        self._lengths: list[Lengths] = []

    def add(self, documents: Sequence[Document], ids: Ids, lengths: Lengths) -> Iterator[Ids]:
        """See `Packer.add`; a yielded shard is overwritten when the next one is asked for."""
        self._documents += without_text(documents)
        self._lengths.append(lengths)
        while len(ids):
            free = self._full - self._filled
            head = ids[:free]
            self._reserve(self._filled + len(head))
            self._shard[self._filled : self._filled + len(head)] = head
            self._filled += len(head)
            ids = ids[free:]
            if self._filled == self._full:
                yield self._shard.reshape(-1, self._row_ids)
                self._filled = 0

    def _reserve(self, size: int) -> None:
        """Let the buffer grow with the data, since a shard may be far larger than the data."""
        if size > len(self._shard):
            grown = np.empty(min(self._full, max(size, 2 * len(self._shard))), self._shard.dtype)
            grown[: self._filled] = self._shard[: self._filled]
            self._shard = grown

    def finish(self) -> PackedPart:
        """See `Packer.finish`."""
        whole = self._filled // self._row_ids * self._row_ids
        lengths = np.concatenate(self._lengths) if self._lengths else np.empty(0, np.int64)
        spans = DocumentSpans(
            documents=self._documents,
            first=np.cumsum(lengths) - lengths,
            tokens=lengths,
            offset=np.zeros(len(lengths), np.int64),
        )
        return PackedPart(
            rows=self._shard[:whole].reshape(-1, self._row_ids),
            tail=self._shard[whole : self._filled].copy(),
            spans=spans,
        )


def add_special_tokens(ids: Ids, lengths: Lengths, *, before: Lengths, after: Lengths) -> Ids:
    """Return the ids with begin-of-text and end-of-text around the documents.

    `ids` [sum of lengths] are the documents one after another; `before` and `after` [documents]
    hold the id to insert there, or -1 for none.
    """
    starts, ends = before >= 0, after >= 0
    sizes = lengths + starts + ends
    offsets = np.concatenate(([0], np.cumsum(sizes)))
    framed = np.empty(offsets[-1], dtype=ids.dtype)
    is_text = np.ones(offsets[-1], dtype=bool)
    first, last = offsets[:-1][starts], offsets[1:][ends] - 1
    is_text[first] = is_text[last] = False
    framed[is_text] = ids
    framed[first], framed[last] = before[starts], after[ends]
    return framed
