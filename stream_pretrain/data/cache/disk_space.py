"""Does what the caches want fit? In: needs, the limit, the disk. Out: warnings with numbers, or a
`ConfigError`.

Pure but for one look at the disk. Does not delete or fetch.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stream_pretrain.errors import ConfigError, Fault
from stream_pretrain.mds.index import StreamIndex
from stream_pretrain.order import Order
from stream_pretrain.units import format_bytes

LEAST_SHARDS_IN_LIMIT = 4


@dataclass(frozen=True, kw_only=True)
class CacheRequirement:
    """Disk space that a stream's cache wants: all raw shards, the largest with its packed form,
    what is here.
    """

    name: str
    directory: Path
    raw_bytes: int
    largest_shard_bytes: int
    present_bytes: int


def shuffle_window_bytes(order: Order, indexes: Sequence[StreamIndex], nodes: int) -> int:
    """Raw bytes that one node reads from at once: the shards of one shuffle block per canonical
    node.
    """
    shards = [shard for index in indexes for shard in index.shards]
    raw_bytes = sum(shard.raw.size for shard in shards)
    if not order.shuffle:
        return min(raw_bytes, 2 * max(shard.raw.size for shard in shards))
    if order.shuffle_algo not in ("py1br", "py1e"):
        return raw_bytes // nodes
    samples_per_shard = sum(shard.samples for shard in shards) / len(shards)
    shards_per_block = order.shuffle_block_size / samples_per_shard + 2
    canonical_here = max(1, order.canonical_nodes // nodes)
    return min(raw_bytes // nodes, int(canonical_here * shards_per_block * raw_bytes / len(shards)))


def check_space(
    needs: Sequence[CacheRequirement],
    *,
    limit: int | None,
    window_bytes: int,
    free: Mapping[str, int] | None = None,
) -> list[str]:
    """Compare what the caches want with the limit and with the free disk.

    `free` replaces the disk, in tests.

    Returns:
        Warnings, with numbers.

    Raises:
        ConfigError: it cannot work.
    """
    if not needs:
        return []
    total = sum(need.raw_bytes for need in needs)
    largest = max(need.largest_shard_bytes for need in needs)
    present = sum(need.present_bytes for need in needs)
    if limit is not None and limit < LEAST_SHARDS_IN_LIMIT * largest:
        raise _limit_error(
            limit,
            f"the largest shard takes {format_bytes(largest)} with its packed form, and "
            f"{LEAST_SHARDS_IN_LIMIT} must "
            f"fit. Set at least {format_bytes(LEAST_SHARDS_IN_LIMIT * largest)}",
        )
    wanted = total if limit is None else min(limit, total)
    available = _free_bytes(needs, free)
    if wanted - present + largest > available:
        raise _limit_error(
            limit,
            f"the shards take {format_bytes(total)} on this node, {format_bytes(present)} are "
            f"here and "
            f"{format_bytes(available)} are free at {needs[0].directory}. Set it to at most "
            f"{format_bytes(max(0, available + present - largest))}, or data.cache.dir to a "
            f"larger disk",
        )
    if limit is not None and limit < min(window_bytes, total):
        return [
            f"data.cache.limit: {format_bytes(limit)} is less than the "
            f"{format_bytes(window_bytes)} that the shuffle "
            f"reads from at once, so shards are fetched more than once an epoch. Raise it, or "
            f"lower "
            "data.shuffle.block_size."
        ]
    return []


def _free_bytes(needs: Sequence[CacheRequirement], free: Mapping[str, int] | None) -> int:
    if free is not None:
        return min(free[str(need.directory)] for need in needs)
    return min(shutil.disk_usage(need.directory).free for need in needs)


def _limit_error(limit: int | None, remedy: str) -> ConfigError:
    found = "not set" if limit is None else format_bytes(limit)
    return ConfigError.of([Fault(path="data.cache.limit", found=found, remedy=remedy + ".")])
