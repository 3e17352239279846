"""Shards -> rows, or a prompt error. In: sources and an `Order`. Out: `ShardDataset` of (sample id,
row).

The order is the library's; how shards get here is not. In the library a shard that cannot be
fetched ends the epoch early or hangs it; here each worker yields exactly the ids that it was given,
and whoever waits learns of a failure anywhere on the node. Everything at module level pickles,
because workers come from a fork server: a bucket's client does not survive a fork.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from streaming.base.dataset import _ShardState

from stream_pretrain.data.cache.cache_setup import ShardSource
from stream_pretrain.data.fetching.prefetch import Prefetch
from stream_pretrain.data.fetching.shard_fetching import ShardFetchingDataset
from stream_pretrain.data.fetching.shard_stream import ReadSettings, ShardStream
from stream_pretrain.data.node.barrier import FileBarrier, NodeFailure
from stream_pretrain.data.node.job_directory import JobDirectory, open_job_directory
from stream_pretrain.data.node.shm_names import SharedMemoryNames, SharedMemoryNamesPatch
from stream_pretrain.data.reading.shard_files import ShardFiles
from stream_pretrain.data.sample_order.sampling import quick_sampling
from stream_pretrain.data.sample_order.stratified_batching import whole_steps
from stream_pretrain.errors import ConfigError
from stream_pretrain.mds.row_format import RowFormat
from stream_pretrain.order import Order
from stream_pretrain.schema import World

EVICTION_TRIES = 8
LOOK_EVERY_SAMPLES = 16
OPEN_SHARDS = 64
OPEN_SHARDS_WITH_LIMIT = 4
Row = tuple[int, NDArray[Any]]
_LOCAL = int(_ShardState.LOCAL)


class ShardDataset(ShardFetchingDataset):
    """Items are (sample id, writable 1-D row).

    What goes wrong is raised where it is noticed first, and everywhere.
    """

    def __init__(
        self,
        sources: Sequence[ShardSource],
        order: Order,
        settings: ReadSettings,
        *,
        batch_size: int,
        job: JobDirectory,
    ) -> None:
        self.settings = settings
        prefix = job.next_prefix()
        self._shared_names = SharedMemoryNames(prefix, sum(len(s.index.shards) for s in sources))
        with SharedMemoryNamesPatch(self._shared_names, job.directory):
            super().__init__(
                streams=[ShardStream(source, settings.fetch) for source in sources],
                batch_size=batch_size,
                predownload=settings.ahead,
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
        self._job = job
        self._locks = [source.lock for source in sources if source.lock is not None]
        self._directory = job.directory
        self._name = str(prefix)
        self._failures = NodeFailure(job.directory, self._name)
        self._shared_barrier: Any = FileBarrier(
            job.directory, self._name, self._failures, settings.fetch.warn_after_s
        )
        self._global_batch = order.global_batch
        self._openings = 0
        # What every sample needs of its shard; looking it up costs more than reading the sample.
        self._known: dict[int, tuple[Path, int, RowFormat]] = {}
        self._files = ShardFiles(OPEN_SHARDS_WITH_LIMIT if settings.cache_limit else OPEN_SHARDS)
        self._last_samples = np.cumsum(self.samples_per_shard) - 1
        self._in_place = np.array([self._stream(n).in_place for n in range(self.num_shards)])

    def __getstate__(self) -> dict[str, Any]:
        """Without what belongs to this process alone."""
        kept = {key: value for key, value in self.__dict__.items() if key != "_job"}
        return {**kept, "_locks": []}

    def failure(self) -> str | None:
        """What failed first on this node, in its own words and without a worker's traceback."""
        return self._failures.text()

    def close(self) -> None:
        """Give back segments and files. The dataset cannot be used afterwards."""
        self._files.close()
        self._shared_names.remove()
        for lock in self._locks:
            lock.close()

    def __iter__(self) -> Iterator[Any]:
        """Exactly the samples of this worker's part of the epoch; anything else is an error."""
        self._failures.check()
        ids = self._open_epoch()
        prefetch = Prefetch(ids, self._last_samples, self._prepare_ahead, self.settings.ahead)
        try:
            for place, sample_id in enumerate(ids):
                prefetch.place = place
                if prefetch.error is not None:
                    raise prefetch.error
                if place % LOOK_EVERY_SAMPLES == 0:
                    self._failures.check()
                if sample_id >= 0:
                    yield self.get_item(int(sample_id))
        finally:
            prefetch.stop()

    def get_item(self, sample_id: int, retry: int = EVICTION_TRIES) -> Row:
        """Sample `sample_id` of the joined streams; fetches its shard if it is not here."""
        shard_id, row = self.spanner[sample_id]
        for _ in range(retry):
            try:
                sample = self._read(shard_id, row)
            except FileNotFoundError:
                self._files.forget(shard_id)
                self.prepare_shard(shard_id)
                continue
            if self.settings.cache_limit:
                self._shard_access_times[shard_id] = time.time_ns()
            return sample_id, sample
        raise self._fail(
            f"{self._place(shard_id)}: was removed from the cache {retry} times before a sample "
            f"could be read. "
            "Raise data.cache.limit."
        )

    def load_state_dict(self, obj: dict[str, Any]) -> None:
        """Begin the next iteration at this position. Called by every rank, equally often."""
        self._openings += 1
        text = json.dumps({**obj, "opening": self._openings})
        draft = self._state_file.with_suffix(".draft")
        draft.write_text(text)
        draft.replace(self._state_file)

    def _resume(self, world: Any, epoch: int) -> tuple[int, int]:
        """The position that was loaded, unless that epoch is over; the library's rule."""
        del world
        state = self._loaded_state()
        if state is None or state["epoch"] < epoch:
            return epoch, 0
        self.num_canonical_nodes = state["num_canonical_nodes"]
        self.shuffle_seed = state["shuffle_seed"]
        self.initial_physical_nodes = state.get("initial_physical_nodes")
        return int(state["epoch"]), int(state["sample_in_epoch"])

    def _loaded_state(self) -> dict[str, Any] | None:
        try:
            state: dict[str, Any] = json.loads(self._state_file.read_text())
        except FileNotFoundError:
            return None
        return state

    def _open_epoch(self) -> NDArray[np.int64]:
        """This worker's ids of the epoch, -1 where the library pads.

        All workers of the node meet here.
        """
        self._unique_worker_world = self._unique_rank_world.detect_workers()
        self._parallel_worker_world = self._parallel_rank_world.detect_workers()
        opening = (self._loaded_state() or {}).get("opening", 0)
        me = self._unique_worker_world.worker_of_node
        self._shared_barrier.begin(f"{opening}.{self.next_epoch}", me)
        try:
            epoch, sample_in_epoch = self._resume_incr_epoch()
            with quick_sampling(), whole_steps(self._global_batch):
                ids: NDArray[np.int64] = self._get_work(epoch, sample_in_epoch)
        except Exception as error:
            self._failures.record(f"worker {me} could not open the epoch: {error}")
            raise
        return ids

    def _share_work(self, sample_ids: NDArray[np.int64]) -> Any:
        """As the library does; what a worker killed at the last opening left is removed first."""
        self._shared_names.remove_work()
        return super()._share_work(sample_ids)

    def _read(self, shard_id: int, row: int) -> NDArray[Any]:
        if self._shard_states[shard_id] != _LOCAL:
            raise FileNotFoundError
        known = self._known.get(shard_id)
        if known is None:
            shard, rows = self._shard(shard_id), self._stream(shard_id).rows
            known = self._known[shard_id] = (self._raw_path(shard_id), shard.samples, rows)
        path, samples, rows = known
        try:
            return self._checked(rows.decode(self._files.sample(shard_id, path, samples, row)))
        except ValueError as error:
            remedy = "Remove it from the cache or write it again."
            raise self._fail(
                f"{self._place(shard_id)}: sample {row} of {path}: {error}. {remedy}"
            ) from error

    def _checked(self, ids: NDArray[Any]) -> NDArray[Any]:
        """A row of the right length with ids of the vocabulary. ValueError for any other."""
        wanted, vocab = self.settings.row_ids, self.settings.vocab_size
        if len(ids) > wanted and self.settings.truncate:
            ids = ids[:wanted].copy()
        if len(ids) != wanted:
            raise ValueError(f"it holds {len(ids):,} ids, {wanted:,} are needed")
        signed = ids.dtype.kind == "i"
        if vocab is not None and (ids.max() >= vocab or (signed and ids.min() < 0)):
            worst = int(ids.max() if ids.max() >= vocab else ids.min())
            raise ValueError(f"id {worst:,} is outside the vocabulary of {vocab:,}")
        return ids

    @property
    def _state_file(self) -> Path:
        return self._directory / f"{self._name}-state-{self._unique_rank_world.rank}"


def open_dataset(
    sources: Sequence[ShardSource],
    *,
    order: Order,
    batch_size: int,
    settings: ReadSettings,
    job: JobDirectory | None = None,
) -> ShardDataset:
    """The dataset of all sources in the order given, nothing left for the library to derive.

    All ranks of a node must call this for the same datasets in the same order.
    """
    places = [source.raw_directory for source in sources]
    twins = {str(place) for place in places if places.count(place) > 1}
    if twins:
        raise ConfigError(
            f"data: {', '.join(sorted(twins))} is used by two streams. List it once, with a "
            f"weight or repeat."
        )
    job = job or _own_job()
    return ShardDataset(sources, order, settings, batch_size=batch_size, job=job)


_jobs: dict[int, JobDirectory] = {}


def _own_job() -> JobDirectory:
    """The job of this process, opened when the first dataset is."""
    if os.getpid() not in _jobs:
        _jobs[os.getpid()] = open_job_directory(environment_world())
    return _jobs[os.getpid()]


def environment_world() -> World:
    """Who this process is, from the variables that the library reads too."""
    read = os.environ.get
    return World(
        rank=int(read("RANK", "0")),
        world_size=int(read("WORLD_SIZE", "1")),
        local_rank=int(read("LOCAL_RANK", "0")),
        local_world_size=int(read("LOCAL_WORLD_SIZE", "1")),
    )
