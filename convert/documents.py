"""Where every token came from. In: pieces of documents in stream order. Out: parquet tables.

A row of `documents/*.parquet` is a piece of a document that lies in the stream without a gap. Nearly every document is
one piece; one that a part's border cut, or best-fit packing, is several: `offset` is the piece's first token within its
document. `first_token` counts ids of the packed stream, so sample `first_token // (seq_len + 1)` holds its start, and
the pieces of a split cover its rows without gap or overlap.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from convert.readers import Document

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("source", pa.dictionary(pa.int32(), pa.string())),
        ("position", pa.int64()),
        ("first_token", pa.int64()),
        ("tokens", pa.int32()),
        ("offset", pa.int64()),
    ]
)
ENCODINGS = {
    "id": "DELTA_BYTE_ARRAY",
    "position": "DELTA_BINARY_PACKED",
    "first_token": "DELTA_BINARY_PACKED",
    "tokens": "DELTA_BINARY_PACKED",
    "offset": "DELTA_BINARY_PACKED",
}


@dataclass
class Pieces:
    """Collects the pieces of one split of one part."""

    ids: list[str] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    tokens: list[NDArray[np.int64]] = field(default_factory=list)

    def add(self, documents: Sequence[Document], tokens: NDArray[np.int64]) -> None:
        """Append documents, each `tokens` ids long."""
        self.ids += [document.id for document in documents]
        self.files += [document.file for document in documents]
        self.positions += [document.position for document in documents]
        self.tokens.append(tokens)

    def table(self, labels: list[str]) -> pa.Table:
        """A table whose `first_token` counts from the part's own first token."""
        tokens = np.concatenate(self.tokens) if self.tokens else np.empty(0, np.int64)
        first = np.cumsum(tokens) - tokens
        source = pa.DictionaryArray.from_arrays(pa.array(self.files, pa.int32()), pa.array(labels))
        zeros = np.zeros(len(tokens), np.int64)
        columns = [pa.array(self.ids, pa.string()), source, pa.array(self.positions, pa.int64())]
        columns += [pa.array(first), pa.array(tokens.astype(np.int32)), pa.array(zeros)]
        return pa.table(columns, schema=SCHEMA)


def parquet_bytes(table: pa.Table) -> bytes:
    """One parquet file."""
    sink = io.BytesIO()
    pq.write_table(
        table,
        sink,
        compression="zstd",
        use_dictionary=["source"],
        column_encoding=ENCODINGS,
        store_schema=False,
    )
    return sink.getvalue()
