"""Packed bytes -> raw bytes, never more than promised. In: chunks, an algorithm, a limit. Out:
chunks. Writes no files.

A shard that unpacks to more than its index says is refused before the surplus is held in memory.
"""

from __future__ import annotations

import bz2
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

import zstandard

from stream_pretrain.errors import StorageError

STEP_BYTES = 64 << 10
ZSTD_BYTES = 1 << 17
_LARGEST_PREAMBLE = 5


def unpack_shard(data: bytes, compression: str | None, *, limit: int, place: str) -> bytes:
    """The raw bytes of a whole shard in memory; see `unpacked`. None: it is not compressed."""
    if compression is None:
        return data
    return b"".join(unpacked([data], compression, limit=limit, place=place))


def unpacked(
    chunks: Iterable[bytes], compression: str, *, limit: int, place: str
) -> Iterator[bytes]:
    """Raw bytes of `chunks`.

    `StorageError` "damaged" when they are torn, broken or more than `limit`.
    """
    written = 0
    try:
        for piece in _UNPACKERS[compression](chunks, limit):
            written += len(piece)
            if written > limit:
                raise StorageError(
                    f"{place}: unpacks to more than the {limit:,} bytes that its index says.",
                    "damaged",
                )
            yield piece
    except (zstandard.ZstdError, zlib.error, OSError, EOFError, ValueError) as error:
        raise StorageError(
            f"{place}: cannot be unpacked as {compression} ({error}).", "damaged"
        ) from error


def _zstd(chunks: Iterable[bytes], limit: int) -> Iterator[bytes]:
    del limit
    source: Any = _Source(chunks)
    reader = zstandard.ZstdDecompressor().stream_reader(source, read_across_frames=True)
    while piece := reader.read(1 << 20):
        yield piece
    if source.total == 0:
        raise EOFError("it is empty")


def _gz(chunks: Iterable[bytes], limit: int) -> Iterator[bytes]:
    del limit
    yield from _incremental(chunks, lambda: zlib.decompressobj(wbits=31), flag="eof")


def _bz2(chunks: Iterable[bytes], limit: int) -> Iterator[bytes]:
    del limit
    unpacker = bz2.BZ2Decompressor()
    for chunk in _steps(chunks):
        yield unpacker.decompress(chunk, 1 << 20)
        while not unpacker.needs_input and not unpacker.eof:
            yield unpacker.decompress(b"", 1 << 20)
    if not unpacker.eof:
        raise EOFError("it ends too early")


def _br(chunks: Iterable[bytes], limit: int) -> Iterator[bytes]:
    del limit
    import brotli  # type: ignore[import-untyped]

    unpacker = brotli.Decompressor()
    for chunk in _steps(chunks):
        try:
            yield unpacker.process(chunk)
        except brotli.error as error:
            raise ValueError(error) from error
    if not unpacker.is_finished():
        raise EOFError("it ends too early")


def _snappy(chunks: Iterable[bytes], limit: int) -> Iterator[bytes]:
    """Raw snappy begins with its unpacked length, so that is looked at first."""
    import snappy  # type: ignore[import-untyped]

    packed = b"".join(chunks)
    size = 0
    for place, byte in enumerate(packed[:_LARGEST_PREAMBLE]):
        size |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            break
    if size > limit:
        yield bytes(limit + 1)
        return
    try:
        yield snappy.uncompress(packed)
    except snappy.UncompressError as error:
        raise ValueError(error) from error


def _incremental(chunks: Iterable[bytes], make: Callable[[], Any], *, flag: str) -> Iterator[bytes]:
    unpacker, started = make(), False
    for chunk in _steps(chunks):
        data = chunk
        while data:
            started = True
            yield unpacker.decompress(data, 1 << 20)
            data = unpacker.unconsumed_tail
            if getattr(unpacker, flag):
                data = unpacker.unused_data
                if data:
                    unpacker = make()
    if not started or not getattr(unpacker, flag):
        raise EOFError("it ends too early")


def _steps(chunks: Iterable[bytes]) -> Iterator[bytes]:
    for chunk in chunks:
        for first in range(0, len(chunk), STEP_BYTES):
            yield chunk[first : first + STEP_BYTES]


class ZstdFrames:
    """Decompresses all frames of a file and says when the last one is cut off.

    The library's own reader just ends there. Shards are read with that one all the same: it bounds
    what a few packed bytes may become, and their sizes are known.
    """

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._rest = b""

    def read(self, size: int = -1) -> bytes:
        """The next decompressed bytes, at least `size` of them unless the file ends."""
        pieces: list[bytes] = []
        count = 0
        while size < 0 or count < size:
            data = self._rest or self._raw.read(ZSTD_BYTES)
            self._rest = b""
            if not data:
                if self._frame is not None:
                    raise EOFError("the last zstd frame is cut off")
                break
            if self._frame is None:
                self._frame = zstandard.ZstdDecompressor().decompressobj()
            pieces.append(self._frame.decompress(data))
            count += len(pieces[-1])
            if self._frame.eof:
                self._rest, self._frame = self._frame.unused_data, None
        return b"".join(pieces)

    def close(self) -> None:
        """Close the file."""
        self._raw.close()


class _Source:
    """Chunks as the file that zstandard reads from."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._rest = b""
        self.total = 0

    def read(self, size: int = -1) -> bytes:
        """At most `size` bytes, empty at the end."""
        if not self._rest:
            self._rest = next(self._chunks, b"")
            self.total += len(self._rest)
        size = len(self._rest) if size < 0 else size
        piece, self._rest = self._rest[:size], self._rest[size:]
        return piece


_UNPACKERS: dict[str, Callable[[Iterable[bytes], int], Iterator[bytes]]] = {
    "zstd": _zstd,
    "gz": _gz,
    "bz2": _bz2,
    "br": _br,
    "snappy": _snappy,
}
