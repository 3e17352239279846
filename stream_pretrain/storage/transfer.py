"""Write chunks of bytes to a file that is whole or absent.

Nothing is fetched or retried here.
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
    """Return an unused name beside `path` that a cache scan recognises as temporary."""
    return path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}{TEMPORARY_SUFFIX}")


def write_atomic(
    chunks: Iterable[bytes],
    path: Path,
    *,
    location: str,
    size: int | None = None,
    hashes: Mapping[str, str] | None = None,
    fsync: bool = False,
    publish: Callable[[Path, Path], None] = os.replace,
) -> int:
    """Write `chunks` to a temporary file, check size and hashes, rename it; return the size.

    Nothing is left behind on failure. `location` names the source in errors.

    Raises:
        StorageError: with the reason "damaged" when size or a hash differ.
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
                        f"{location}: more than the expected {size:,} bytes arrived.", "damaged"
                    )
                for digest in digests.values():
                    digest.update(chunk)
            if fsync:
                file.flush()
                os.fsync(file.fileno())
        _check_size(location, size, written)
        for name, digest in digests.items():
            _check_hash(location, name, digest.hexdigest(), expected=(hashes or {})[name])
        publish(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    if fsync:
        sync_path(path.parent)
    return written


def _check_size(location: str, size: int | None, written: int) -> None:
    if size is not None and written != size:
        raise StorageError(f"{location}: {written:,} bytes arrived, expected {size:,}.", "damaged")


def _check_hash(location: str, algorithm: str, digest: str, *, expected: str) -> None:
    if digest != expected.lower():
        raise StorageError(f"{location}: {algorithm} is {digest}, expected {expected}.", "damaged")
