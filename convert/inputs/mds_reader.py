"""Existing MDS shards with a text column -> documents. In: a shard. Out: `Document`s in order.

A shard describes its own columns; its `index.json` is not needed. Positions are samples from 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convert.inputs.document import BadRecordError, BadRecords, Document, Reading, checked_text
from convert.inputs.input_files import InputFile
from convert.inputs.input_stream import open_input
from convert.inputs.tasks import ByteRange
from convert.inputs.text_reader import tail_cut
from stream_pretrain.errors import DataError


def read_mds(span: ByteRange, file: InputFile, how: Reading, bad: BadRecords) -> Iterator[Document]:
    """One document a sample. The shard is held in memory."""
    tail_cut(file, how)
    with open_input(file, how.storage) as opened:
        data = opened.read()
    try:
        offsets, columns = shard_layout(data)
    except (ValueError, KeyError, IndexError) as error:
        raise DataError(
            f"{file.path}: not a whole MDS shard ({error}). Nothing was published. Fetch it again."
        ) from error
    names = [name for name, _, _ in columns]
    for key, flag in ((how.text_key, "--text_key"), (how.id_key, "--id_key")):
        if key and key not in names:
            raise DataError(
                f"{file.path}: no column {key!r}; the columns are {', '.join(map(repr, names))}. "
                f"Choose another {flag}."
            )
    for row, (begin, end) in enumerate(pairwise(offsets.tolist())):
        try:
            values = sample_values(data[begin:end], columns)
            text = checked_text(values[how.text_key], how.text_key)
        except BadRecordError as error:
            bad.add(f"{file.path}, sample {row}", error)
            continue
        known = how.id_key and str(values[how.id_key])
        yield Document(known or f"{file.label}:{row}", text, span.file, row)


Column = tuple[str, str, Any]


def shard_layout(data: bytes) -> tuple[NDArray[np.uint32], list[Column]]:
    """Offsets [N + 1] of the samples, and (name, encoding, size or None) of each column."""
    count = int(np.frombuffer(data, "<u4", 1)[0])
    offsets = np.frombuffer(data, "<u4", count + 1, 4)
    about = json.loads(data[4 + 4 * (count + 1) : int(offsets[0])])
    if int(offsets[-1]) != len(data):
        raise ValueError(f"{len(data)} bytes, its header says {int(offsets[-1])}")
    keys = ("column_names", "column_encodings", "column_sizes")
    return offsets, list(zip(*(about[key] for key in keys), strict=True))


def sample_values(sample: bytes, columns: list[Column]) -> dict[str, Any]:
    """Text columns as strings, all others as bytes."""
    open_sizes = sum(1 for _, _, size in columns if not size)
    sizes = iter(np.frombuffer(sample, "<u4", open_sizes).tolist())
    place = 4 * open_sizes
    values: dict[str, Any] = {}
    for name, encoding, size in columns:
        length = size or next(sizes)
        value = sample[place : place + length]
        try:
            values[name] = value.decode() if encoding == "str" else value
        except UnicodeDecodeError as error:
            raise BadRecordError(
                f"invalid UTF-8 in column {name!r}. Write the shard again."
            ) from error
        place += length
    return values
