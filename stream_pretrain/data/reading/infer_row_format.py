"""The first sample of a stream -> how long its rows are. In: an index, its store. Out: the index
with rows settled.

Needed only where the columns do not say it: `bytes` and `ndarray` without a length. Reads as little
as it can.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from stream_pretrain.errors import ShardError
from stream_pretrain.mds.decompress import unpacked
from stream_pretrain.mds.index import Shard, StreamIndex
from stream_pretrain.mds.row_format import raw_dtype
from stream_pretrain.storage.hashing import blocks
from stream_pretrain.storage.store import Store


def measure(index: StreamIndex, store: Store, *, seq_len: int | None) -> StreamIndex:
    """`index` with `rows.dtype` and `rows.ids` known.

    `seq_len`, if given, helps to tell int32 from int64.
    """
    rows = index.rows
    if rows.ids is not None and (rows.dtype is not None or not rows.is_raw):
        return index
    shard = next(shard for shard in index.shards if shard.samples)
    place = store.url(shard.fetched.name)
    sample = first_sample(shard, store)
    try:
        if rows.is_raw:
            expected = None if seq_len is None else seq_len + 1
            rows = rows.with_dtype(raw_dtype(rows.tokens(sample), expected, place))
        ids = len(rows.decode(sample))
    except ValueError as error:
        raise ShardError(f"{place}: sample 0: {error}. Convert the dataset again.") from error
    return replace(index, rows=replace(rows, ids=ids))


def first_sample(shard: Shard, store: Store) -> bytes:
    """The bytes of the first sample of a shard."""
    place = store.url(shard.fetched.name)
    if shard.packed is None:
        head = store.read_range(shard.raw.name, 0, 12)
        begin, end = _span(head, shard, place)
        return store.read_range(shard.raw.name, begin, end - begin)
    with store.open_stream(shard.packed.name) as packed:
        assert shard.compression is not None
        pieces = unpacked(blocks(packed), shard.compression, limit=shard.raw.size, place=place)
        return _first_of(pieces, shard, place)


def _first_of(pieces: Iterator[bytes], shard: Shard, place: str) -> bytes:
    data = b""
    for piece in pieces:
        data += piece
        if len(data) < 12:
            continue
        begin, end = _span(data[:12], shard, place)
        if len(data) >= end:
            return data[begin:end]
    raise ShardError(f"{place}: ends before its first sample does. Upload the shard again.")


def _span(head: bytes, shard: Shard, place: str) -> tuple[int, int]:
    count, begin, end = (int.from_bytes(head[at : at + 4], "little") for at in (0, 4, 8))
    if len(head) < 12 or count != shard.samples or not begin <= end <= shard.raw.size:
        raise ShardError(
            f"{place}: is not the shard of {shard.samples:,} samples that the index lists. Upload "
            f"it again."
        )
    return begin, end
