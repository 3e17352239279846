"""Documents of a part. In: spans of input files. Out: `Document`s in file order. Does not choose or encode.

A malformed record stops the job with file and line, or is counted and shown where the job says `skip`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import BinaryIO, NamedTuple

from convert.inputs import InputFile
from convert.lines import next_line, next_text_border, open_input, read_blocks
from convert.parts import Part, Span
from convert.records import BadRecord, Keys, parse_record
from stream_pretrain.errors import DataError

SHOWN_BAD_RECORDS = 20
TAIL_SPLIT = "validation"


class Document(NamedTuple):
    """One text, or a piece of one that is cut: `begins` and `ends` say whether it holds the text's two ends.

    `position` is the byte offset or row in file number `file`. `split` is set where the place in the file decides it.
    """

    id: str
    text: str | None
    file: int
    position: int
    split: str | None = None
    begins: bool = True
    ends: bool = True


@dataclass
class BadRecords:
    """What happens to malformed records: raise at the first, or count them and keep some messages."""

    skip: bool = False
    count: int = 0
    shown: list[str] = field(default_factory=list)

    def add(self, place: str, error: BadRecord) -> None:
        """Raise, or count."""
        if not self.skip:
            raise DataError(
                f"{place}: {error} Nothing was published; `--on_bad_record skip` leaves such records out."
            ) from error
        self.count += 1
        if len(self.shown) < SHOWN_BAD_RECORDS:
            self.shown.append(f"{place}: {error}")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How texts are read: keys of records, and the share at each file's end that is validation (0 for none)."""

    keys: Keys
    tail: Fraction = Fraction(0)


def read_part(
    part: Part, files: Sequence[InputFile], how: Reading, bad: BadRecords
) -> Iterator[Document]:
    """All documents of a part, in order."""
    for span in part.spans:
        file = files[span.file]
        reader = _read_text if file.format == "text" else _read_lines
        yield from reader(span, file, how, bad)


def _read_lines(span: Span, file: InputFile, how: Reading, bad: BadRecords) -> Iterator[Document]:
    cut = _tail_cut(file, how)
    with open_input(file) as opened:
        if cut is not None and not file.compression:
            cut = next_line(opened, cut)
        start, end = _aligned(opened, span, next_line)
        for offset, block in read_blocks(opened, start, end, name=file.path):
            for line in block.split(b"\n"):
                if line.strip():
                    document = _record(line, offset, span.file, file, how, bad)
                    if document is not None:
                        yield (
                            document
                            if cut is None
                            else document._replace(split=_tail_split(offset, cut))
                        )
                offset += len(line) + 1


def _record(
    line: bytes, offset: int, number: int, file: InputFile, how: Reading, bad: BadRecords
) -> Document | None:
    try:
        text, record_id = parse_record(line, how.keys)
        if text is not None and not text.isascii():
            _check_unicode(text)
    except BadRecord as error:
        bad.add(f"{file.path}, line {line_number(file, offset)}", error)
        return None
    return Document(record_id or f"{file.label}:{offset}", text, number, offset)


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadRecord(
            f"half a surrogate pair (U+{ord(text[error.start]):04X}) at character {error.start + 1} of the text, "
            "which no encoding can hold. Mend the line."
        ) from error


def line_number(file: InputFile, offset: int) -> int:
    """The line, from 1, that starts at byte `offset`; reads the file up to there, so only for messages."""
    lines, position = 1, 0
    with open_input(file) as opened:
        while position < offset:
            piece = opened.read(min(1 << 20, offset - position))[: offset - position]
            if not piece:
                break
            lines += piece.count(b"\n")
            position += len(piece)
    return lines


def _read_text(span: Span, file: InputFile, how: Reading, bad: BadRecords) -> Iterator[Document]:
    cut = _tail_cut(file, how)
    with open_input(file) as opened:
        if cut is not None:
            cut = _character_start(opened, cut)
        start, end = _aligned(opened, span, next_text_border)
        if end is None:
            data, start = opened.read(), 0
        else:
            opened.seek(start)
            data = opened.read(end - start)
    whole = span.end is None
    end = start + len(data)
    borders = [start, *([cut] if cut is not None and start < cut < end else []), end]
    for begin, stop in zip(borders[:-1], borders[1:], strict=True):
        piece = data[begin - start : stop - start]
        try:
            text = piece.decode()
        except UnicodeDecodeError as error:
            where = begin + error.start
            bad.add(
                f"{file.path}, byte {where}, line {line_number(file, where)}",
                BadRecord(
                    f"invalid UTF-8 (byte 0x{piece[error.start]:02x}). Convert the file to UTF-8."
                ),
            )
            continue
        yield Document(
            file.label if begin == 0 or begin != cut else f"{file.label}:{begin}",
            text,
            span.file,
            begin,
            None if cut is None else _tail_split(begin, cut),
            begins=begin == 0 or begin == cut,
            ends=whole or stop == file.size or stop == cut,
        )


def _aligned(opened: BinaryIO, span: Span, border: object) -> tuple[int, int | None]:
    """Both ends of a span moved to the next border."""
    assert callable(border)
    if span.end is None:
        return span.start, None
    return border(opened, span.start), border(opened, span.end)


def _tail_cut(file: InputFile, how: Reading) -> int | None:
    """Nominal byte offset at which a file's validation tail begins."""
    if not how.tail:
        return None
    if file.compression:
        raise DataError(
            f"{file.path}: `--validation tail:` needs the length of the text, which a compressed file does not tell. "
            "Decompress it, or choose validation by share."
        )
    return int(file.size * (1 - how.tail))


def _tail_split(position: int, cut: int) -> str:
    return TAIL_SPLIT if position >= cut else "train"


def _character_start(opened: BinaryIO, offset: int) -> int:
    """The first UTF-8 character start at or after `offset`."""
    opened.seek(offset)
    following = opened.read(4)
    return offset + next((i for i, byte in enumerate(following) if byte & 0xC0 != 0x80), 0)
