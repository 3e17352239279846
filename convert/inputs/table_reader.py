"""CSV, Parquet and Arrow -> documents. In: a file. Out: `Document`s in file order.

Positions are rows from 0. Read from front to back, a batch of rows at a time.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa

from convert.inputs.document import (
    BadRecordError,
    BadRecords,
    Document,
    Reading,
    checked_text,
    look_up,
)
from convert.inputs.input_files import InputFile
from convert.inputs.input_stream import open_input
from convert.inputs.record_boundaries import read_blocks
from convert.inputs.tasks import ByteRange
from convert.inputs.text_reader import tail_cut
from stream_pretrain.errors import DataError

ROWS_AT_ONCE = 1024
LONGEST_FIELD = 1 << 30


def read_csv(span: ByteRange, file: InputFile, how: Reading, bad: BadRecords) -> Iterator[Document]:
    """The first line names the columns; a quoted field may hold line breaks."""
    tail_cut(file, how)
    csv.field_size_limit(LONGEST_FIELD)
    with open_input(file, how.storage) as opened:
        rows = csv.reader(_decoded_lines(opened, file), strict=True)
        header = _next_row(rows, file)
        if header is None:
            return
        _check_columns(header, file, how)
        row = 0
        while (fields := _next_row(rows, file)) is not None:
            try:
                if len(fields) != len(header):
                    raise BadRecordError(
                        f"{len(fields)} fields, the header has {len(header)}. Mend the line."
                    )
                record = dict(zip(header, fields, strict=True))
                yield _document(record, row, span.file, file, how)
            except BadRecordError as error:
                bad.add(f"{file.path}, line {rows.line_num}", error)
            row += 1


def _next_row(rows: Any, file: InputFile) -> list[str] | None:
    try:
        while (row := next(rows, None)) == []:
            pass
    except csv.Error as error:
        raise DataError(
            f"{file.path}, line {rows.line_num}: malformed CSV ({error}). Nothing was published. "
            "Mend the file."
        ) from error
    return row


def _decoded_lines(opened: BinaryIO, file: InputFile) -> Iterator[str]:
    number = 0
    for _, block in read_blocks(opened, 0, None):
        for line in block.splitlines(keepends=True) if b"\n" in block else [block]:
            number += 1
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{file.path}, line {number}: invalid UTF-8 (byte "
                    f"0x{line[error.start]:02x}). Nothing was published. Convert it to UTF-8."
                ) from error


def read_parquet(
    span: ByteRange, file: InputFile, how: Reading, bad: BadRecords
) -> Iterator[Document]:
    """One document a row; only the columns that are needed are read."""
    import pyarrow.parquet as pq

    def batches(opened: BinaryIO) -> Iterator[_Batch]:
        table = pq.ParquetFile(opened, page_checksum_verification=True)
        names = table.schema_arrow.names
        _check_columns(names, file, how)
        columns = [name for name in names if name in _wanted(how, names)]
        first = 0
        for group in range(table.num_row_groups):
            row, place = first, f"row group {group}"
            try:
                for batch in table.iter_batches(ROWS_AT_ONCE, [group], columns):
                    yield _Batch(f"{place}, ", row, batch)
                    row += batch.num_rows
            except (pa.ArrowException, OSError) as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise  # the disk's, not the file's
                bad.add(f"{file.path}, {place}, from row {row} on", _damaged(error))
            first += table.metadata.row_group(group).num_rows

    yield from _rows(batches, span, file, how, bad)


def read_arrow(
    span: ByteRange, file: InputFile, how: Reading, bad: BadRecords
) -> Iterator[Document]:
    """Arrow IPC in either form; a directory of `datasets.save_to_disk` holds such files."""

    def tables(opened: BinaryIO) -> Iterator[Any]:
        is_file = opened.read(6) == b"ARROW1"
        opened.seek(0)
        if is_file:
            table = pa.ipc.open_file(opened)
            _check_columns(table.schema.names, file, how)
            yield from (table.get_batch(i) for i in range(table.num_record_batches))
        else:
            stream = pa.ipc.open_stream(opened)
            _check_columns(stream.schema.names, file, how)
            yield from stream

    def batches(opened: BinaryIO) -> Iterator[_Batch]:
        row = 0
        for batch in tables(opened):
            yield _Batch("", row, batch)
            row += batch.num_rows

    yield from _rows(batches, span, file, how, bad)


class _Batch(NamedTuple):
    """Rows of a table from row `first` of the file on; `place` stands before a row's number."""

    place: str
    first: int
    rows: Any


def _damaged(error: Exception) -> BadRecordError:
    found = " ".join(str(error).split())
    return BadRecordError(f"damaged ({found}). Fetch the file again.")


def _rows(
    batches: Callable[[BinaryIO], Iterator[_Batch]],
    span: ByteRange,
    file: InputFile,
    how: Reading,
    bad: BadRecords,
) -> Iterator[Document]:
    tail_cut(file, how)
    with open_input(file, how.storage) as opened:
        try:
            for batch in batches(opened):
                names = _wanted(how, batch.rows.schema.names)
                columns = {name: _values(batch.rows.column(name)) for name in names}
                for at in range(batch.rows.num_rows):
                    record = {name: column[at] for name, column in columns.items()}
                    row = batch.first + at
                    try:
                        _check_values(record)
                        yield _document(record, row, span.file, file, how)
                    except BadRecordError as error:
                        bad.add(f"{file.path}, {batch.place}row {row}", error)
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"{file.path}: not a readable {file.format} file ({error}). Nothing was published. "
                "Fetch the file again."
            ) from error


def _values(column: Any) -> list[Any]:
    """Python values; the error itself stands for one that is no text."""
    try:
        values: list[Any] = column.to_pylist()
        return values
    except UnicodeDecodeError:
        return [_value(item) for item in column]


def _value(item: Any) -> Any:
    try:
        return item.as_py()
    except UnicodeDecodeError as error:
        return error


def _check_values(record: dict[str, Any]) -> None:
    for name, value in record.items():
        if isinstance(value, UnicodeDecodeError):
            raise BadRecordError(
                f"invalid UTF-8 in column {name!r} (byte 0x{value.object[value.start]:02x} at "
                f"{value.start}). Fetch the file again, or mend it."
            ) from value


def _document(
    record: dict[str, Any], row: int, number: int, file: InputFile, how: Reading
) -> Document:
    text = checked_text(look_up(record, how.text_key, "--text_key"), how.text_key)
    known = how.id_key and str(look_up(record, how.id_key, "--id_key"))
    return Document(known or f"{file.label}:{row}", text, number, row)


def _wanted(how: Reading, names: list[str]) -> list[str]:
    """The columns that hold the text and the id."""
    keys = [key for key in (how.text_key, how.id_key) if key]
    return sorted({key if key in names else key.split(".")[0] for key in keys} & set(names))


def _check_columns(names: list[str], file: InputFile, how: Reading) -> None:
    for key, flag in ((how.text_key, "--text_key"), (how.id_key, "--id_key")):
        if key and key not in names and key.split(".")[0] not in names:
            raise DataError(
                f"{file.path}: no column {key!r}; the columns are "
                f"{', '.join(map(repr, names[:20]))}. Choose another {flag}."
            )
