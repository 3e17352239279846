"""A stream as the library is shown it. In: `ShardSource`. Out: `ShardStream`, whose shards come
from a checked index and arrive through the `Store`. Does not know the order.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from streaming import Stream
from streaming.base.format.base.reader import FileInfo
from streaming.base.format.mds.reader import MDSReader

from stream_pretrain.data.cache.cache_setup import ShardSource
from stream_pretrain.data.fetching.fetch_shard import FetchSettings, fetch_shard, verify_shard
from stream_pretrain.errors import ShardError
from stream_pretrain.mds.index import Shard, ShardFile


@dataclass(frozen=True, kw_only=True)
class ReadSettings:
    """How shards are fetched and rows are checked. None of it changes the order.

    `row_ids` is the length every row must have; longer ones are cut if `truncate`. `vocab_size`
    bounds ids. `ahead` samples are fetched before they are needed. `cache_limit` in bytes covers
    fetched shards only.
    """

    row_ids: int
    vocab_size: int | None = None
    truncate: bool = False
    cache_limit: int | None = None
    ahead: int = 256
    fetch: FetchSettings = field(default_factory=FetchSettings)


class ShardStream(Stream):
    """A source as the library sees it: shards from a checked index, fetched through the `Store`."""

    def __init__(self, source: ShardSource, settings: FetchSettings) -> None:
        super().__init__(local=str(source.raw_directory), choose=source.drawn, keep_zip=False)
        self.in_place = source.directory is None
        self.store = source.store
        self.directory = source.raw_directory
        self.shard_list = [replace(shard, entry={}) for shard in source.index.shards]
        self.rows = source.index.rows
        self.settings = settings

    def get_shards(self, world: Any, allow_unsafe_types: bool) -> list[Any]:
        """What the library keeps of each shard."""
        del world, allow_unsafe_types
        return [_reader(shard, str(self.directory)) for shard in self.shard_list]

    def get_index_size(self) -> int:
        """The index is no part of the limited cache."""
        return 0

    def set_up_local(self, shards: Any, cache_usage_per_shard: NDArray[np.int64]) -> None:
        """Count what is here with the right size. Deletes nothing; what must be verified first
        counts as absent.
        """
        del shards
        if self.in_place or self.settings.verify == "full":
            return
        for place, shard in enumerate(self.shard_list):
            path = self.directory / shard.raw.name
            if path.is_file() and path.stat().st_size == shard.raw.size:
                cache_usage_per_shard[place] = shard.raw.size

    def bring(self, shard: Shard) -> int:
        """Have a verified raw file here; the bytes by which the cache grew.

        `ShardError` when that cannot be.
        """
        path = self.directory / shard.raw.name
        place = str(path) if self.in_place else self.store.url(shard.fetched.name)
        if path.is_file():
            fault = verify_shard(shard, path, self.settings, place)
            if fault is None:
                return 0 if self.in_place else shard.raw.size
            if self.in_place:
                raise ShardError(f"{fault}. Run: convert-mds verify {self.store.location}")
            path.unlink(missing_ok=True)
        elif self.in_place:
            raise ShardError(f"{place}: is missing, index.json lists it. Restore the file.")
        fetch_shard(shard, self.store, self.directory, self.settings)
        return shard.raw.size


def _reader(shard: Shard, directory: str) -> MDSReader:
    def info(file: ShardFile) -> FileInfo:
        return FileInfo(file.name, file.size, dict(file.hashes))

    return MDSReader(
        directory,
        "",
        [],
        [],
        [],
        shard.compression,
        [],
        info(shard.raw),
        shard.samples,
        None,
        None if shard.packed is None else info(shard.packed),
    )
