"""Streams made by others: raw bytes as llm-foundry writes them, every kind of integer ndarray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from streaming import MDSWriter

from stream_pretrain.data.cache.cache_setup import ShardSource
from stream_pretrain.data.fetching.shard_stream import ReadSettings
from stream_pretrain.data.reading.infer_row_format import first_sample, measure
from stream_pretrain.data.reading.shard_dataset import open_dataset
from stream_pretrain.errors import DataError, ShardError
from stream_pretrain.mds.index import StreamIndex, read_index
from stream_pretrain.mds.row_format import row_format
from stream_pretrain.order import Order
from stream_pretrain.storage.store import Store, open_store

ROWS = np.random.default_rng(0).integers(0, 50_000, (40, 16))
COMPRESSIONS = [None, "zstd", "zstd:7", "gz", "bz2", "br:1", "snappy"]


def written(
    directory: Path,
    encoding: str,
    cells: Any,
    *,
    compression: str | None = None,
    size_limit: int = 1 << 10,
) -> tuple[Store, StreamIndex]:
    """A stream written by the library itself."""
    columns = {"id": "str", "tokens": encoding}
    with MDSWriter(
        out=str(directory),
        columns=columns,
        compression=compression,
        hashes=["sha1", "xxh64"],
        size_limit=size_limit,
        progress_bar=False,
    ) as out:
        for number, cell in enumerate(cells):
            out.write({"id": "x" * (number % 5), "tokens": cell})
    store = open_store(directory)
    return store, read_index(store)


def rows_of(store: Store, index: StreamIndex, cache: Path, **settings: Any) -> list[Any]:
    source = ShardSource(name="a", store=store, index=index, directory=cache, drawn=index.samples)
    order = Order(global_batch=1, drawn=(index.samples,), canonical_nodes=1, shuffle=False)
    dataset = open_dataset(
        [source], order=order, batch_size=1, settings=ReadSettings(**{"row_ids": 16, **settings})
    )
    try:
        return [dataset[place] for place in range(index.samples)]
    finally:
        dataset.close()


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize(
    ("encoding", "dtype"),
    [
        ("bytes", "int32"),
        ("bytes", "int64"),
        ("ndarray:uint16:16", "uint16"),
        ("ndarray:int64:16", "int64"),
        ("ndarray:int32", "int32"),
        ("ndarray", "uint32"),
    ],
)
def test_rows_of_every_encoding_come_back_writable(
    encoding: str, dtype: str, compression: str | None, tmp_path: Path
) -> None:
    rows = ROWS.astype(dtype)
    cells = [row.tobytes() for row in rows] if encoding == "bytes" else list(rows)
    store, index = written(tmp_path / "data", encoding, cells, compression=compression)
    measured = measure(index, store, seq_len=None)
    assert measured.rows.ids == 16
    if encoding == "bytes":
        assert measured.rows.dtype == dtype
    for place, (sample_id, row) in enumerate(rows_of(store, measured, tmp_path / "cache")):
        assert sample_id == place
        assert row.flags.writeable
        assert row.ndim == 1
        assert (row == rows[place]).all()


def test_the_first_shard_that_holds_samples_tells_the_row_length(tmp_path: Path) -> None:
    row = np.arange(2048, dtype=np.int64).tobytes()
    store, index = written(tmp_path, "bytes", [row, row])
    assert index.shards[0].samples == 0  # the library's, before a sample that is over its limit
    for seq_len in (None, 2047, 2048):
        assert measure(index, store, seq_len=seq_len).facts("c4").row_ids == 2048


def test_longer_rows_are_cut_only_when_that_is_asked_for(tmp_path: Path) -> None:
    store, index = written(tmp_path / "data", "ndarray:uint16:16", list(ROWS.astype("uint16")))
    found = rows_of(store, index, tmp_path / "cache", row_ids=10, truncate=True)
    assert all((row == ROWS[place, :10]).all() for place, row in found)
    assert found[0][1].flags.writeable
    with pytest.raises(ShardError, match="it holds 16 ids, 10 are needed"):
        rows_of(store, index, tmp_path / "cache2", row_ids=10)


def test_ids_outside_the_vocabulary_are_refused_by_shard_and_sample(tmp_path: Path) -> None:
    rows = ROWS.astype("int32")
    rows[23, 4] = 50_257
    store, index = written(tmp_path / "data", "ndarray:int32:16", list(rows))
    with pytest.raises(ShardError) as failure:
        rows_of(store, index, tmp_path / "cache", vocab_size=50_257)
    assert "shard.00002.mds: sample 3 of" in str(failure.value)
    assert "id 50,257 is outside the vocabulary of 50,257" in str(failure.value)
    rows[23, 4] = -1
    store, index = written(tmp_path / "negative", "ndarray:int32:16", list(rows))
    with pytest.raises(ShardError, match="id -1 is outside"):
        rows_of(store, index, tmp_path / "cache3", vocab_size=50_257)


def test_rows_of_unequal_length_are_refused_by_shard_and_sample(tmp_path: Path) -> None:
    cells = [row.tobytes() for row in ROWS.astype("int64")]
    cells[3] = cells[3][:-8]
    store, index = written(tmp_path / "data", "bytes", cells)
    index = measure(index, store, seq_len=15)
    with pytest.raises(ShardError, match=r"sample 3 of .*: it holds 15 ids, 16 are needed"):
        rows_of(store, index, tmp_path / "cache")


def test_bytes_that_are_no_integers_are_refused(tmp_path: Path) -> None:
    store, index = written(tmp_path, "bytes", [b"abc", b"abcde"])
    with pytest.raises(DataError, match=r"a row of 3 bytes is neither int32 nor int64"):
        measure(index, store, seq_len=None)


def test_a_first_shard_that_is_another_file_is_named(tmp_path: Path) -> None:
    for compression in (None, "zstd"):
        directory = tmp_path / str(compression)
        rows = list(ROWS.astype("int32"))
        store, index = written(directory, "ndarray:int32", rows, compression=compression)
        first = index.shards[0]
        broken = (directory / first.fetched.name).read_bytes()
        from streaming.base.compression import compress

        raw = b"\x07\0\0\0" + bytes(first.raw.size - 4)
        broken = raw if compression is None else compress(compression, raw)
        (directory / first.fetched.name).write_bytes(broken)
        with pytest.raises(
            ShardError, match=r"is not the shard of .* samples that the index lists"
        ):
            first_sample(first, store)


def test_a_packed_shard_that_ends_too_early_is_named(tmp_path: Path) -> None:
    rows = list(ROWS.astype("int32"))
    store, index = written(tmp_path, "ndarray:int32", rows, compression="zstd")
    first = index.shards[0]
    from streaming.base.compression import compress, decompress

    raw = decompress("zstd", (tmp_path / first.fetched.name).read_bytes())
    (tmp_path / first.fetched.name).write_bytes(compress("zstd", raw[:20]))
    with pytest.raises(ShardError, match="ends before its first sample does"):
        first_sample(first, store)


@pytest.mark.parametrize(
    ("encoding", "sample", "words"),
    [
        ("ndarray:int32", b"\x04", "ends within its column sizes"),
        ("ndarray:int32", b"\x09\0\0\0abc", "ends 6 bytes too early"),
        ("ndarray", b"\x01\0\0\0\x22", "not of integers"),
        ("ndarray", b"\x01\0\0\0\x20", "ends before its shape"),
        ("ndarray:int32", b"\x03\0\0\0\x08\x02\x02", "must have 1 axis, got 2"),
    ],
)
def test_a_sample_that_cannot_be_decoded_says_why(encoding: str, sample: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        row_format(["tokens"], [encoding], [None], "here").decode(sample)


def test_a_first_sample_that_cannot_be_decoded_is_named(tmp_path: Path) -> None:
    store, index = written(tmp_path, "bytes", [b"12345678"])
    from dataclasses import replace

    twisted = replace(
        index, rows=row_format(["id", "tokens"], ["str", "ndarray"], [None, None], "x")
    )
    with pytest.raises(ShardError, match="sample 0: the array is not of integers"):
        measure(twisted, store, seq_len=None)
