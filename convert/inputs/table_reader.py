"""Read documents from CSV, Parquet and Arrow files.

One whole file comes in, and `Document`s come out, in file order. A file is read from start to end,
a batch of rows at a time. Positions are rows from 0.
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
    ReadOptions,
    lookup_path,
    validated_text,
)
from convert.inputs.input_files import InputFile
from convert.inputs.input_stream import open_input
from convert.inputs.record_boundaries import read_blocks
from convert.inputs.tasks import ByteRange
from convert.inputs.text_reader import refuse_tail
from stream_pretrain.errors import DataError

BATCH_ROWS = 1024
MAX_FIELD_BYTES = 1 << 30


def read_csv(
    byte_range: ByteRange, file: InputFile, options: ReadOptions, bad_records: BadRecords
) -> Iterator[Document]:
    """Yield one document for each row; the first line names the columns.

    A quoted field may hold line breaks.
    """
    refuse_tail(file, options)
    csv.field_size_limit(MAX_FIELD_BYTES)
    with open_input(file, options.storage) as stream:
        rows = csv.reader(_decoded_lines(stream, file), strict=True)
        header = _next_row(rows, file)
        if header is None:
            return
        _check_columns(header, file, options)
        row = 0
        while (fields := _next_row(rows, file)) is not None:
            try:
                if len(fields) != len(header):
                    raise BadRecordError(
                        f"{len(fields)} fields, the header has {len(header)}. Fix the line."
                    )
                record = dict(zip(header, fields, strict=True))
                yield _document(record, row, byte_range.file, file, options)
            except BadRecordError as error:
                bad_records.add(f"{file.path}, line {rows.line_num}", error)
            row += 1


def _next_row(rows: Any, file: InputFile) -> list[str] | None:
    try:
        while (row := next(rows, None)) == []:
            pass
    except csv.Error as error:
        raise DataError(
            f"{file.path}, line {rows.line_num}: malformed CSV ({error}). Nothing was published. "
            "Fix the file."
        ) from error
    return row


def _decoded_lines(stream: BinaryIO, file: InputFile) -> Iterator[str]:
    number = 0
    for _, block in read_blocks(stream, 0, None):
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
    byte_range: ByteRange, file: InputFile, options: ReadOptions, bad_records: BadRecords
) -> Iterator[Document]:
    """Yield one document for each row; only the columns that are needed are read."""
    import pyarrow.parquet as pq

    def batches(stream: BinaryIO) -> Iterator[_Batch]:
        table = pq.ParquetFile(stream, page_checksum_verification=True)
        names = table.schema_arrow.names
        _check_columns(names, file, options)
        columns = [name for name in names if name in _needed_columns(options, names)]
        first = 0
        for group in range(table.num_row_groups):
            row, location = first, f"row group {group}"
            try:
                for batch in table.iter_batches(BATCH_ROWS, [group], columns):
                    yield _Batch(f"{location}, ", row, batch)
                    row += batch.num_rows
            except (pa.ArrowException, OSError) as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise  # an error of the disk, not of the file
                bad_records.add(
                    f"{file.path}, {location}, from row {row} on", _damaged_error(error)
                )
            first += table.metadata.row_group(group).num_rows

    yield from _documents(batches, byte_range, file, options, bad_records)


def read_arrow(
    byte_range: ByteRange, file: InputFile, options: ReadOptions, bad_records: BadRecords
) -> Iterator[Document]:
    """Yield one document for each row of an Arrow IPC file or stream.

    A directory that `datasets.save_to_disk` wrote holds such files.
    """

    def record_batches(stream: BinaryIO) -> Iterator[Any]:
        is_file = stream.read(6) == b"ARROW1"
        stream.seek(0)
        if is_file:
            table = pa.ipc.open_file(stream)
            _check_columns(table.schema.names, file, options)
            yield from (table.get_batch(i) for i in range(table.num_record_batches))
        else:
            reader = pa.ipc.open_stream(stream)
            _check_columns(reader.schema.names, file, options)
            yield from reader

    def batches(stream: BinaryIO) -> Iterator[_Batch]:
        row = 0
        for batch in record_batches(stream):
            yield _Batch("", row, batch)
            row += batch.num_rows

    yield from _documents(batches, byte_range, file, options, bad_records)


class _Batch(NamedTuple):
    """Rows of a table. `first_row` is the first one's number in the file.

    `location` precedes a row's number in error messages.
    """

    location: str
    first_row: int
    rows: Any


def _damaged_error(error: Exception) -> BadRecordError:
    message = " ".join(str(error).split())
    return BadRecordError(f"damaged ({message}). Fetch the file again.")


def _documents(
    batches: Callable[[BinaryIO], Iterator[_Batch]],
    byte_range: ByteRange,
    file: InputFile,
    options: ReadOptions,
    bad_records: BadRecords,
) -> Iterator[Document]:
    refuse_tail(file, options)
    with open_input(file, options.storage) as stream:
        try:
            for batch in batches(stream):
                names = _needed_columns(options, batch.rows.schema.names)
                columns = {name: _values(batch.rows.column(name)) for name in names}
                for i in range(batch.rows.num_rows):
                    record = {name: column[i] for name, column in columns.items()}
                    row = batch.first_row + i
                    try:
                        _check_values(record)
                        yield _document(record, row, byte_range.file, file, options)
                    except BadRecordError as error:
                        bad_records.add(f"{file.path}, {batch.location}row {row}", error)
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"{file.path}: not a readable {file.format} file ({error}). Nothing was published. "
                "Fetch the file again."
            ) from error


def _values(column: Any) -> list[Any]:
    """Return the column as Python values; a value that is not UTF-8 is replaced by its error."""
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
                f"{value.start}). Fetch the file again, or fix it."
            ) from value


def _document(
    record: dict[str, Any], row: int, number: int, file: InputFile, options: ReadOptions
) -> Document:
    text = validated_text(lookup_path(record, options.text_key, "--text_key"), options.text_key)
    document_id = options.id_key and str(lookup_path(record, options.id_key, "--id_key"))
    return Document(document_id or f"{file.label}:{row}", text, number, row)


def _needed_columns(options: ReadOptions, names: list[str]) -> list[str]:
    """Return the columns that hold the text and the id."""
    keys = [key for key in (options.text_key, options.id_key) if key]
    return sorted({key if key in names else key.split(".")[0] for key in keys} & set(names))


def _check_columns(names: list[str], file: InputFile, options: ReadOptions) -> None:
    for key, flag in ((options.text_key, "--text_key"), (options.id_key, "--id_key")):
        if key and key not in names and key.split(".")[0] not in names:
            raise DataError(
                f"{file.path}: no column {key!r}; the columns are "
                f"{', '.join(map(repr, names[:20]))}. Choose another {flag}."
            )
