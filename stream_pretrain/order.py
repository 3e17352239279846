"""Sizes of an epoch. In: sample counts, weights, the global batch. Out: how many samples each
stream gives.

All numbers that streaming would derive from the node count or at random are derived here and set
explicitly, so that they are part of the fingerprint and the same on every machine. Does not choose
samples: that is the dataset's work.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

MOST_CANONICAL_NODES = 64
SHUFFLE_WINDOW = 1 << 22
"""Samples that an epoch mixes at any time, as many as streaming does on one node. Four times as
many mix better, but nearly four times as many shards must come before the first steps and be kept
(benchmarks/order.py)."""
SHARDS_PER_BLOCK = 4
ShuffleAlgo = Literal["py1s", "py2s", "py1br", "py1e", "naive"]


@dataclass(frozen=True, kw_only=True)
class Order:
    """Everything that decides which samples come in which step, apart from the data itself.

    `drawn` has one entry a stream: samples that it gives to each epoch. `epoch_size` is their sum
    and a multiple of the global batch.
    """

    global_batch: int
    drawn: tuple[int, ...]
    canonical_nodes: int
    shuffle: bool = True
    shuffle_algo: ShuffleAlgo = "py1e"
    shuffle_block_size: int = 1 << 18
    shuffle_seed: int = 0
    sampling_method: Literal["balanced"] = "balanced"
    sampling_granularity: int = 1
    batching_method: Literal["random", "stratified"] = "random"
    partition_algo: Literal["relaxed"] = "relaxed"

    @property
    def epoch_size(self) -> int:
        """Samples drawn per epoch."""
        return sum(self.drawn)

    @property
    def steps_per_epoch(self) -> int:
        """Global batches per epoch."""
        return self.epoch_size // self.global_batch


def canonical_nodes(global_batch: int) -> int:
    """The largest divisor of the global batch up to 64.

    With a divisor, step N holds the same set of samples for every node count that divides the
    global batch.
    """
    if global_batch < 1:
        raise ValueError(f"global_batch must be at least 1, got {global_batch}")
    most = min(MOST_CANONICAL_NODES, global_batch)
    return next(n for n in range(most, 0, -1) if global_batch % n == 0)


def shuffle_block(nodes: int, samples_per_shard: Sequence[float]) -> int:
    """Samples that are shuffled together within one of the canonical `nodes`.

    A share of the window, but some shards at least: a shard as long as its block is not mixed with
    others. `samples_per_shard` has one entry a stream.
    """
    return max(
        SHUFFLE_WINDOW // nodes, *(math.ceil(SHARDS_PER_BLOCK * n) for n in samples_per_shard)
    )


def apportion(total: int, shares: Sequence[Fraction]) -> tuple[int, ...]:
    """Whole numbers that add up to `total` and differ from exact shares by less than one (largest
    remainder).

    Ties go to the earlier stream, so the result is a function of its arguments alone.
    """
    whole = sum(shares)
    exact = [total * share / whole for share in shares]
    floors = [int(value) for value in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: (floors[i] - exact[i], i))
    for place in by_remainder[: total - sum(floors)]:
        floors[place] += 1
    return tuple(floors)


def samples_drawn(
    samples: Sequence[int],
    global_batch: int,
    *,
    weights: Sequence[float | None] | None = None,
    repeats: Sequence[float | None] | None = None,
) -> tuple[int, ...]:
    """Samples that each stream gives to an epoch; their sum is the largest possible multiple of the
    global batch.

    Without weights every stream gives (nearly) all it has. With weights the epoch is as long as the
    data and split by weight. With repeats (`None` counts as once) each stream gives about `repeat *
    samples`.
    """
    if weights is not None and any(weight is not None for weight in weights):
        shares = [_exact(weight or 0) for weight in weights]
        wanted = Fraction(sum(samples))
    else:
        times = repeats or [None] * len(samples)
        shares = [
            count * _exact(1 if time is None else time)
            for count, time in zip(samples, times, strict=True)
        ]
        wanted = sum(shares, Fraction(0))
    total = int(wanted) // global_batch * global_batch
    if total == 0:
        return tuple(0 for _ in samples)
    return apportion(total, shares)


def in_whole_steps(
    drawn: Sequence[int], global_batch: int, most: Sequence[int] | None
) -> tuple[int, ...]:
    """`drawn` changed so that every step has the same number of samples of each stream.

    `most` is what a stream may give to an epoch at most (None: any number); the stream that runs
    short first then ends the epoch.
    """
    if not any(drawn):
        return tuple(drawn)
    shares = apportion(global_batch, [Fraction(count) for count in drawn])
    steps = sum(drawn) // global_batch
    if most is not None:
        steps = min([steps, *(n // share for n, share in zip(most, shares, strict=True) if share)])
    return tuple(share * steps for share in shares)


def _exact(value: float) -> Fraction:
    """`0.1` as one tenth and not as the nearest binary fraction."""
    return Fraction(str(value))
