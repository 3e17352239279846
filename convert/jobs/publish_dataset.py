"""Join the parts of a conversion into a dataset.

The receipts of all parts come in, in stream order. The shards of the tails, the provenance, the
tokenizer and each `index.json` are written, in that order. `build` writes the card `dataset.json`
last: a directory without it is not a dataset. No text is read here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from convert.inputs.document import TRAIN, VALIDATION
from convert.jobs.conversion_job import ConversionJob
from convert.jobs.part_receipts import PartReceipt, SplitReceipt
from convert.jobs.part_writer import ids_key, spans_key, write_verified
from convert.output.content_hash import RowsHash, hash_rows
from convert.output.mds_shards import encode_shard, index_json
from convert.output.provenance import clip_spans, parquet_bytes, read_parquet_bytes
from stream_pretrain.errors import DataError
from stream_pretrain.schema import DOCUMENTS_DIR, INDEX_NAME, TOKENIZER_DIR, SplitCounts
from stream_pretrain.storage.hashing import xxh3_128_of

ROWS_PER_PARQUET = 1 << 20


def count_repeated_ids(job: ConversionJob, receipts: Sequence[PartReceipt]) -> int:
    """Return how many documents have the id of an earlier one, compared by hash.

    This takes 8 bytes of memory for each document. Without `--id_key` ids are positions, which do
    not repeat, and nothing is read.
    """
    keys = [ids_key(receipt.name) for receipt in receipts]
    named = [key for key, receipt in zip(keys, receipts, strict=True) if key in receipt.files]
    hashes = np.frombuffer(b"".join(job.store.read(key) for key in named), "<u8")
    return len(hashes) - len(np.unique(hashes))


@dataclass(frozen=True, kw_only=True)
class PublishedSplit:
    """One published split, as the card and its index describe it."""

    counts: SplitCounts
    rows: RowsHash
    entries: Sequence[Mapping[str, Any]] = field(repr=False)
    padding: int = 0
    documents: Mapping[str, str] = field(default_factory=dict)
    """The xxh3-128 of the tables of provenance, by key."""


def collect_splits(
    job: ConversionJob, receipts: Sequence[PartReceipt], *, expect_validation: bool
) -> dict[str, SplitPublisher]:
    """Return what will be published, by split name.

    Raises `DataError` where a split would hold no sample.
    """
    names = {name for receipt in receipts for name in receipt.splits}
    names |= {TRAIN, *([VALIDATION] if expect_validation else [])}
    splits = {name: SplitPublisher(job, name, receipts) for name in sorted(names)}
    for split in splits.values():
        split.check()
    return splits


def publish_splits(
    job: ConversionJob, splits: Mapping[str, SplitPublisher]
) -> dict[str, PublishedSplit]:
    """Write everything but the card; return the published splits by name."""
    published = {name: split.publish() for name, split in splits.items()}
    for name, data in job.vocabulary.files.items():
        write_verified(job.store, f"{TOKENIZER_DIR}/{name}", data)
    for name, split in published.items():
        write_verified(job.store, f"{name}/{INDEX_NAME}", index_json(split.entries))
    return published


class SplitPublisher:
    """Publishes one split of all parts."""

    def __init__(self, job: ConversionJob, name: str, receipts: Sequence[PartReceipt]) -> None:
        self._job, self._name = job, name
        self._parts: list[tuple[str, SplitReceipt]] = [
            (receipt.name, receipt.splits[name]) for receipt in receipts if name in receipt.splits
        ]
        tails = [split.tail for _, split in self._parts]
        self._tail = np.concatenate(tails) if tails else np.empty(0, np.uint32)
        self._tail_rows = len(self._tail) // job.shard_format.row_ids
        self._part_rows = sum(split.rows.rows for _, split in self._parts)
        self._documents: dict[str, str] = {}

    def check(self) -> None:
        """Raise `DataError` for a split without a sample."""
        if self._part_rows + self._tail_rows:
            return
        tokens = sum(split.tokens for _, split in self._parts)
        raise DataError(
            f"{self._name}: the input gives {tokens} tokens, and one sample takes "
            f"{self._job.shard_format.row_ids}. Nothing was published. Give more text, a smaller "
            "--seq_len, or another --validation."
        )

    def publish(self) -> PublishedSplit:
        """Write the shards of the tails and the provenance."""
        row_ids, per_shard = self._job.shard_format.row_ids, self._job.shard_format.rows_per_shard
        entries = [entry for _, split in self._parts for entry in split.entries]
        rows = self._tail[: self._tail_rows * row_ids].reshape(-1, row_ids)
        for number, begin in enumerate(range(0, len(rows), per_shard)):
            part = rows[begin : begin + per_shard]
            shard = encode_shard(part, self._job.shard_format, f"tail-{number:03}")
            write_verified(self._job.store, f"{self._name}/{shard.name}", shard.data)
            entries.append(shard.entry)
        total = RowsHash()
        for _, split in self._parts:
            total = total.concat(split.rows)
        self._publish_documents()
        counts = SplitCounts(
            documents=sum(split.documents for _, split in self._parts),
            tokens=sum(split.tokens for _, split in self._parts),
            samples=self._part_rows + self._tail_rows,
            dropped_tokens=len(self._tail) - rows.size,
            text_bytes=sum(split.text_bytes for _, split in self._parts),
        )
        return PublishedSplit(
            counts=counts,
            rows=total.concat(hash_rows(rows)),
            entries=entries,
            padding=sum(split.padding for _, split in self._parts),
            documents=self._documents,
        )

    def _publish_documents(self) -> None:
        tables: list[pa.Table] = []
        number = rows = 0
        for table in self._tables():
            tables.append(table)
            rows += len(table)
            if rows >= ROWS_PER_PARQUET:
                self._write_documents(tables, number)
                tables, rows, number = [], 0, number + 1
        if rows:
            self._write_documents(tables, number)

    def _write_documents(self, tables: Sequence[pa.Table], number: int) -> None:
        key = f"{self._name}/{DOCUMENTS_DIR}/{number:05}.parquet"
        data = parquet_bytes(pa.concat_tables(tables))
        write_verified(self._job.store, key, data)
        self._documents[key] = xxh3_128_of(data)

    def _tables(self) -> Iterator[pa.Table]:
        """Yield the spans in stream order: those of the parts' rows, then those of the tails."""
        row_ids = self._job.shard_format.row_ids
        base = 0
        tails: list[pa.Table] = []
        tail_base, end = self._part_rows * row_ids, (self._part_rows + self._tail_rows) * row_ids
        for part, split in self._parts:
            table = read_parquet_bytes(self._job.store.read(spans_key(part, self._name)))
            in_rows = split.rows.rows * row_ids
            yield clip_spans(table, 0, in_rows, base)
            in_tail = min(len(split.tail), end - tail_base)
            tails.append(clip_spans(table, in_rows, in_rows + in_tail, tail_base))
            base, tail_base = base + in_rows, tail_base + in_tail
        yield from tails
