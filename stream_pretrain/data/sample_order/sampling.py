"""How many samples an epoch draws from each shard. In: shard sizes. Out: counts by shard.

The library's numbers, without its loop over samples. An epoch leaves out what does not fill a
global batch, so nearly every epoch draws a part of a stream, and for that the library walks over
all samples in Python: 12 s of CPU for 10 million samples, at every epoch and at every resume. A
cumulative sum gives the same numbers in half a second.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from streaming.base import dataset

_library: Any = dataset


def samples_from_shards(
    samples_per_shard: NDArray[np.int64],
    choose: int,
    granularity: int,
    seed: int,
    epoch: int,
    use_epoch: bool,
) -> NDArray[np.int64]:
    """Samples to draw from each shard, `choose` in all; equal to `streaming`'s `get_sampling`.

    `granularity` samples of a shard are drawn together. `epoch` changes the draw if `use_epoch`.
    """
    sizes = np.asarray(samples_per_shard, np.int64)
    times, rest = divmod(int(choose), int(sizes.sum()))
    whole = sizes * times
    if not rest:
        return whole
    picks = -(-sizes // granularity)
    order = np.random.default_rng(seed + epoch if use_epoch else seed).permutation(int(picks.sum()))
    shard_of_pick = np.repeat(np.arange(len(sizes), dtype=np.int32), picks)[order]
    if granularity == 1:
        return whole + np.bincount(shard_of_pick[:rest], minlength=len(sizes))
    size_of_pick = np.full(len(order), granularity, np.int64)
    size_of_pick[picks.cumsum() - 1] = sizes - (picks - 1) * granularity
    drawn = size_of_pick[order].cumsum()
    taken = np.diff(np.minimum(drawn, rest), prepend=0)
    return whole + np.bincount(shard_of_pick, taken, len(sizes)).astype(np.int64)


@contextlib.contextmanager
def quick_sampling() -> Iterator[None]:
    """The library draws by `samples_from_shards` for as long as this is entered."""
    real = _library.get_sampling
    _library.get_sampling = samples_from_shards
    try:
        yield
    finally:
        _library.get_sampling = real
