"""Hash the content of a dataset, independently of how it was made.

Rows of token ids come in, in order; 32 hex digits come out. A row's hash is XXH3-128 of its ids as
little-endian uint32, taken as two 64-bit lanes. A lane of a sequence of rows is the polynomial
`sum(h_i * P**(n - 1 - i))` modulo 2**64, so the hash of two sequences joined follows from theirs:
parts hash their rows separately, in any process, and the boundaries between parts or shards make no
difference.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

MASK = (1 << 64) - 1
FACTORS = (0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93)  # odd, so that no power is zero modulo 2**64
BLOCK_ROWS = 1024


@dataclass(frozen=True, kw_only=True)
class RowsHash:
    """The hash of a sequence of rows: its length and two lanes."""

    rows: int = 0
    lanes: tuple[int, int] = (0, 0)

    def concat(self, following: RowsHash) -> RowsHash:
        """Return the hash of these rows with the rows of `following` after them."""
        first, second = (
            (lane * pow(factor, following.rows, 1 << 64) + after) & MASK
            for lane, factor, after in zip(self.lanes, FACTORS, following.lanes, strict=True)
        )
        return RowsHash(rows=self.rows + following.rows, lanes=(first, second))

    def to_plain(self) -> list[Any]:
        """Return the hash as JSON values, with the lanes in hex."""
        return [self.rows, *(f"{lane:016x}" for lane in self.lanes)]

    @classmethod
    def from_plain(cls, plain: list[Any]) -> RowsHash:
        """Return the hash that `to_plain` gave."""
        return cls(rows=plain[0], lanes=(int(plain[1], 16), int(plain[2], 16)))


def hash_rows(rows: NDArray[Any]) -> RowsHash:
    """Hash rows [N, seq_len + 1] of any unsigned dtype."""
    result = RowsHash()
    for begin in range(0, len(rows), BLOCK_ROWS):
        result = result.concat(_hash_block(rows[begin : begin + BLOCK_ROWS]))
    return result


def content_hash(splits: Mapping[str, RowsHash], seq_len: int) -> str:
    """Return the card's `content_hash`, which covers the split names and their rows."""
    plain = {name: rows.to_plain() for name, rows in splits.items() if rows.rows}
    text = json.dumps({"seq_len": seq_len, "splits": plain}, sort_keys=True)
    return xxhash.xxh3_128_hexdigest(text.encode())


def _hash_block(rows: NDArray[Any]) -> RowsHash:
    data = memoryview(np.ascontiguousarray(rows, dtype="<u4").tobytes())
    step = 4 * rows.shape[1]
    digests = b"".join(
        xxhash.xxh3_128_digest(data[i : i + step]) for i in range(0, len(data), step)
    )
    hashes_N2 = np.frombuffer(digests, dtype=">u8").astype(np.uint64).reshape(len(rows), 2)
    first, second = (_polynomial(hashes_N2[:, lane], factor) for lane, factor in enumerate(FACTORS))
    return RowsHash(rows=len(rows), lanes=(first, second))


def _polynomial(hashes: NDArray[np.uint64], factor: int) -> int:
    powers = np.full(len(hashes), factor, dtype=np.uint64)
    powers[0] = 1
    powers = np.multiply.accumulate(powers)[::-1]
    return int(np.sum(hashes * powers, dtype=np.uint64))
