"""Shards that arrive while samples are read. In: shard numbers. Out: shards on this node, each
fetched once.

Workers and ranks share the library's table of shard states. Whoever fetches a shard holds a lock,
so a killed fetcher leaves nothing behind, and whoever waits learns of a failure anywhere on the
node. Does not know which samples are wanted.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray
from streaming import StreamingDataset
from streaming.base.dataset import _ShardState

from stream_pretrain.data.fetching.shard_stream import ReadSettings, ShardStream
from stream_pretrain.data.node.barrier import TICK_S, NodeFailure
from stream_pretrain.data.node.slow_wait_log import SlowWaitLog
from stream_pretrain.errors import ShardError
from stream_pretrain.mds.index import Shard
from stream_pretrain.system.file_lock import file_lock, try_lock

CLAIM_CHECK_S = 1.0


class ShardFetchingDataset(StreamingDataset):
    """The half of a dataset that has shards brought here and makes room for them."""

    settings: ReadSettings
    _failures: NodeFailure
    _directory: Path
    _name: str
    _in_place: NDArray[np.bool_]

    def prepare_shard(self, shard_id: int, blocking: bool = True) -> None:
        """Have a shard here: fetch it, or wait for whoever does.

        One fetch a shard on the whole node.
        """
        watch = SlowWaitLog(self.settings.fetch.warn_after_s)
        while True:
            self._failures.check()
            with file_lock(self._lock_file):
                state = self._shard_states[shard_id]
                if state == _ShardState.LOCAL and self._raw_path(shard_id).exists():
                    return None
                claim = try_lock(self._claim_file(shard_id))
                if claim is not None:
                    self._make_room(shard_id)
                    self._shard_states[shard_id] = _ShardState.PREPARING
            if claim is not None:
                return self._bring(shard_id, claim)
            if not blocking:
                return None
            self._wait_for_another(shard_id, watch)

    def _prepare_ahead(self, shard_id: int) -> None:
        if self._shard_states[shard_id] != _ShardState.LOCAL:
            self.prepare_shard(shard_id, blocking=False)

    def _bring(self, shard_id: int, claim: int) -> None:
        """Fetch a shard that this process has claimed, and give the claim back."""
        state, grown = _ShardState.REMOTE, 0
        try:
            grown = self._stream(shard_id).bring(self._shard(shard_id))
            state = _ShardState.LOCAL
        except ShardError as error:
            raise self._fail(str(error)) from error
        except Exception as error:
            raise self._fail(f"{self._place(shard_id)}: {type(error).__name__}: {error}") from error
        finally:
            with file_lock(self._lock_file):
                self._shard_states[shard_id] = state
                self._shard_access_times[shard_id] = time.time_ns()
                self.cache_usage += grown
                self._claim_file(shard_id).unlink(missing_ok=True)
                os.close(claim)

    def _wait_for_another(self, shard_id: int, watch: SlowWaitLog) -> None:
        """Until another process has brought a shard, or for a second: then see whether it still
        lives.
        """
        longest = 1.5 * self.settings.fetch.deadline_s + 60
        look_again_s = watch.waited_s + CLAIM_CHECK_S
        while self._shard_states[shard_id] == _ShardState.PREPARING:
            self._failures.check()
            watch.look(lambda: f"shard {self._place(shard_id)}, which another worker fetches")
            if watch.waited_s > longest:
                raise self._fail(
                    f"{self._place(shard_id)}: another worker has been fetching it for "
                    f"{watch.waited_s:.0f} s. "
                    "Start the run again."
                )
            if watch.waited_s > look_again_s:
                return
            time.sleep(TICK_S)

    def _make_room(self, shard_id: int) -> None:
        """Evict the coldest fetched shards until one more fits. Call under the lock."""
        limit = self.settings.cache_limit
        if limit is None or self._in_place[shard_id]:
            return
        needed = self.shards[shard_id].get_max_size()
        while limit < self.cache_usage + needed:
            here = self._shard_states.numpy() == _ShardState.LOCAL
            candidates = np.flatnonzero(here & ~self._in_place)
            if not len(candidates):
                break
            times = self._shard_access_times.numpy()[candidates]
            self._evict_shard(int(candidates[np.argmin(times)]))

    def _fail(self, text: str) -> ShardError:
        """Tell the node and give the error to raise."""
        self._failures.record(text)
        return ShardError(text)

    def _stream(self, shard_id: int) -> ShardStream:
        return cast(ShardStream, self.streams[int(self.stream_per_shard[shard_id])])

    def _shard(self, shard_id: int) -> Shard:
        stream_id = int(self.stream_per_shard[shard_id])
        offset = int(self.shard_offset_per_stream[stream_id])
        return self._stream(shard_id).shard_list[shard_id - offset]

    def _place(self, shard_id: int) -> str:
        return self._stream(shard_id).store.url(self._shard(shard_id).fetched.name)

    def _raw_path(self, shard_id: int) -> Path:
        return self._stream(shard_id).directory / self._shard(shard_id).raw.name

    def _claim_file(self, shard_id: int) -> Path:
        """Locked by whoever fetches the shard, so that a killed fetcher leaves no claim behind."""
        return self._directory / f"{self._name}-fetch-{shard_id}"

    @property
    def _lock_file(self) -> Path:
        return self._directory / f"{self._name}-lock"
