"""Find the boundaries of records in a file, and read it in blocks of whole lines.

The nominal ends of a part are moved to the next boundary, and both neighbours find the same one.
What a boundary is depends on the format:

- in JSON lines it is the byte after a newline;
- in a text that is too long for one part it is the byte after a newline between two printable ASCII
  characters. The pre-tokenizers of the usual byte-level BPEs cut there too, so the ids are those of
  the whole text;
- between documents with a separator it is the byte after the separator.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO

CHUNK_BYTES = 1 << 20
SEARCH_BYTES = 1 << 16
LINE = re.compile(rb"\n")
TEXT_LINE = re.compile(rb"[!-~]\n(?=[!-~])")
TEXT_LINE_WIDTH = 2


def next_record_boundary(
    file: BinaryIO, offset: int, pattern: re.Pattern[bytes], *, width: int = 1
) -> int:
    """Return the first boundary at or after `offset`.

    A boundary lies `width` bytes after the start of a match of `pattern`. The start of the file is
    a boundary, and its end is one where there is no other.
    """
    if offset == 0:
        return 0
    start = max(0, offset - width)
    while True:
        file.seek(start)
        chunk = file.read(SEARCH_BYTES)
        match = pattern.search(chunk)
        if match:
            return start + match.start() + width
        if len(chunk) < SEARCH_BYTES:
            return start + len(chunk)
        start += len(chunk) - width


def read_blocks(file: BinaryIO, start: int, end: int | None) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, bytes) of blocks that end after a newline; the last ends with the range.

    Where `end` is None, the blocks go from the file's current position to its end.
    """
    if end is not None:
        file.seek(start)
    offset, rest = start, b""
    for chunk in read_chunks(file, None if end is None else end - start):
        cut = chunk.rfind(b"\n") + 1
        if not cut:
            rest += chunk
            continue
        block = rest + chunk[:cut] if rest else chunk[:cut]
        yield offset, block
        offset += len(block)
        rest = chunk[cut:]
    if rest:
        yield offset, rest


def read_chunks(file: BinaryIO, length: int | None) -> Iterator[bytes]:
    """Yield the next `length` bytes (None: all that remain) in chunks of bounded size."""
    while length is None or length > 0:
        chunk = file.read(CHUNK_BYTES if length is None else min(CHUNK_BYTES, length))
        if not chunk:
            return
        if length is not None:
            length -= len(chunk)
        yield chunk
