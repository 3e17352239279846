"""A wait that lasts -> a line in the log. In: a description of what is waited for. Out: warnings,
rarer as it lasts.

Does not end the wait.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger("stream_pretrain.data")


class SlowWaitLog:
    """Called while something is waited for; warns after `warn_after_s`, then after twice that, and
    so on.
    """

    def __init__(self, warn_after_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._next_s = warn_after_s

    @property
    def waited_s(self) -> float:
        """Seconds since this wait began."""
        return self._clock() - self._began

    def look(self, what: Callable[[], str]) -> None:
        """Warn if it is time to."""
        waited = self.waited_s
        if waited >= self._next_s:
            self._next_s *= 2
            log.warning("waiting for %s since %.0f s", what(), waited)


@contextmanager
def log_slow_wait(what: str, warn_after_s: float) -> Iterator[None]:
    """Warn, from a thread of its own, while the body runs for long."""
    done = threading.Event()
    watch = SlowWaitLog(warn_after_s)

    def look() -> None:
        while not done.wait(min(1.0, warn_after_s)):
            watch.look(lambda: what)

    thread = threading.Thread(target=look, name="watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
