"""Best-fit packing: documents whole where they fit. In: ids of a part's documents. Out: rows.

A document longer than a row gives full rows and a rest. Rests and short documents go, longest
first, each into the fullest row that still has room (best-fit decreasing); what stays free is
padded with end-of-text and counted. A part is packed on its own, so there is no tail.
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
from convert.output.packing import Ids, Lengths, Packed
from convert.output.provenance import Pieces, without_text


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Pieces in row order: source range and target of each. `target` counts ids from row 0."""

    document: NDArray[np.int64]
    source: NDArray[np.int64]
    offset: NDArray[np.int64]
    tokens: NDArray[np.int64]
    target: NDArray[np.int64]
    rows: int


class BestFitPacker:
    """Keeps the part's ids until it ends."""

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

    def finish(self) -> Packed:
        """See `Packer.finish`."""
        ids = np.concatenate(self._ids) if self._ids else np.empty(0, self._dtype)
        lengths = np.concatenate(self._lengths) if self._lengths else np.empty(0, np.int64)
        place = best_fit(lengths, self._row_ids)
        flat = np.full(place.rows * self._row_ids, self._pad_id, self._dtype)
        for source, target, tokens in zip(place.source, place.target, place.tokens, strict=True):
            flat[target : target + tokens] = ids[source : source + tokens]
        pieces = Pieces(
            documents=[self._documents[number] for number in place.document],
            first=place.target,
            tokens=place.tokens,
            offset=place.offset,
        )
        return Packed(
            rows=flat.reshape(-1, self._row_ids),
            tail=np.empty(0, self._dtype),
            pieces=pieces,
            padding=len(flat) - len(ids),
        )


def best_fit(lengths: Lengths, row_ids: int) -> Placement:
    """Where each piece of documents of these lengths goes. Equal lengths keep document order."""
    borders = np.cumsum(lengths) - lengths
    pieces: list[tuple[int, int, int, int, int]] = []
    rests: list[tuple[int, int]] = []
    rows = 0
    for number, length in enumerate(lengths.tolist()):
        begin = int(borders[number])
        for offset in range(0, length - row_ids + 1, row_ids):
            pieces.append((rows * row_ids, number, begin + offset, offset, row_ids))
            rows += 1
        if rest := length % row_ids:
            rests.append((rest, number))
    rooms: list[tuple[int, int]] = []  # (free ids, row), sorted
    for rest, number in sorted(rests, key=lambda item: (-item[0], item[1])):
        place = bisect_left(rooms, (rest, -1))
        if place == len(rooms):
            room, row = row_ids, rows
            rows += 1
        else:
            room, row = rooms.pop(place)
        offset = int(lengths[number]) - rest
        target = row * row_ids + row_ids - room
        pieces.append((target, number, int(borders[number]) + offset, offset, rest))
        if room > rest:
            insort(rooms, (room - rest, row))
    table = np.array(sorted(pieces), dtype=np.int64).reshape(-1, 5)
    return Placement(
        target=table[:, 0],
        document=table[:, 1],
        source=table[:, 2],
        offset=table[:, 3],
        tokens=table[:, 4],
        rows=rows,
    )
