"""`index.json` -> shards that can be trusted as far as names, sizes and columns go. In: a store.

Out: `StreamIndex`.

Whoever wrote the index may be careless or hostile: names stay below the cache, nothing pickled is
read, sizes add up. Every refusal names the shard. Does not fetch shards, except the first one where
only a sample tells a row's length.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from stream_pretrain.errors import DataError, StorageError
from stream_pretrain.mds.row_format import RowFormat, row_format
from stream_pretrain.schema import CARD_NAME, INDEX_NAME, Card, StreamFacts
from stream_pretrain.storage.hashing import is_known, xxh3_128_of
from stream_pretrain.storage.store import Store

COMPRESSIONS = frozenset({"zstd", "gz", "bz2", "br", "snappy"})
LARGEST_SHARD = 1 << 32
_PREFERRED = ("xxh3_64", "xxh3_128", "xxh64", "xxh128")
_HEX = re.compile(r"^[0-9a-fA-F]+$")


@dataclass(frozen=True, kw_only=True)
class ShardFile:
    """One file of a shard: `name` relative to the stream, `size` in bytes, `hashes` algorithm ->
    hex.
    """

    name: str
    size: int
    hashes: Mapping[str, str]

    @property
    def fastest_hash(self) -> dict[str, str]:
        """The one hash that is cheapest to check, or nothing."""
        known = [name for name in self.hashes if is_known(name)]
        best = min(known, key=lambda n: (n not in _PREFERRED, n), default=None)
        return {} if best is None else {best: self.hashes[best]}


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One shard: its raw file and, where compressed, the file that is fetched.

    `entry` is the index's own text.
    """

    samples: int
    raw: ShardFile
    packed: ShardFile | None
    compression: str | None
    entry: Mapping[str, Any]

    @property
    def fetched(self) -> ShardFile:
        """The file that lies in the bucket."""
        return self.packed or self.raw


@dataclass(frozen=True, kw_only=True)
class StreamIndex:
    """A validated index. `digest` is xxh3-128 of its canonical JSON; `text` what was read."""

    location: str
    shards: tuple[Shard, ...]
    rows: RowFormat
    digest: str
    text: bytes
    card: Card | None = None

    @property
    def samples(self) -> int:
        """Rows of all shards."""
        return sum(shard.samples for shard in self.shards)

    def facts(self, name: str) -> StreamFacts:
        """What `plan` needs of this stream; the row length must be known (`measure`)."""
        assert self.rows.ids is not None, "measure() comes first"
        return StreamFacts(
            name=name,
            location=self.location,
            samples=self.samples,
            row_ids=self.rows.ids,
            shards=len(self.shards),
            index_digest=self.digest,
            card=self.card,
        )


def find_stream(store: Store, split: str) -> tuple[Store, Card | None]:
    """The store of the stream itself: `split` below a dataset (with its card), or the place itself.

    Raises:
        DataError: there is neither `dataset.json` nor `index.json`.
    """
    if store.head(CARD_NAME) is not None:
        card = Card.from_json(store.read(CARD_NAME), store.url(CARD_NAME))
        return store.child(split), card
    if store.head(INDEX_NAME) is not None:
        return store, None
    below = store.child(split)
    if below.head(INDEX_NAME) is not None:
        return below, None
    raise DataError(
        f"{store.location}: neither {CARD_NAME} nor {INDEX_NAME} is there, nor "
        f"{split}/{INDEX_NAME}. Name a dataset "
        "made by convert-mds build, or a directory of MDS shards."
    )


def read_index(store: Store, card: Card | None = None) -> StreamIndex:
    """Read and check the index of a stream. `DataError` names what is wrong with it."""
    where = store.url(INDEX_NAME)
    try:
        text = store.read(INDEX_NAME)
    except StorageError as error:
        if error.reason == "absent":
            raise DataError(
                f"{where}: there is no index. Check the location and the split."
            ) from error
        raise
    index = parse_index(text, store.location)
    if card is not None and index.rows.ids is not None and index.rows.ids != card.seq_len + 1:
        raise DataError(
            f"{where}: rows hold {index.rows.ids} ids, {CARD_NAME} says {card.seq_len} + 1. "
            f"Convert the dataset again."
        )
    return replace(index, card=card)


def parse_index(text: bytes, location: str) -> StreamIndex:
    """Check the text of an index; see `read_index`."""
    where = f"{location}/{INDEX_NAME}"
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON ({error}). Upload or write the index again.") from error
    if not isinstance(parsed, dict) or parsed.get("version") != 2:
        found = parsed.get("version") if isinstance(parsed, dict) else type(parsed).__name__
        raise DataError(f"{where}: must be an MDS index of version 2, got {found}.")
    entries = parsed.get("shards")
    if not isinstance(entries, list) or not entries:
        raise DataError(f"{where}: lists no shards. Convert the dataset again.")
    shards = tuple(
        parse_shard(entry, f"{where}: shard {number}") for number, entry in enumerate(entries)
    )
    if not any(shard.samples for shard in shards):
        raise DataError(f"{where}: lists no samples. Convert the dataset again.")
    _refuse_twins(shards, where)
    rows = _common_rows(entries, where)
    for shard in shards:
        _check_size(shard, rows, where)
    canonical = json.dumps(parsed, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return StreamIndex(
        location=location,
        shards=shards,
        rows=rows,
        digest=xxh3_128_of(canonical.encode("utf-8", "surrogatepass")),
        text=text,
    )


def parse_shard(entry: Any, where: str) -> Shard:
    """Check one entry of an index; `DataError` begins with `where` and says what is wrong."""
    if not isinstance(entry, dict):
        raise DataError(f"{where}: must be a mapping, got {type(entry).__name__}.")
    if entry.get("format") != "mds" or entry.get("version") != 2:
        raise DataError(
            f"{where}: format must be mds 2, got {entry.get('format')} {entry.get('version')}. "
            "Convert the dataset to MDS."
        )
    raw = _file(entry.get("raw_data"), f"{where}: raw_data")
    packed = entry.get("zip_data")
    compression = entry.get("compression")
    algorithm = str(compression).partition(":")[0] if compression else None
    if (packed is None) != (algorithm is None):
        raise DataError(f"{where} ({raw.name}): compression and zip_data must be given together.")
    if algorithm is not None and algorithm not in COMPRESSIONS:
        raise DataError(
            f"{where} ({raw.name}): compression must be one of {', '.join(sorted(COMPRESSIONS))}, "
            f"got {compression!r}."
        )
    return Shard(
        samples=_count(entry.get("samples"), f"{where} ({raw.name}): samples"),
        raw=raw,
        packed=None if packed is None else _file(packed, f"{where}: zip_data"),
        compression=algorithm,
        entry=entry,
    )


def _file(value: Any, where: str) -> ShardFile:
    if not isinstance(value, dict):
        raise DataError(f"{where}: must be a mapping, got {type(value).__name__}.")
    name = safe_name(value.get("basename"), where)
    hashes = value.get("hashes") or {}
    if not isinstance(hashes, dict) or not all(
        isinstance(digest, str) and _HEX.match(digest) for digest in hashes.values()
    ):
        raise DataError(f"{where} ({name}): hashes must map names to hex digits.")
    return ShardFile(
        name=name, size=_count(value.get("bytes"), f"{where} ({name}): bytes"), hashes=hashes
    )


def safe_name(name: Any, where: str) -> str:
    """A file name that stays below its directory; `DataError` for any other."""
    if not isinstance(name, str) or not name or "\0" in name or "\\" in name:
        raise DataError(f"{where}: must be a file name, got {name!r}.")
    refuse_name_that_leads_out(name, where)
    if PurePosixPath(name).name in (INDEX_NAME, CARD_NAME) or name.endswith(".tmp"):
        raise DataError(f"{where}: {name!r} is not a name for a shard.")
    return name


def refuse_name_that_leads_out(name: str, where: str) -> None:
    """`DataError` for a name that leaves its directory, with the separators of any system."""
    if any(part in ("", ".", "..") for part in name.replace("\\", "/").split("/")):
        raise DataError(
            f"{where}: {name!r} leads out of the dataset's directory. Do not use this dataset; "
            "somebody may have tampered with it."
        )


def _count(value: Any, where: str, *, least: int = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise DataError(f"{where}: must be a whole number of at least {least}, got {value!r}.")
    return value


def _refuse_twins(shards: Sequence[Shard], where: str) -> None:
    seen: set[str] = set()
    for shard in shards:
        for file in (shard.raw, shard.packed):
            if file is not None and file.name in seen:
                raise DataError(f"{where}: {file.name} is listed twice. Write the index again.")
            if file is not None:
                seen.add(file.name)


def _common_rows(entries: Sequence[Mapping[str, Any]], where: str) -> RowFormat:
    """All shards must have the same columns; those of the first are checked."""
    keys = ("column_names", "column_encodings", "column_sizes")
    first = [entries[0].get(key) for key in keys]
    if not all(isinstance(part, list) and len(part) == len(first[0] or ()) for part in first):
        raise DataError(f"{where}: column names, encodings and sizes must be lists of one length.")
    for number, entry in enumerate(entries):
        if [entry.get(key) for key in keys] != first:
            raise DataError(
                f"{where}: shard {number} has the columns {entry.get('column_encodings')}, the "
                f"first shard "
                f"{first[1]}. Make them two streams."
            )
    names, encodings, sizes = ([*(part or ())] for part in first)
    for size in sizes:
        if size is not None:
            _count(size, f"{where}: column_sizes")
    return row_format([str(n) for n in names], [str(e) for e in encodings], sizes, where)


def _check_size(shard: Shard, rows: RowFormat, where: str) -> None:
    """A raw shard holds a count, one offset more than samples, and at least the fixed part of each
    sample.
    """
    least = 4 * (shard.samples + 2) + shard.samples * sum(
        4 if size is None else size for size in rows.sizes
    )
    if not least <= shard.raw.size <= LARGEST_SHARD:
        raise DataError(
            f"{where}: {shard.raw.name} cannot hold {shard.samples:,} samples in "
            f"{shard.raw.size:,} bytes (at least "
            f"{least:,}, at most 2^32). The index does not fit its shards."
        )
