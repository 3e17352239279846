"""Read a dataset that `convert-mds` wrote: its card, its indexes and the rows of its shards.

A store comes in. Every entry and every offset is checked before it is used; `DataError`, or one of
`UNREADABLE`, says that the dataset is damaged.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from convert.inputs.mds_reader import shard_layout
from stream_pretrain.errors import DataError, StorageError
from stream_pretrain.mds.decompress import unpack_shard
from stream_pretrain.mds.index import Shard, parse_shard, refuse_name_that_leads_out
from stream_pretrain.schema import CARD_NAME, INDEX_NAME, TOKENS_COLUMN, Card
from stream_pretrain.storage.hashing import is_known
from stream_pretrain.storage.store import Store

UNREADABLE = (ValueError, KeyError, IndexError, TypeError)
"""The errors that reading a damaged shard raises."""


def read_card(store: Store) -> Card:
    """Return the card of a dataset; raise `DataError` where there is none."""
    try:
        return Card.from_json(store.read(CARD_NAME), store.url(CARD_NAME))
    except StorageError as error:
        if error.reason != "absent":
            raise
        raise DataError(
            f"{store.location}: no {CARD_NAME}, so no dataset. Name the directory that convert-mds "
            "build wrote with --out; if that was stopped, run it again."
        ) from error


def read_index(store: Store, split: str) -> list[Shard]:
    """Return the shards that a split's `index.json` lists; it may list none."""
    key = f"{split}/{INDEX_NAME}"
    try:
        entries = json.loads(store.read(key))["shards"]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{store.url(key)}: not an MDS index ({error}). Convert the dataset again."
        ) from error
    if not isinstance(entries, list):
        raise DataError(f"{store.url(key)}: not an MDS index. Convert the dataset again.")
    return [_parse_entry(entry, f"{store.url(key)}: shard {i}") for i, entry in enumerate(entries)]


def _parse_entry(entry: Any, location: str) -> Shard:
    """Parse one entry; raise `DataError` where it is malformed or leads out of the dataset."""
    if isinstance(entry, dict):
        for file in (entry.get("raw_data"), entry.get("zip_data")):
            if isinstance(file, dict) and isinstance(file.get("basename"), str):
                refuse_name_that_leads_out(file["basename"], location)
    try:
        shard = parse_shard(entry, "shard")
        for name in {*shard.raw.hashes, *shard.fetched.hashes}:
            if not is_known(name):
                raise DataError(f"unknown hash {name!r}")
    except DataError as error:
        reason = str(error).rstrip(".")
        raise DataError(
            f"{location}: malformed entry ({reason}). Convert the dataset again."
        ) from error
    return shard


def read_rows(store: Store, split: str, shard: Shard, card: Card) -> Any:
    """Return the rows [N, seq_len + 1] of one shard; raise one of `UNREADABLE` if damaged."""
    return rows_of(decompress_shard(store.read(f"{split}/{shard.fetched.name}"), shard), card)


def decompress_shard(data: bytes, shard: Shard) -> bytes:
    """Return the uncompressed bytes of a shard; raise ValueError where they are damaged."""
    try:
        return unpack_shard(data, shard.compression, limit=shard.raw.size, place="shard")
    except StorageError as error:
        raise ValueError(str(error).rstrip(".")) from error


def rows_of(raw: bytes, card: Card) -> Any:
    """Return the rows of an uncompressed shard; every offset is checked."""
    offsets, columns = shard_layout(raw)
    dtype = np.dtype("<u2" if card.dtype == "uint16" else "<u4")
    width = (card.seq_len + 1) * dtype.itemsize
    expected = (TOKENS_COLUMN, f"ndarray:{card.dtype}:{card.seq_len + 1}", width)
    if columns != [expected]:
        raise ValueError(f"its columns are {columns}, not {[expected]}")
    if not np.array_equal(np.diff(offsets.astype(np.int64)), np.full(len(offsets) - 1, width)):
        raise ValueError("samples of unequal length")
    return np.frombuffer(raw, dtype, offset=int(offsets[0])).reshape(-1, card.seq_len + 1)
