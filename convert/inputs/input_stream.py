"""An input file as a stream of bytes. In: an `InputFile`. Out: a binary file. Does not parse.

Local files and objects of buckets can be read from any place; compressed ones and standard input
from front to back.
"""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from typing import TYPE_CHECKING, BinaryIO, cast

import zstandard

from convert.inputs.input_files import InputFile
from stream_pretrain.config.sections import StorageConfig
from stream_pretrain.errors import DataError
from stream_pretrain.mds.decompress import ZstdFrames
from stream_pretrain.storage.store import Store, open_store

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

RANGE_BYTES = 8 << 20


def open_input(file: InputFile, storage: StorageConfig | None = None) -> BinaryIO:
    """The bytes, decompressed where the file is compressed."""
    raw = open_raw(file, storage)
    if file.compression is None:
        return raw
    unpacked = gzip.GzipFile(fileobj=raw) if file.compression == "gzip" else ZstdFrames(raw)
    return cast(BinaryIO, Unpacked(cast(BinaryIO, unpacked), raw, file.path))


def open_raw(file: InputFile, storage: StorageConfig | None = None) -> BinaryIO:
    """The bytes as they are stored."""
    if file.is_stdin:
        return sys.stdin.buffer
    parent, _, name = file.path.rpartition("/")
    store = open_store(parent or ("." if "/" not in file.path else "/"), storage)
    if store.is_local:
        return store.open_stream(name)
    return cast(BinaryIO, io.BufferedReader(ObjectFile(store, name, file.size), RANGE_BYTES))


class ObjectFile(io.RawIOBase):
    """An object of a bucket that can be read from any place."""

    def __init__(self, store: Store, key: str, size: int) -> None:
        self._store, self._key, self._size = store, key, size
        self._position = 0

    def readable(self) -> bool:
        """Always True."""
        return True

    def seekable(self) -> bool:
        """Always True."""
        return True

    def tell(self) -> int:
        """Where the next read begins."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move; nothing is fetched."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Fetch what the buffer holds in one request."""
        view = memoryview(buffer).cast("B")
        length = min(len(view), self._size - self._position)
        if length <= 0:
            return 0
        data = self._store.read_range(self._key, self._position, length)
        view[: len(data)] = data
        self._position += len(data)
        return len(data)


class Unpacked:
    """A decompressed stream whose faults name the file."""

    def __init__(self, unpacked: BinaryIO, raw: BinaryIO, path: str) -> None:
        self._unpacked, self._raw, self._path = unpacked, raw, path

    def read(self, size: int = -1) -> bytes:
        """The next bytes; `DataError` where the compressed data are damaged or cut off."""
        try:
            return self._unpacked.read(size)
        except (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError) as error:
            raise DataError(
                f"{self._path}: damaged or truncated compressed file ({error}). Nothing was "
                "published. Fetch the file again."
            ) from error

    def close(self) -> None:
        """Close the file, which `GzipFile` leaves open."""
        self._unpacked.close()
        self._raw.close()

    def __enter__(self) -> Unpacked:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
