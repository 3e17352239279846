"""Bytes of one input file. In: a file and a nominal range. Out: blocks that end at a border. Does not parse.

Borders: of lines, the byte after a newline; of plain text that is too long for one part, the byte after a newline
that no white space follows, which is where tokenizers cut too.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

import zstandard

from convert.inputs import InputFile
from stream_pretrain.errors import DataError

BLOCK_BYTES = 8 << 20
SEARCH_BYTES = 1 << 16
ZSTD_BYTES = 1 << 17
TEXT_BORDER = re.compile(rb"\n(?=[^\s\x80-\xff])")
Border = Callable[[BinaryIO, int], int]


def open_input(file: InputFile) -> BinaryIO:
    """The raw or, where it is compressed, the decompressed bytes."""
    raw = Path(file.path).open("rb")  # noqa: SIM115
    if file.compression == "gzip":
        return cast(BinaryIO, gzip.GzipFile(fileobj=raw))
    if file.compression == "zstd":
        return cast(BinaryIO, ZstdFrames(raw))
    return raw


def next_line(file: BinaryIO, offset: int) -> int:
    """The first line start at or after `offset`; the file's end where there is none."""
    if offset == 0:
        return 0
    return _search(file, offset - 1, re.compile(b"\n"))


def next_text_border(file: BinaryIO, offset: int) -> int:
    """Where a text may be cut at or after `offset`: before a line that starts with ASCII and no white space."""
    if offset == 0:
        return 0
    return _search(file, offset - 1, TEXT_BORDER)


def _search(file: BinaryIO, begin: int, pattern: re.Pattern[bytes]) -> int:
    """One past the newline that `pattern` finds first, reading on in pieces that overlap by a byte."""
    while True:
        file.seek(begin)
        piece = file.read(SEARCH_BYTES)
        found = pattern.search(piece)
        if found:
            return begin + found.start() + 1
        if len(piece) < SEARCH_BYTES:
            return begin + len(piece)
        begin += len(piece) - 1


def read_blocks(
    file: BinaryIO, start: int, end: int | None, *, name: str
) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes) of blocks that end after a newline, the last one where the range ends."""
    if end is not None:
        file.seek(start)
    offset, rest = start, b""
    for piece in _pieces(file, start, end, name):
        data = rest + piece
        cut = data.rfind(b"\n") + 1
        if cut:
            yield offset, data[:cut]
            offset += cut
        rest = data[cut:]
    if rest:
        yield offset, rest


def _pieces(file: BinaryIO, start: int, end: int | None, name: str) -> Iterator[bytes]:
    left = end - start if end is not None else None
    while left is None or left > 0:
        try:
            piece = file.read(BLOCK_BYTES if left is None else min(BLOCK_BYTES, left))
        except (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError) as error:
            raise DataError(
                f"{name}: damaged or truncated compressed file ({error}). Nothing was published. Fetch the file again."
            ) from error
        if not piece:
            return
        if left is not None:
            left -= len(piece)
        yield piece


class ZstdFrames:
    """Decompresses all frames of a file and says when the last one was cut off (the library's reader just ends)."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._rest = b""

    def read(self, size: int = -1) -> bytes:
        """The next decompressed bytes, at least `size` of them unless the file ends."""
        pieces: list[bytes] = []
        while size < 0 or sum(map(len, pieces)) < size:
            data = self._rest or self._raw.read(ZSTD_BYTES)
            self._rest = b""
            if not data:
                if self._frame is not None:
                    raise EOFError("the last zstd frame is cut off")
                break
            if self._frame is None:
                self._frame = zstandard.ZstdDecompressor().decompressobj()
            pieces.append(self._frame.decompress(data))
            if self._frame.eof:
                self._rest, self._frame = self._frame.unused_data, None
        return b"".join(pieces)

    def close(self) -> None:
        """Close the file."""
        self._raw.close()

    def __enter__(self) -> ZstdFrames:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
