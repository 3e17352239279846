"""A dataset of a small local stream. In: a directory. Out: `ShardDataset`. Nothing is fetched."""

from __future__ import annotations

from pathlib import Path

from servers.datasets import SEQ_LEN, small_stream

from stream_pretrain.data.cache.cache_setup import ShardSource
from stream_pretrain.data.fetching.shard_stream import ReadSettings
from stream_pretrain.data.reading.shard_dataset import ShardDataset, open_dataset
from stream_pretrain.mds.index import read_index
from stream_pretrain.order import Order
from stream_pretrain.storage.store import open_store


def opened_local(directory: Path) -> ShardDataset:
    """200 samples, unpacked, read in place."""
    stream = small_stream(directory / "web", compression=None)
    store = open_store(stream.directory)
    source = ShardSource(name="a", store=store, index=read_index(store), directory=None, drawn=200)
    return open_dataset(
        [source],
        order=Order(global_batch=8, drawn=(200,), canonical_nodes=8),
        batch_size=8,
        settings=ReadSettings(row_ids=SEQ_LEN + 1),
    )
