"""Blocks of lines and borders of documents. In: a binary file. Out: offsets and bytes.

A part's nominal ends are moved to the next border, and both neighbours find the same one. Borders:
in lines, the byte after a newline; in a text too long for one part, the byte after a newline that
stands between printable ASCII characters, where the pre-tokenizers of the usual byte-level BPEs cut
too, so that the ids are those of the whole text; between documents with a separator, the byte
after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO

BLOCK_BYTES = 1 << 20
SEARCH_BYTES = 1 << 16
LINE = re.compile(rb"\n")
TEXT_LINE = re.compile(rb"[!-~]\n(?=[!-~])")
TEXT_LINE_WIDTH = 2


def next_record_boundary(
    file: BinaryIO, offset: int, border: re.Pattern[bytes], *, width: int = 1
) -> int:
    """The first border at or after `offset`: `width` bytes after the start of a match of `border`.

    The file's start is a border; where there is no other, its end is.
    """
    if offset == 0:
        return 0
    begin = max(0, offset - width)
    while True:
        file.seek(begin)
        piece = file.read(SEARCH_BYTES)
        found = border.search(piece)
        if found:
            return begin + found.start() + width
        if len(piece) < SEARCH_BYTES:
            return begin + len(piece)
        begin += len(piece) - width


def read_blocks(file: BinaryIO, start: int, end: int | None) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes) of blocks that end after a newline; the last one ends with the range.

    `end` None: from where the file stands to its end.
    """
    if end is not None:
        file.seek(start)
    offset, rest = start, b""
    for piece in read_pieces(file, None if end is None else end - start):
        cut = piece.rfind(b"\n") + 1
        if not cut:
            rest += piece
            continue
        block = rest + piece[:cut] if rest else piece[:cut]
        yield offset, block
        offset += len(block)
        rest = piece[cut:]
    if rest:
        yield offset, rest


def read_pieces(file: BinaryIO, length: int | None) -> Iterator[bytes]:
    """`length` bytes (None: all there are) in pieces of bounded size."""
    while length is None or length > 0:
        piece = file.read(BLOCK_BYTES if length is None else min(BLOCK_BYTES, length))
        if not piece:
            return
        if length is not None:
            length -= len(piece)
        yield piece
