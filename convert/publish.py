"""All receipts -> a dataset. In: receipts in part order. Out: tail shards, provenance, `index.json`s, card, in that order.

`dataset.json` is the last write: a directory without it is not a dataset. Does not read text.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from convert.content import RowsHash, hash_rows
from convert.documents import parquet_bytes
from convert.job import TRAIN, Job
from convert.receipts import Receipt
from convert.shards import encode_shard, index_json
from convert.work import pieces_key
from stream_pretrain.errors import DataError
from stream_pretrain.schema import DOCUMENTS_DIR, INDEX_NAME, SplitCounts


@dataclass(frozen=True, kw_only=True)
class Published:
    """What the card says of one split."""

    counts: SplitCounts
    rows: RowsHash


def publish_splits(job: Job, receipts: Sequence[Receipt]) -> dict[str, Published]:
    """Write everything of every split but the card."""
    names = sorted({name for receipt in receipts for name in receipt.splits})
    published = {}
    indexes = {}
    for name in names:
        published[name], entries = _publish_split(job, name, receipts)
        indexes[name] = entries
    _check_samples(job, published)
    for name, entries in indexes.items():
        job.place.write(f"{name}/{INDEX_NAME}", index_json(entries))
    return published


def _check_samples(job: Job, published: dict[str, Published]) -> None:
    names = {TRAIN, *published}
    for name in sorted(names):
        split = published.get(name)
        if split is None or split.counts.samples == 0:
            tokens = split.counts.tokens if split else 0
            raise DataError(
                f"{name}: the input gives {tokens} tokens, and one sample takes {job.shards.row_ids}. Nothing was "
                "published. Give more text, a smaller --seq_len, or another --validation."
            )


def _publish_split(job: Job, name: str, receipts: Sequence[Receipt]) -> tuple[Published, list[Any]]:
    parts = [(receipt.part, receipt.splits[name]) for receipt in receipts if name in receipt.splits]
    tail = _join([split.tail for _, split in parts])
    rows = tail[: len(tail) // job.shards.row_ids * job.shards.row_ids].reshape(
        -1, job.shards.row_ids
    )
    entries = [entry for _, split in parts for entry in split.entries]
    for begin in range(0, len(rows), job.shards.rows_per_shard):
        shard = encode_shard(
            rows[begin : begin + job.shards.rows_per_shard],
            job.shards,
            f"tail-{begin // job.shards.rows_per_shard:03}",
        )
        job.place.write(f"{name}/{shard.name}", shard.data)
        entries.append(shard.entry)
    total = RowsHash()
    for _, split in parts:
        total = total.then(split.rows)
    tail_begin = total.rows * job.shards.row_ids
    total = total.then(hash_rows(rows))
    _publish_documents(
        job, name, receipts, tail_begin=tail_begin, end=total.rows * job.shards.row_ids
    )
    counts = SplitCounts(
        documents=sum(split.documents for _, split in parts),
        tokens=sum(split.tokens for _, split in parts),
        samples=total.rows,
        dropped_tokens=len(tail) - rows.size,
        text_bytes=sum(split.text_bytes for _, split in parts),
    )
    return Published(counts=counts, rows=total), entries


def _publish_documents(
    job: Job, name: str, receipts: Sequence[Receipt], *, tail_begin: int, end: int
) -> None:
    """Join the parts' provenance; `first_token` now counts from the start of the split."""
    tables, tails = [], []
    base, tail_base = 0, tail_begin
    for receipt in receipts:
        if name not in receipt.splits:
            continue
        split = receipt.splits[name]
        in_rows = split.rows.rows * job.shards.row_ids
        table = pq.read_table(
            io.BytesIO(job.place.read(pieces_key(f"part-{receipt.part:05}", name)))
        )
        tables.append(_window(table, 0, in_rows, base))
        tails.append(
            _window(table, in_rows, in_rows + min(len(split.tail), end - tail_base), tail_base)
        )
        base += in_rows
        tail_base = min(end, tail_base + len(split.tail))
    joined = pa.concat_tables([*tables, *tails]).unify_dictionaries()
    job.place.write(f"{name}/{DOCUMENTS_DIR}/documents-00000.parquet", parquet_bytes(joined))


def _window(table: pa.Table, begin: int, end: int, base: int) -> pa.Table:
    """The pieces, cut where needed, that lie in [begin, end); their `first_token` moved from `begin` to `base`."""
    first = table["first_token"].to_numpy()
    stop = first + table["tokens"].to_numpy()
    chosen = np.flatnonzero((stop > begin) & (first < end))
    part = table.take(pa.array(chosen))
    cut_first = np.maximum(first[chosen], begin)
    tokens = np.minimum(stop[chosen], end) - cut_first
    offset = part["offset"].to_numpy() + (cut_first - first[chosen])
    for column, values in (
        ("first_token", cut_first - begin + base),
        ("tokens", tokens),
        ("offset", offset),
    ):
        place = table.schema.get_field_index(column)
        part = part.set_column(
            place, table.schema.field(place), pa.array(values).cast(table.schema.field(place).type)
        )
    return part


def _join(tails: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate(tails) if tails else np.empty(0, np.uint32)
