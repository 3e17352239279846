"""Plain text and JSON lines -> documents. In: a span of a file. Out: `Document`s in file order.

Positions are byte offsets (of the decompressed bytes). Does not choose or encode.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import BinaryIO

from convert.inputs.document import (
    TRAIN,
    VALIDATION,
    BadRecordError,
    BadRecords,
    Document,
    Reading,
    checked_text,
    look_up,
)
from convert.inputs.input_files import InputFile
from convert.inputs.input_stream import open_input
from convert.inputs.record_boundaries import (
    LINE,
    TEXT_LINE,
    TEXT_LINE_WIDTH,
    next_record_boundary,
    read_blocks,
    read_pieces,
)
from convert.inputs.tasks import ByteRange
from stream_pretrain.errors import DataError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
PIECE_BYTES = 8 << 20


def read_lines(
    span: ByteRange, file: InputFile, how: Reading, bad: BadRecords
) -> Iterator[Document]:
    """One JSON object a line; empty lines are passed over."""
    with open_input(file, how.storage) as opened:
        cut = tail_cut(file, how)
        if cut is not None:
            cut = next_record_boundary(opened, cut, LINE)
        start, end = _aligned(opened, span, LINE, 1)
        for offset, block in read_blocks(opened, start, end):
            for line in block.split(b"\n"):
                if line and not line.isspace():
                    document = _record(line, offset, span.file, file, how, bad)
                    if document is not None:
                        yield _placed(document, cut)
                offset += len(line) + 1


def _record(
    line: bytes, offset: int, number: int, file: InputFile, how: Reading, bad: BadRecords
) -> Document | None:
    try:
        record = parse_line(line if offset else line.removeprefix(BYTE_ORDER_MARK))
        text = checked_text(look_up(record, how.text_key, "--text_key"), how.text_key)
        known = how.id_key and str(look_up(record, how.id_key, "--id_key"))
    except BadRecordError as error:
        bad.add(_line_place(file, how, offset), error)
        return None
    return Document(known or f"{file.label}:{offset}", text, number, offset)


def parse_line(line: bytes) -> object:
    """The JSON value of a line."""
    try:
        return json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise BadRecordError(
            f"invalid UTF-8 (byte 0x{line[error.start]:02x}, the {error.start + 1}th of the line). "
            "Convert the file to UTF-8."
        ) from error
    except (ValueError, RecursionError) as error:
        raise BadRecordError(f"invalid JSON ({error}). Mend the line.") from error


def read_text(
    span: ByteRange, file: InputFile, how: Reading, bad: BadRecords
) -> Iterator[Document]:
    """One document a file, or one between two separators."""
    reader = _separated if how.separator else _whole
    with open_input(file, how.storage) as opened:
        for document_id, position, data, begins, ends in reader(opened, span, file, how):
            try:
                text = data.decode()
            except UnicodeDecodeError as error:
                where = position + error.start
                place = f"byte {where}" if file.is_stdin else _line_place(file, how, where)
                found = f"invalid UTF-8 (byte 0x{data[error.start]:02x} at offset {where})"
                bad.add(place, BadRecordError(f"{found}. Convert the file to UTF-8."))
                continue
            document = Document(document_id, text, span.file, position, None, begins, ends)
            yield _placed(document, _text_cut(opened, file, how))


_Piece = tuple[str, int, bytes, bool, bool]


def _separated(
    opened: BinaryIO, span: ByteRange, file: InputFile, how: Reading
) -> Iterator[_Piece]:
    separator = (how.separator or "").encode()
    start, end = _aligned(opened, span, re.compile(re.escape(separator)), len(separator))
    if end is not None:
        opened.seek(start)
    rest, offset = b"", start
    for piece in read_pieces(opened, None if end is None else end - start):
        *whole, rest = (rest + piece).split(separator)
        for data in whole:
            yield f"{file.label}:{offset}", offset, data, True, True
            offset += len(data) + len(separator)
    if rest.strip():
        yield f"{file.label}:{offset}", offset, rest, True, True


def _whole(opened: BinaryIO, span: ByteRange, file: InputFile, how: Reading) -> Iterator[_Piece]:
    """Pieces of one document: cut where the span ends, at the tail, and when they get long."""
    cut = _text_cut(opened, file, how)
    start, end = _aligned(opened, span, TEXT_LINE, TEXT_LINE_WIDTH)
    if end is not None:
        opened.seek(start)
    rest, offset = b"", start
    for piece in read_pieces(opened, None if end is None else end - start):
        rest += piece
        while (length := _cut_at(rest, offset, cut)) is not None:
            yield _piece(file, offset, rest[:length], cut, at_end=False)
            offset, rest = offset + length, rest[length:]
    if rest:
        yield _piece(file, offset, rest, cut, at_end=end is None or end == file.size)


def _cut_at(data: bytes, offset: int, cut: int | None) -> int | None:
    """How much of `data` makes a piece that is whole, or None."""
    if cut is not None and offset < cut < offset + len(data):
        return cut - offset
    if len(data) < 2 * PIECE_BYTES:
        return None
    found = TEXT_LINE.search(data, PIECE_BYTES)
    if found:
        return found.start() + TEXT_LINE_WIDTH
    if len(data) < 4 * PIECE_BYTES:
        return None
    return next(i for i in range(PIECE_BYTES, 0, -1) if data[i] & 0xC0 != 0x80)


def _piece(file: InputFile, offset: int, data: bytes, cut: int | None, *, at_end: bool) -> _Piece:
    """Texts before and behind the tail's border are two documents with two ids."""
    is_tail = cut is not None and 0 < cut <= offset
    name = f"{file.label}:{cut}" if is_tail else file.label
    return name, offset, data, offset in (0, cut), at_end or offset + len(data) == cut


def line_number(file: InputFile, how: Reading, offset: int) -> int:
    """The line, from 1, that holds byte `offset`; reads up to there, so only for messages."""
    lines, position = 1, 0
    with open_input(file, how.storage) as opened:
        while position < offset:
            piece = opened.read(min(1 << 20, offset - position))[: offset - position]
            if not piece:
                break
            lines += piece.count(b"\n")
            position += len(piece)
    return lines


def _line_place(file: InputFile, how: Reading, offset: int) -> str:
    if file.is_stdin:
        return f"standard input, byte {offset}"
    return f"{file.path}, line {line_number(file, how, offset)}"


def _aligned(
    opened: BinaryIO, span: ByteRange, border: re.Pattern[bytes], width: int
) -> tuple[int, int | None]:
    """Both ends of a span moved to the next border."""
    if span.end is None:
        return span.start, None
    start = next_record_boundary(opened, span.start, border, width=width)
    return start, next_record_boundary(opened, span.end, border, width=width)


def tail_cut(file: InputFile, how: Reading) -> int | None:
    """Nominal byte offset at which a file's validation tail begins."""
    if not how.tail:
        return None
    if not file.is_cut_anywhere:
        raise DataError(
            f"{file.path}: `--validation tail:` needs the length of the text, which is known of "
            "plain .txt and .jsonl files only. Decompress it, or choose validation by share."
        )
    return int(file.size * (1 - how.tail))


def _text_cut(opened: BinaryIO, file: InputFile, how: Reading) -> int | None:
    """Where the tail of a plain text begins: a character's start, or a document's."""
    cut = tail_cut(file, how)
    if cut is None:
        return None
    place = opened.tell()
    if how.separator:
        separator = how.separator.encode()
        cut = next_record_boundary(
            opened, cut, re.compile(re.escape(separator)), width=len(separator)
        )
    else:
        opened.seek(cut)
        following = opened.read(4)
        cut += next((i for i, byte in enumerate(following) if byte & 0xC0 != 0x80), 0)
    opened.seek(place)
    return cut


def _placed(document: Document, cut: int | None) -> Document:
    if cut is None:
        return document
    return document._replace(split=VALIDATION if document.position >= cut else TRAIN)
