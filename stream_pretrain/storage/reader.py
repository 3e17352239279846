"""Read an object front to back as a file, and resume after a broken connection.

The etag is fixed when the object is opened, so an object that is replaced while it is read is an
error. Seeking is not supported.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from stream_pretrain.errors import StorageError
from stream_pretrain.storage.retry import RetryPolicy, call_with_retries

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

    from stream_pretrain.storage.store import ObjectInfo


class ResumingReader(io.RawIOBase):
    """The bytes of one object from front to back.

    `chunks(key, start=, if_match=)` opens the object at an offset and yields its bytes.
    """

    def __init__(
        self,
        chunks: Callable[..., Iterator[bytes]],
        key: str,
        info: ObjectInfo,
        *,
        location: str,
        policy: RetryPolicy,
    ) -> None:
        self._chunks = chunks
        self._key = key
        self._size = info.size
        self._etag = info.etag
        self._location = location
        self._policy = policy
        self._position = 0
        self._source: Iterator[bytes] | None = None
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        """Always True."""
        return True

    def tell(self) -> int:
        """Return the number of bytes read so far."""
        return self._position - len(self._rest)

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Fill `buffer` with the bytes that have arrived; return their number, 0 at the end."""
        if not self._rest and self._position < self._size:
            self._rest = memoryview(
                call_with_retries(
                    self._next, location=self._location, operation="read", policy=self._policy
                )
            )
            self._position += len(self._rest)
        target = memoryview(buffer).cast("B")
        count = min(len(target), len(self._rest))
        target[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def _next(self) -> bytes:
        if self._source is None:
            self._source = self._chunks(self._key, start=self._position, if_match=self._etag)
        try:
            chunk = next(self._source, None)
        except Exception:
            self._source = None
            raise
        if chunk is None:
            self._source = None
            raise StorageError(
                f"{self._location}: ended after {self._position:,} of {self._size:,} bytes.",
                "unreachable",
            )
        return chunk
