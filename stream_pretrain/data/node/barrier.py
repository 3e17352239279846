"""Workers of a node that wait for one another. In: a directory they share. Out: a barrier, and the
first failure.

Files instead of counters in shared memory: a worker that was killed in the middle leaves nothing
that misleads the next epoch, a failure reaches everyone who waits, and the wait can say who is
missing. Does not start processes.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from stream_pretrain.data.node.slow_wait_log import SlowWaitLog
from stream_pretrain.errors import ShardError

TICK_S = 0.003


class NodeFailure:
    """The first failure of a dataset on this node, for everyone to see."""

    def __init__(self, directory: Path, name: str) -> None:
        self._file = directory / f"{name}-failure"

    def record(self, text: str) -> None:
        """Keep `text` unless something failed before."""
        draft = self._file.with_name(f"{self._file.name}-{os.getpid()}-{time.monotonic_ns()}")
        try:
            draft.write_text(text)
            os.link(draft, self._file)
        except OSError:
            pass  # another was first, or the job directory is gone: then nobody waits
        finally:
            draft.unlink(missing_ok=True)

    def text(self) -> str | None:
        """The recorded failure, if there is one."""
        return self._file.read_text() if self._file.exists() else None

    def check(self) -> None:
        """Raise the recorded failure, if there is one."""
        text = self.text()
        if text is not None:
            raise ShardError(text)

    def clear(self) -> None:
        """Forget it."""
        self._file.unlink(missing_ok=True)


class FileBarrier:
    """All workers of a node arrive before any goes on.

    `lock` exists because the library looks for it. `begin` names what is opened; each call after it
    is one meeting.
    """

    def __init__(
        self, directory: Path, name: str, failures: NodeFailure, warn_after_s: float
    ) -> None:
        self.lock = None
        self._stem = directory / f"{name}-barrier"
        self._failures = failures
        self._warn_after_s = warn_after_s
        self._key = ""
        self._worker = 0
        self._meetings = 0

    def begin(self, key: str, worker: int) -> None:
        """Meetings from here on belong to `key`, which all workers of the node name alike."""
        if worker == 0 and key != self._key:
            self._forget_older_than(key)
        self._key, self._worker, self._meetings = key, worker, 0

    def __call__(self, workers: int) -> None:
        """Wait for `workers` workers. Raises what any of them recorded as a failure."""
        self._meetings += 1
        if workers == 1:
            return
        self._mark(self._worker).touch()
        missing = set(range(workers))
        watch = SlowWaitLog(self._warn_after_s)
        while missing := {worker for worker in missing if not self._mark(worker).exists()}:
            self._failures.check()
            absent = sorted(missing)
            watch.look(lambda absent=absent: f"workers {absent} of {workers} to open an epoch")  # type: ignore[misc]
            time.sleep(TICK_S)

    def _mark(self, worker: int) -> Path:
        return self._stem.with_name(f"{self._stem.name}-{self._key}-{self._meetings}-{worker}")

    def _forget_older_than(self, key: str) -> None:
        """Remove marks of openings before the last one; someone may still look at those of the
        last.
        """
        for mark in self._stem.parent.glob(f"{self._stem.name}-*"):
            if not mark.name.startswith(
                (f"{self._stem.name}-{key}-", f"{self._stem.name}-{self._key}-")
            ):
                try:
                    old = time.time() - mark.stat().st_mtime > 600
                except FileNotFoundError:
                    continue
                if old:
                    mark.unlink(missing_ok=True)
