"""Hash files and byte strings: xxh3-128, xxh64 and the algorithms of hashlib, as hex digests.

Files are read in blocks of 1 MiB, so memory does not grow with their size. Digests are compared
with what was expected elsewhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, Protocol

import xxhash

from stream_pretrain.schema import FileStamp

BLOCK_BYTES = 1 << 20
_XXHASHES = {
    "xxh3_128": xxhash.xxh3_128,
    "xxh128": xxhash.xxh128,
    "xxh3_64": xxhash.xxh3_64,
    "xxh64": xxhash.xxh64,
    "xxh32": xxhash.xxh32,
}


class Hasher(Protocol):
    """What hashlib and xxhash objects have in common."""

    def update(self, data: bytes, /) -> None:
        """Add bytes."""

    def hexdigest(self) -> str:
        """The digest so far, in hex."""


def is_known(algorithm: str) -> bool:
    """Return True when this module can compute `algorithm`."""
    return algorithm in _XXHASHES or algorithm in hashlib.algorithms_available


def hasher(algorithm: str) -> Hasher:
    """Return a new hash object; `ValueError` for an unknown algorithm."""
    if algorithm in _XXHASHES:
        digest: Hasher = _XXHASHES[algorithm]()
        return digest
    return hashlib.new(algorithm, usedforsecurity=False)


def hash_of(algorithm: str, source: Path | bytes) -> str:
    """Return the hex digest of a file's content or of a byte string."""
    digest = hasher(algorithm)
    if isinstance(source, bytes):
        digest.update(source)
        return digest.hexdigest()
    with source.open("rb") as file:
        for block in blocks(file):
            digest.update(block)
    return digest.hexdigest()


def xxh3_128_of(source: Path | bytes) -> str:
    """Return xxh3-128 in hex (32 digits), as receipts and dataset cards hold it."""
    return hash_of("xxh3_128", source)


def xxh64_of(source: Path | bytes) -> str:
    """Return xxh64 in hex (16 digits), as `index.json` holds it for shards."""
    return hash_of("xxh64", source)


def blocks(file: BinaryIO) -> Iterable[bytes]:
    """Yield the rest of `file` in blocks of 1 MiB."""
    while block := file.read(BLOCK_BYTES):
        yield block


def stamp_of(path: Path, *, name: str | None = None) -> FileStamp:
    """Return a receipt's entry for one file: `name` (default: the file's own), size, xxh3-128."""
    digest = xxhash.xxh3_128()
    size = 0
    with path.open("rb") as file:
        for block in blocks(file):
            digest.update(block)
            size += len(block)
    return FileStamp(name=name or path.name, size=size, xxh3_128=digest.hexdigest())
