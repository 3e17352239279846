"""Verify a dataset: the work of `convert-mds verify`.

A dataset comes in; a `VerifyReport` that names every fault comes out. Every byte is read and
checked: shard sizes and hashes, the layout of the shards, every id against the vocabulary, the
content hash and counts of the card, and whether provenance covers the rows. With `fast`, only sizes
are compared. Nothing is changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import zstandard

from convert.checks.sidecar_checks import document_faults, tokenizer_faults
from convert.inputs.mds_reader import shard_layout
from convert.output.content_hash import RowsHash, content_hash, hash_rows
from stream_pretrain.errors import DataError, StorageError
from stream_pretrain.schema import (
    CARD_NAME,
    INDEX_NAME,
    TOKENS_COLUMN,
    Card,
)
from stream_pretrain.storage.hashing import hash_of, is_known
from stream_pretrain.storage.store import Store

SHARDS_AT_ONCE = 4
UNREADABLE = (ValueError, KeyError, IndexError, TypeError, zstandard.ZstdError)
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
        entries = read_index(store, name)
        faults += _stray_shards(name, entries, sizes)
        checked = list(_check_shards(store, card, name, entries, sizes, fast=fast))
        faults += [fault for shard in checked for fault in shard.faults]
        total = RowsHash()
        for shard in checked:
            total = total.concat(shard.rows)
            size += shard.size
        hashes[name] = total
        shards += len(entries)
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


def read_index(store: Store, split: str) -> list[dict[str, Any]]:
    """The entries of a split's `index.json`."""
    key = f"{split}/{INDEX_NAME}"
    try:
        entries: list[dict[str, Any]] = json.loads(store.read(key))["shards"]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{store.url(key)}: not an MDS index ({error}). Convert the dataset again."
        ) from error
    if not isinstance(entries, list):
        raise DataError(f"{store.url(key)}: not an MDS index. Convert the dataset again.")
    for number, entry in enumerate(entries):
        _check_entry(entry, f"{store.url(key)}: shard {number}")
    return entries


def _check_entry(entry: Any, place: str) -> None:
    """`DataError` for an entry that cannot be followed, or that leads out of the dataset."""
    try:
        int(entry["samples"])
        packed = [] if entry["zip_data"] is None else [entry["zip_data"]]
        for file in (entry["raw_data"], *packed):
            int(file["bytes"])
            _check_name(file["basename"], place)
            unknown = [name for name in file["hashes"] if not is_known(name)]
            if unknown:
                raise ValueError(f"unknown hash {unknown[0]!r}")
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{place}: malformed entry ({type(error).__name__}: {error}). Convert the dataset "
            "again."
        ) from error


def _check_name(name: Any, place: str) -> None:
    if not isinstance(name, str):
        raise TypeError(f"basename {name!r}")
    parts = name.replace("\\", "/").split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise DataError(
            f"{place}: {name!r} leads out of the dataset's directory. Do not use this dataset; "
            "somebody may have tampered with it."
        )


def shard_file(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Name, size and hashes of the file that is stored."""
    stored: Mapping[str, Any] = entry["zip_data"] or entry["raw_data"]
    return stored


def read_rows(store: Store, split: str, entry: Mapping[str, Any], card: Card) -> Any:
    """The rows [N, seq_len + 1] of one shard; one of `UNREADABLE` where they cannot be."""
    raw = unpacked(store.read(f"{split}/{shard_file(entry)['basename']}"), entry)
    return rows_of(raw, card)


def unpacked(data: bytes, entry: Mapping[str, Any]) -> bytes:
    """A shard's bytes as its format describes them."""
    if entry["zip_data"] is None:
        return data
    limit = int(entry["raw_data"]["bytes"])
    return zstandard.ZstdDecompressor().decompress(data, max_output_size=limit)


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
    entries: Sequence[Mapping[str, Any]],
    sizes: Mapping[str, int],
    *,
    fast: bool,
) -> Iterator[_Checked]:
    def check(entry: Mapping[str, Any]) -> _Checked:
        stored = shard_file(entry)
        key = f"{split}/{stored['basename']}"
        size = sizes.get(key)
        if size != stored["bytes"]:
            found = "absent" if size is None else f"{size} bytes"
            fault = f"{store.url(key)}: {found}, index.json says {stored['bytes']} bytes."
            return _failed(entry, fault, *_wrong_twin(store, split, entry, sizes, fast=fast))
        checked = _failed(entry) if fast else _check_shard(store, card, key, entry)
        twin = _wrong_twin(store, split, entry, sizes, fast=fast)
        return replace(checked, faults=(*checked.faults, *twin))

    with ThreadPoolExecutor(SHARDS_AT_ONCE) as pool:
        yield from pool.map(check, entries)


def _wrong_twin(
    store: Store,
    split: str,
    entry: Mapping[str, Any],
    sizes: Mapping[str, int],
    *,
    fast: bool,
) -> Iterator[str]:
    """Faults of the decompressed shard that StreamingDataset leaves beside the stored one where it
    reads a dataset in place."""
    raw = entry["raw_data"]
    key = f"{split}/{raw['basename']}"
    if entry["zip_data"] is None or key not in sizes:
        return
    remedy = "Delete this decompressed copy."
    if sizes[key] != raw["bytes"]:
        yield f"{store.url(key)}: {sizes[key]} bytes, index.json says {raw['bytes']}. {remedy}"
    elif not fast:
        for fault in _wrong_hashes(store.url(key), store.read(key), raw):
            yield f"{fault} {remedy}"


def _failed(entry: Mapping[str, Any], *faults: str) -> _Checked:
    """A shard whose rows were not read; counted as its entry says."""
    return _Checked(rows=RowsHash(rows=int(entry["samples"])), size=0, faults=faults)


def _check_shard(store: Store, card: Card, key: str, entry: Mapping[str, Any]) -> _Checked:
    url = store.url(key)
    data = store.read(key)
    faults = list(_wrong_hashes(url, data, shard_file(entry)))
    if faults:
        return _failed(entry, *faults)
    try:
        raw = unpacked(data, entry)
        faults += _wrong_hashes(url, raw, entry["raw_data"])
        rows = rows_of(raw, card)
    except UNREADABLE as error:
        return _failed(entry, f"{url}: no MDS shard of this dataset ({error}).")
    if len(rows) != entry["samples"]:
        faults.append(f"{url}: {len(rows)} samples, index.json says {entry['samples']}.")
    largest = int(rows.max(initial=0))
    if largest >= card.vocab_size:
        row = int(np.argmax(rows.max(axis=1) >= card.vocab_size))
        faults.append(f"{url}: sample {row} holds id {largest}, the vocabulary {card.vocab_size}.")
    return _Checked(rows=hash_rows(rows), size=len(data), faults=tuple(faults))


def _wrong_hashes(url: str, data: bytes, stored: Mapping[str, Any]) -> Iterator[str]:
    for algorithm, expected in stored["hashes"].items():
        found = hash_of(algorithm, data)
        if found != expected:
            yield f"{url}: {algorithm} is {found}, index.json says {expected}: damaged."


def _stray_shards(
    split: str, entries: Sequence[Mapping[str, Any]], sizes: Mapping[str, int]
) -> list[str]:
    known = {
        f"{split}/{file['basename']}"
        for entry in entries
        for file in (entry["raw_data"], entry["zip_data"])
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
