"""Names of shared memory for one dataset. In: a number that only this job uses. Out: segments made
before they race.

The library looks for the first free number, from zero, in every process by itself.
`SharedMemoryNamesPatch` puts
ours in its place while a dataset is built: the node's first rank makes all segments, the others
find them. Holds no data.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import streaming.base.dataset
from streaming.base.constant import (
    BARRIER,
    CACHE_USAGE,
    EPOCH_DATA,
    EPOCH_SHAPE,
    LOCALS,
    NEXT_EPOCH,
    SHARD_ACCESS_TIMES,
    SHARD_STATES,
)
from streaming.base.shared import SharedMemory, _get_path
from torch import distributed

from stream_pretrain.data.node.job_directory import SHARED_MEMORY


class SharedMemoryNames:
    """The segments of one dataset, `prefix` in all their names."""

    def __init__(self, prefix: int, shards: int) -> None:
        self.prefix = prefix
        self._sizes = {
            LOCALS: 8,
            BARRIER: 3 * 4,
            NEXT_EPOCH: 8,
            CACHE_USAGE: 8,
            SHARD_STATES: shards,
            SHARD_ACCESS_TIMES: 8 * shards,
        }
        self._made: list[Any] = []

    def __getstate__(self) -> dict[str, Any]:
        return {"prefix": self.prefix, "_sizes": self._sizes, "_made": []}

    def register(
        self, streams_local: Sequence[str], streams_remote: Sequence[str | None], world: Any
    ) -> tuple[int, SharedMemory]:
        """In the place of the library's `get_shm_prefix`."""
        del streams_local, streams_remote
        if world.is_local_leader:
            self._made = [
                SharedMemory(_get_path(self.prefix, name), True, size)
                for name, size in self._sizes.items()
            ]
        if distributed.is_available() and distributed.is_initialized():
            distributed.barrier()
        if world.is_local_leader:
            return self.prefix, self._made[0]
        return self.prefix, SharedMemory(_get_path(self.prefix, LOCALS), False)

    def remove(self) -> None:
        """Unlink what this process made."""
        for segment in self._made:
            segment.cleanup()
        self._made = []

    def remove_work(self) -> None:
        """Unlink the order of an epoch that a killed worker left."""
        for name in (EPOCH_SHAPE, EPOCH_DATA):
            (SHARED_MEMORY / _get_path(self.prefix, name)).unlink(missing_ok=True)


class SharedMemoryNamesPatch:
    """While active, datasets are built with these names and keep their files in `directory`."""

    def __init__(self, names: SharedMemoryNames, directory: Path) -> None:
        self._library: Any = streaming.base.dataset
        self._names = names
        self._directory = directory

    def __enter__(self) -> None:
        self._get_shm_prefix = self._library.get_shm_prefix
        self._tempdir = tempfile.tempdir
        self._library.get_shm_prefix = self._names.register
        tempfile.tempdir = str(self._directory)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._library.get_shm_prefix = self._get_shm_prefix
        tempfile.tempdir = self._tempdir
