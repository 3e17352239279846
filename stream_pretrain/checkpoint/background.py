"""One piece of work behind the loop. In: a function. Out: its error, in the foreground. Never two
at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Background:
    """Runs at most one function at a time in a thread; a newer one waits for the older."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def start(self, work: Callable[[], None]) -> None:
        """Start `work`; whatever ran before must have been finished."""
        assert self._thread is None, "the work before must be finished first"
        self._thread = threading.Thread(
            target=self._run, args=(work,), name="checkpoint", daemon=True
        )
        self._thread.start()

    def finish(self) -> Exception | None:
        """Wait for the work under way; its error, once."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        return error

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # raised in the foreground by whoever calls `finish`
            self._error = error
