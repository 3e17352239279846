"""Remove the steps after a given one from TensorBoard's event files.

A file is a sequence of records: length (8 bytes), its checksum (4), a serialised `Event`, its
checksum (4). Only the first fields of an `Event` are read: 1 wall time, 2 step, 3 file version.
Records are copied unchanged, so that their checksums stay valid. A truncated record ends the file.
TensorBoard need not be installed, and no events are written here.
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
    """Remove all records after `step` from the event files of a folder.

    Return the last remaining step, or `NO_STEP`. Each file is replaced atomically; a file without
    remaining steps is deleted.
    """
    return max((_cut_file(path, step) for path in sorted(folder.glob(_PATTERN))), default=NO_STEP)


def _cut_file(path: Path, step: int) -> int:
    partial = path.with_name("cut.partial")
    last, kept_bytes = NO_STEP, 0
    with path.open("rb") as source, partial.open("wb") as kept:
        for record in _records(source):
            event_step = step_of(record[_LENGTH.size : -_CHECKSUM_BYTES])
            if event_step is not None and event_step > step:
                continue
            kept.write(record)
            kept_bytes += len(record)
            if event_step is not None:
                last = max(last, event_step)
        kept.flush()
        os.fsync(kept.fileno())
    if last == NO_STEP:
        path.unlink()
        partial.unlink()
    elif kept_bytes == path.stat().st_size:
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
    """Return the step of a serialised `Event`, or None for the record of the file's version."""
    position, step = 0, 0
    while position < len(event):
        key, position = _varint(event, position)
        field, wire_type = key >> 3, key & 7
        if field == _STEP_FIELD:
            step, position = _varint(event, position)
        elif field == _VERSION_FIELD:
            return None
        elif field > _VERSION_FIELD or wire_type != 1:
            break
        else:
            position += 8
    return step


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(data):
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            break
        shift += 7
    return value, position
