"""Thin first version; the storage owner replaces it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from streaming import Stream, StreamingDataset

from stream_pretrain.order import Order
from stream_pretrain.storage.store import Store


@dataclass(frozen=True, kw_only=True)
class ShardSource:
    """One stream: where its shards are, where they are kept, how many samples an epoch draws."""

    name: str
    store: Store
    local: Path
    drawn: int


class LoudDataset(StreamingDataset):
    """Items are (sample id, row)."""

    def __getitem__(self, index: Any) -> Any:
        return int(index), np.array(super().__getitem__(index)["tokens"])


def open_dataset(
    sources: Sequence[ShardSource], *, order: Order, batch_size: int, row_ids: int
) -> LoudDataset:
    """The dataset of all sources, every order parameter explicit."""
    streams = [
        Stream(remote=None, local=str(source.local), choose=source.drawn) for source in sources
    ]
    return LoudDataset(
        streams=streams,
        batch_size=batch_size,
        shuffle=order.shuffle,
        shuffle_algo=order.shuffle_algo,
        shuffle_seed=order.shuffle_seed,
        shuffle_block_size=order.shuffle_block_size,
        num_canonical_nodes=order.canonical_nodes,
        sampling_method=order.sampling_method,
        sampling_granularity=order.sampling_granularity,
        batching_method=order.batching_method,
        partition_algo=order.partition_algo,
    )
