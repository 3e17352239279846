"""Verify a dataset: the work of `convert-mds verify`.

A dataset comes in; a `VerifyReport` that names every fault comes out. Every byte is read and
checked: shard sizes and hashes, the layout of the shards, every id against the vocabulary, the
content hash and counts of the card, and whether provenance covers the rows. With `fast`, only sizes
are compared. Nothing is changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from convert.checks.read_dataset import (
    UNREADABLE,
    decompress_shard,
    read_card,
    read_index,
    rows_of,
)
from convert.checks.sidecar_checks import document_faults, tokenizer_faults
from convert.output.content_hash import RowsHash, content_hash, hash_rows
from stream_pretrain.mds.index import Shard, ShardFile
from stream_pretrain.schema import (
    CARD_NAME,
    Card,
)
from stream_pretrain.storage.hashing import hash_of
from stream_pretrain.storage.store import Store

SHARDS_AT_ONCE = 4


@dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """What was checked, and the faults, one line each."""

    location: str
    shards: int
    samples: int
    bytes_read: int
    faults: Sequence[str] = field(default_factory=tuple)

    @property
    def is_whole(self) -> bool:
        """True where there is no fault."""
        return not self.faults

    def lines(self) -> list[str]:
        """Return the report as lines of text, for a person."""
        counts = f"{self.shards:,} shards, {self.samples:,} samples, {self.bytes_read:,} bytes read"
        verdict = "whole" if self.is_whole else f"{len(self.faults)} fault(s)"
        return [*(f"- {fault}" for fault in self.faults), f"{self.location}: {verdict} ({counts})"]

    def to_plain(self) -> dict[str, Any]:
        """Return the report as plain values, for a script."""
        counts = {"shards": self.shards, "samples": self.samples, "bytes_read": self.bytes_read}
        return {
            "location": self.location,
            "is_whole": self.is_whole,
            "faults": [*self.faults],
            **counts,
        }


@dataclass(frozen=True, kw_only=True)
class _CheckedShard:
    """The result for one shard: the hash of its rows, the bytes read, and the faults."""

    rows: RowsHash
    size: int
    faults: tuple[str, ...]


def verify(store: Store, *, fast: bool = False) -> VerifyReport:
    """Check a dataset; raise `DataError` where there is none."""
    card = read_card(store)
    sizes = {info.key: info.size for info in store.list()}
    faults: list[str] = []
    hashes: dict[str, RowsHash] = {}
    shards = size = 0
    for name in card.splits:
        listed = read_index(store, name)
        faults += _unlisted_shards(name, listed, sizes)
        checked = list(_check_shards(store, card, name, listed, sizes, fast=fast))
        faults += [fault for shard in checked for fault in shard.faults]
        total = RowsHash()
        for shard in checked:
            total = total.concat(shard.rows)
            size += shard.size
        hashes[name] = total
        shards += len(listed)
        faults += _count_faults(store, card, name, total.rows)
        faults += [] if fast else list(document_faults(store, card, name, sizes))
    faults += list(tokenizer_faults(store, card))
    if not fast and not faults and content_hash(hashes, card.seq_len) != card.content_hash:
        faults.append(f"{store.url(CARD_NAME)}: content_hash is not that of the shards.")
    return VerifyReport(
        location=store.location,
        shards=shards,
        samples=sum(rows.rows for rows in hashes.values()),
        bytes_read=size,
        faults=tuple(faults),
    )


def _check_shards(
    store: Store,
    card: Card,
    split: str,
    shards: Sequence[Shard],
    sizes: Mapping[str, int],
    *,
    fast: bool,
) -> Iterator[_CheckedShard]:
    def check(shard: Shard) -> _CheckedShard:
        key = f"{split}/{shard.fetched.name}"
        size = sizes.get(key)
        copy_faults = list(_decompressed_copy_faults(store, split, shard, sizes, fast=fast))
        if size != shard.fetched.size:
            state = "absent" if size is None else f"{size} bytes"
            fault = f"{store.url(key)}: {state}, index.json says {shard.fetched.size} bytes."
            return _unread_shard(shard, fault, *copy_faults)
        checked = _unread_shard(shard) if fast else _check_shard(store, card, key, shard)
        return replace(checked, faults=(*checked.faults, *copy_faults))

    with ThreadPoolExecutor(SHARDS_AT_ONCE) as pool:
        yield from pool.map(check, shards)


def _decompressed_copy_faults(
    store: Store,
    split: str,
    shard: Shard,
    sizes: Mapping[str, int],
    *,
    fast: bool,
) -> Iterator[str]:
    """Yield the faults of the decompressed copy of a shard.

    StreamingDataset leaves such a copy beside the stored shard where it reads a local dataset
    directly.
    """
    key = f"{split}/{shard.raw.name}"
    if shard.packed is None or key not in sizes:
        return
    remedy = "Delete this decompressed copy."
    if sizes[key] != shard.raw.size:
        yield f"{store.url(key)}: {sizes[key]} bytes, index.json says {shard.raw.size}. {remedy}"
    elif not fast:
        for fault in _hash_faults(store.url(key), store.read(key), shard.raw):
            yield f"{fault} {remedy}"


def _unread_shard(shard: Shard, *faults: str) -> _CheckedShard:
    """Return the result for a shard whose rows were not read; its entry gives their number."""
    return _CheckedShard(rows=RowsHash(rows=shard.samples), size=0, faults=faults)


def _check_shard(store: Store, card: Card, key: str, shard: Shard) -> _CheckedShard:
    url = store.url(key)
    data = store.read(key)
    faults = list(_hash_faults(url, data, shard.fetched))
    if faults:
        return _unread_shard(shard, *faults)
    try:
        raw = decompress_shard(data, shard)
        faults += _hash_faults(url, raw, shard.raw)
        rows = rows_of(raw, card)
    except UNREADABLE as error:
        return _unread_shard(shard, f"{url}: no MDS shard of this dataset ({error}).")
    if len(rows) != shard.samples:
        faults.append(f"{url}: {len(rows)} samples, index.json says {shard.samples}.")
    largest = int(rows.max(initial=0))
    if largest >= card.vocab_size:
        row = int(np.argmax(rows.max(axis=1) >= card.vocab_size))
        faults.append(f"{url}: sample {row} holds id {largest}, the vocabulary {card.vocab_size}.")
    return _CheckedShard(rows=hash_rows(rows), size=len(data), faults=tuple(faults))


def _hash_faults(url: str, data: bytes, file: ShardFile) -> Iterator[str]:
    for algorithm, expected in file.hashes.items():
        digest = hash_of(algorithm, data)
        if digest != expected:
            yield f"{url}: {algorithm} is {digest}, index.json says {expected}: damaged."


def _unlisted_shards(split: str, shards: Sequence[Shard], sizes: Mapping[str, int]) -> list[str]:
    known = {
        f"{split}/{file.name}"
        for shard in shards
        for file in (shard.raw, shard.packed)
        if file is not None
    }
    return [
        f"{key}: a shard that index.json does not list."
        for key in sizes
        if key.startswith(f"{split}/") and ".mds" in key and key not in known
    ]


def _count_faults(store: Store, card: Card, split: str, samples: int) -> Iterator[str]:
    counts = card.splits[split]
    location = f"{store.url(CARD_NAME)}, {split}"
    if counts.samples != samples:
        yield f"{location}: {counts.samples} samples, the shards hold {samples}."
    padding = card.notes.get("padding", {}).get(split, 0)
    expected = samples * (card.seq_len + 1) + counts.dropped_tokens - padding
    if counts.tokens != expected:
        yield f"{location}: {counts.tokens} tokens, samples and dropped tokens make {expected}."
