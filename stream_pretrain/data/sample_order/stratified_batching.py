"""Steps in which every stream has its exact share. In: the library's work for whole global batches.
Out: the same, dealt to ranks and workers. Orders nothing itself.

The library stratifies the batches of one round over all ranks: with gradient accumulation another
micro-batch or another number of ranks would give other steps. Here it orders whole global batches
as if for one process, and they are dealt out afterwards.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from streaming.base import dataset as _dataset
from streaming.base.batching import generate_work
from streaming.base.world import World as StreamingWorld

_library: Any = _dataset


def work_by_steps(
    method: str, dataset: Any, world: Any, epoch: int, sample_in_epoch: int, global_batch: int
) -> NDArray[np.int64]:
    """As `streaming`'s `generate_work`; int64 [nodes, ranks, workers, batches, micro-batch]."""
    if method != "stratified":
        found: NDArray[np.int64] = generate_work(method, dataset, world, epoch, sample_in_epoch)
        return found
    micro_batch = dataset.batch_size
    dataset.batch_size = global_batch
    try:
        alone = StreamingWorld(1, 1, 1, 0)
        steps = generate_work(method, dataset, alone, epoch, sample_in_epoch)
    finally:
        dataset.batch_size = micro_batch
    return _dealt(steps.ravel(), world, micro_batch)


def _dealt(ids: NDArray[np.int64], world: Any, micro_batch: int) -> NDArray[np.int64]:
    """Rounds over all ranks in turn to the workers of each; -1 where the last round has none."""
    nodes, ranks, workers = world.num_nodes, world.ranks_per_node, world.workers_per_rank
    short = -len(ids) % (nodes * ranks * workers * micro_batch)
    padded = np.concatenate([ids, np.full(short, -1, np.int64)])
    rounds = padded.reshape(-1, workers, nodes, ranks, micro_batch)
    return np.ascontiguousarray(rounds.transpose(2, 3, 1, 0, 4))


@contextlib.contextmanager
def whole_steps(global_batch: int) -> Iterator[None]:
    """The library's dataset makes its work by `work_by_steps` for as long as this is entered."""
    real = _library.generate_work
    _library.generate_work = partial(work_by_steps, global_batch=global_batch)
    try:
        yield
    finally:
        _library.generate_work = real
