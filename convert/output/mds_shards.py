"""Lay out rows of token ids as MDS shards.

Rows [N, seq_len + 1] come in; the bytes of a shard and its `index.json` entry come out. The format
is a sample count, N + 1 offsets (uint32), the column description as JSON, and the rows. All rows
have one length, so the offsets are computed at once. `streaming` is not imported, and nothing is
written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
import zstandard
from numpy.typing import NDArray

from stream_pretrain.schema import TOKENS_COLUMN, TokenDtype

HASH = "xxh64"
LARGEST_SHARD = (1 << 32) - 1  # offsets are uint32


@dataclass(frozen=True, kw_only=True)
class ShardFormat:
    """The properties that all shards of a dataset share.

    `size_limit` bounds the bytes of one uncompressed shard.
    """

    seq_len: int
    dtype: TokenDtype
    compression: str | None
    size_limit: int

    @property
    def row_ids(self) -> int:
        """The number of ids in one row."""
        return self.seq_len + 1

    @property
    def row_bytes(self) -> int:
        """The number of bytes in one row."""
        return self.row_ids * (2 if self.dtype == "uint16" else 4)

    @property
    def rows_per_shard(self) -> int:
        """The number of rows in a full shard, at least one."""
        return max(1, self.size_limit // (self.row_bytes + 4))

    def description(self) -> dict[str, Any]:
        """Return the fields that the shard and its index entry share."""
        return {
            "version": 2,
            "format": "mds",
            "compression": self.compression,
            "hashes": [HASH],
            "size_limit": self.size_limit,
            "column_names": [TOKENS_COLUMN],
            "column_encodings": [f"ndarray:{self.dtype}:{self.row_ids}"],
            "column_sizes": [self.row_bytes],
        }


@dataclass(frozen=True, kw_only=True)
class EncodedShard:
    """One shard, ready to be written: its file name, its bytes and its entry in `index.json`."""

    name: str
    data: bytes
    entry: Mapping[str, Any]


def encode_shard(rows: NDArray[Any], shard_format: ShardFormat, stem: str) -> EncodedShard:
    """Lay out, hash and compress one shard; `stem` is its file name without the endings."""
    raw = shard_bytes(rows, shard_format)
    raw_name = f"{stem}.mds"
    entry: dict[str, Any] = {**shard_format.description(), "samples": len(rows)}
    entry["raw_data"] = _file_entry(raw_name, raw)
    if shard_format.compression is None:
        return EncodedShard(name=raw_name, data=raw, entry={**entry, "zip_data": None})
    packed = compress(raw, shard_format.compression)
    zip_name = f"{raw_name}.zstd"
    entry["zip_data"] = _file_entry(zip_name, packed)
    return EncodedShard(name=zip_name, data=packed, entry=entry)


def shard_bytes(rows: NDArray[Any], shard_format: ShardFormat) -> bytes:
    """Return the uncompressed shard."""
    count, width = rows.shape
    assert width == shard_format.row_ids, f"rows are {width} ids wide, not {shard_format.row_ids}"
    description = json.dumps(shard_format.description(), sort_keys=True).encode()
    begin = 4 + 4 * (count + 1) + len(description)
    assert begin + count * shard_format.row_bytes <= LARGEST_SHARD
    offsets = begin + shard_format.row_bytes * np.arange(count + 1, dtype="<u4")
    little = np.ascontiguousarray(rows, dtype="<u2" if shard_format.dtype == "uint16" else "<u4")
    return b"".join(
        (np.uint32(count).tobytes(), offsets.astype("<u4").data, description, little.data)
    )


def compress(data: bytes, compression: str) -> bytes:
    """Return one zstd frame with its content size; `compression` is `zstd` or `zstd:LEVEL`."""
    _, _, level = compression.partition(":")
    return zstandard.ZstdCompressor(level=int(level or 3), write_checksum=False).compress(data)


def index_json(entries: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the `index.json` of the shards of one split."""
    return json.dumps({"version": 2, "shards": list(entries)}, sort_keys=True).encode()


def _file_entry(name: str, data: bytes) -> dict[str, Any]:
    return {"basename": name, "bytes": len(data), "hashes": {HASH: xxhash.xxh64_hexdigest(data)}}
