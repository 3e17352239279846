"""TensorBoard's event files, cut by step. In: a folder of them. Out: the same files without the
steps beyond the one given. Does not write new events, and needs no TensorBoard.

A file is a sequence of records: length (8 bytes), its checksum (4), a serialised `Event`, its
checksum (4). Of an `Event` only the first fields matter here: 1 wall time, 2 step, 3 file version.
Records are copied as they are, so their checksums stay right. A record that a kill tore off ends
the file.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

NO_STEP = -1

_PATTERN = "events.out.tfevents.*"
_LENGTH = struct.Struct("<Q4x")
_CHECKSUM_BYTES = 4
_STEP_FIELD = 2
_VERSION_FIELD = 3


def cut_event_files(folder: Path, step: int) -> int:
    """Remove from every event file what lies beyond `step`; files that hold nothing else are
    deleted.

    Returns the last step that is left, `NO_STEP` if none. Each file is replaced atomically.
    """
    return max((_cut_file(path, step) for path in sorted(folder.glob(_PATTERN))), default=NO_STEP)


def _cut_file(path: Path, step: int) -> int:
    partial = path.with_name("cut.partial")
    last, whole_bytes = NO_STEP, 0
    with path.open("rb") as source, partial.open("wb") as kept:
        for record in _records(source):
            number = step_of(record[_LENGTH.size : -_CHECKSUM_BYTES])
            if number is not None and number > step:
                continue
            kept.write(record)
            whole_bytes += len(record)
            if number is not None:
                last = max(last, number)
        kept.flush()
        os.fsync(kept.fileno())
    if last == NO_STEP:
        path.unlink()
        partial.unlink()
    elif whole_bytes == path.stat().st_size:
        partial.unlink()
    else:
        partial.replace(path)
    return last


def _records(source: BinaryIO) -> Iterator[bytes]:
    while len(head := source.read(_LENGTH.size)) == _LENGTH.size:
        (length,) = _LENGTH.unpack(head)
        rest = source.read(length + _CHECKSUM_BYTES)
        if len(rest) < length + _CHECKSUM_BYTES:
            return
        yield head + rest


def step_of(event: bytes) -> int | None:
    """The step of a serialised `Event`; None for the record that only names the file's version."""
    place, step = 0, 0
    while place < len(event):
        key, place = _varint(event, place)
        field, wire_type = key >> 3, key & 7
        if field == _STEP_FIELD:
            step, place = _varint(event, place)
        elif field == _VERSION_FIELD:
            return None
        elif field > _VERSION_FIELD or wire_type != 1:
            break
        else:
            place += 8
    return step


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while place < len(data):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place += 1
        if byte < 0x80:
            break
        shift += 7
    return value, place
