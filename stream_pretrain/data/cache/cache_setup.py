"""A stream of the configuration -> a `ShardSource`. In: index, store, sections. Out: the source,
its cache scanned.

The first rank of a node takes and scans the directory; the others are told. Streams whose raw
shards lie on this machine are read in place. Does not fetch shards.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stream_pretrain.config.sections import CacheConfig, StreamConfig
from stream_pretrain.data.cache.cache_directory import (
    CacheLock,
    cache_name,
    claim_directory,
    claim_free_directory,
    node_root,
    refuse_foreign,
    scan,
)
from stream_pretrain.data.cache.disk_space import CacheRequirement
from stream_pretrain.data.node.job_directory import Share, share_text
from stream_pretrain.mds.index import StreamIndex
from stream_pretrain.schema import World
from stream_pretrain.storage.store import Store
from stream_pretrain.system.paths import user_cache_dir


@dataclass(frozen=True, kw_only=True)
class ShardSource:
    """One stream: `store` is where its shards are, `directory` where this node keeps them, None to
    read them in place.

    `drawn` is the number of samples that it gives to an epoch. `lock` is held as long as the
    dataset lives.
    """

    name: str
    store: Store
    index: StreamIndex
    directory: Path | None
    drawn: int
    lock: CacheLock | None = None

    @property
    def raw_directory(self) -> Path:
        """Where the raw shards are read."""
        return self.store.path if self.directory is None else self.directory


@dataclass(frozen=True, kw_only=True)
class CachedSource:
    """`source` can be opened. `requirement` is what its cache wants, on the node's first rank."""

    source: ShardSource
    requirement: CacheRequirement | None = None


def set_up_cache(
    store: Store,
    index: StreamIndex,
    *,
    stream: StreamConfig,
    cache: CacheConfig,
    drawn: int,
    run: str,
    world: World,
    share: Share | None = None,
) -> CachedSource:
    """Decide where the shards of a stream lie on this node, and own that place.

    Every rank calls this for the same streams in the same order. `run` names the run in messages to
    others.
    """
    label = stream.label
    packed = any(shard.packed is not None for shard in index.shards)
    if stream.remote is None and not packed:
        return CachedSource(
            source=ShardSource(name=label, store=store, index=index, directory=None, drawn=drawn)
        )
    lock = need = None
    if world.local_rank == 0:
        lock = _own(store, index, stream=stream, cache=cache, run=run)
        need = _need(label, lock.directory, index, scan(lock.directory, index).kept_bytes)
    texts = (share or share_text)(str(lock.directory) if lock else "")
    directory = Path(texts[world.rank - world.local_rank])
    source = ShardSource(
        name=label, store=store, index=index, directory=directory, drawn=drawn, lock=lock
    )
    return CachedSource(source=source, requirement=need)


def _own(
    store: Store, index: StreamIndex, *, stream: StreamConfig, cache: CacheConfig, run: str
) -> CacheLock:
    if stream.remote is not None and stream.local is not None:
        below = store.location.removeprefix(stream.remote.rstrip("/")).strip("/")
        directory = node_root(Path(stream.local)) / below
        refuse_foreign(directory, index)
        return claim_directory(directory, run=run)
    root = node_root(Path(cache.dir) if cache.dir is not None else user_cache_dir())
    last = store.location.rpartition("/")[2]
    label = stream.label if last == stream.label else f"{stream.label}-{last}"
    return claim_free_directory(root / cache_name(label, store.location), run=run)


def _need(name: str, directory: Path, index: StreamIndex, present: int) -> CacheRequirement:
    return CacheRequirement(
        name=name,
        directory=directory,
        raw_bytes=sum(shard.raw.size for shard in index.shards),
        largest_shard_bytes=max(
            shard.raw.size + (shard.packed.size if shard.packed else 0) for shard in index.shards
        ),
        present_bytes=present,
    )
