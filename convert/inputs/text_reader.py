"""Read documents from plain text and JSON lines.

A byte range of a file comes in, and `Document`s come out, in file order. Positions are byte offsets
in the decompressed file. Nothing is filtered or tokenized here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from convert.inputs.document import (
    TRAIN,
    VALIDATION,
    BadRecordError,
    BadRecords,
    Document,
    ReadOptions,
    lookup_path,
    validated_text,
)
from convert.inputs.input_files import InputFile
from convert.inputs.input_stream import open_input
from convert.inputs.record_boundaries import (
    LINE,
    TEXT_LINE,
    TEXT_LINE_WIDTH,
    next_record_boundary,
    read_blocks,
    read_chunks,
)
from convert.inputs.tasks import ByteRange
from stream_pretrain.errors import DataError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
PIECE_BYTES = 8 << 20


def read_jsonl(
    byte_range: ByteRange, file: InputFile, options: ReadOptions, bad_records: BadRecords
) -> Iterator[Document]:
    """Yield one document for each line, which holds a JSON object; empty lines are skipped."""
    with open_input(file, options.storage) as stream:
        tail_start = nominal_tail_start(file, options)
        if tail_start is not None:
            tail_start = next_record_boundary(stream, tail_start, LINE)
        start, end = _align_range(stream, byte_range, LINE, 1)
        for offset, block in read_blocks(stream, start, end):
            for line in block.split(b"\n"):
                if line and not line.isspace():
                    document = _parse_document(
                        line, offset, byte_range.file, file, options, bad_records
                    )
                    if document is not None:
                        yield _with_tail_split(document, tail_start)
                offset += len(line) + 1


def _parse_document(
    line: bytes,
    offset: int,
    number: int,
    file: InputFile,
    options: ReadOptions,
    bad_records: BadRecords,
) -> Document | None:
    text_key, id_key = options.text_key, options.id_key
    try:
        record = parse_line(line if offset else line.removeprefix(BYTE_ORDER_MARK))
        text = validated_text(lookup_path(record, text_key, "--text_key"), text_key)
        document_id = id_key and str(lookup_path(record, id_key, "--id_key"))
    except BadRecordError as error:
        bad_records.add(_line_location(file, options, offset), error)
        return None
    return Document(document_id or f"{file.label}:{offset}", text, number, offset)


def parse_line(line: bytes) -> object:
    """Return the JSON value of a line, or raise `BadRecordError`."""
    try:
        return json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise BadRecordError(
            f"invalid UTF-8 (byte 0x{line[error.start]:02x}, the {error.start + 1}th of the line). "
            "Convert the file to UTF-8."
        ) from error
    except (ValueError, RecursionError) as error:
        raise BadRecordError(f"invalid JSON ({error}). Fix the line.") from error


class _TextPiece(NamedTuple):
    """Bytes of one document; see `Document` for `has_start` and `has_end`."""

    id: str
    position: int
    data: bytes
    has_start: bool
    has_end: bool


def read_text(
    byte_range: ByteRange, file: InputFile, options: ReadOptions, bad_records: BadRecords
) -> Iterator[Document]:
    """Yield one document for each file, or one between two separators."""
    read_pieces = _split_at_separators if options.separator else _split_long_text
    with open_input(file, options.storage) as stream:
        for piece in read_pieces(stream, byte_range, file, options):
            try:
                text = piece.data.decode()
            except UnicodeDecodeError as error:
                offset = piece.position + error.start
                byte = piece.data[error.start]
                is_stdin = file.is_stdin
                location = f"byte {offset}" if is_stdin else _line_location(file, options, offset)
                message = f"invalid UTF-8 (byte 0x{byte:02x} at offset {offset})"
                bad_records.add(location, BadRecordError(f"{message}. Convert the file to UTF-8."))
                continue
            document = Document(
                piece.id,
                text,
                byte_range.file,
                piece.position,
                has_start=piece.has_start,
                has_end=piece.has_end,
            )
            yield _with_tail_split(document, _text_tail_start(stream, file, options))


def _split_at_separators(
    stream: BinaryIO, byte_range: ByteRange, file: InputFile, options: ReadOptions
) -> Iterator[_TextPiece]:
    separator = (options.separator or "").encode()
    pattern = re.compile(re.escape(separator))
    start, end = _align_range(stream, byte_range, pattern, len(separator))
    if end is not None:
        stream.seek(start)
    rest, offset = b"", start
    for chunk in read_chunks(stream, None if end is None else end - start):
        *complete, rest = (rest + chunk).split(separator)
        for data in complete:
            yield _TextPiece(f"{file.label}:{offset}", offset, data, True, True)
            offset += len(data) + len(separator)
    if rest.strip():
        yield _TextPiece(f"{file.label}:{offset}", offset, rest, True, True)


def _split_long_text(
    stream: BinaryIO, byte_range: ByteRange, file: InputFile, options: ReadOptions
) -> Iterator[_TextPiece]:
    """Yield pieces of one document: cut at the range's end, at the tail, and when they get long."""
    tail_start = _text_tail_start(stream, file, options)
    start, end = _align_range(stream, byte_range, TEXT_LINE, TEXT_LINE_WIDTH)
    if end is not None:
        stream.seek(start)
    rest, offset = b"", start
    for chunk in read_chunks(stream, None if end is None else end - start):
        rest += chunk
        while (length := _piece_length(rest, offset, tail_start)) is not None:
            yield _text_piece(file, offset, rest[:length], tail_start, is_last=False)
            offset, rest = offset + length, rest[length:]
    if rest:
        is_last = end is None or end == file.size
        yield _text_piece(file, offset, rest, tail_start, is_last=is_last)


def _piece_length(data: bytes, offset: int, tail_start: int | None) -> int | None:
    """Return how many bytes of `data` make one piece, or None where more bytes are needed."""
    if tail_start is not None and offset < tail_start < offset + len(data):
        return tail_start - offset
    if len(data) < 2 * PIECE_BYTES:
        return None
    match = TEXT_LINE.search(data, PIECE_BYTES)
    if match:
        return match.start() + TEXT_LINE_WIDTH
    if len(data) < 4 * PIECE_BYTES:
        return None
    return next(i for i in range(PIECE_BYTES, 0, -1) if data[i] & 0xC0 != 0x80)


def _text_piece(
    file: InputFile, offset: int, data: bytes, tail_start: int | None, *, is_last: bool
) -> _TextPiece:
    """Return a piece; the texts before and after the start of the tail are two documents."""
    is_tail = tail_start is not None and 0 < tail_start <= offset
    return _TextPiece(
        id=f"{file.label}:{tail_start}" if is_tail else file.label,
        position=offset,
        data=data,
        has_start=offset in (0, tail_start),
        has_end=is_last or offset + len(data) == tail_start,
    )


def line_number(file: InputFile, options: ReadOptions, offset: int) -> int:
    """Return the line, from 1, that holds byte `offset`.

    The file is read up to there, so this is for error messages only.
    """
    lines, position = 1, 0
    with open_input(file, options.storage) as stream:
        while position < offset:
            chunk = stream.read(min(1 << 20, offset - position))[: offset - position]
            if not chunk:
                break
            lines += chunk.count(b"\n")
            position += len(chunk)
    return lines


def _line_location(file: InputFile, options: ReadOptions, offset: int) -> str:
    if file.is_stdin:
        return f"standard input, byte {offset}"
    return f"{file.path}, line {line_number(file, options, offset)}"


def _align_range(
    stream: BinaryIO, byte_range: ByteRange, pattern: re.Pattern[bytes], width: int
) -> tuple[int, int | None]:
    """Return both ends of a range, each moved to the next record boundary."""
    if byte_range.end is None:
        return byte_range.start, None
    start = next_record_boundary(stream, byte_range.start, pattern, width=width)
    return start, next_record_boundary(stream, byte_range.end, pattern, width=width)


def refuse_tail(file: InputFile, options: ReadOptions) -> None:
    """Raise `DataError` where a validation tail is asked for: the text's length is unknown."""
    if options.tail:
        raise DataError(
            f"{file.path}: `--validation tail:` needs the length of the text, which is known of "
            "plain .txt and .jsonl files only. Decompress it, or choose validation by share."
        )


def nominal_tail_start(file: InputFile, options: ReadOptions) -> int | None:
    """Return the nominal byte offset at which a file's validation tail begins; None without one."""
    if not options.tail:
        return None
    if not file.is_splittable:
        refuse_tail(file, options)
    return int(file.size * (1 - options.tail))


def _text_tail_start(stream: BinaryIO, file: InputFile, options: ReadOptions) -> int | None:
    """Return where the tail of a plain text begins: at a character, or at a document."""
    tail_start = nominal_tail_start(file, options)
    if tail_start is None:
        return None
    position = stream.tell()
    if options.separator:
        separator = options.separator.encode()
        pattern = re.compile(re.escape(separator))
        tail_start = next_record_boundary(stream, tail_start, pattern, width=len(separator))
    else:
        stream.seek(tail_start)
        following = stream.read(4)
        tail_start += next((i for i, byte in enumerate(following) if byte & 0xC0 != 0x80), 0)
    stream.seek(position)
    return tail_start


def _with_tail_split(document: Document, tail_start: int | None) -> Document:
    """Return the document with its split, where its position in the file decides it."""
    if tail_start is None:
        return document
    return document._replace(split=VALIDATION if document.position >= tail_start else TRAIN)
