"""Shards ahead of the reader. In: the sample ids of a worker. Out: shards on this machine, in time.
Yields nothing.

One thread walks the ids a little ahead of the reader and has missing shards fetched. The reader
does not depend on it: what is not here when it is needed, the reader fetches or waits for itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

BLOCK = 4096
POLL_S = 0.01


class Prefetch:
    """`prepare(shard)` is called for the shards of `ids` up to `ahead` samples before `place`."""

    def __init__(
        self,
        ids: NDArray[np.int64],
        last_sample_of_shard: NDArray[np.int64],
        prepare: Callable[[int], None],
        ahead: int,
    ) -> None:
        self.place = 0
        self.error: BaseException | None = None
        self._ids = ids
        self._last = last_sample_of_shard
        self._prepare = prepare
        self._ahead = ahead
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="prefetch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end; it does so after the shard in hand."""
        self._stopped.set()

    def _run(self) -> None:
        try:
            for first in range(0, len(self._ids), BLOCK):
                shards = np.searchsorted(self._last, self._ids[first : first + BLOCK], "left")
                for place, (sample, shard) in enumerate(
                    zip(self._ids[first : first + BLOCK], shards, strict=True), first
                ):
                    if sample < 0:
                        continue
                    while place - self.place > self._ahead:
                        if self._stopped.wait(POLL_S):
                            return
                    if self._stopped.is_set():
                        return
                    self._prepare(int(shard))
        except BaseException as error:
            self.error = error
