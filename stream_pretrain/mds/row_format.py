"""Bytes of one MDS sample -> ids. In: the columns of a stream. Out: a writable 1-D array.

Reads no files.

Two encodings hold token ids: `ndarray` (dtype and length in the column's name, or in each sample)
and `bytes`, as llm-foundry writes them (int32 or int64, which only the length or the values tell).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_pretrain.errors import DataError
from stream_pretrain.schema import TOKENS_COLUMN

INTEGERS = frozenset({"uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"})
_SHAPE_DTYPES = ("uint8", "uint16", "uint32", "uint64")
_VALUE_DTYPES = {8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 32: "uint32", 33: "int32"}
_VALUE_DTYPES |= {64: "uint64", 65: "int64"}
UNSAFE = frozenset({"pkl"})


@dataclass(frozen=True, kw_only=True)
class RowFormat:
    """Where the tokens lie in a sample and how they are written.

    `sizes` are the fixed sizes of all columns in bytes, None where a sample says it. `dtype` is
    None where a sample says it (`ndarray`) or where it must be found out (`bytes`); `ids` likewise.
    `shaped` is True where each sample begins with its own shape.
    """

    encoding: str
    column: int
    sizes: tuple[int | None, ...]
    dtype: str | None
    ids: int | None
    shaped: bool = False

    @property
    def is_raw(self) -> bool:
        """True for llm-foundry's `bytes` column."""
        return self.encoding == "bytes"

    def with_dtype(self, dtype: str) -> RowFormat:
        """The same, with the integer type of a `bytes` column settled."""
        return replace(self, dtype=dtype)

    def tokens(self, sample: bytes) -> bytes:
        """The bytes of the tokens column of a sample. ValueError when the sample is too short."""
        position, sizes = 0, []
        for size in self.sizes:
            if size is None:
                if position + 4 > len(sample):
                    raise ValueError("the sample ends within its column sizes")
                size = int.from_bytes(sample[position : position + 4], "little")
                position += 4
            sizes.append(size)
        start = position + sum(sizes[: self.column])
        found = sample[start : start + sizes[self.column]]
        if len(found) != sizes[self.column]:
            raise ValueError(f"the sample ends {sizes[self.column] - len(found)} bytes too early")
        return found

    def decode(self, sample: bytes) -> NDArray[Any]:
        """A writable 1-D array of the ids. ValueError when the bytes cannot be a row."""
        data = self.tokens(sample)
        if self.is_raw:
            assert self.dtype is not None, (
                "the integer type of a raw column is settled at the start"
            )
            return _values(data, self.dtype)
        dtype, position = self.dtype, 0
        if dtype is None:
            dtype, position = _value_dtype(data), 1
        if self.shaped:
            position = _skip_shape(data, position)
        return _values(data[position:], dtype)


def row_format(
    names: Sequence[str], encodings: Sequence[str], sizes: Sequence[Any], where: str
) -> RowFormat:
    """The format of a stream's rows, or a `DataError` that lists the columns it has."""
    columns = ", ".join(
        f"{name} ({encoding})" for name, encoding in zip(names, encodings, strict=True)
    )
    for name, encoding in zip(names, encodings, strict=True):
        if encoding.partition(":")[0] in UNSAFE:
            raise DataError(
                f"{where}: column {name!r} is pickled, and reading it could run any code. "
                "Write the dataset again without it."
            )
    if TOKENS_COLUMN not in names:
        raise DataError(
            f"{where}: no column {TOKENS_COLUMN!r}; it has {columns or 'none'}. Convert the text "
            f"with convert-mds build."
        )
    column = list(names).index(TOKENS_COLUMN)
    kind, _, rest = encodings[column].partition(":")
    dtype, _, shape = rest.partition(":")
    readable = kind == "bytes" or (kind == "ndarray" and dtype in (*INTEGERS, ""))
    if not readable or not (shape.isdigit() and int(shape) if shape else True):
        raise DataError(
            f"{where}: column {TOKENS_COLUMN!r} is {encodings[column]}; one row of integers as "
            f"ndarray or bytes is "
            f"needed. The columns are {columns}."
        )
    if shape and sizes[column] != int(shape) * np.dtype(dtype).itemsize:
        raise DataError(
            f"{where}: column_sizes says {sizes[column]} bytes, {encodings[column]} takes "
            f"{int(shape) * np.dtype(dtype).itemsize}."
        )
    return RowFormat(
        encoding=kind,
        column=column,
        sizes=tuple(None if size is None else int(size) for size in sizes),
        dtype=dtype or None,
        ids=int(shape) if shape else None,
        shaped=kind == "ndarray" and not shape,
    )


def raw_dtype(data: bytes, row_ids: int | None, where: str) -> str:
    """The integer type of a `bytes` row: by its expected length, else by its values.

    As int32, int64 ids below 2^31 have a zero in every second place, which no text has.
    """
    for dtype, width in (("int64", 8), ("int32", 4)):
        if row_ids is not None and len(data) == row_ids * width:
            return dtype
    if len(data) % 8 == 0 and len(data) and not np.frombuffer(data, "<i4")[1::2].any():
        return "int64"
    if len(data) % 4 == 0 and len(data):
        return "int32"
    raise DataError(f"{where}: a row of {len(data)} bytes is neither int32 nor int64.")


def _value_dtype(data: bytes) -> str:
    if not data or data[0] not in _VALUE_DTYPES:
        raise ValueError(f"the array is not of integers (code {data[0] if data else 'missing'})")
    return _VALUE_DTYPES[data[0]]


def _skip_shape(data: bytes, position: int) -> int:
    if position >= len(data):
        raise ValueError("the sample ends before its shape")
    axes, width = data[position] >> 2, 1 << (data[position] % 4)
    if axes != 1:
        raise ValueError(f"a row must have 1 axis, got {axes}")
    return position + 1 + width


def _values(data: bytes, dtype: str) -> NDArray[Any]:
    return np.frombuffer(data, np.dtype(dtype).newbyteorder("<")).astype(dtype, copy=True)
