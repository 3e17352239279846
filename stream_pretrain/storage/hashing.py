"""Bytes -> hex digests. In: a path or bytes. Out: xxh3-128, xxh64 and others as hex.

Does not decide what is right.

Files are read in blocks, so memory does not grow with them.
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
    """True when `algorithm` can be computed here."""
    return algorithm in _XXHASHES or algorithm in hashlib.algorithms_available


def hasher(algorithm: str) -> Hasher:
    """A fresh hash object; ValueError for a name that nobody here knows."""
    if algorithm in _XXHASHES:
        made: Hasher = _XXHASHES[algorithm]()
        return made
    return hashlib.new(algorithm, usedforsecurity=False)


def hash_of(algorithm: str, source: Path | bytes) -> str:
    """Hex digest of a file's or a byte string's content."""
    digest = hasher(algorithm)
    if isinstance(source, bytes):
        digest.update(source)
        return digest.hexdigest()
    with source.open("rb") as file:
        for block in blocks(file):
            digest.update(block)
    return digest.hexdigest()


def xxh3_128_of(source: Path | bytes) -> str:
    """xxh3-128 in hex (32 digits): receipts, cards."""
    return hash_of("xxh3_128", source)


def xxh64_of(source: Path | bytes) -> str:
    """xxh64 in hex (16 digits): shards."""
    return hash_of("xxh64", source)


def blocks(file: BinaryIO) -> Iterable[bytes]:
    """The rest of `file` in blocks of 1 MiB."""
    while block := file.read(BLOCK_BYTES):
        yield block


def stamp_of(path: Path, *, name: str | None = None) -> FileStamp:
    """The receipt's line for one file: `name` (its own by default), size, xxh3-128."""
    digest = xxhash.xxh3_128()
    size = 0
    with path.open("rb") as file:
        for block in blocks(file):
            digest.update(block)
            size += len(block)
    return FileStamp(name=name or path.name, size=size, xxh3_128=digest.hexdigest())
