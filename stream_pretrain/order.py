"""Compute how many samples each stream contributes to an epoch, and how they are shuffled.

All numbers that streaming would derive from the node count or at random are derived here from the
sample counts, weights and global batch, and set explicitly. They are part of the data fingerprint
and the same on every machine. The samples themselves are chosen by the dataset.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

MAX_CANONICAL_NODES = 64
SHUFFLE_WINDOW = 1 << 22
"""Samples that are shuffled together over all canonical nodes, as many as streaming has on one.

Four times as many mix better, but nearly four times as many shards must then be fetched before the
first steps and be kept (benchmarks/order.py)."""
MIN_SHARDS_PER_BLOCK = 4
ShuffleAlgo = Literal["py1s", "py2s", "py1br", "py1e", "naive"]


@dataclass(frozen=True, kw_only=True)
class Order:
    """All settings that decide which samples a step has, apart from the data itself.

    `drawn` has one entry per stream: the samples that it contributes to each epoch. `epoch_size` is
    their sum and a multiple of the global batch.
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
    """Return the largest divisor of the global batch up to 64.

    With a divisor, step N holds the same set of samples for every node count that divides the
    global batch.
    """
    if global_batch < 1:
        raise ValueError(f"global_batch must be at least 1, got {global_batch}")
    largest = min(MAX_CANONICAL_NODES, global_batch)
    return next(n for n in range(largest, 0, -1) if global_batch % n == 0)


def shuffle_block(nodes: int, samples_per_shard: Sequence[float]) -> int:
    """Return the number of samples that are shuffled together within one of the canonical `nodes`.

    This is the node's share of `SHUFFLE_WINDOW`, but at least a few shards: a shard that is as long
    as a block would not be mixed with others. `samples_per_shard` has one entry per stream.
    """
    return max(
        SHUFFLE_WINDOW // nodes, *(math.ceil(MIN_SHARDS_PER_BLOCK * n) for n in samples_per_shard)
    )


def apportion(total: int, shares: Sequence[Fraction]) -> tuple[int, ...]:
    """Split `total` into whole numbers proportional to `shares`, by the largest remainder method.

    The numbers add up to `total`, and each differs from its exact share by less than one. Ties go
    to the earlier stream, so that the result depends on the arguments alone.
    """
    whole = sum(shares)
    exact = [total * share / whole for share in shares]
    floors = [int(value) for value in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: (floors[i] - exact[i], i))
    for i in by_remainder[: total - sum(floors)]:
        floors[i] += 1
    return tuple(floors)


def samples_drawn(
    samples: Sequence[int],
    global_batch: int,
    *,
    weights: Sequence[float | None] | None = None,
    repeats: Sequence[float | None] | None = None,
) -> tuple[int, ...]:
    """Return how many samples each stream contributes to an epoch.

    Their sum is the largest possible multiple of the global batch. Without weights every stream
    contributes (nearly) all its samples. With weights the epoch is as long as the data and split by
    weight. With repeats (`None` counts as once) each stream contributes about `repeat * samples`.
    """
    if weights is not None and any(weight is not None for weight in weights):
        shares = [_exact(weight or 0) for weight in weights]
        epoch_size = Fraction(sum(samples))
    else:
        shares = [
            count * _exact(1 if repeat is None else repeat)
            for count, repeat in zip(samples, repeats or [None] * len(samples), strict=True)
        ]
        epoch_size = sum(shares, Fraction(0))
    total = int(epoch_size) // global_batch * global_batch
    if total == 0:
        return tuple(0 for _ in samples)
    return apportion(total, shares)


def stratified_samples(
    drawn: Sequence[int], global_batch: int, limits: Sequence[int] | None
) -> tuple[int, ...]:
    """Adjust `drawn` so that every step has the same number of samples of each stream.

    `limits` has the most samples that each stream may contribute to an epoch (None: any number);
    the stream that reaches its limit first ends the epoch.
    """
    if not any(drawn):
        return tuple(drawn)
    shares = apportion(global_batch, [Fraction(count) for count in drawn])
    steps = sum(drawn) // global_batch
    if limits is not None:
        whole_steps = (n // share for n, share in zip(limits, shares, strict=True) if share)
        steps = min([steps, *whole_steps])
    return tuple(share * steps for share in shares)


def _exact(value: float) -> Fraction:
    """Return `0.1` as one tenth and not as the nearest binary fraction."""
    return Fraction(str(value))
