"""Make the tables that tell which document every token came from.

The spans of documents in stream order come in, and Parquet tables come out. A row of
`documents/*.parquet` is a span of a document that lies in the packed stream without a gap. Nearly
every document is one span; one that a part's boundary or best-fit packing cut is several, and
`offset` is the span's first token within the text read at `position`. `first_token` counts ids of
the packed stream: sample `first_token // (seq_len + 1)` holds the span's start. The spans of a
split cover its rows without overlap, and without gap unless best-fit packing padded.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from convert.inputs.document import Document

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("source", pa.string()),
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
class DocumentSpans:
    """The spans of one split of one part; `first` counts from the part's own first token."""

    documents: list[Document] = field(default_factory=list)
    first: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    tokens: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    offset: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    def table(self, labels: Sequence[str]) -> pa.Table:
        """Return the spans as a table; `labels` are the labels of the input files, by number."""
        columns = [
            pa.array([document.id for document in self.documents], pa.string()),
            pa.array([labels[document.file] for document in self.documents], pa.string()),
            pa.array([document.position for document in self.documents], pa.int64()),
            pa.array(self.first),
            pa.array(self.tokens.astype(np.int32)),
            pa.array(self.offset),
        ]
        return pa.table(columns, schema=SCHEMA)


def without_text(documents: Sequence[Document]) -> list[Document]:
    """Return the documents without their texts, as provenance keeps them."""
    return [document._replace(text=None) for document in documents]


def clip_spans(table: pa.Table, begin: int, end: int, base: int) -> pa.Table:
    """Return the spans that lie in [begin, end), clipped to it, with `begin` moved to `base`."""
    first = table["first_token"].to_numpy()
    stop = first + table["tokens"].to_numpy()
    chosen = np.flatnonzero(np.minimum(stop, end) > np.maximum(first, begin))
    cut_first = np.maximum(first[chosen], begin)
    clipped = table.take(pa.array(chosen))
    changed = {
        "first_token": cut_first - begin + base,
        "tokens": np.minimum(stop[chosen], end) - cut_first,
        "offset": clipped["offset"].to_numpy() + (cut_first - first[chosen]),
    }
    for name, values in changed.items():
        i = SCHEMA.get_field_index(name)
        column = pa.array(values, SCHEMA.field(i).type)
        clipped = clipped.set_column(i, SCHEMA.field(i), column)
    return clipped


def parquet_bytes(table: pa.Table) -> bytes:
    """Return the table as a Parquet file."""
    sink = io.BytesIO()
    pq.write_table(
        table,
        sink,
        compression="zstd",
        use_dictionary=["source"],
        column_encoding=ENCODINGS,
    )
    return sink.getvalue()


def read_parquet_bytes(data: bytes) -> Any:
    """Return the table of a Parquet file."""
    return pq.read_table(io.BytesIO(data))
