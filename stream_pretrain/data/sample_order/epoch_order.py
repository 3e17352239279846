"""The order of an epoch, without reading a sample. In: an `Order` and shard sizes. Out:

sample ids by step.

This calls the library's own partition and shuffle functions for one node, one rank and one worker,
so what it returns
is what a run trains on, and no second definition of the order exists. It opens no file and no
shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from streaming import StreamingDataset
from streaming.base.world import World as StreamingWorld

from stream_pretrain.data.sample_order.sampling import quick_sampling
from stream_pretrain.data.sample_order.stratified_batching import work_by_steps
from stream_pretrain.order import Order


def epoch_steps(
    order: Order, shard_samples: Sequence[Sequence[int]], epoch: int, *, first_step: int = 0
) -> NDArray[np.int64]:
    """Sample ids of an epoch's data steps, from `first_step` of that epoch on.

    Args:
        order: what decides the order.
        shard_samples: for each stream, the number of samples in each of its shards.
        epoch: counted from 0 within the phase.
        first_step: global batches of this epoch to leave out.

    Returns:
        int64 [steps, global_batch]; a row is the set of one step, in no particular order.
    """
    ids = partitioned_ids(order, shard_samples, epoch, first_step=first_step)
    return ids.reshape(-1, order.global_batch)


def partitioned_ids(
    order: Order,
    shard_samples: Sequence[Sequence[int]],
    epoch: int,
    *,
    first_step: int = 0,
    topology: tuple[int, int, int, int] | None = None,
) -> NDArray[np.int64]:
    """Sample ids as the library deals them out, -1 where it pads.

    `topology` is (nodes, ranks per node, workers per rank, micro-batch); without it one rank takes
    whole batches.
    Returns int64 [nodes, ranks, workers, batches per worker, micro-batch].
    """
    nodes, ranks, workers, micro_batch = topology or (1, 1, 1, order.global_batch)
    world = StreamingWorld(nodes, ranks, workers, 0)
    stand_in: Any = _stand_in(order, shard_samples, micro_batch)
    sample_in_epoch = first_step * order.global_batch
    with quick_sampling():
        ids = work_by_steps(
            order.batching_method, stand_in, world, epoch, sample_in_epoch, order.global_batch
        )
    return np.asarray(ids, dtype=np.int64)


def steps_of(ids: NDArray[np.int64], global_batch: int) -> list[NDArray[np.int64]]:
    """Regroup `partitioned_ids` of any topology into data steps, each sorted.

    A rank takes batches from its workers in turn, and a step takes the same number of batches from
    every rank.
    """
    nodes, ranks, _workers, _batches, micro_batch = ids.shape
    by_batch = ids.transpose(3, 2, 0, 1, 4)  # batch of worker, worker, node, rank, sample
    rounds = by_batch.reshape(-1, nodes * ranks * micro_batch)
    per_step = global_batch // (nodes * ranks * micro_batch)
    steps = []
    for start in range(0, len(rounds), per_step):
        step = rounds[start : start + per_step].ravel()
        step = np.sort(step[step != -1])
        if len(step):
            steps.append(step)
    return steps


def _stand_in(order: Order, shard_samples: Sequence[Sequence[int]], micro_batch: int) -> Any:
    """What the library's functions ask of a dataset, without one."""
    sizes = np.concatenate([np.asarray(shards, np.int64) for shards in shard_samples])
    shards_per_stream = np.array([len(shards) for shards in shard_samples], np.int64)
    stand_in = SimpleNamespace(
        shuffle_seed=order.shuffle_seed,
        sampling_method=order.sampling_method,
        sampling_granularity=order.sampling_granularity,
        epoch_seed_change=order.shuffle and order.sampling_method == "balanced",
        num_streams=len(shard_samples),
        streams=[
            SimpleNamespace(choose=drawn, proportion=drawn / order.epoch_size)
            for drawn in order.drawn
        ],
        samples_per_shard=sizes,
        sample_offset_per_shard=sizes.cumsum() - sizes,
        shards_per_stream=shards_per_stream,
        shard_offset_per_stream=shards_per_stream.cumsum() - shards_per_stream,
        batch_size=micro_batch,
        partition_algo=order.partition_algo,
        epoch_size=order.epoch_size,
        num_canonical_nodes=order.canonical_nodes,
        initial_physical_nodes=1,
        shuffle=order.shuffle,
        shuffle_algo=order.shuffle_algo,
        shuffle_block_size=order.shuffle_block_size,
    )
    resample = StreamingDataset.resample_streams
    stand_in.resample_streams = lambda *which: resample(stand_in, *which)  # type: ignore[arg-type]
    return stand_in
