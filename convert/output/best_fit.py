"""Pack documents into rows by best-fit decreasing, so that they stay whole where they fit.

The ids of a part's documents come in, and rows come out. A document longer than a row gives full
rows and a remainder. Remainders and short documents go, longest first, each into the fullest row
that still has space (best-fit decreasing); the rest of each row is padded with end-of-text and
counted. A part is packed on its own, so there is no tail.
Source: Ding et al., "Fewer truncations improve language modeling" (2024).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convert.inputs.document import Document
from convert.output.packing import Ids, Lengths, PackedPart
from convert.output.provenance import DocumentSpans, without_text


@dataclass(frozen=True, kw_only=True)
class PackingPlan:
    """The spans of documents in row order, as parallel arrays.

    A span of `tokens` ids of document number `document` begins at `offset` in the document, at
    `source` in the ids of the part, and goes to `target`, counted in ids from row 0.
    """

    document: NDArray[np.int64]
    source: NDArray[np.int64]
    offset: NDArray[np.int64]
    tokens: NDArray[np.int64]
    target: NDArray[np.int64]
    rows: int


class BestFitPacker:
    """The packer of `best_fit`; it keeps the ids of the whole part in memory."""

    def __init__(self, row_ids: int, dtype: np.dtype[Any], pad_id: int) -> None:
        self._row_ids, self._dtype, self._pad_id = row_ids, dtype, pad_id
        self._ids: list[Ids] = []
        self._documents: list[Document] = []
        self._lengths: list[Lengths] = []

    def add(self, documents: Sequence[Document], ids: Ids, lengths: Lengths) -> Iterator[Ids]:
        """See `Packer.add`; yields nothing before the end."""
        self._documents += without_text(documents)
        self._ids.append(ids.astype(self._dtype, copy=False))
        self._lengths.append(lengths)
        yield from ()

    def finish(self) -> PackedPart:
        """See `Packer.finish`."""
        ids = np.concatenate(self._ids) if self._ids else np.empty(0, self._dtype)
        lengths = np.concatenate(self._lengths) if self._lengths else np.empty(0, np.int64)
        plan = best_fit(lengths, self._row_ids)
        flat = np.full(plan.rows * self._row_ids, self._pad_id, self._dtype)
        for source, target, tokens in zip(plan.source, plan.target, plan.tokens, strict=True):
            flat[target : target + tokens] = ids[source : source + tokens]
        spans = DocumentSpans(
            documents=[self._documents[number] for number in plan.document],
            first=plan.target,
            tokens=plan.tokens,
            offset=plan.offset,
        )
        return PackedPart(
            rows=flat.reshape(-1, self._row_ids),
            tail=np.empty(0, self._dtype),
            spans=spans,
            padding=len(flat) - len(ids),
        )


def best_fit(lengths: Lengths, row_ids: int) -> PackingPlan:
    """Return where each span of documents of these lengths goes.

    Documents of equal lengths keep their order.
    """
    starts = np.cumsum(lengths) - lengths
    spans: list[tuple[int, int, int, int, int]] = []
    remainders: list[tuple[int, int]] = []
    rows = 0
    for number, length in enumerate(lengths.tolist()):
        begin = int(starts[number])
        for offset in range(0, length - row_ids + 1, row_ids):
            spans.append((rows * row_ids, number, begin + offset, offset, row_ids))
            rows += 1
        if remainder := length % row_ids:
            remainders.append((remainder, number))
    free_rows: list[tuple[int, int]] = []  # (free ids, row), sorted
    for remainder, number in sorted(remainders, key=lambda item: (-item[0], item[1])):
        i = bisect_left(free_rows, (remainder, -1))
        if i == len(free_rows):
            free, row = row_ids, rows
            rows += 1
        else:
            free, row = free_rows.pop(i)
        offset = int(lengths[number]) - remainder
        target = row * row_ids + row_ids - free
        spans.append((target, number, int(starts[number]) + offset, offset, remainder))
        if free > remainder:
            insort(free_rows, (free - remainder, row))
    table = np.array(sorted(spans), dtype=np.int64).reshape(-1, 5)
    return PackingPlan(
        target=table[:, 0],
        document=table[:, 1],
        source=table[:, 2],
        offset=table[:, 3],
        tokens=table[:, 4],
        rows=rows,
    )
