"""`convert-mds verify`. In: a dataset. Out: a `Report` that names every fault. Changes nothing.

Every byte is read: shard sizes and hashes, the layout inside, every id against the vocabulary, the
content hash and counts of the card, and that provenance covers the rows. `fast` compares sizes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from convert.checks.sidecar_checks import document_faults, tokenizer_faults
from convert.inputs.mds_reader import shard_layout
from convert.output.content_hash import RowsHash, content_hash, hash_rows
from stream_pretrain.errors import DataError, StorageError
from stream_pretrain.mds.decompress import unpack_shard
from stream_pretrain.mds.index import Shard, ShardFile, parse_shard, refuse_name_that_leads_out
from stream_pretrain.schema import (
    CARD_NAME,
    INDEX_NAME,
    TOKENS_COLUMN,
    Card,
)
from stream_pretrain.storage.hashing import hash_of, is_known
from stream_pretrain.storage.store import Store

SHARDS_AT_ONCE = 4
UNREADABLE = (ValueError, KeyError, IndexError, TypeError)
"""What reading a shard that is none may raise."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was checked and what is wrong, one line each."""

    location: str
    shards: int
    samples: int
    bytes_read: int
    faults: Sequence[str] = field(default_factory=tuple)

    @property
    def is_whole(self) -> bool:
        """True where nothing is wrong."""
        return not self.faults

    def lines(self) -> list[str]:
        """For a person."""
        counts = f"{self.shards:,} shards, {self.samples:,} samples, {self.bytes_read:,} bytes read"
        verdict = "whole" if self.is_whole else f"{len(self.faults)} fault(s)"
        return [*(f"- {fault}" for fault in self.faults), f"{self.location}: {verdict} ({counts})"]

    def to_plain(self) -> dict[str, Any]:
        """For a script."""
        counts = {"shards": self.shards, "samples": self.samples, "bytes_read": self.bytes_read}
        return {
            "location": self.location,
            "is_whole": self.is_whole,
            "faults": [*self.faults],
            **counts,
        }


@dataclass(frozen=True, kw_only=True)
class _Checked:
    """One shard: its rows' hash, and faults."""

    rows: RowsHash
    size: int
    faults: tuple[str, ...]


def verify(store: Store, *, fast: bool = False) -> Report:
    """Check a dataset; `DataError` where there is none."""
    card = read_card(store)
    sizes = {info.key: info.size for info in store.list()}
    faults: list[str] = []
    hashes: dict[str, RowsHash] = {}
    shards = size = 0
    for name in card.splits:
        listed = read_index(store, name)
        faults += _stray_shards(name, listed, sizes)
        checked = list(_check_shards(store, card, name, listed, sizes, fast=fast))
        faults += [fault for shard in checked for fault in shard.faults]
        total = RowsHash()
        for shard in checked:
            total = total.then(shard.rows)
            size += shard.size
        hashes[name] = total
        shards += len(listed)
        faults += _check_counts(store, card, name, total.rows)
        faults += [] if fast else list(document_faults(store, card, name, sizes))
    faults += list(tokenizer_faults(store, card))
    if not fast and not faults and content_hash(hashes, card.seq_len) != card.content_hash:
        faults.append(f"{store.url(CARD_NAME)}: content_hash is not that of the shards.")
    return Report(
        location=store.location,
        shards=shards,
        samples=sum(rows.rows for rows in hashes.values()),
        bytes_read=size,
        faults=tuple(faults),
    )


def read_card(store: Store) -> Card:
    """The card of a dataset."""
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
    """The shards that a split's `index.json` lists; it may list none."""
    key = f"{split}/{INDEX_NAME}"
    try:
        entries = json.loads(store.read(key))["shards"]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{store.url(key)}: not an MDS index ({error}). Convert the dataset again."
        ) from error
    if not isinstance(entries, list):
        raise DataError(f"{store.url(key)}: not an MDS index. Convert the dataset again.")
    return [_parse(entry, f"{store.url(key)}: shard {i}") for i, entry in enumerate(entries)]


def _parse(entry: Any, where: str) -> Shard:
    """`DataError` for an entry that cannot be followed, or that leads out of the dataset."""
    if isinstance(entry, dict):
        for file in (entry.get("raw_data"), entry.get("zip_data")):
            if isinstance(file, dict) and isinstance(file.get("basename"), str):
                refuse_name_that_leads_out(file["basename"], where)
    try:
        shard = parse_shard(entry, "shard")
        for name in {*shard.raw.hashes, *shard.fetched.hashes}:
            if not is_known(name):
                raise DataError(f"unknown hash {name!r}")
    except DataError as error:
        reason = str(error).rstrip(".")
        raise DataError(
            f"{where}: malformed entry ({reason}). Convert the dataset again."
        ) from error
    return shard


def read_rows(store: Store, split: str, shard: Shard, card: Card) -> Any:
    """The rows [N, seq_len + 1] of one shard; one of `UNREADABLE` where they cannot be."""
    return rows_of(_unpacked(store.read(f"{split}/{shard.fetched.name}"), shard), card)


def _unpacked(data: bytes, shard: Shard) -> bytes:
    try:
        return unpack_shard(data, shard.compression, limit=shard.raw.size, place="shard")
    except StorageError as error:
        raise ValueError(str(error).rstrip(".")) from error


def rows_of(raw: bytes, card: Card) -> Any:
    """The rows of an uncompressed shard; every offset is checked."""
    offsets, columns = shard_layout(raw)
    dtype = np.dtype("<u2" if card.dtype == "uint16" else "<u4")
    width = (card.seq_len + 1) * dtype.itemsize
    expected = (TOKENS_COLUMN, f"ndarray:{card.dtype}:{card.seq_len + 1}", width)
    if columns != [expected]:
        raise ValueError(f"its columns are {columns}, not {[expected]}")
    if not np.array_equal(np.diff(offsets.astype(np.int64)), np.full(len(offsets) - 1, width)):
        raise ValueError("samples of unequal length")
    return np.frombuffer(raw, dtype, offset=int(offsets[0])).reshape(-1, card.seq_len + 1)


def _check_shards(
    store: Store,
    card: Card,
    split: str,
    shards: Sequence[Shard],
    sizes: Mapping[str, int],
    *,
    fast: bool,
) -> Iterator[_Checked]:
    def check(shard: Shard) -> _Checked:
        key = f"{split}/{shard.fetched.name}"
        size = sizes.get(key)
        if size != shard.fetched.size:
            found = "absent" if size is None else f"{size} bytes"
            fault = f"{store.url(key)}: {found}, index.json says {shard.fetched.size} bytes."
            return _failed(shard, fault, *_wrong_twin(store, split, shard, sizes, fast=fast))
        checked = _failed(shard) if fast else _check_shard(store, card, key, shard)
        twin = _wrong_twin(store, split, shard, sizes, fast=fast)
        return replace(checked, faults=(*checked.faults, *twin))

    with ThreadPoolExecutor(SHARDS_AT_ONCE) as pool:
        yield from pool.map(check, shards)


def _wrong_twin(
    store: Store,
    split: str,
    shard: Shard,
    sizes: Mapping[str, int],
    *,
    fast: bool,
) -> Iterator[str]:
    """Faults of the decompressed shard that StreamingDataset leaves beside the stored one where it
    reads a dataset in place."""
    key = f"{split}/{shard.raw.name}"
    if shard.packed is None or key not in sizes:
        return
    remedy = "Delete this decompressed copy."
    if sizes[key] != shard.raw.size:
        yield f"{store.url(key)}: {sizes[key]} bytes, index.json says {shard.raw.size}. {remedy}"
    elif not fast:
        for fault in _wrong_hashes(store.url(key), store.read(key), shard.raw):
            yield f"{fault} {remedy}"


def _failed(shard: Shard, *faults: str) -> _Checked:
    """A shard whose rows were not read; counted as its entry says."""
    return _Checked(rows=RowsHash(rows=shard.samples), size=0, faults=faults)


def _check_shard(store: Store, card: Card, key: str, shard: Shard) -> _Checked:
    url = store.url(key)
    data = store.read(key)
    faults = list(_wrong_hashes(url, data, shard.fetched))
    if faults:
        return _failed(shard, *faults)
    try:
        raw = _unpacked(data, shard)
        faults += _wrong_hashes(url, raw, shard.raw)
        rows = rows_of(raw, card)
    except UNREADABLE as error:
        return _failed(shard, f"{url}: no MDS shard of this dataset ({error}).")
    if len(rows) != shard.samples:
        faults.append(f"{url}: {len(rows)} samples, index.json says {shard.samples}.")
    largest = int(rows.max(initial=0))
    if largest >= card.vocab_size:
        row = int(np.argmax(rows.max(axis=1) >= card.vocab_size))
        faults.append(f"{url}: sample {row} holds id {largest}, the vocabulary {card.vocab_size}.")
    return _Checked(rows=hash_rows(rows), size=len(data), faults=tuple(faults))


def _wrong_hashes(url: str, data: bytes, file: ShardFile) -> Iterator[str]:
    for algorithm, expected in file.hashes.items():
        found = hash_of(algorithm, data)
        if found != expected:
            yield f"{url}: {algorithm} is {found}, index.json says {expected}: damaged."


def _stray_shards(split: str, shards: Sequence[Shard], sizes: Mapping[str, int]) -> list[str]:
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


def _check_counts(store: Store, card: Card, split: str, samples: int) -> Iterator[str]:
    counts = card.splits[split]
    place = f"{store.url(CARD_NAME)}, {split}"
    if counts.samples != samples:
        yield f"{place}: {counts.samples} samples, the shards hold {samples}."
    padding = card.notes.get("padding", {}).get(split, 0)
    held = samples * (card.seq_len + 1) + counts.dropped_tokens - padding
    if counts.tokens != held:
        yield f"{place}: {counts.tokens} tokens, samples and dropped tokens make {held}."
