"""Chunks -> a file that is whole or absent. In: an iterator of bytes. Out: the file's size.

Does not fetch or retry.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from stream_pretrain.errors import StorageError
from stream_pretrain.storage.hashing import hasher
from stream_pretrain.system.paths import sync_path

TEMPORARY_SUFFIX = ".tmp"


def temporary_name(path: Path) -> Path:
    """A name beside `path` that nobody else uses, and that a cache scan recognises."""
    return path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}{TEMPORARY_SUFFIX}")


def write_whole(
    chunks: Iterable[bytes],
    path: Path,
    *,
    place: str,
    size: int | None = None,
    hashes: Mapping[str, str] | None = None,
    fsync: bool = False,
    publish: Callable[[Path, Path], None] = os.replace,
) -> int:
    """Write `chunks` beside `path`, check size and hashes, rename; the size.

    Leaves nothing behind on failure.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(path)
    digests = {name: hasher(name) for name in hashes or {}}
    try:
        written = 0
        with temporary.open("xb") as file:
            for chunk in chunks:
                written += file.write(chunk)
                if size is not None and written > size:
                    raise StorageError(
                        f"{place}: more than the expected {size:,} bytes arrived.", "damaged"
                    )
                for digest in digests.values():
                    digest.update(chunk)
            if fsync:
                file.flush()
                os.fsync(file.fileno())
        _check(place, size, written)
        for name, digest in digests.items():
            check_hash(place, name, found=digest.hexdigest(), expected=(hashes or {})[name])
        publish(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    if fsync:
        sync_path(path.parent)
    return written


def _check(place: str, size: int | None, written: int) -> None:
    if size is not None and written != size:
        raise StorageError(f"{place}: {written:,} bytes arrived, expected {size:,}.", "damaged")


def check_hash(place: str, algorithm: str, *, found: str, expected: str) -> None:
    """`StorageError` "damaged" when two digests differ."""
    if found != expected.lower():
        raise StorageError(f"{place}: {algorithm} is {found}, expected {expected}.", "damaged")
