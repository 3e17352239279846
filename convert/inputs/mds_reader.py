"""Read documents from existing MDS shards that have a text column.

One shard comes in, and `Document`s come out, in order. A shard describes its own columns, so its
`index.json` is not needed. Positions are samples from 0. `shard_layout` reads the header of any
shard and is used for verification too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convert.inputs.document import (
    BadRecordError,
    BadRecords,
    Document,
    ReadOptions,
    validated_text,
)
from convert.inputs.input_files import InputFile
from convert.inputs.input_stream import open_input
from convert.inputs.tasks import ByteRange
from convert.inputs.text_reader import refuse_tail
from stream_pretrain.errors import DataError


def read_mds(
    byte_range: ByteRange, file: InputFile, options: ReadOptions, bad_records: BadRecords
) -> Iterator[Document]:
    """Yield one document for each sample. The whole shard is read into memory."""
    refuse_tail(file, options)
    with open_input(file, options.storage) as stream:
        data = stream.read()
    try:
        offsets, columns = shard_layout(data)
    except (ValueError, KeyError, IndexError) as error:
        raise DataError(
            f"{file.path}: not a whole MDS shard ({error}). Nothing was published. Fetch it again."
        ) from error
    names = [name for name, _, _ in columns]
    for key, flag in ((options.text_key, "--text_key"), (options.id_key, "--id_key")):
        if key and key not in names:
            raise DataError(
                f"{file.path}: no column {key!r}; the columns are {', '.join(map(repr, names))}. "
                f"Choose another {flag}."
            )
    for row, (begin, end) in enumerate(pairwise(offsets.tolist())):
        try:
            values = sample_values(data[begin:end], columns)
            text = validated_text(values[options.text_key], options.text_key)
        except BadRecordError as error:
            bad_records.add(f"{file.path}, sample {row}", error)
            continue
        document_id = options.id_key and str(values[options.id_key])
        yield Document(document_id or f"{file.label}:{row}", text, byte_range.file, row)


Column = tuple[str, str, Any]


def shard_layout(data: bytes) -> tuple[NDArray[np.uint32], list[Column]]:
    """Return the sample offsets [N + 1], and (name, encoding, size or None) of each column.

    Raises ValueError, KeyError or IndexError where the bytes are no whole shard.
    """
    count = int(np.frombuffer(data, "<u4", 1)[0])
    offsets = np.frombuffer(data, "<u4", count + 1, 4)
    header = json.loads(data[4 + 4 * (count + 1) : int(offsets[0])])
    if int(offsets[-1]) != len(data):
        raise ValueError(f"{len(data)} bytes, its header says {int(offsets[-1])}")
    keys = ("column_names", "column_encodings", "column_sizes")
    return offsets, list(zip(*(header[key] for key in keys), strict=True))


def sample_values(sample: bytes, columns: list[Column]) -> dict[str, Any]:
    """Return the values of one sample: text columns as strings, all others as bytes."""
    variable_sizes = sum(1 for _, _, size in columns if not size)
    sizes = iter(np.frombuffer(sample, "<u4", variable_sizes).tolist())
    position = 4 * variable_sizes
    values: dict[str, Any] = {}
    for name, encoding, size in columns:
        length = size or next(sizes)
        value = sample[position : position + length]
        try:
            values[name] = value.decode() if encoding == "str" else value
        except UnicodeDecodeError as error:
            raise BadRecordError(
                f"invalid UTF-8 in column {name!r}. Write the shard again."
            ) from error
        position += length
    return values
